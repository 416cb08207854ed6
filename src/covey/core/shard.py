"""One client's data, as a view of ragged storage.

Rows of all clients lie flat, one after the other. A `Shard` says where one client's rows begin and
how many there are. Under `vmap` the rows are shared and only `start` and `count` are batched, so
nothing is padded and nothing is copied: a minibatch is one gather from the flat storage.

`capacity` is a static bound on `count`, for shapes. Values never depend on it: what a client
computes must be the same for every capacity, because engines choose it by what is fast.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from covey.core import tree
from covey.core.keys import without_replacement

Carry = TypeVar("Carry")
# rows; below, drawing them one by one beats sorting all rows of the client, up to sixty times
SMALL_BATCH = 512


class Rows(NamedTuple):
    """Supervised rows: features and outcomes; arrays with the row as the leading axis, or the
    shapes of one row.
    """

    x: Any
    y: Any


class Spec(NamedTuple):
    """The shapes of one row, from which a model takes its own; and, from an engine, the counts of
    clients and rows.

    rows: the row structure with `jax.ShapeDtypeStruct` leaves, without the leading axis.
    classes: the number of labels, or None where the outcome is numeric.
    clients: the number of clients, whether they take part or not.
    examples: the number of training rows that they have together.
    features: the names of the columns of x, where they have names.
    omega: the variance bound of the run's channel for an upload; None for a biased channel, and
        where there is no run.
    standardised: the indices of the columns of x that are z-scores.
    capacity: the rows that the largest client is padded to, so that shapes are found by the trace
        that a run uses.
    first_row: (condition) -> the first row for which condition(rows) is true, in words, or None;
        for models that check values. None where the rows are not at hand.
    """

    rows: PyTree
    classes: int | None = None
    clients: int | None = None
    examples: int | None = None
    features: tuple[str, ...] | None = None
    omega: float | None = None
    standardised: tuple[int, ...] = ()
    first_row: Callable[[Callable[[Any], Any]], str | None] | None = None
    capacity: int = 1


class Axis(NamedTuple):
    """The first axis of a described value: the name of the dimension, and a label
    for each index along it.
    """

    dimension: str
    labels: tuple[str, ...]


class Batch(NamedTuple):
    """Some rows, and which of them are real."""

    rows: PyTree
    mask: Bool[Array, " batch"]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("rows", "start", "count"),
    meta_fields=("capacity",),
)
@dataclass(frozen=True)
class Shard:
    """Rows `start` to `start + count` of the storage. Under `vmap`, `start` and `count` have a
    leading axis, `rows` has not.
    """

    rows: PyTree
    start: Int[Array, "*clients"]
    count: Int[Array, "*clients"]
    capacity: int = field(metadata={"static": True})

    def take(self, index: Int[Array, " batch"]) -> PyTree:
        """Rows by their index within this client; past the last, the last one again: never a row
        of another client.
        """
        return tree.take(self.rows, self.start + jnp.clip(index, 0, jnp.maximum(self.count - 1, 0)))


class Noted(NamedTuple):
    """Some rows, and the client's notes on each."""

    rows: PyTree
    notes: PyTree


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("rows", "start", "count", "notes"),
    meta_fields=("capacity",),
)
@dataclass(frozen=True)
class NotedShard(Shard):
    """A shard with the client's notes on its rows, from its first row on: `take` gives
    both.
    """

    notes: PyTree

    def take(self, index: Int[Array, " batch"]) -> Noted:
        """Rows and notes by their index within this client."""
        return Noted(
            super().take(index),
            tree.take(self.notes, jnp.clip(index, 0, jnp.maximum(self.count - 1, 0))),
        )


def noted(data: Shard, notes: PyTree) -> NotedShard:
    """The shard with notes on its rows: arrays whose leading axis is the row's index within the
    client.
    """
    return NotedShard(data.rows, data.start, data.count, data.capacity, notes)


