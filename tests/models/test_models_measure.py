"""Measuring in batches, over ragged clients and under vmap is measuring all rows at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.core import metrics
from covey.core.shard import Rows, Shard, Spec, whole
from covey.models import linear, measure, softmax
from covey.models.linear import Linear

RNG = np.random.default_rng(1)
ROWS = Rows(
    jnp.asarray(RNG.normal(size=(60, 3)), jnp.float32),
    jnp.asarray(RNG.integers(0, 4, 60)),
)
PARAMS = Linear(jnp.asarray(RNG.normal(size=(3, 4)), jnp.float32), jnp.asarray(RNG.normal(size=4), jnp.float32))
START = jnp.array([0, 11, 11, 30])
COUNT = jnp.array([11, 0, 19, 30])


def predict(x):
    return softmax().predictive(PARAMS, x)


def at_once(rows):
    return predict(rows.x).measures(rows.y, jnp.ones(len(rows.y), bool))


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, expected)


@pytest.mark.parametrize(("batch_size", "capacity"), [(1, 19), (7, 19), (7, 60), (19, 19), (256, 19), (256, 40)])
def test_batches_and_capacity_change_nothing(batch_size, capacity):
    shard = Shard(ROWS, jnp.int32(11), jnp.int32(19), capacity)
    got = jax.jit(lambda data: measure(predict, data, batch_size=batch_size))(shard)
    assert_same(got, at_once(jax.tree.map(lambda leaf: leaf[11:30], ROWS)))


def test_ragged_clients_under_vmap():
    axes = Shard(None, 0, 0, 30)  # pyright: ignore[reportArgumentType]
    stacked = jax.jit(jax.vmap(lambda data: measure(predict, data, batch_size=8), in_axes=(axes,)))(Shard(ROWS, START, COUNT, 30))
    for place, (start, count) in enumerate(zip(START, COUNT, strict=True)):
        own = jax.tree.map(lambda leaf, start=start, count=count: leaf[start : start + count], ROWS)
        assert_same(jax.tree.map(lambda leaf, place=place: leaf[place], stacked), at_once(own))
    assert_same(metrics.merge(stacked), at_once(ROWS))


def test_a_client_without_rows_counts_nothing():
    got = measure(predict, Shard(ROWS, jnp.int32(5), jnp.int32(0), 9))
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(got))
    assert all(np.isnan(value) for value in metrics.values(got).values())


def test_measures_of_a_number():
    rows = Rows(ROWS.x, ROWS.x @ jnp.array([1.0, -2.0, 0.5]))
    model = linear(scale=2.0)
    params = model.init(
        jax.random.key(0), Spec(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows))
    )
    got = metrics.values(measure(lambda x: model.predictive(params, x), whole(rows), batch_size=16))
    np.testing.assert_allclose(got["mse"], np.mean(np.square(rows.y)), rtol=1e-5)


def test_batch_size_is_checked():
    with pytest.raises(ValueError, match="batch_size"):
        measure(predict, whole(ROWS), batch_size=0)
