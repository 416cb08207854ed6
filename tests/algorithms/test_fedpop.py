"""FedPop against linear Gaussian mixed models, where posteriors, marginal likelihood and the law of the chain are exact."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from scipy.optimize import minimize

from covey import models
from covey.algorithms.fedpop import Down, Personal, Population, fedpop
from covey.core.algorithm import Aggregate, Empty
from covey.core.shard import Rows, Shard, Spec, whole
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.kernels import sgld
from covey.models import Linear
from covey.models.effects import Gaussian

NOISE, STEP, SLOPES = 0.8, 0.01, (1,)
THETA = Population(Linear(np.array([0.7, -0.4]), np.array(0.3)), Gaussian(np.array([0.5, -0.6]), np.log([0.9, 0.5])))
KEYS = 400


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def theta():
    return jax.tree.map(jnp.asarray, THETA)


@pytest.fixture
def down(theta):
    return Down(theta, jnp.ones(()))


class Client(NamedTuple):
    """One client's rows, the columns that its effects multiply, and its exact posterior given THETA."""

    rows: Rows
    design: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray

    @property
    def of_the_chain(self):
        """The covariance of what ULA samples."""
        precision = np.linalg.inv(self.covariance)
        return np.linalg.inv(precision @ (np.eye(2) - STEP * precision / 2))


def one_client(rows=12):
    rng = np.random.default_rng(3)
    x = rng.normal([0.5, -0.3], 1.0, (rows, 2))
    design = np.column_stack([np.ones(rows), x[:, SLOPES[0]]])
    fixed = x @ THETA.phi.weight + THETA.phi.bias
    y = fixed + design @ np.array([1.4, -1.1]) + NOISE * rng.normal(size=rows)
    prior = np.diag(np.exp(-2 * THETA.beta.log_scale))
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + prior)
    mean = covariance @ (design.T @ (y - fixed) / NOISE**2 + prior @ THETA.beta.mean)
    return Client(Rows(x, y), design, mean, covariance)


CLIENT = one_client()


def method(**options):
    return fedpop(models.mixed_linear(scale=NOISE, slopes=SLOPES), step_size=STEP, **options)


def log_marginal(theta, x, y, design, noise):
    """log p(D_i | phi, beta) of a linear mixed model, effects integrated out."""
    mean = x @ theta.phi.weight + theta.phi.bias + design @ theta.beta.mean
    covariance = noise**2 * jnp.eye(len(y)) + (design * jnp.exp(2 * theta.beta.log_scale)) @ design.T
    return jax.scipy.stats.multivariate_normal.logpdf(y, mean, covariance)


def test_gradients_are_those_of_the_marginal_likelihood(theta, down):
    fed, data = method(draws=100, burn_in=300), whole(CLIENT.rows)
    start = Personal(jnp.zeros((100, 2)), Empty())
    up = jax.jit(jax.vmap(lambda key: fed.client(key, down, start, data).up))(jax.random.split(jax.random.key(0), KEYS))
    exact = jax.grad(log_marginal)(theta, *CLIENT.rows, CLIENT.design, NOISE)
    # Everything is linear in z and so exact on average, except the squares in the gradient by the log deviations.
    surplus = np.diag(CLIENT.of_the_chain - CLIENT.covariance) * np.exp(-2 * THETA.beta.log_scale)
    expected = exact._replace(beta=exact.beta._replace(log_scale=exact.beta.log_scale + surplus))
    for estimates, value in zip(jax.tree.leaves(up), jax.tree.leaves(expected), strict=True):
        error = np.std(estimates, 0) / np.sqrt(KEYS)
        assert np.all(np.abs(np.mean(estimates, 0) - value) < 4 * error)
        assert np.all(error < 0.2)
    assert np.all(surplus < 0.05)


@pytest.mark.parametrize("batch_size", [None, 4], ids=["ula", "sgld"])
def test_draws_are_those_of_the_posterior(down, batch_size):
    kernel = None if batch_size is None else sgld(batch_size=batch_size)
    fed, data = method(draws=200, adapt_burn_in=300, kernel=kernel), whole(CLIENT.rows)
    keys = jax.random.split(jax.random.key(1), KEYS)
    draws = np.asarray(jax.jit(jax.vmap(lambda key: fed.adapt(key, down, data).draws))(keys))
    chains = draws.mean(1)
    assert np.all(np.abs(chains.mean(0) - CLIENT.mean) < 4 * chains.std(0) / np.sqrt(KEYS))
    spread = draws.reshape(-1, 2).std(0)
    if batch_size is None:
        np.testing.assert_allclose(spread, np.sqrt(np.diag(CLIENT.of_the_chain)), rtol=0.03)
        np.testing.assert_allclose(spread, np.sqrt(np.diag(CLIENT.covariance)), rtol=0.12)
    else:  # minibatches add noise of their own
        assert np.all(spread > np.sqrt(np.diag(CLIENT.of_the_chain)))


