"""What a client computes does not depend on the capacity that an engine gives it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.core.shard import (
    Rows,
    Shard,
    all_rows,
    batches_of,
    fold_batches,
    noted,
    shuffled,
    some_rows,
    whole,
)

ROWS = Rows(jnp.arange(60.0).reshape(30, 2), jnp.arange(30))


def shard(start, count, capacity):
    return Shard(ROWS, jnp.int32(start), jnp.int32(count), capacity)


@pytest.mark.parametrize("sampler", [jax.random.uniform, jax.random.normal, jax.random.bits])
def test_a_longer_draw_begins_with_the_shorter_one(sampler):
    """The property of threefry's counters that everything rests on."""
    key = jax.random.key(3)
    for shape in ((), (4,)):
        np.testing.assert_array_equal(sampler(key, (7, *shape)), sampler(key, (100, *shape))[:7])


jitted_order = jax.jit(shuffled)


@settings(max_examples=25, deadline=None)
@given(count=st.integers(0, 20), seed=st.integers(0, 1000))
def test_the_order_is_a_permutation_and_ignores_the_capacity(count, seed):
    key = jax.random.key(seed)
    orders = [
        np.asarray(jitted_order(key, shard(5, count, capacity)))[:count]
        for capacity in (20, 24, 64)
    ]
    assert sorted(orders[0]) == list(range(count))
    for order in orders[1:]:
        np.testing.assert_array_equal(order, orders[0])


def test_the_order_is_the_same_where_a_ticket_and_a_row_number_no_longer_fit_one_word():
    rows = Rows(jnp.zeros((4096, 1)), jnp.zeros(4096))
    orders = [
        shuffled(jax.random.key(0), Shard(rows, jnp.int32(0), jnp.int32(4000), c))[:4000]
        for c in (4096, 6144)
    ]
    np.testing.assert_array_equal(*orders)
    assert sorted(np.asarray(orders[0])) == list(range(4000))


def test_the_order_is_uniform():
    keys = jax.random.split(jax.random.key(0), 6000)
    orders = np.asarray(jax.vmap(lambda key: shuffled(key, shard(0, 3, 8)))(keys))[:, :3]
    counts = np.unique(orders @ [100, 10, 1], return_counts=True)[1]
    assert len(counts) == 6
    assert np.all(np.abs(counts - 1000) < 4 * np.sqrt(1000))


@pytest.mark.parametrize("capacity", [8, 12, 25])
@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_a_pass_sees_every_row_once(capacity, batch_size):
    def add(carry, batch):
        return carry + jnp.sum(jnp.where(batch.mask, batch.rows.y, 0))

    assert fold_batches(shard(4, 8, capacity), batch_size, add, 0) == sum(range(4, 12))


def test_batches():
    assert batches_of(shard(0, 20, 24), 8)[0] == 8
    assert batches_of(shard(0, 20, 24), 8)[1] == 3
    assert batches_of(shard(0, 5, 6), 8)[0] == 6
    assert batches_of(shard(0, 0, 6), 8)[1] == 0
    assert batches_of(shard(0, 20, 24), None) == (24, 1)


def test_all_rows_and_whole():
    batch = all_rows(shard(28, 2, 8))
    np.testing.assert_array_equal(batch.rows.y[batch.mask], [28, 29])
    own = whole(Rows(np.ones((3, 2), np.float32), np.arange(3)))
    assert (int(own.start), int(own.count), own.capacity) == (0, 3, 3)


def test_notes_go_with_their_rows():
    """Notes are numbered from the client's first row, rows from the first of all; neither is ever
    another client's.
    """
    data = noted(shard(6, 5, 8), jnp.arange(8) * 10)
    taken = data.take(jnp.array([4, 0, 7]))
    np.testing.assert_array_equal(taken.rows.y, [10, 6, 10])
    np.testing.assert_array_equal(taken.notes, [40, 0, 40])
    seen = fold_batches(
        data,
        2,
        lambda total, batch: total + jnp.sum(jnp.where(batch.mask, batch.rows.notes, 0)),
        jnp.int32(0),
    )
    assert seen == 10 * (0 + 1 + 2 + 3 + 4)


@pytest.mark.parametrize("batch_size", [4, pytest.param(600, marks=pytest.mark.slow)])
def test_a_minibatch_ignores_the_capacity(batch_size):
    """Drawn one by one, or many by a sort: different rows of this client's, the same for every
    capacity.
    """
    rows = Rows(jnp.zeros((2000, 1)), jnp.arange(2000))
    batches = [
        some_rows(
            jax.random.key(1), Shard(rows, jnp.int32(100), jnp.int32(900), capacity), batch_size
        )
        for capacity in (1024, 1536)
    ]
    np.testing.assert_array_equal(batches[0].rows.y, batches[1].rows.y)
    assert batches[0].mask.all()
    assert len(np.unique(batches[0].rows.y)) == batch_size
    assert 100 <= batches[0].rows.y.min() <= batches[0].rows.y.max() < 1000


@pytest.mark.parametrize("rows", [16, 1024])
def test_a_shard_keeps_its_rows_when_their_owner_changes_the_array(rows):
    x = np.ones((rows, 4), np.float32)
    data = whole({"x": x})
    x[:] = 7
    np.testing.assert_array_equal(data.rows["x"], 1.0)
