"""A round of many clients, as pure functions: chunks of clients add to a tally, the server closes
it.

Both ways of driving a simulation (all rows on the device, or gathered by cohort) run these same
functions.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from covey.core import faults as fate_of
from covey.core import tree
from covey.core.algorithm import Aggregate, Info, Message, State
from covey.core.channel import Channel
from covey.core.faults import fate
from covey.core.keys import Integer, Stream, key_for
from covey.core.node import Node, Sent, first_node, node_round
from covey.core.shard import Shard, bucket_size
from covey.core.trimming import unsent_bytes
from covey.engines.messages import used_by
from covey.engines.programs import RoundParts
from covey.engines.record import Counts, Record, mean_or_nan
from covey.engines.setup import Setup, Shapes

SPARE = 1 / 8  # share of empty rows that fewer programs are worth
BLOCK = 128  # rounds in one compiled loop, at most; one program serves every smaller number


class Slots(NamedTuple):
    """Some clients of a cohort: position in the data, stable id, weight, and whether they run and
    are heard.
    """

    index: Int[Array | np.ndarray, " slots"]
    id: Int[Array | np.ndarray, " slots"]
    weight: Float[Array | np.ndarray, " slots"]
    on: Bool[Array | np.ndarray, " slots"]


class Tally(NamedTuple):
    """Sums over the clients of a round so far."""

    aggregate: Aggregate
    info: Info
    diverged: Int[Array, ""]
    diverged_id: Int[Array, ""]


def empty_tally(shapes: Shapes) -> Tally:
    """Nobody yet."""

    def zeros(spec):
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec)

    aggregate = Aggregate(zeros(shapes.up), zeros(shapes.up), jnp.zeros(()), jnp.zeros(()))
    info = jax.tree.map(lambda s: jnp.zeros(s.shape, float), shapes.client_info)
    return Tally(aggregate, info, jnp.int32(0), jnp.int32(-1))


def call_up(
    setup: Setup | RoundParts, root: Key[Array, ""], t: Integer, ids: Int[Array, " clients"]
) -> tuple[Slots, Counts]:
    """The cohort of round t, and what becomes of its messages."""
    cohort = setup.sampler.sample(key_for(root, Stream.COHORT, t), t)
    client_ids = ids[cohort.index]
    if any(setup.faults):
        fates = jax.vmap(lambda client_id: fate(setup.faults, root, t, client_id))(client_ids)
    else:  # a draw for each of a million clients is not for nothing
        fates = jnp.full(client_ids.shape, fate_of.ARRIVES)

    def count_of(kind):
        return jnp.sum(cohort.mask & (fates == kind), dtype=jnp.int32)

    on = cohort.mask & ((fates == fate_of.ARRIVES) | (fates == fate_of.REPEATED))
    counts = Counts(
        contacted=jnp.sum(cohort.mask, dtype=jnp.int32),
        clients=jnp.sum(on, dtype=jnp.int32),
        lost_down=count_of(fate_of.LOST_DOWN),
        lost_up=count_of(fate_of.LOST_UP),
        late=count_of(fate_of.LATE),
        repeated=count_of(fate_of.REPEATED),
        diverged=jnp.int32(0),
        diverged_id=jnp.int32(-1),
    )
    return Slots(cohort.index, client_ids, cohort.weight, on), counts


def chunk_round(
    setup: Setup | RoundParts,
    root: Key[Array, ""],
    t: Integer,
    down: Message,
    slots: Slots,
    nodes: Node,
    seen: Bool[Array, " slots"],
    data: Shard,
    tally: Tally,
) -> tuple[Tally, Node, Bool[Array, " slots"]]:
    """One round of the clients of a chunk. Returns the tally with theirs added, their nodes, and
    whose node is to be kept.
    """
    algorithm, channel = setup.algorithm, setup.channel

    count = jnp.where(slots.on, data.count, 0)

    def shard(start, count):
        return Shard(data.rows, start, count, data.capacity)

    def begin(client_id, start, count):
        return first_node(algorithm, channel, root, client_id, down, shard(start, count))

    def one(client_id, node, start, count):
        sent, node, info = node_round(
            algorithm, channel, root, t, client_id, down, node, shard(start, count)
        )
        up, weight = received(channel, sent)
        return up, weight, node, info, tree.is_finite((up, weight, node))

    if jax.tree.leaves(
        nodes
    ):  # a branch outside of vmap: first nodes are made only in chunks that have a newcomer
        nodes = jax.lax.cond(
            jnp.all(seen | ~jnp.asarray(slots.on)),
            lambda: nodes,
            lambda: jax.vmap(tree.where)(seen, nodes, each(begin, slots.id, data.start, count)),
        )
    ups, weights, nodes, infos, finite = each(one, slots.id, nodes, data.start, count)
    good, bad = slots.on & finite, slots.on & ~finite
    weights = jnp.where(good, slots.weight * weights, 0.0)
    part = Aggregate(
        weighted=tree.weighted_sum(weights, ups),
        plain=tree.weighted_sum(good.astype(float), ups),
        weight=jnp.sum(weights),
        count=jnp.sum(good, dtype=float),
    )
    info = tree.weighted_sum(
        good.astype(float), jax.tree.map(lambda leaf: leaf.astype(float), infos)
    )
    added = Tally(
        aggregate=jax.tree.map(jnp.add, tally.aggregate, part),
        info=jax.tree.map(jnp.add, tally.info, info),
        diverged=tally.diverged + jnp.sum(bad, dtype=jnp.int32),
        diverged_id=jnp.maximum(tally.diverged_id, jnp.max(jnp.where(bad, slots.id, -1))),
    )
    return added, nodes, good


def merged(tallies: Sequence[Tally]) -> Tally:
    """The sum of tallies, as a tree: neighbours first, so that the order of additions depends on
    their number only.
    """
    while len(tallies) > 1:
        pairs = [_sum(*tallies[at : at + 2]) for at in range(0, len(tallies) - 1, 2)]
        tallies = [*pairs, *tallies[2 * len(pairs) :]]
    return tallies[0]


def _sum(one: Tally, other: Tally) -> Tally:
    added = jax.tree.map(jnp.add, one, other)
    return added._replace(diverged_id=jnp.maximum(one.diverged_id, other.diverged_id))


def received(channel: Channel, sent: Sent) -> tuple[Message, Float[Array, ""]]:
    """An upload as the server sees it, and what it counts for."""
    weight = jnp.ones(()) if sent.weight is None else sent.weight
    return channel.decode(sent.payload), weight


def each(one: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
    """`one` for every client of a chunk. A single client is called plainly: large matrices are
    slower under vmap.
    """
    if jax.tree.leaves(arguments)[0].shape[0] == 1:
        return jax.tree.map(
            lambda leaf: leaf[None], one(*jax.tree.map(lambda leaf: leaf[0], arguments))
        )
    return jax.vmap(one)(*arguments)


def close_round(
    setup: Setup | RoundParts,
    root: Key[Array, ""],
    t: Integer,
    server: State,
    tally: Tally,
    counts: Counts,
) -> tuple[State, Record]:
    """The server's step. An empty aggregate changes nothing."""
    algorithm = setup.algorithm
    key = key_for(root, Stream.SERVER, t)
    aggregate = for_the_lost(tally.aggregate, counts)
    new, info = algorithm.server(key, server, aggregate)
    heard = tally.aggregate.count > 0
    counts = counts._replace(
        clients=counts.clients - tally.diverged,
        diverged=tally.diverged,
        diverged_id=tally.diverged_id,
    )
    client_info = jax.tree.map(lambda total: mean_or_nan(total, counts.clients), tally.info)
    server_info = jax.tree.map(lambda value: jnp.where(heard, value, jnp.nan), info)
    used = used_by(algorithm, setup.channel, algorithm.broadcast(server))
    unsent = unsent_bytes(setup.shapes.up, used)
    return tree.where(heard, new, server), Record(counts, client_info, server_info, unsent)


