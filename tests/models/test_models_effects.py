"""Laws of random effects: densities against numerical integration, draws against densities, and
whether they can be learned.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats
from jaxtyping import PyTree

from covey import models
from covey.algorithms.fedpop import Population, fedpop
from covey.core.algorithm import Aggregate
from covey.core.shard import Rows, Spec, whole
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.kernels import ornstein_uhlenbeck
from covey.models import LAWS, Law
from covey.models.effects import Correlated, Energy, Gaussian, Mixture


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class Case(NamedTuple):
    law: Law
    beta: PyTree


def cases(effects):
    """Every law with parameters that are nothing special, by the name in LAWS and what else tells
    them apart.
    """
    rng = np.random.default_rng(effects)

    def normal(*shape, scale=1.0):
        return jnp.asarray(scale * rng.normal(size=shape))

    mean = normal(effects)
    parts = Gaussian(normal(2, effects, scale=1.5), normal(2, effects, scale=0.3) - 0.5)
    network = Energy(mean, normal(6, effects), normal(6), normal(6, scale=1.5))
    return {
        "gaussian isotropic": Case(
            models.gaussian(covariance="isotropic"), Gaussian(mean, jnp.asarray(-0.4))
        ),
        "gaussian diagonal": Case(models.gaussian(), Gaussian(mean, normal(effects, scale=0.4))),
        "gaussian full": Case(
            models.gaussian(covariance="full"),
            Correlated(mean, normal(effects, scale=0.4), normal(effects, effects)),
        ),
        "mixture": Case(models.mixture(components=2), Mixture(jnp.array([0.8, -0.4]), parts)),
        "energy": Case(
            models.energy(spread=1.2, particles=4000, steps=60, step_size=0.2, fewest_clients=1),
            network,
        ),
        "fixed": Case(models.fixed(scale=0.7), Gaussian(mean, jnp.asarray(np.log(0.7)))),
        "fixed full": given_law(np.array([[1.5, 0.6], [0.6, 0.5]])[:effects, :effects], mean),
    }


def given_law(covariance, mean):
    law = models.fixed(covariance=covariance, mean=np.asarray(mean))
    return Case(law, law.init(jax.random.key(0), jnp.zeros(len(mean)), Spec(None)))


class Grid(NamedTuple):
    """Points that cover a law, and log_density there."""

    points: np.ndarray
    log_density: np.ndarray
    cell: float

    @property
    def weight(self):
        weight = np.exp(self.log_density - self.log_density.max())
        return weight / weight.sum()


def grid(case, effects):
    axis = np.linspace(-9.0, 9.0, 20_001 if effects == 1 else 501)
    points = np.stack(np.meshgrid(*[axis] * effects, indexing="ij"), -1).reshape(-1, effects)
    log_density = jax.jit(jax.vmap(case.law.log_density, in_axes=(None, 0)))(
        case.beta, jnp.asarray(points)
    )
    return Grid(points, np.asarray(log_density), (axis[1] - axis[0]) ** effects)


ALL = [(name, effects) for effects in (1, 2) for name in cases(effects)]


def test_the_walk_covers_the_table():
    assert {name.split()[0] for name, _ in ALL} == set(LAWS)
    assert all(factory.__name__ == name for name, factory in LAWS.items())


@pytest.mark.parametrize(
    ("name", "effects"),
    [
        pytest.param(name, effects, marks=pytest.mark.slow if twice else ())
        for name, effects in ALL
        for twice in [name == "energy" or effects == (2 if name == "mixture" else 1)]
    ],
)
def test_density_and_draws_are_of_one_law(name, effects):
    case = cases(effects)[name]
    law, beta, at = case.law, case.beta, grid(case, effects)
    if law.normaliser is None:
        np.testing.assert_allclose(np.exp(at.log_density).sum() * at.cell, 1.0, rtol=1e-6)
    count = 4000
    scores = jax.vmap(jax.grad(law.log_density), in_axes=(None, 0))

    @jax.jit
    def sampled(key):
        first, draw, move = jax.random.split(key, 3)
        draws = law.draws(draw, beta, count)
        if law.normaliser is None:
            return draws, scores(beta, draws), beta
        particles = law.normaliser.init(first, beta)
        return draws, scores(beta, draws), law.normaliser.gradient(move, beta, particles)[0]

    draws, each, normaliser = sampled(jax.random.key(1))
    for power in (1, 2, 3):
        moments = np.asarray(draws) ** power
        exact = at.weight @ at.points**power
        assert np.all(np.abs(moments.mean(0) - exact) < 4 * moments.std(0) / np.sqrt(count)), power
    # Quantiles, by the share of draws below the exact ones: a share tells modes apart.
    order = np.argsort(at.points[:, 0], kind="stable")
    below = np.cumsum(at.weight[order])
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        quantile = at.points[order][np.searchsorted(below, share), 0]
        assert abs(np.mean(np.asarray(draws)[:, 0] < quantile) - share) < 4 * np.sqrt(
            share * (1 - share) / count
        )
    # The mean score is zero, or the gradient of the log of the integral, which the particles
    # follow.
    at_grid = jax.jit(
        jax.grad(
            lambda beta: at.weight @ jax.vmap(law.log_density, in_axes=(None, 0))(beta, at.points)
        )
    )(beta)
    for score, exact, found in zip(*map(jax.tree.leaves, (each, at_grid, normaliser)), strict=True):
        error = np.std(score, 0) / np.sqrt(count)
        assert np.all(np.abs(np.mean(score, 0) - exact) <= 4 * error + 1e-9)
        if law.normaliser is None:
            np.testing.assert_allclose(exact, 0, atol=1e-6)
        else:
            assert np.all(np.abs(found - exact) <= 4 * error + 1e-9)


def test_bounds_are_kept():
    bounds, wild = {"scale_bounds": (0.5, 2.0)}, jnp.array([-5.0, 0.1, 5.0])
    kept = [0.5, np.exp(0.1), 2.0]
    np.testing.assert_allclose(
        np.exp(models.gaussian(**bounds).project(Gaussian(jnp.ones(3), wild)).log_scale), kept
    )
    full = models.gaussian(covariance="full", **bounds).project(
        Correlated(jnp.ones(3), wild, jnp.ones((3, 3)))
    )
    np.testing.assert_allclose(np.exp(full.log_scale), kept)
    parts = Mixture(jnp.array([7.0, 0.0, 1.0]), Gaussian(jnp.ones((3, 1)), wild[:, None]))
    found = models.mixture(components=3, **bounds).project(parts)
    np.testing.assert_allclose(np.exp(found.components.log_scale[:, 0]), kept)
    np.testing.assert_array_equal(found.logits, parts.logits)


def climbed(law, z, rounds, rate):
    """beta after so many rounds of FedPop's server, whose clients know their effects."""
    clients, effects = z.shape
    ascent = optax.adam(optax.cosine_decay_schedule(rate, rounds))
    fed = fedpop(
        models.linear_map(effects=effects), step_size=1.0, effects=law, beta_optimizer=ascent
    )
    row = Rows(jax.ShapeDtypeStruct((effects,), float), jax.ShapeDtypeStruct((), float))

    @jax.jit
    def climb(key):
        state = fed.init(key, Spec(row, clients=clients))

        def body(index, state):
            gradient = jax.grad(
                lambda beta: jnp.sum(jax.vmap(law.log_density, in_axes=(None, 0))(beta, z))
            )(state.theta.beta)
            up = Population(jnp.zeros_like(state.theta.phi), gradient)
            aggregate = Aggregate(
                weighted=up,
                plain=up,
                weight=jnp.asarray(float(clients)),
                count=jnp.asarray(float(clients)),
            )
            return fed.server(jax.random.fold_in(key, index), state, aggregate)[0]

        return jax.lax.fori_loop(0, rounds, body, state).theta.beta

    return climb(jax.random.key(0))


