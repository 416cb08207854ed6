"""Measuring in batches, over ragged clients and under vmap is measuring all rows at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.core import metrics
from covey.core.shard import Rows, Shard, whole
from covey.models import linear, measure, softmax
from covey.models.linear import Linear

RNG = np.random.default_rng(1)
ROWS = Rows(
    jnp.asarray(RNG.normal(size=(60, 3)), jnp.float32),
    jnp.asarray(RNG.integers(0, 4, 60)),
)
PARAMS = Linear(
    jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32), jnp.asarray(RNG.normal(size=4), jnp.float32)
)
START = np.array([0, 11, 11, 30])
COUNT = np.array([11, 0, 19, 30])


def predict(x):
    return softmax().predictive(PARAMS, x)


@jax.jit
def at_once(start, count):
    index = jnp.arange(60)
    return predict(ROWS.x).measures(ROWS.y, (index >= start) & (index < start + count))


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, expected)


@pytest.mark.parametrize(("batch_size", "capacity"), [(1, 19), (7, 60), (19, 19), (256, 40)])
def test_batches_and_capacity_change_nothing(batch_size, capacity):
    shard = Shard(ROWS, jnp.int32(11), jnp.int32(19), capacity)
    got = jax.jit(lambda data: measure(predict, data, batch_size=batch_size))(shard)
    assert_same(got, at_once(11, 19))


def test_ragged_clients_under_vmap():
    def of_client(start, count):
        return measure(predict, Shard(ROWS, start, count, 30), batch_size=8)

    stacked = jax.jit(jax.vmap(of_client))(START, COUNT)
    for index in range(len(START)):
        own = jax.tree.map(lambda leaf, index=index: np.asarray(leaf)[index], stacked)
        assert_same(own, at_once(START[index], COUNT[index]))
    assert_same(metrics.merge(stacked), at_once(0, 60))


def test_a_client_without_rows_counts_nothing():
    got = measure(predict, Shard(ROWS, jnp.int32(5), jnp.int32(0), 9))
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(got))
    assert all(np.isnan(value) for value in metrics.values(got).values())


def test_measures_of_a_numeric_outcome():
    y = np.asarray(ROWS.x) @ np.array([1.0, -2.0, 0.5], np.float32)
    model = linear(scale=2.0)
    params = Linear(jnp.zeros(3), jnp.ones(()))
    got = metrics.values(
        measure(lambda x: model.predictive(params, x), whole(Rows(ROWS.x, y)), batch_size=16)
    )
    np.testing.assert_allclose(got["mse"], np.mean(np.square(y - 1)), rtol=1e-5)


def test_no_rows_at_all_is_no_error():
    nothing = Rows(jnp.zeros((0, 3)), jnp.zeros(0, int))
    assert softmax().predictive(PARAMS, nothing.x).log_prob(nothing.y).shape == (0,)


def test_batch_size_is_checked():
    with pytest.raises(ValueError, match="batch_size"):
        measure(predict, whole(ROWS), batch_size=0)