def repeated(
    one_round: Callable[..., tuple], first: Integer, count: Integer, carry: tuple
) -> tuple[tuple, PyTree]:
    """Several rounds in one compiled loop.

    Args:
        one_round: (t, *carry) -> (*carry, record), one round.
        first: The first round (t).
        count: How many rounds; at most `BLOCK`.
        carry: What rounds hand on to each other.

    Returns:
        The carry after the last round, and the records stacked; there is room for `BLOCK` of them.
    """
    traced_once = jax.jit(one_round)  # for the shapes of a record, and for the loop

    def body(index, at):
        carry, records = at
        *carry, record = traced_once(first + index, *carry)
        put = jax.tree.map(lambda all_, one: all_.at[index].set(one), records, record)
        return tuple(carry), put

    *_, record = jax.eval_shape(traced_once, first, *carry)
    records = jax.tree.map(lambda s: jnp.zeros((BLOCK, *s.shape), s.dtype), record)
    return jax.lax.fori_loop(0, count, body, (carry, records))


def for_the_lost(aggregate: Aggregate, counts: Counts) -> Aggregate:
    """Weighted sums scaled up by contacted over heard: those who were not heard stand for others.

    This keeps the sums unbiased where messages are lost at random. Clients whose values are not
    finite were heard, and are not made up for: they are not a random share.
    """
    share = jnp.asarray(counts.contacted / jnp.maximum(counts.clients, 1), float)
    return aggregate._replace(
        weighted=jax.tree.map(lambda leaf: share.astype(leaf.dtype) * leaf, aggregate.weighted),
        weight=share * aggregate.weight,
    )


class Band(NamedTuple):
    """Consecutive chunks of the sorted cohort with one capacity."""

    first: int
    chunks: int
    capacity: int


def bands_of(counts: np.ndarray, slots: int, chunk: int) -> list[Band]:
    """Static capacities for a cohort sorted by rows, largest first.

    The j-th largest client of a cohort is no larger than the j-th largest of the population. Each
    band is compiled by itself, which takes seconds: those that are nearly as large as their
    neighbours are joined to them.
    """
    largest = np.sort(counts)[::-1][:slots:chunk]
    capacities = [bucket_size(int(rows)) for rows in largest]
    edges = [
        index
        for index in range(len(capacities))
        if not index or capacities[index] != capacities[index - 1]
    ]
    ends = [*edges[1:], len(capacities)]
    bands = [
        Band(edge * chunk, end - edge, capacities[edge])
        for edge, end in zip(edges, ends, strict=True)
    ]
    return _joined(bands, SPARE * sum(band.chunks * band.capacity for band in bands))


def _joined(bands: list[Band], spare: float) -> list[Band]:
    """Fewer bands: smaller ones join larger ones, for at most `spare` added rows per slot."""
    extra = [small.chunks * (large.capacity - small.capacity) for large, small in pairwise(bands)]
    if not extra or min(extra) > spare:
        return bands
    at = int(np.argmin(extra))
    large, small = bands[at], bands[at + 1]
    both = Band(large.first, large.chunks + small.chunks, large.capacity)
    return _joined([*bands[:at], both, *bands[at + 2 :]], spare - extra[at])