def test_a_full_covariance_is_learned():
    rng = np.random.default_rng(0)
    z = np.array([1.0, -2.0]) + rng.normal(size=(400, 2)) @ np.array([[1.0, 1.2], [0.0, 0.5]])
    beta = climbed(models.gaussian(covariance="full"), jnp.asarray(z), 500, 0.1)
    np.testing.assert_allclose(beta.mean, z.mean(0), rtol=0.01)
    np.testing.assert_allclose(beta.covariance, np.cov(z.T, bias=True), rtol=0.02)


def two_kinds(rng, clients):
    """Seven in ten around -1.5, the others around 1.2 and wider."""
    first = rng.random(clients) < 0.7
    return np.where(first, -1.5, 1.2) + np.where(first, 0.3, 0.45) * rng.normal(size=clients)


@pytest.mark.slow
def test_an_energy_learns_two_modes():
    z = two_kinds(np.random.default_rng(0), 500)
    law = models.energy(units=16, step_size=0.1, particles=200, steps=10, fewest_clients=1)
    case = Case(law, climbed(law, jnp.asarray(z[:, None]), 300, 0.05))
    at = grid(case, 1)
    density, points = at.weight / at.cell, at.points[:, 0]

    def normal(mean, scale):
        return np.exp(-0.5 * ((points - mean) / scale) ** 2) / (scale * np.sqrt(2 * np.pi))

    def distance(other):
        return (
            0.5 * np.abs(other - 0.7 * normal(-1.5, 0.3) - 0.3 * normal(1.2, 0.45)).sum() * at.cell
        )

    assert distance(normal(z.mean(), z.std())) > 0.4  # the best Gaussian
    assert distance(density) < 0.1
    assert at.weight[points > 0].sum() == pytest.approx(np.mean(z > 0), abs=0.04)


