"""The posterior of a mixed model by sums, against dense quadrature of the same posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import covey
from covey import models
from covey.algorithms.marginal import marginal
from covey.algorithms.marginal.parameters import Coordinates, deviations
from covey.data.federated import FederatedData
from covey.engines.loop import Loop
from covey.engines.simulate import Simulation
from covey.kernels.pareto_smoothing import importance_sample, smoothed

NOISE = 0.7


def clients(count=6, rows=4):
    random, made = np.random.default_rng(5), {}
    for index in range(count):
        x = random.normal(size=(rows, 1)) + 1
        y = 0.5 * x[:, 0] + 2 + random.normal() + NOISE * random.normal(size=rows)
        made[f"site{index}"] = x, y
    return FederatedData.from_clients(made, features=["dose"])


def log_prior(parameters):
    """In deviations, not in their logarithms: asymmetric, so that a Jacobian cannot hide."""
    normal = -((parameters["intercept"] - 1) ** 2) / 2 / 9 - jnp.sum(parameters["weights"] ** 2) / 8
    return normal - jnp.sum(parameters["sd"]) / 0.8  # exponential with mean 0.8


class Dense:
    """The posterior on a grid of intercept, weight and deviation."""

    def __init__(self, data):
        line = np.linspace(-3, 6, 91), np.linspace(-2, 3, 71), np.linspace(0.005, 6, 240)
        self.grid = np.stack(np.meshgrid(*line, indexing="ij"), -1).reshape(-1, 3)
        intercept, weight, sd = self.grid.T
        self.log_prior = -((intercept - 1) ** 2) / 18 - weight**2 / 8 - sd / 0.8
        self.terms, self.means, self.variances = [], [], []
        for index in range(data.clients):
            x, y = (np.asarray(part, float) for part in data.rows_of(index, "train"))
            off = y[:, None] - intercept - x * weight
            count, total, squares = len(y), off.sum(0), (off**2).sum(0)
            within = 1 + count * sd**2 / NOISE**2
            term = -squares / 2 / NOISE**2 + (total * sd) ** 2 / within / 2 / NOISE**4
            constant = count * np.log(2 * np.pi * NOISE**2) / 2
            self.terms.append(term - np.log(within) / 2 - constant)
            self.variances.append(sd**2 / within)
            self.means.append(sd**2 / within * total / NOISE**2 + intercept)

    def weights(self, terms):
        log = self.log_prior + sum(terms)
        each = np.exp(log - log.max())
        return each / each.sum(), np.log(each.sum()) + log.max()


@pytest.fixture(scope="module")
def data():
    return clients()


@pytest.fixture(scope="module")
def dense(data):
    return Dense(data)


@pytest.fixture(scope="module")
def run(data):
    method = marginal(models.mixed_linear(scale=NOISE), estimate="posterior", prior=log_prior)
    return covey.run(method, data, seed=0, progress=False)


def moments(weights, values):
    mean = weights @ values
    return mean, np.sqrt(weights @ (values - mean) ** 2)


def test_the_posterior_is_the_exact_one(run, dense):
    """With a prior of the user's own. Over four seeds means were off by at most 0.017 deviations,
    deviations by 2 %; independent draws would be off by 3 % and 5 % at one standard error.
    """
    law = run.posterior.shared.law
    assert law.k_hat <= 0.7
    assert law.effective_draws >= 1000
    assert run.round + law.sample.asked <= 20
    weights, _ = dense.weights(dense.terms)
    table = law.table()
    for name, values in zip(
        ("intercept", "weights[dose]", "sd[intercept]"), dense.grid.T, strict=True
    ):
        mean, sd = moments(weights, values)
        assert abs(table["mean"][name] - mean) < 0.05 * sd
        assert abs(table["sd"][name] / sd - 1) < 0.04
        lower = values[np.argsort(values)][
            np.searchsorted(np.cumsum(weights[np.argsort(values)]), 0.025)
        ]
        assert abs(table["lower"][name] - lower) < 0.25 * sd


def test_a_client_knows_that_the_parameters_are_uncertain(run, dense):
    """Its intercept has the deviation of the full posterior, not of one with theta held."""
    weights, _ = dense.weights(dense.terms)
    drawn = run.posterior.client("site0").draws(1000)["intercept"]
    mean, between = moments(weights, dense.means[0])
    sd = np.sqrt(weights @ dense.variances[0] + between**2)
    assert abs(drawn.mean() - mean) < 0.1 * sd
    assert abs(drawn.std() / sd - 1) < 0.05


def test_predictions_average_over_the_posterior(run, dense):
    weights, _ = dense.weights(dense.terms)
    found = run.predict([[2.0]], client="site1")
    mean, sd = moments(weights, dense.means[1] + 2 * dense.grid[:, 1])
    assert abs(float(found.mean[0]) - mean) < 0.4 * sd  # 100 draws


def test_leaving_a_client_out(run, dense):
    """The log predictive density of each client's rows, given all others, summed."""
    _, whole = dense.weights(dense.terms)
    exact = sum(
        whole - dense.weights(dense.terms[:index] + dense.terms[index + 1 :])[1]
        for index in range(len(dense.terms))
    )
    found = run.posterior.shared.law.leave_one_client_out()
    assert found.log_density == pytest.approx(exact, abs=0.3)
    assert found.unreliable <= 1


