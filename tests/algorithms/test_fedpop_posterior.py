"""The posteriors of a FedPop run: of the shared parameters, and of clients whose draws are older
than the newest parameters.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import covey
from covey import models
from covey.core.algorithm import published
from covey.core.cohort import uniform
from covey.data.federated import FederatedData
from covey.engines.loop import Loop
from covey.engines.peers import Peers
from covey.engines.simulate import Simulation
from covey.kernels import ornstein_uhlenbeck
from covey.topology import complete

NOISE, DRAWS = 0.5, 100
MODEL = models.mixed_linear(scale=NOISE)


def clients(count=8, rows=6):
    """Random intercepts around 1, and a weight of 2."""
    rng, made = np.random.default_rng(7), {}
    for index in range(count):
        x = rng.normal(size=(rows, 1))
        y = 2 * x[:, 0] + 1 + rng.normal() + NOISE * rng.normal(size=rows)
        made[f"site{index}"] = (x, y)
    return FederatedData.from_clients(made, features=["dose"])


def method(draws=DRAWS, **options):
    return covey.fedpop(
        MODEL,
        step_size=3.0,
        draws=draws,
        kernel=ornstein_uhlenbeck(),
        phi_optimizer=optax.adam(0.2),
        beta_optimizer=optax.adam(0.2),
        **options,
    )


@pytest.fixture(scope="module")
def data():
    return clients()


@pytest.fixture(scope="module")
def stale(data):
    """A run with one client per round: most draws were made under parameters of long ago."""
    engine = Simulation(method(), data, seed=0, cohort=uniform(1))
    return engine, engine.advance(engine.start(), 25)[0]


def exact_means(theta, data):
    """Posterior means and deviations of the clients' intercepts given theta."""
    prior = np.exp(-2 * float(theta.beta.log_scale[0]))
    means, deviations = [], []
    for index in range(data.clients):
        x, y = data.rows_of(index, "train")
        off = y - x @ np.asarray(theta.phi.weight) - float(theta.phi.bias)
        precision = len(y) / NOISE**2 + prior
        means.append((off.sum() / NOISE**2 + prior * float(theta.beta.mean[0])) / precision)
        deviations.append(precision**-0.5)
    return np.array(means), np.array(deviations)


@pytest.mark.slow
def test_clients_predict_with_draws_under_the_newest_parameters(stale, data):
    """The mean square difference to the exact posterior mean was 0.062, and is 0.0003 now."""
    engine, state = stale
    theta = published(engine.setup.algorithm, state.server).theta
    means, deviations = exact_means(theta, data)
    x = jnp.zeros((1, 1))
    found = [float(engine.predict(state, at, x).mean[0]) for at in range(data.clients)]
    off = (np.array(found) - float(theta.phi.bias) - means) / (deviations / np.sqrt(DRAWS))
    assert np.asarray(state.seen).sum() >= 5
    assert np.abs(off).max() < 4
    assert 0.1 < np.mean(off**2) < 3  # a chi-square of 8 over 8, from 0.001 to 0.999


def test_draws_of_clients_are_of_the_newest_parameters(stale, data):
    engine, state = stale
    theta = published(engine.setup.algorithm, state.server).theta
    means, deviations = exact_means(theta, data)
    drawn = engine.draws(state, np.arange(data.clients), 50, chains=(0, 1, 2, 3))["intercept"]
    off = np.asarray(drawn).mean((1, 2)) - float(theta.phi.bias) - means
    assert np.abs(off / (deviations / np.sqrt(200))).max() < 4


@pytest.mark.slow
def test_engines_refresh_alike(data):
    """Between peers too, where everyone talks to everyone. Evaluation changes no later round."""
    step = optax.sgd(0.01)
    fed = covey.fedpop(MODEL, step_size=0.01, draws=3, phi_optimizer=step, beta_optimizer=step)
    few, found = data.subset([0, 1, 2]), []
    for make in (Simulation, Loop, partial(Peers, topology=complete())):
        engine = make(fed, few, seed=0)
        state = engine.advance(engine.start(), 2)[0]
        metrics = engine.evaluate(state, "train")
        later = engine.advance(state, 1)[0].server.theta
        found.append(jax.tree.leaves((jax.tree.map(np.asarray, metrics), later)))
    for one, *others in zip(*found, strict=True):
        for other in others:
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


@pytest.mark.slow
def test_the_posterior_of_the_shared_parameters(data):
    """Estimate plus error against the exact information, with the method's own prior."""
    run = covey.run(method(phi_prior=0.05), data, rounds=40, seed=0, progress=False)
    table = run.posterior.shared.summary(probability=0.9)
    assert table.index.tolist() == ["deviation[intercept]", "intercept", "weights[dose]"]
    theta = run.state.theta
    spread, noise = np.exp(2 * float(theta.beta.log_scale[0])), NOISE**2
    information = 0.05**-2  # of the weight, given the others
    for index in range(data.clients):
        x = np.asarray(data.rows_of(index, "train").x)[:, 0]
        information += x @ x / noise - x.sum() ** 2 * spread / noise / (noise + len(x) * spread)
    # Correlated with the intercept, so that its variance is a little larger.
    assert table.loc["weights[dose]", "sd"] == pytest.approx(information**-0.5, rel=0.1)
    assert table.loc["weights[dose]", "mean"] == pytest.approx(
        float(theta.phi.weight[0]), abs=4 * information**-0.5 / np.sqrt(4000)
    )
    bounds = table.loc["intercept", ["lower_90", "upper_90"]]
    assert bounds["lower_90"] < float(theta.phi.bias + theta.beta.mean[0]) < bounds["upper_90"]
    again = run.posterior.shared.draws(10, chains=2)
    assert {name: leaf.shape for name, leaf in again.items()} == {
        "intercept": (2, 10),
        "weights": (2, 10, 1),
        "deviation": (2, 10, 1),
    }
