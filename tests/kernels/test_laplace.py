"""A client's marginal likelihood against dense quadrature, closed forms and finite differences."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from covey.kernels import linear_gaussian
from covey.kernels.laplace import (
    differentiated,
    draw_effects,
    jet,
    log_marginal,
    mode,
    randomness,
    through_predictor,
)
from covey.kernels.positive_definite import inverse, log_det
from covey.kernels.precision import in_double


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(8, 2))
BINARY = np.array([1, 0, 1, 1, 1, 0, 1, 1])
COUNTS = np.array([3, 0, 7, 12, 1, 0, 4, 2])
THETA = np.array([0.4, -0.7, 0.3])


def logistic(theta, b):
    """Random intercept with standard deviation exp(theta_2)."""
    predictor = X @ theta[:2] + jnp.exp(theta[2]) * b[0]
    return jnp.sum(BINARY * predictor - jax.nn.softplus(predictor))


def poisson(theta, b):
    """Random intercept and slope, correlated."""
    root = jnp.array([[1.0, 0.0], [theta[1], 0.5]]) * jnp.exp(theta[2])
    z = root @ b
    predictor = theta[0] + z[0] + z[1] * X[:, 0]
    return jnp.sum(COUNTS * predictor - jnp.exp(predictor))


def dense(log_likelihood, theta, effects):
    """The integral by brute force, on a fine grid out to eight standard deviations."""
    line = np.linspace(-8, 8, 801 if effects == 1 else 201)
    grid = np.stack(np.meshgrid(*[line] * effects, indexing="ij"), -1).reshape(-1, effects)
    at = jax.jit(jax.vmap(lambda b: log_likelihood(jnp.asarray(theta), b)))
    values = np.asarray(at(jnp.asarray(grid)))
    normal = -np.sum(grid**2, axis=1) / 2 - effects * np.log(2 * np.pi) / 2
    return logsumexp(values + normal) + effects * np.log(line[1] - line[0])


@partial(jax.jit, static_argnums=(0, 2, 3))
def value(log_likelihood, theta, effects, nodes):
    given = differentiated(lambda b: log_likelihood(jnp.asarray(theta), b))
    return log_marginal(given, mode(given, jnp.zeros(effects)), nodes=nodes)


@pytest.mark.parametrize(
    ("log_likelihood", "effects", "errors"),
    [(logistic, 1, {1: 0.03, 5: 2e-4, 9: 1e-5}), (poisson, 2, {1: 0.03, 7: 1e-5})],
)
def test_quadrature_reaches_the_integral(log_likelihood, effects, errors):
    exact, before = dense(log_likelihood, THETA, effects), np.inf
    for nodes, bound in errors.items():
        error = abs(float(value(log_likelihood, THETA, effects, nodes)) - exact)
        assert error < min(bound, before)
        before = error
    assert abs(float(value(log_likelihood, THETA, effects, 1)) - exact) > 1e-4  # Laplace is not it


@pytest.mark.parametrize(
    ("log_likelihood", "effects", "nodes"),
    [
        (logistic, 1, 1),
        pytest.param(poisson, 2, 3, marks=pytest.mark.slow),
        pytest.param(logistic, 1, 3, marks=pytest.mark.slow),
        pytest.param(poisson, 2, 1, marks=pytest.mark.slow),
    ],
)
def test_derivatives(log_likelihood, effects, nodes):
    def given(theta):
        return differentiated(lambda b: log_likelihood(theta, b))

    def fixed(theta):
        centre = mode(given(jnp.asarray(THETA)), jnp.zeros(effects))
        return log_marginal(given(theta), centre, nodes=nodes)

    found = jax.jit(lambda theta: jet(fixed, theta))(jnp.asarray(THETA))
    at = jax.jit(lambda theta: value(log_likelihood, theta, effects, nodes))
    step = 1e-4

    def shifted(*moves):
        return float(at(jnp.asarray(THETA + step * sum(moves))))

    unit = np.eye(3)
    gradient = [(shifted(e) - shifted(-e)) / (2 * step) for e in unit]
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-6, atol=1e-6)
    hessian = [
        [
            (shifted(e, f) - shifted(e, -f) - shifted(-e, f) + shifted(-e, -f)) / (4 * step**2)
            for f in unit
        ]
        for e in unit
    ]
    np.testing.assert_allclose(found.hessian, hessian, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_rows_with_a_linear_predictor():
    """Values and derivatives by theta are those of the same likelihood as any function; rows that
    the mask hides do not count.
    """
    x, design = jnp.asarray(RANDOM.normal(size=(9, 2))), jnp.asarray(RANDOM.normal(size=(9, 2)))
    y, mask = jnp.asarray(RANDOM.poisson(2.0, size=9).astype(float)), jnp.arange(9) < 7

    def terms(predictor):
        return y * predictor - jnp.exp(predictor)

    def by_predictor(theta):
        return through_predictor(terms, x @ theta, theta[0] * design, mask)

    def by_function(theta):
        return differentiated(lambda b: jnp.sum(terms(x @ theta + theta[0] * design @ b) * mask))

    theta = jnp.array([0.4, -0.3])
    found = []
    for given in (by_predictor, by_function):
        centre = mode(given(theta), jnp.zeros(2))

        def value(at, given=given, centre=centre):
            return log_marginal(given(at), centre, nodes=3)

        found.append(jax.jit(lambda at, value=value: jet(value, at))(theta))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_a_mode_far_from_zero():
    """Counts in the thousands: Newton's method from zero overshoots and comes back."""
    counts = np.array([4000.0, 5500.0])

    def log_likelihood(b):
        return jnp.sum(counts * 2 * b[0] - jnp.exp(2 * b[0]))

    at = mode(differentiated(log_likelihood), jnp.zeros(1))
    np.testing.assert_allclose(at[0], np.log(4750) / 2, atol=1e-3)
    assert abs(float(jax.grad(lambda b: log_likelihood(b) - b @ b / 2)(at)[0])) < 1e-2