@pytest.mark.slow
def test_a_mixture_finds_two_kinds_of_clients():
    """The kinds are far apart, so the maximum of the likelihood is that of each kind alone."""
    rng, clients, noise, rows = np.random.default_rng(1), 60, 0.5, 10
    z = two_kinds(rng, clients)
    tables = {
        f"site{index}": (np.zeros((rows, 1)), own + noise * rng.normal(size=rows))
        for index, own in enumerate(z)
    }
    fed = fedpop(
        models.mixed_linear(scale=noise),
        step_size=1.0,
        kernel=ornstein_uhlenbeck(),
        effects=models.mixture(components=2),
        phi_optimizer=optax.set_to_zero(),  # or the intercept would shift the means
        beta_optimizer=optax.adam(optax.cosine_decay_schedule(0.2, 300)),
    )
    engine = Simulation(fed, FederatedData.from_clients(tables), seed=0)
    beta = jax.tree.map(np.asarray, engine.advance(engine.start(), 300)[0].server.theta.beta)
    means = np.array([y.mean() for _, y in tables.values()])
    weights = np.exp(jax.nn.log_softmax(beta.logits))
    for index, kind in zip(
        np.argsort(beta.components.mean[:, 0]), (means[z < 0], means[z > 0]), strict=True
    ):
        np.testing.assert_allclose(beta.components.mean[index, 0], kind.mean(), rtol=0.02)
        np.testing.assert_allclose(
            np.exp(beta.components.log_scale[index, 0]),
            np.sqrt(kind.var() - noise**2 / rows),
            rtol=0.05,
        )
        np.testing.assert_allclose(weights[index], len(kind) / clients, rtol=0.02)


def test_a_fixed_law_is_neither_learned_nor_sent():
    fed = fedpop(models.mixed_linear(), step_size=0.1, draws=2, effects=models.fixed(scale=0.6))
    row = Rows(jax.ShapeDtypeStruct((1,), float), jax.ShapeDtypeStruct((), float))
    state, data = (
        fed.init(jax.random.key(0), Spec(row)),
        whole(Rows(np.ones((3, 1)), np.array([5.0, 6.0, 7.0]))),
    )
    down = fed.broadcast(state)
    up = jax.jit(lambda key: fed.client(key, down, fed.init_client(key, down, data), data).up)(
        jax.random.key(1)
    )
    assert not jax.tree.leaves(up.beta)
    one = jnp.ones(())
    new = fed.server(jax.random.key(3), state, Aggregate(up, up, one, one))[0]
    np.testing.assert_array_equal(np.exp(new.theta.beta.log_scale), 0.6)
    np.testing.assert_array_equal(new.theta.beta.mean, [0.0])
    assert np.all(new.theta.phi.weight != state.theta.phi.weight)
    for option in ({"beta_prior": 1.0}, {"beta_optimizer": optax.sgd(0.1)}):
        with pytest.raises(
            ValueError, match="no parameters to learn; leave beta_optimizer= and beta_prior= out"
        ):
            fedpop(models.mixed_linear(), step_size=0.1, effects=models.fixed(), **option)


