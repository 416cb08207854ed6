"""The recursion for Sigma^-1 (theta_0 - mean) against solving with the matrix, in both precisions
and however long it goes on.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from covey.kernels import shrinkage

SIZES, MOST = (1, 40, 500), 50


@jax.jit
def recursive(displacements, count, rho):
    """The delta of the first `count` samples; the rest is never looked at."""
    start = shrinkage.no_samples(MOST, displacements.shape[1], displacements.dtype)
    known = jax.lax.fori_loop(
        0, count, lambda at, known: shrinkage.add(known, displacements[at], rho), start
    )
    return shrinkage.delta(known, shrinkage.given(rho, known.count, displacements.dtype))


def dense(displacements, rho):
    count, size = displacements.shape
    level = 1 / (1 + (count - 1) * rho)
    covariance = np.cov(displacements.T, ddof=1).reshape(size, size) if count > 1 else np.eye(size)
    return np.linalg.solve(level * np.eye(size) + (1 - level) * covariance, -displacements.mean(0))


def drawn(seed, count, size, spread):
    """Samples some deviations away from theta_0, along axes of unequal length."""
    rng = np.random.default_rng(seed)
    centre = rng.choice([-3.0, 3.0], size)
    return spread * (centre + rng.normal(size=(count, size)) * rng.uniform(0.3, 1.0, size))


@pytest.mark.slow
@settings(max_examples=20, deadline=None, derandomize=True)
@example(seed=0, size=500, count=50, power=1.0, spread=1.0)
@example(seed=0, size=40, count=50, power=1.0, spread=1.0)
@example(seed=0, size=40, count=50, power=1.0, spread=5.0)  # the recursion alone loses digits here
@example(seed=0, size=500, count=50, power=-4.0, spread=1.0)
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from(SIZES),
    count=st.integers(1, MOST),
    power=st.floats(-4.0, 1.0),
    spread=st.sampled_from([0.01, 0.1, 1.0]),
)
def test_the_recursion_solves_what_the_matrix_solves(seed, size, count, power, spread):
    rho = 10.0**power
    for dtype, bound in ((np.float32, 1e-5), (np.float64, 1e-12)):
        with jax.enable_x64(dtype == np.float64):
            displacements = drawn(seed, count, size, spread).astype(dtype)
            room = np.full((MOST, size), np.nan, dtype)
            room[:count] = displacements
            found = np.asarray(recursive(room, count, dtype(rho)))
            assert found.dtype == dtype
        expected = dense(displacements.astype(np.float64), float(dtype(rho)))
        assert np.linalg.norm(found - expected) <= bound * np.linalg.norm(expected)


def test_no_matrix_of_the_size_of_the_covariance_is_formed():
    size, count = 1000, 7
    program = jax.make_jaxpr(
        lambda x: shrinkage.delta(shrinkage.added(x, 0.1), shrinkage.given(0.1, count))
    )(jnp.zeros((count, size)))
    sizes = []

    def visit(jaxpr):
        for equation in jaxpr.eqns:
            sizes.extend(variable.aval.size for variable in equation.outvars)
            for inner in jax.tree.leaves(
                equation.params,
                is_leaf=lambda leaf: hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr"),
            ):
                if hasattr(inner, "jaxpr"):
                    visit(inner.jaxpr)

    visit(program.jaxpr)
    assert max(sizes) == count * size
    assert len(sizes) > 30  # the loops were looked into


@pytest.mark.parametrize("count", [1, 4])
def test_without_shrinkage_from_the_identity_it_is_the_mean(count):
    """rho = 0 is FedAvg of the mean sample; one sample is FedAvg whatever rho, to the last bit."""
    x = drawn(1, count, 5, 1.0).astype(np.float32)
    known = shrinkage.added(jnp.asarray(x), 0.0)
    np.testing.assert_allclose(
        shrinkage.delta(known, shrinkage.given(0.0, count)), -x.mean(0), rtol=1e-6
    )
    alone = shrinkage.added(jnp.asarray(x[:1]), 7.0)
    np.testing.assert_array_equal(shrinkage.delta(alone, shrinkage.given(7.0, 1)), -x[0])


SHARES = {  # Chen et al. (2010), equations 23 and 17: b and c for n samples and d parameters
    "oas": lambda n, d: (1 - 2 / d, n + 1 - 2 / d),
    "rblw": lambda n, d: ((n - 2) / n, n + 2),
}


@pytest.mark.parametrize("size", [4, 9])
@pytest.mark.parametrize("rho", [0.3, "oas"])
def test_both_solvers_and_the_largest_precision(rho, size):
    """Six samples of nine parameters leave directions without any, of four they do not."""
    with jax.enable_x64(True):
        x = jnp.asarray(drawn(2, 6, size, 0.2))

        @jax.jit
        def all_of(x):
            level = shrinkage.oas(x) if rho == "oas" else shrinkage.given(rho, 6)
            known = shrinkage.added(x, level.rho)
            deltas = shrinkage.delta(known, level), shrinkage.dense_delta(x, level)
            largest = shrinkage.largest_precision(known, level)
            return largest, *deltas, shrinkage.dense_covariance(x, level)

        largest, delta, dense_delta, covariance = all_of(x)
        np.testing.assert_allclose(largest, 1 / np.linalg.eigvalsh(covariance)[0], rtol=1e-10)
        np.testing.assert_allclose(delta, dense_delta, rtol=1e-10)
        if rho != "oas":
            np.testing.assert_allclose(delta, dense(np.asarray(x), rho), rtol=1e-10)


@pytest.mark.parametrize("size", [1, 4, 300])
@pytest.mark.parametrize("rule", ["oas", "rblw"])
def test_shrinkage_that_is_chosen_from_the_samples(rule, size):
    with jax.enable_x64(True):
        x = drawn(4, 12, size, 0.05)
        s = np.cov(x.T).reshape(size, size)
        square, trace = np.trace(s @ s), np.trace(s)
        above, below = SHARES[rule](12, size)
        excess = square - trace**2 / size
        share = 1.0 if size == 1 else min(1.0, (above * square + trace**2) / (below * excess))
        expected = share * trace / size * np.eye(size) + (1 - share) * s
        chosen = shrinkage.CHOSEN[rule](jnp.asarray(x))
        found = shrinkage.dense_covariance(jnp.asarray(x), chosen)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        assert share == 1 or size > 1


def test_chosen_shrinkage_is_nearer_to_the_covariance_than_the_samples_are():
    """The mean of ||Sigma - C||^2 over that of S, for ten samples of an AR(1) covariance C in 20
    dimensions, the first example of Chen et al.
    """
    size, count = 20, 10
    truth = 0.5 ** np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
    x = np.random.default_rng(5).normal(size=(200, count, size)) @ np.linalg.cholesky(truth).T

    def losses(rule):
        found = jax.vmap(lambda x: shrinkage.dense_covariance(x, rule(x)))(jnp.asarray(x))
        return np.sum((np.asarray(found) - truth) ** 2, (1, 2)).mean()

    plain = np.mean([np.sum((np.cov(one.T) - truth) ** 2) for one in x])
    shares = {name: losses(rule) / plain for name, rule in shrinkage.CHOSEN.items()}
    assert max(shares.values()) < 0.27, shares  # 0.231 and 0.249, known to 0.004


def test_samples_that_are_all_the_same_have_no_shrinkage_of_their_own():
    x = jnp.ones((3, 4))
    level = shrinkage.oas(x)
    assert not np.all(np.isfinite(shrinkage.delta(shrinkage.added(x, level.rho), level)))
