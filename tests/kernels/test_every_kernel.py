"""Every kernel of KERNELS against laws that are known: a Gaussian posterior, badly scaled and
correlated, and a skew one.

With Gaussian rows even minibatch kernels are linear in z, so that what a chain samples, bias and
all, solves a linear equation.
"""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.core.shard import Shard
from covey.kernels import (
    KERNELS,
    Kernel,
    hmc,
    independence,
    mala,
    nuts,
    ornstein_uhlenbeck,
    psgld,
    sghmc,
    sgld,
    ula,
)
from covey.kernels.kernel import Target, chain
from covey.kernels.preconditioned import Laplace

ROWS, BATCH, CHAINS = 8, 3, 200
RNG = np.random.default_rng(7)
AXES = np.linalg.qr(RNG.normal(size=(3, 3)))[0]
PRECISION = AXES @ np.diag([1.0, 10.0, 100.0]) @ AXES.T
PRIOR = 0.3
OF_A_ROW = (PRECISION - PRIOR * np.eye(3)) / ROWS
X = np.array([1.0, -2.0, 0.5]) + RNG.normal(size=(ROWS, 3)) @ np.linalg.inv(
    np.linalg.cholesky(OF_A_ROW)
)
COVARIANCE = np.linalg.inv(PRECISION)
MEAN = COVARIANCE @ OF_A_ROW @ X.sum(0)
# Of the gradient of BATCH rows, drawn without replacement.
MINIBATCH = ROWS**2 * OF_A_ROW @ np.cov(X.T) @ OF_A_ROW * (1 / BATCH - 1 / ROWS)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def gaussian(capacity=ROWS):
    """The posterior N(MEAN, COVARIANCE). A neighbour's rows follow, and nothing good comes of them
    where they are seen.
    """
    rows = jnp.concatenate([jnp.asarray(X), jnp.full((9, 3), jnp.inf)])
    data = Shard(rows, jnp.int32(0), jnp.int32(ROWS), capacity)

    def log_likelihood(z, rows):
        return -0.5 * jnp.einsum("ri,ij,rj->r", rows - z, OF_A_ROW, rows - z)

    return Target(lambda z: -0.5 * PRIOR * jnp.sum(z**2), log_likelihood, data)


def stationary(move, noise):
    """The covariance S = move S move' + noise of a linear recursion."""
    return np.linalg.solve(np.eye(9) - np.kron(move, move), noise.ravel()).reshape(3, 3)


def exact(step):
    return COVARIANCE


def of_ula(step):
    return COVARIANCE @ np.linalg.inv(np.eye(3) - step * PRECISION / 2)


def of_sgld(step):
    return stationary(np.eye(3) - step * PRECISION, 2 * step * np.eye(3) + step**2 * MINIBATCH)


def of_psgld(step, damping=1e-3):
    """With G at its mean, which the scale of the gradients decides, which the law decides."""
    covariance = COVARIANCE
    for _ in range(50):
        squares = np.diag(PRECISION @ covariance @ PRECISION + MINIBATCH)
        scale = np.diag(1 / (damping + np.sqrt(squares)))
        covariance = stationary(
            np.eye(3) - step * scale @ PRECISION,
            2 * step * scale + step**2 * scale @ MINIBATCH @ scale,
        )
    return covariance


def of_sghmc(step, steps=10, friction=8.0, minibatch=MINIBATCH):
    """The recursion of position and momentum, with a momentum from N(0, I) at the start."""
    one, none, keep = np.eye(3), np.zeros((3, 3)), np.exp(-friction * step)
    half, push = np.block([[one, step / 2 * one], [none, one]]), (1 + keep) / 2 * step
    move = half @ np.block([[one, none], [-push * PRECISION, keep * one]]) @ half
    noise = (
        half @ np.block([[none, none], [none, (1 - keep**2) * one + push**2 * minibatch]]) @ half.T
    )
    path, spread = np.eye(6), np.zeros((6, 6))
    for _ in range(steps):
        path, spread = move @ path, move @ spread @ move.T + noise
    return stationary(path[:3, :3], path[:3, 3:] @ path[:3, 3:].T + spread[:3, :3])


class Case(NamedTuple):
    """A kernel, a long and a short step, what it samples with these, how long a chain to take, and
    how far the law is known.
    """

    kernel: Kernel
    steps: tuple[float, float]
    covariance: Callable[[float], np.ndarray]
    burn_in: int
    draws: int = 200
    known: float = 0.0