def whole(rows: PyTree) -> Shard:
    """A shard of all the rows given: what a site makes of its own table."""
    count = jax.tree.leaves(rows)[0].shape[0]
    # A copy: the owner of the arrays may change them later.
    own = jax.tree.map(partial(jnp.array, copy=True), rows)
    return Shard(own, jnp.int32(0), jnp.int32(count), max(count, 1))


def bucket_size(rows: int) -> int:
    """The next of 1, 16, 32, 64, 96, 128, 192, ...: few distinct shapes, as each needs its own
    program, and little room to spare.

    One row is a client's summary of its rows, and fifteen empty ones beside it would cost as much
    each.
    """
    power = 16 if rows > 1 else 1
    while power < rows:
        power *= 2
    return power * 3 // 4 if power > 64 and rows <= power * 3 // 4 else power


def batches_of(data: Shard, batch_size: int | None) -> tuple[int, Int[Array, ""]]:
    """The static size of a batch (None: all rows) and the number of batches in one pass over the
    client's rows.
    """
    size = data.capacity if batch_size is None else min(batch_size, data.capacity)
    if batch_size is None:
        return size, jnp.minimum(data.count, 1)
    return size, -(-data.count // batch_size)


def shuffled(key: Key[Array, ""], data: Shard) -> Int[Array, " capacity"]:
    """A random permutation of the client's row indices; entries past `count` hold the indices past
    `count`.

    Sorts random tickets of 20 bits, of which the first `count` are the same for every capacity. Two
    rows with the same ticket, one pair in a million, stay in their order. Ticket and row index fit
    one word up to 4,096 rows, and sorting single words is six to fifteen times faster than sorting
    pairs; beyond, a stable sort by ticket gives the same order.
    """
    index = jnp.arange(data.capacity, dtype=jnp.uint32)
    ticket = jax.random.bits(key, (data.capacity,), jnp.uint32) >> 12
    ticket = jnp.where(index < data.count.astype(jnp.uint32), ticket, 2**20 - 1)
    if data.capacity > 2**12:
        return jnp.argsort(ticket, stable=True)
    return (jnp.sort((ticket << 12) | index) & (2**12 - 1)).astype(int)


def fold_batches(
    data: Shard, batch_size: int, step: Callable[[Carry, Batch], Carry], carry: Carry
) -> Carry:
    """Carry a value through one pass over the client's rows, in storage order."""
    size, passes = batches_of(data, batch_size)

    def body(batch, carry):
        index = batch * batch_size + jnp.arange(size)
        return step(carry, Batch(data.take(index), index < data.count))

    return jax.lax.fori_loop(0, passes, body, carry)


def some_rows(key: Key[Array, ""], data: Shard, batch_size: int | None) -> Batch:
    """One minibatch of the client's rows, drawn without replacement; None, or more than there are,
    takes all.
    """
    if batch_size is None or batch_size >= data.capacity:  # every row, in whatever order
        return all_rows(data)
    few = batch_size <= SMALL_BATCH
    index = (
        without_replacement(key, data.count, batch_size)
        if few
        else shuffled(key, data)[:batch_size]
    )
    return Batch(data.take(index), index < data.count)


def poisson_rows(key: Key[Array, ""], data: Shard, batch_size: int | None) -> Batch:
    """Each of the client's rows by itself, with probability batch_size / rows: `batch_size` of them
    on average; None takes all.

    The privacy of this is known more exactly than that of `some_rows`. Every row is looked at, so
    it costs as much as all rows.
    """
    batch = all_rows(data)
    if batch_size is None:
        return batch
    chance = batch_size / jnp.maximum(data.count, 1)
    return Batch(batch.rows, batch.mask & (jax.random.uniform(key, (data.capacity,)) < chance))


def all_rows(data: Shard) -> Batch:
    """Every row of the client in one batch, padded to the capacity."""
    index = jnp.arange(data.capacity)
    return Batch(data.take(index), index < data.count)
