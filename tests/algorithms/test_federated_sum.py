"""Sums over clients, against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.algorithms.federated_sum import federated_sum
from covey.core.cohort import uniform
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


def test_a_sum_predicts_nothing(data):
    run = Simulation(federated_sum(outcomes, name="outcomes"), data, seed=0)
    with pytest.raises(ValueError, match="outcomes is a sum over clients"):
        run.predict(run.start(), 0, data.rows.x[:1])