def test_a_given_covariance_is_that_of_the_law():
    """Its density, the effects of an unseen client, and a posterior that has a closed form."""
    covariance, mean = np.array([[1.5, 0.6], [0.6, 0.5]]), np.array([0.3, -0.2])
    law, beta = given_law(covariance, mean)
    np.testing.assert_allclose(beta.covariance, covariance, rtol=1e-12)
    z = jnp.array([1.0, -2.0])
    np.testing.assert_allclose(
        law.log_density(beta, z), scipy.stats.multivariate_normal(mean, covariance).logpdf(z)
    )
    method = fedpop(
        models.mixed_linear(scale=0.5, slopes=(0,)),
        step_size=3.0,
        draws=2000,
        kernel=ornstein_uhlenbeck(),
        effects=law,
        adapt_burn_in=5,
    )
    x, y = np.array([[1.0], [2.0], [-1.0]]), np.array([1.0, 0.5, 2.0])
    row = Rows(jax.ShapeDtypeStruct((1,), float), jax.ShapeDtypeStruct((), float))
    down = method.broadcast(method.init(jax.random.key(0), Spec(row)))
    draws = np.asarray(
        jax.jit(lambda key: method.adapt(key, down, whole(Rows(x, y))).draws)(jax.random.key(1))
    )
    design = np.column_stack([np.ones(3), x])
    precision = np.linalg.inv(covariance) + design.T @ design / 0.25
    exact = np.linalg.solve(precision, np.linalg.solve(covariance, mean) + design.T @ y / 0.25)
    deviation = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert np.all(np.abs(draws.mean(0) - exact) < 4 * deviation / np.sqrt(2000))
    np.testing.assert_allclose(draws.std(0), deviation, rtol=4 / np.sqrt(2 * 2000))


def test_few_clients_are_too_few_for_an_energy():
    law = models.energy(fewest_clients=10)
    with pytest.warns(
        UserWarning,
        match=r"9 clients are few for the shape of a density; gaussian\(\) or fixed\(\)",
    ):
        law.init(jax.random.key(0), jnp.zeros(2), Spec(None, clients=9))
    for enough in (10, None):
        law.init(
            jax.random.key(0), jnp.zeros(2), Spec(None, clients=enough)
        )  # a warning would be an error


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: models.gaussian(scale_bounds=(2.0, 1.0)),
            "scale_bounds must be two positive numbers in order",
        ),
        (
            lambda: models.gaussian(initial_scale=3.0, scale_bounds=(0.1, 1.0)),
            "initial_scale must lie within scale_bounds",
        ),
        (lambda: models.mixture(components=0), "components must be at least 1, got 0"),
        (lambda: models.energy(units=0), "units must be at least 1, got 0"),
        (lambda: models.energy(spread=0.0), "spread must be above 0, got 0"),
        (lambda: models.fixed(scale=-1.0), "must be above 0, got -1"),
        (lambda: models.fixed(scale=1.0, covariance=np.eye(2)), "two ways to say one thing"),
        (lambda: models.fixed(covariance=np.ones((2, 3))), r"square matrix, got shape \(2, 3\)"),
        (lambda: models.fixed(covariance=[[1.0, 2.0], [0.0, 1.0]]), "must be symmetric"),
        (
            lambda: models.fixed(covariance=[[1.0, 2.0], [2.0, 1.0]]),
            "positive definite, its smallest eigenvalue is -1",
        ),
        (
            lambda: given_law(np.eye(2), np.zeros(3)),
            "covariance is of 2 effects, but this model has 3",
        ),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()