def test_a_client_goes_on_where_it_ended(down):
    fed, data = method(draws=3), whole(CLIENT.rows)
    far = Personal(jnp.array([[0.0, 0.0], [0.0, 0.0], [1.2, -0.9]]), Empty())
    ends = jax.vmap(lambda key: fed.client(key, down, far, data).pending.draws)(jax.random.split(jax.random.key(0), KEYS))
    precision = np.linalg.inv(CLIENT.covariance)
    expected = far.draws[-1] - STEP * precision @ (far.draws[-1] - CLIENT.mean)
    assert np.all(np.abs(np.mean(ends[:, 0], 0) - expected) < 4 * np.sqrt(2 * STEP / KEYS))


def test_the_server_climbs_with_its_priors_and_keeps_the_bounds(theta):
    ascent = {"phi_optimizer": optax.sgd(0.1), "beta_optimizer": optax.sgd(1.0)}
    fed = method(phi_prior=2.0, beta_prior=0.5, effects=models.gaussian(scale_bounds=(0.4, 2.0)), **ascent)
    start = fed.init(jax.random.key(0), Spec(Rows(jax.ShapeDtypeStruct((2,), float), jax.ShapeDtypeStruct((), float))))
    slope = Population(Linear(jnp.array([1.0, -2.0]), jnp.array(3.0)), Gaussian(jnp.array([0.1, 0.2]), jnp.array([9.0, -9.0])))
    aggregate = Aggregate(weighted=slope, plain=None, weight=jnp.ones(()), count=jnp.ones(()))
    found = fed.server(jax.random.key(0), start._replace(theta=theta), aggregate)[0].theta
    expected = THETA.phi.weight + 0.1 * (np.array([1.0, -2.0]) - THETA.phi.weight / 4)
    np.testing.assert_allclose(found.phi.weight, expected)
    np.testing.assert_allclose(found.beta.mean, THETA.beta.mean + np.array([0.1, 0.2]) - THETA.beta.mean / 0.25)
    np.testing.assert_allclose(np.exp(found.beta.log_scale), [2.0, 0.4])


def test_a_client_without_rows_has_the_prior(down):
    fed = method(draws=5000, adapt_burn_in=1)
    nothing = Shard(jax.tree.map(jnp.asarray, CLIENT.rows), jnp.int32(0), jnp.int32(0), 12)
    draws = np.asarray(fed.adapt(jax.random.key(4), down, nothing).draws)
    scale = np.exp(THETA.beta.log_scale)
    assert np.all(np.abs(draws.mean(0) - THETA.beta.mean) < 4 * scale / np.sqrt(5000))
    np.testing.assert_allclose(draws.std(0), scale, rtol=4 / np.sqrt(2 * 5000))
    local = fed.client(jax.random.key(5), down, Personal(jnp.asarray(draws), Empty()), nothing)
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(local.up.phi))


def test_credible_intervals_cover():
    """2,000 new clients with 1 to 4 rows of a random-intercept model whose phi and beta are known."""
    rng, clients = np.random.default_rng(8), 2000
    counts = rng.integers(1, 5, clients)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    truth = 0.5 + rng.normal(size=clients)
    x = rng.normal(size=(counts.sum(), 1))
    y = 2 * x[:, 0] - 1 + np.repeat(truth, counts) + rng.normal(size=counts.sum())
    law = Gaussian(jnp.array([0.5]), jnp.zeros(1))
    down = Down(Population(Linear(jnp.array([2.0]), jnp.array(-1.0)), law), jnp.ones(()))
    fed = fedpop(models.mixed_linear(scale=1.0), step_size=0.04, draws=1500, adapt_burn_in=150)
    rows = Rows(jnp.asarray(x), jnp.asarray(y))

    def interval(key, start, count):
        return jnp.quantile(fed.adapt(key, down, Shard(rows, start, count, 4)).draws[:, 0], jnp.array([0.05, 0.95]))

    keys = jax.random.split(jax.random.key(6), clients)
    low, high = np.asarray(jax.jit(jax.vmap(interval))(keys, jnp.asarray(starts), jnp.asarray(counts))).T
    assert 0.88 < np.mean((low < truth) & (truth < high)) < 0.92
    # The intervals of clients with more rows are shorter, by the closed form.
    for count in (1, 4):
        width = np.mean((high - low)[counts == count])
        assert width == pytest.approx(2 * 1.645 / np.sqrt((1 + count) * (1 - 0.02 * (1 + count))), rel=0.03)