CASES = {
    "ula": Case(ula(), (0.01, 0.005), of_ula, 1000),
    "sgld": Case(sgld(batch_size=BATCH), (0.005, 0.0025), of_sgld, 1500),
    "mala": Case(mala(), (0.01, 0.005), exact, 1000),
    "ornstein_uhlenbeck": Case(ornstein_uhlenbeck(), (5.0, 0.3), exact, 30),
    "independence": Case(independence(), (1.5, 1.0), exact, 5),
    # G follows single gradients a little, which the correction that is left out would answer.
    "psgld": Case(psgld(batch_size=BATCH, decay=0.999), (0.1, 0.05), of_psgld, 1500, known=0.05),
    "sghmc": Case(sghmc(batch_size=BATCH, friction=8.0), (0.04, 0.02), of_sghmc, 300, draws=60),
    "hmc": Case(hmc(steps=9), (0.09, 0.06), exact, 100, draws=40),
    "nuts": Case(nuts(doublings=6), (0.1, 0.05), exact, 8, draws=16),
}


def chains_of(case):
    """(step size) -> chains from far away, [chain, draw, effect]."""
    posterior, start = gaussian(), jnp.asarray(MEAN + 1.0)

    def one(key, step):
        memory = case.kernel.init(start)
        return chain(
            key,
            case.kernel,
            posterior,
            start,
            memory,
            step_size=step,
            burn_in=case.burn_in,
            draws=case.draws,
        ).draws

    compiled = jax.jit(jax.vmap(one, in_axes=(0, None)))
    return lambda step: np.asarray(compiled(jax.random.split(jax.random.key(3), CHAINS), step))


def agree(by_chain, value, slack=0.0):
    """Means over independent chains, within four standard errors."""
    error = by_chain.std(0, ddof=1) / np.sqrt(len(by_chain))
    np.testing.assert_array_less(np.abs(by_chain.mean(0) - value), 4 * error + slack)
    return error


LONG = ("nuts", "sghmc", "psgld")  # to compile


def test_the_walk_covers_the_table():
    assert set(CASES) == set(KERNELS)
    for name, factory in KERNELS.items():
        assert factory.__name__ == name
        assert inspect.getdoc(factory)


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        pytest.param(name, steps, id=f"{name}-{steps}", marks=marks)
        for name in CASES
        for steps, marks in ((1, pytest.mark.slow if name in LONG else ()), (2, pytest.mark.slow))
    ],
)
def test_what_a_chain_samples(name, steps):
    """With the long step, which is the most biased; with both in the long suite."""
    case = CASES[name]
    run = chains_of(case)
    whiten = AXES * np.sqrt(
        [1.0, 10.0, 100.0]
    )  # along the axes, each in its own unit: a short axis has to be right too
    for step in case.steps[:steps]:
        off = (run(step) - MEAN) @ whiten
        error = agree(off.mean(1), 0.0)
        assert np.all(error < 0.15)
        law = whiten.T @ case.covariance(step) @ whiten
        error = agree(np.einsum("cti,ctj->cij", off, off) / off.shape[1], law, case.known)
        assert np.all(error < 0.15)
        if name == "ornstein_uhlenbeck":
            successive = np.einsum("cti,ctj->cij", off[:, :-1], off[:, 1:]) / (off.shape[1] - 1)
            agree(successive, np.exp(-step) * np.eye(3))


@pytest.mark.parametrize("name", CASES)
def test_shorter_steps_have_less_bias(name):
    long, short = (
        np.max(np.abs(CASES[name].covariance(step) @ PRECISION - np.eye(3)))
        for step in CASES[name].steps
    )
    assert short < 0.6 * long + 1e-9


def test_sghmc_is_of_second_order():
    """Nothing is left of the bias as steps become short, in number the same: true of symmetric
    steps only.
    """
    none = np.zeros((3, 3))
    bias = [
        np.max(np.abs(of_sghmc(step, friction=1.0, minibatch=none) @ PRECISION - np.eye(3)))
        for step in (0.02, 0.01, 0.005)
    ]
    assert bias[1] < 0.35 * bias[0] < 0.01
    assert bias[2] < 0.35 * bias[1]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=() if name in ("ula", "sgld", "independence") else pytest.mark.slow
        )
        for name in CASES
    ],
)
def test_a_transition_does_not_see_the_capacity_nor_a_neighbour(name):
    (kernel, (step, *_), *_), start = CASES[name], jnp.asarray(MEAN + 0.1)

    def moved(key, capacity):
        posterior = gaussian(capacity)
        return kernel.step(
            key, posterior, start, kernel.begin(posterior, start, kernel.init(start)), step
        )[0]

    keys = jax.random.split(jax.random.key(4), 5)
    few, many = jax.jit(jax.vmap(lambda key: (moved(key, ROWS), moved(key, 2 * ROWS))))(keys)
    np.testing.assert_allclose(many, few, rtol=1e-8)
    assert len(np.unique(few, axis=0)) > 1


