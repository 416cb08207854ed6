"""A round of many clients, as pure functions: chunks of clients add to a tally, the server closes
it.

Both ways of driving a simulation (all rows on the device, or gathered by cohort) run these same
functions.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from covey.core import faults as fate_of
from covey.core import tree
from covey.core.algorithm import Aggregate, Algorithm, Info, Message, State
from covey.core.cohort import Sampler, Scheme, full
from covey.core.faults import Faults, fate
from covey.core.keys import Integer, Stream, key_for
from covey.core.node import Channel, Node, first_node, node_round
from covey.core.shard import Shard, Spec
from covey.engines.record import Counts, Record, Sizes, mean_or_nan


class Setup(NamedTuple):
    """What does not change during a run: the method, its channel, who takes part, what goes
    wrong.
    """

    algorithm: Algorithm
    channel: Channel
    sampler: Sampler
    faults: Faults


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


class Shapes(NamedTuple):
    """Shapes that follow from the method and the data: of the server state, broadcast, node,
    upload, payload and infos.
    """

    server: State
    down: Message
    node: Node
    up: Message
    payload: PyTree
    client_info: Info
    server_info: Info


def shapes_of(algorithm: Algorithm, channel: Channel, root: Key[Array, ""], spec: Spec) -> Shapes:
    """Found without computing anything. A client's state and upload must not depend on how many
    rows it has.
    """

    def trace(root):
        rows = jax.tree.map(lambda s: jnp.zeros((1, *s.shape), s.dtype), spec.rows)
        data = Shard(rows, jnp.int32(0), jnp.int32(1), 1)
        server = algorithm.init(root, spec)
        down = algorithm.broadcast(server)
        node = first_node(algorithm, channel, root, 0, down, data)
        payload, _, info = node_round(algorithm, channel, root, 0, 0, down, node, data)
        up = channel.decode(payload)
        _, server_info = algorithm.server(
            root, server, Aggregate(up, up, jnp.ones(()), jnp.ones(()))
        )
        return Shapes(server, down, node, up, payload, info, server_info)

    shapes = jax.eval_shape(trace, root)
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes.up):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            name = jax.tree_util.keystr(path)
            raise ValueError(
                f"{algorithm.name} uploads {name} as {leaf.dtype}; uploads are summed with weights and must be floats"
            )
    return shapes


def sampler_of(algorithm: Algorithm, cohort: Scheme | None, counts: np.ndarray) -> Sampler:
    """Who takes part, among clients with so many rows each; everyone by default."""
    sampler = (full() if cohort is None else cohort)(counts)
    if algorithm.check is not None:
        algorithm.check(counts, sampler)
    return sampler


def sizes_of(channel: Channel, shapes: Shapes) -> Sizes:
    """Bits of a broadcast and of an upload."""
    return Sizes(tree.bits(shapes.down), channel.bits(shapes.payload))


def empty_tally(shapes: Shapes) -> Tally:
    """Nobody yet."""

    def zeros(spec):
        return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), spec)

    aggregate = Aggregate(zeros(shapes.up), zeros(shapes.up), jnp.zeros(()), jnp.zeros(()))
    info = jax.tree.map(lambda s: jnp.zeros(s.shape, float), shapes.client_info)
    return Tally(aggregate, info, jnp.int32(0), jnp.int32(-1))


def call_up(
    setup: Setup, root: Key[Array, ""], t: Integer, ids: Int[Array, " clients"]
) -> tuple[Slots, Counts]:
    """The cohort of round t, and what becomes of its messages."""
    cohort = setup.sampler.sample(key_for(root, Stream.COHORT, t), t)
    client_ids = ids[cohort.index]
    if any(setup.faults):
        fates = jax.vmap(lambda client_id: fate(setup.faults, root, t, client_id))(client_ids)
    else:  # a draw for each of a million clients is not for nothing
        fates = jnp.full(client_ids.shape, fate_of.ARRIVES)

    def number(kind):
        return jnp.sum(cohort.mask & (fates == kind), dtype=jnp.int32)

    on = cohort.mask & ((fates == fate_of.ARRIVES) | (fates == fate_of.REPEATED))
    counts = Counts(
        contacted=jnp.sum(cohort.mask, dtype=jnp.int32),
        clients=jnp.sum(on, dtype=jnp.int32),
        lost_down=number(fate_of.LOST_DOWN),
        lost_up=number(fate_of.LOST_UP),
        late=number(fate_of.LATE),
        repeated=number(fate_of.REPEATED),
        diverged=jnp.int32(0),
        diverged_id=jnp.int32(-1),
    )
    return Slots(cohort.index, client_ids, cohort.weight, on), counts


def chunk_round(
    setup: Setup,
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
        payload, node, info = node_round(
            algorithm, channel, root, t, client_id, down, node, shard(start, count)
        )
        sent = channel.decode(payload)
        return sent, node, info, tree.is_finite((sent, node))

    if jax.tree.leaves(
        nodes
    ):  # a branch outside of vmap: first nodes are made only in chunks that have a newcomer
        nodes = jax.lax.cond(
            jnp.all(seen | ~jnp.asarray(slots.on)),
            lambda: nodes,
            lambda: jax.vmap(tree.where)(seen, nodes, each(begin, slots.id, data.start, count)),
        )
    sent, nodes, infos, finite = each(one, slots.id, nodes, data.start, count)
    good, bad = slots.on & finite, slots.on & ~finite
    part = Aggregate(
        weighted=tree.weighted_sum(jnp.where(good, slots.weight, 0.0), sent),
        plain=tree.weighted_sum(good.astype(float), sent),
        weight=jnp.sum(jnp.where(good, slots.weight, 0.0)),
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
    setup: Setup, root: Key[Array, ""], t: Integer, server: State, tally: Tally, counts: Counts
) -> tuple[State, Record]:
    """The server's step. An empty aggregate changes nothing."""
    algorithm = setup.algorithm
    key = key_for(root, Stream.SERVER, t)
    new, info = algorithm.server(key, server, tally.aggregate)
    heard = tally.aggregate.count > 0
    counts = counts._replace(
        clients=counts.clients - tally.diverged,
        diverged=tally.diverged,
        diverged_id=tally.diverged_id,
    )
    client_info = jax.tree.map(lambda total: mean_or_nan(total, counts.clients), tally.info)
    server_info = jax.tree.map(lambda value: jnp.where(heard, value, jnp.nan), info)
    return tree.where(heard, new, server), Record(counts, client_info, server_info)


class Band(NamedTuple):
    """Consecutive chunks of the sorted cohort with one capacity."""

    first: int
    chunks: int
    capacity: int


def bands_of(counts: np.ndarray, slots: int, chunk: int) -> list[Band]:
    """Static capacities for a cohort sorted by rows, largest first.

    The j-th largest client of a cohort is no larger than the j-th largest of the population.
    """
    largest = np.sort(counts)[::-1][:slots:chunk]
    capacities = [bucket_size(int(rows)) for rows in largest]
    edges = [
        place
        for place in range(len(capacities))
        if not place or capacities[place] != capacities[place - 1]
    ]
    ends = [*edges[1:], len(capacities)]
    return [
        Band(edge * chunk, end - edge, capacities[edge])
        for edge, end in zip(edges, ends, strict=True)
    ]


def bucket_size(rows: int) -> int:
    """The next of 1, 16, 32, 64, 96, 128, 192, ...: few distinct shapes, each a program of its own,
    and little room to spare.

    One row is a client's summary of its rows, and fifteen empty ones beside it would cost as much
    each.
    """
    power = 16 if rows > 1 else 1
    while power < rows:
        power *= 2
    return power * 3 // 4 if power > 64 and rows <= power * 3 // 4 else power