@pytest.mark.slow
def test_engines_agree(data):
    """Over real bytes, one client at a time, it is the same fit."""
    method = marginal(models.mixed_linear(scale=NOISE), estimate="posterior", prior=log_prior)
    found = []
    for engine in (Simulation(method, data, seed=0), Loop(method, data, seed=0)):
        state, _ = engine.advance(engine.start(), 5)
        found.append(np.asarray(state.server.climb.point))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_peers_are_refused(data):
    method = marginal(models.mixed_linear(scale=NOISE))
    with pytest.raises(ValueError, match=r"between peers: .*'simulate' or 'loop'.*fedpop"):
        covey.run(method, data, rounds=3, engine="peers", progress=False)


@pytest.mark.parametrize(
    "effects", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 2))]
)
def test_the_density_of_deviations_and_correlations_has_its_jacobian(effects):
    coordinates = Coordinates("full", positive=True)
    size = coordinates.size(effects)
    unit = jnp.linspace(0.5, 2.0, effects)

    def described(entries):
        return jnp.concatenate(deviations(coordinates.root(entries, unit)))

    def off(entries):
        exact = jnp.linalg.slogdet(jax.jacobian(described)(entries))[1]
        return exact - coordinates.log_jacobian(entries, unit)

    with jax.enable_x64(True):
        points = jnp.asarray(np.random.default_rng(0).normal(size=(4, size)) / 2)
        constants = jax.jit(jax.vmap(off))(points)
    np.testing.assert_allclose(constants, constants[0], atol=1e-6)


def test_smoothed_weights_are_those_of_arviz():
    from arviz_stats.base.array import array_stats

    random = np.random.default_rng(0)
    for tail in (0.3, 0.9):
        raw = -tail * np.log(random.uniform(size=500))
        with jax.enable_x64(True):
            found, k_hat = jax.jit(smoothed)(jnp.asarray(raw))
        expected, expected_k = array_stats.psislw(-raw)
        np.testing.assert_allclose(k_hat, expected_k, rtol=1e-6)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_proposal_that_is_off_is_moved():
    """A target eight deviations from the proposal, correlated and skewed by a mixture."""
    covariance = np.array([[1.0, 0.8], [0.8, 2.0]])
    inverse = np.linalg.inv(covariance)

    def log_density(points):
        off = points - np.array([8.0, -3.0])
        return -np.sum(off @ inverse * off, axis=1) / 2

    found = importance_sample(log_density, np.zeros(2), np.eye(2), draws=1000, seed=0)
    assert 1 < found.asked <= 5
    assert found.k_hat <= 0.7
    error = norm.ppf(0.9995) / np.sqrt(found.effective)
    np.testing.assert_allclose(found.weights @ found.points, [8, -3], atol=error * np.sqrt(2))


@pytest.mark.slow
def test_counts_of_few_clients_have_a_posterior():
    """Six clients leave their deviation so open that proposals reach a thousand times the mode."""
    method = covey.marginal(covey.models.mixed_poisson(), estimate="posterior")
    for seed in (25, 59):
        random, made = np.random.default_rng(1000 + seed), {}
        for index in range(6):
            x, own = random.normal(size=(40, 1)), 0.5 * random.normal()
            made[str(index)] = x, random.poisson(np.exp(0.3 + own + 0.4 * x[:, 0])).astype(float)
        data = FederatedData.from_clients(made, features=["x"])
        law = covey.run(method, data, seed=seed, progress=False).posterior.shared.law
        table = law.table(probability=0.99)
        assert table.loc["weights[x]", "lower"] < 0.4 < table.loc["weights[x]", "upper"]
        assert law.k_hat <= 0.7