def test_squares_go_on_from_round_to_round():
    kernel, posterior, start = (
        psgld(batch_size=ROWS, decay=0.9),
        gaussian(),
        jnp.asarray(MEAN + 0.3),
    )
    gradient = -PRECISION @ (np.asarray(start) - MEAN)
    memory = jax.jit(
        lambda old: (
            chain(
                jax.random.key(0), kernel, posterior, start, old, step_size=0.1, burn_in=0, draws=1
            ).memory
        )
    )
    one = memory(kernel.init(start))
    np.testing.assert_allclose(one, 0.9 + 0.1 * gradient**2)
    np.testing.assert_allclose(memory(one), 0.9 * one + 0.1 * gradient**2)


def test_the_metric_is_that_of_the_mode_at_each_round():
    """From wherever the chain is, and whatever the round before left."""
    kernel, posterior = ornstein_uhlenbeck(), gaussian()
    old = Laplace(jnp.asarray(MEAN - 50.0), 100 * jnp.eye(3))
    new = jax.jit(
        lambda z: (
            chain(
                jax.random.key(0), kernel, posterior, z, old, step_size=1.0, burn_in=0, draws=2
            ).memory
        )
    )
    for far in (0.0, 7.0):
        laplace = new(jnp.asarray(MEAN + far))
        np.testing.assert_allclose(laplace.mode, MEAN, rtol=1e-6)
        np.testing.assert_allclose(laplace.root @ laplace.root.T, COVARIANCE, rtol=1e-6)


def test_the_metric_is_positive_where_the_posterior_is_not_concave():
    data = Shard(jnp.zeros(1), jnp.int32(0), jnp.int32(1), 1)
    posterior = Target(lambda z: 2 * z[0] ** 2 - 0.5 * z[1] ** 2, lambda z, rows: 0 * rows, data)
    kernel, saddle = ornstein_uhlenbeck(floor=0.25), jnp.zeros(3)
    root = jax.jit(lambda: kernel.begin(posterior, saddle, kernel.init(saddle)).root)()
    np.testing.assert_allclose(root @ root.T, np.diag([1 / 4, 1.0, 4.0]), atol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "step", "biased"),
    [
        pytest.param(nuts(doublings=3), 0.8, False, marks=pytest.mark.slow),
        (mala(), 0.8, False),
        (ornstein_uhlenbeck(), 0.2, True),
    ],
    ids=["nuts", "mala", "ornstein_uhlenbeck"],
)
def test_a_skew_posterior(kernel, step, biased):
    """Counts with a log rate from N(1, 2^2), by numerical integration; rounds of ten draws.

    The unadjusted kernel is off by a fraction of its step. With a metric from where each round
    begins it would be by half a deviation, however short the step.
    """
    counts = jnp.array([0.0, 1.0, 0.0])
    data = Shard(counts, jnp.int32(0), jnp.int32(3), 3)
    posterior = Target(
        lambda z: -jnp.sum((z - 1) ** 2) / 8, lambda z, rows: rows * z[0] - jnp.exp(z[0]), data
    )
    grid = np.linspace(-12.0, 8.0, 4001)
    log_density = -((grid - 1) ** 2) / 8 + grid - 3 * np.exp(grid)
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    mean = weight @ grid
    moments = np.array([weight @ (grid - mean) ** power for power in (1, 2, 3)])
    assert moments[2] < -0.5 * moments[1] ** 1.5  # skew indeed

    def of_a_round(at, key):
        draws, memory = chain(key, kernel, posterior, *at, step_size=step, burn_in=0, draws=10)
        return (draws[-1], memory), draws[:, 0]

    def one(key):
        start = jnp.array([0.5])
        return jax.lax.scan(of_a_round, (start, kernel.init(start)), jax.random.split(key, 16))[1][
            4:
        ].ravel()

    off = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(5), 400))) - mean
    by_chain = np.stack([off, off**2, off**3], -1).mean(1)
    error = agree(by_chain, moments, 0.5 * step * biased * moments[1] ** np.array([0.5, 1.0, 1.5]))
    assert np.all(error < [0.05, 0.15, 0.6])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sghmc(batch_size=0), "sghmc: batch_size must be at least 1, got 0"),
        (lambda: sghmc(batch_size=1, steps=0), "steps must be at least 1, got 0"),
        (lambda: sghmc(batch_size=1, friction=0.0), "friction must be above 0, got 0"),
        (lambda: psgld(batch_size=0), "psgld: batch_size must be at least 1, got 0"),
        (lambda: psgld(batch_size=1, decay=1.0), "decay must be at least 0 and below 1, got 1"),
        (lambda: psgld(batch_size=1, damping=0.0), "damping must be above 0, got 0"),
        (lambda: ornstein_uhlenbeck(floor=0.0), "floor must be above 0, got 0"),
        (lambda: hmc(steps=0), "hmc: steps must be at least 1, got 0"),
        (lambda: nuts(doublings=0), "doublings must be at least 1, got 0"),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()