class Fit(NamedTuple):
    """Where the exact marginal likelihood is largest: intercept and weights of a typical client, deviations, noise."""

    weight: np.ndarray
    bias: float
    scale: np.ndarray
    noise: float


def maximum_likelihood(clients, slopes, noise=None):
    """Over all parameters of a linear mixed model; over the noise too where it is not given."""
    features, effects = clients[0][0].shape[1], 1 + len(slopes)
    sizes = {len(y) for _, y in clients}
    alike = [[np.stack(part) for part in zip(*[one for one in clients if len(one[1]) == size], strict=True)] for size in sizes]

    def split(v):
        beta = Gaussian(jnp.zeros(effects), v[features + 1 : features + 1 + effects])
        return Population(Linear(v[:features], v[features]), beta), jnp.exp(v[-1]) if noise is None else noise

    def loss(v):
        theta, sd = split(v)

        def of_client(x, y):
            return log_marginal(theta, x, y, jnp.column_stack([jnp.ones(len(y)), x[:, list(slopes)]]), sd)

        return -sum(jnp.sum(jax.vmap(of_client)(x, y)) for x, y in alike) / sum(y.size for _, y in alike)

    start = np.zeros(features + 1 + effects + (noise is None))
    best = minimize(jax.jit(loss), start, jac=jax.jit(jax.grad(loss)), method="BFGS", options={"gtol": 1e-7})
    assert best.success, best.message
    theta, sd = split(best.x)
    return Fit(np.asarray(theta.phi.weight), float(theta.phi.bias), np.exp(theta.beta.log_scale), float(sd))


def fitted(clients, *, slopes, noise, rounds, **options):
    data = FederatedData.from_clients({f"site{place}": (x, y) for place, (x, y) in enumerate(clients)})
    steps = [optax.adam(optax.cosine_decay_schedule(0.1, rounds)) for _ in range(2)]
    model = models.mixed_linear(scale=noise, slopes=slopes)
    fed = fedpop(model, phi_optimizer=steps[0], beta_optimizer=steps[1], **options)
    engine = Simulation(fed, data, seed=0)
    theta = engine.advance(engine.start(), rounds)[0].server.theta
    typical = models.own_parameters(theta.phi, theta.beta.mean, slopes)
    return Fit(np.asarray(typical.weight), float(typical.bias), np.exp(theta.beta.log_scale), noise)


def test_the_fit_is_the_maximum_of_the_marginal_likelihood():
    rng, clients = np.random.default_rng(9), []
    for rows in rng.integers(3, 11, 60):
        x = rng.normal(size=(rows, 1))
        clients.append((x, 1.5 * x[:, 0] - 2 + 1.3 * rng.normal() + 1.5 * rng.normal(size=rows)))
    exact = maximum_likelihood(clients, (), noise=1.5)
    found = fitted(clients, slopes=(), noise=1.5, rounds=400, step_size=0.02, draws=20)
    for name in ("weight", "bias", "scale"):
        np.testing.assert_allclose(getattr(found, name), getattr(exact, name), rtol=0.02, err_msg=name)


@pytest.mark.slow
def test_sleepstudy(data_dir):
    """Random intercept and slope for 18 persons. Days and milliseconds are scaled, which changes no fit but its units."""
    table = pd.read_csv(data_dir / "hierarchical" / "sleepstudy.csv").groupby("Subject")
    clients = [(part[["Days"]].to_numpy(float) / 5, part["Reaction"].to_numpy(float) / 25) for _, part in table]
    exact = maximum_likelihood(clients, (0,))
    np.testing.assert_allclose([25 * exact.bias, 5 * exact.weight[0]], [251.405, 10.467], rtol=1e-4)  # published
    found = fitted(clients, slopes=(0,), noise=exact.noise, rounds=1500, step_size=0.01, draws=20)
    np.testing.assert_allclose([found.bias, *found.weight], [exact.bias, *exact.weight], rtol=0.02)
    np.testing.assert_allclose(found.scale, exact.scale, rtol=0.10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"phi_prior": 0.0}, "phi_prior must be above 0, got 0"),
        ({"anneal": (0.5, 10)}, "a temperature of at least 1 and a number of rounds, got"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        method(**options)