def test_a_mode_from_where_the_density_overflows():
    """Counts with a deviation of 3,000 of the logarithm, from the mode at a deviation of 1."""
    with jax.enable_x64(True):
        counts = jnp.array([2.0, 0.0, 3.0, 1.0])

        def poisson(b):
            return jnp.sum(3000 * b[0] * counts - jnp.exp(3000 * b[0]))

        found = mode(differentiated(poisson), jnp.ones(1))
        np.testing.assert_allclose(3000 * found, np.log(1.5), rtol=1e-5)


def test_a_gaussian_likelihood_is_integrated_exactly():
    x, z = RANDOM.normal(size=(6, 2)), RANDOM.normal(size=(6, 2))
    y, beta, scale = RANDOM.normal(size=6), np.array([0.5, -1.0]), 0.7
    root = np.array([[0.8, 0.0], [-0.3, 0.4]])
    covariance = scale**2 * np.eye(6) + z @ root @ root.T @ z.T
    exact = multivariate_normal(x @ beta, covariance).logpdf(y)

    def log_likelihood(theta, b):
        mean = x @ theta + z @ root @ b
        return jnp.sum(jax.scipy.stats.norm.logpdf(y, mean, scale))

    np.testing.assert_allclose(value(log_likelihood, beta, 2, 1), exact, rtol=1e-12)
    reference = np.array([0.1, 0.2])
    rows = jnp.concatenate([x, 9 + 0 * x]), jnp.concatenate([z, 9 + 0 * z])
    residual, mask = jnp.append(y - x @ reference, jnp.full(6, 7.0)), jnp.arange(12) < 6
    of = linear_gaussian.cross_products(*rows, residual, mask)
    arguments = (jnp.asarray(beta - reference), jnp.asarray(root), jnp.log(scale))
    np.testing.assert_allclose(linear_gaussian.log_likelihood(of, *arguments), exact, rtol=1e-12)
    information = x.T @ np.linalg.solve(covariance, x)
    np.testing.assert_allclose(
        linear_gaussian.information(of, *arguments[1:]), information, rtol=1e-10
    )
    none = linear_gaussian.cross_products(rows[0], jnp.zeros((12, 0)), residual, mask)
    alone = multivariate_normal(x @ beta, scale**2 * np.eye(6)).logpdf(y)
    found = linear_gaussian.log_likelihood(none, arguments[0], jnp.zeros((0, 0)), arguments[2])
    np.testing.assert_allclose(found, alone, rtol=1e-12)


