"""Sums over clients, against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.algorithms.federated_sum import federated_sum
from covey.core.cohort import uniform
from covey.core.faults import Faults
from covey.core.shard import all_rows
from covey.datasets.synthetic import shared_features
from covey.engines.loop import Loop
from covey.engines.simulate import Simulation


def outcomes(key, data):
    rows, mask = all_rows(data)
    return {"sum": jnp.sum(jnp.where(mask, rows.y, 0.0)), "noise": jax.random.normal(key)}


@pytest.fixture(scope="module")
def data():
    return shared_features(0, clients=12, dimensions=3)[0]


@pytest.mark.parametrize("engine", [Simulation, Loop])
def test_one_round_with_everyone_gives_the_sum(data, engine):
    run = engine(federated_sum(outcomes), data, seed=0)
    found = run.advance(run.start(), 1)[0].server
    np.testing.assert_allclose(found.sum["sum"], data.rows.y.sum(), rtol=1e-5)
    assert found.rounds == 1


def test_rounds_with_some_average_to_the_sum(data):
    rounds, size = 400, 4
    run = Simulation(federated_sum(outcomes), data, seed=0, cohort=uniform(size))
    found = run.advance(run.start(), rounds)[0].server.sum
    each = np.add.reduceat(data.rows.y, data.starts("train"))
    error = np.sqrt(12**2 / size * (1 - size / 12) * each.var(ddof=1) / rounds)
    assert abs(found["sum"] - each.sum()) < 4 * error
    assert abs(found["noise"]) < 4 * np.sqrt(12**2 / size / rounds)


@pytest.mark.parametrize("engine", [Simulation, Loop])
def test_those_who_are_heard_stand_for_those_who_are_not(data, engine):
    """A sum of ones is the number of clients in every round in which anyone is heard."""
    ones = federated_sum(lambda key, data: jnp.ones(()))
    run = engine(ones, data, seed=0, faults=Faults(dropout=0.2, straggler=0.1))
    state, lines = run.advance(run.start(), 6)
    assert min(line["clients"] for line in lines) < data.clients
    np.testing.assert_allclose(state.server.sum, data.clients, rtol=1e-6)


def test_lost_messages_leave_a_sum_unbiased(data):
    def squares(key, data):
        rows, mask = all_rows(data)
        return jnp.sum(jnp.where(mask, rows.y**2, 0.0))

    rounds, clients = 400, data.clients
    run = Simulation(federated_sum(squares), data, seed=0, faults=Faults(dropout=0.2))
    state, lines = run.advance(run.start(), rounds)
    heard = np.array([line["clients"] for line in lines])
    each = np.add.reduceat(data.rows.y**2, data.starts("train"))
    # Given how many were heard, they are a simple random sample of the clients.
    variance = clients**2 / heard * (1 - heard / clients) * each.var(ddof=1)
    error = np.sqrt(variance.mean() / rounds)
    assert abs(state.server.sum - each.sum()) < 3 * error
    assert 3 * error < 0.2 * each.sum() / 2  # a fifth is what the lost would take away


def test_a_sum_predicts_nothing(data):
    run = Simulation(federated_sum(outcomes, name="outcomes"), data, seed=0)
    with pytest.raises(ValueError, match="outcomes is a sum over clients"):
        run.predict(run.start(), 0, data.rows.x[:1])