@pytest.mark.parametrize("unit", [1e-17, 1.0, 1e15])
def test_cross_products_that_are_kept_lose_little(unit):
    """In any units, after they were stored in single precision: 1e-13, not 1e-7, is lost."""
    random = np.random.default_rng(4)
    x, z = unit * (random.normal(size=(50, 2)) + 3), random.normal(size=(50, 1))
    rows, mask = tuple(map(jnp.asarray, (x, z, random.normal(size=50)))), jnp.ones(50, bool)
    of = linear_gaussian.cross_products(*rows, mask)
    stored = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), linear_gaussian.kept(of))
    back = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), stored)
    again = linear_gaussian.recalled(back, 2)
    for one, other in zip(again, of, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13 * float(jnp.max(abs(other))))
    none = linear_gaussian.kept(linear_gaussian.cross_products(*rows, ~mask))
    assert all(np.all(np.isfinite(leaf)) for leaf in none)
    assert float(linear_gaussian.recalled(none, 2).rr) == 0


@pytest.mark.parametrize("size", [1, 2, 3])
def test_small_matrices_have_their_inverse_and_determinant(size):
    root = np.random.default_rng(5).normal(size=(size, size))
    matrix = jnp.asarray(root @ root.T + 0.1 * np.eye(size))
    np.testing.assert_allclose(inverse(matrix), np.linalg.inv(matrix), rtol=1e-9)
    np.testing.assert_allclose(log_det(matrix), np.linalg.slogdet(matrix)[1], rtol=1e-9, atol=1e-12)
    change = jax.grad(log_det)(matrix)
    np.testing.assert_allclose(change, np.linalg.inv(matrix), rtol=1e-9)
    assert np.isnan(inverse(-matrix)).any()
    assert np.isnan(log_det(-matrix))


def test_draws_of_effects_have_their_conditional_law():
    """A skewed law: one success and no failure, known by quadrature."""

    def log_likelihood(b):
        return jax.nn.log_sigmoid(4 * b[0])

    given = differentiated(log_likelihood)
    line = np.linspace(-8, 8, 4001)
    density = np.exp(-(line**2) / 2) / (1 + np.exp(-4 * line))
    density /= density.sum()
    mean = density @ line
    sd = np.sqrt(density @ (line - mean) ** 2)
    count = 4000
    random = randomness(jax.random.key(0), count, 1)
    drawn = jax.jit(jax.vmap(lambda one: draw_effects(one, given, jnp.zeros(1))))(random)
    drawn = np.asarray(drawn)[:, 0]
    assert abs(drawn.mean() - mean) < 4 * sd / np.sqrt(count)
    # Four standard errors of a share of about one half.
    assert abs(np.mean(drawn < mean) - density[line < mean].sum()) < 4 * 0.5 / np.sqrt(count)
    skew = density @ ((line - mean) / sd) ** 3
    assert abs(np.mean(((drawn - mean) / sd) ** 3) - skew) < 4 * np.sqrt(15 / count)


def test_double_precision_inside_single():
    """Under vmap, jit, branches and loops, the sum of a large number and a small one survives."""
    with jax.enable_x64(False):
        large = jnp.full(3, 1e8, jnp.float32)

        def difference(x, flag):
            def once(x):
                return jax.lax.fori_loop(0, 3, lambda _, total: total + 0.25, x) - x

            return jax.lax.cond(flag, once, lambda x: 0 * x, x)

        found = jax.jit(jax.vmap(in_double(difference), in_axes=(0, None)))(large, jnp.bool_(True))
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, np.full(3, 0.75))
