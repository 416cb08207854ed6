"""Several devices in one process: the chunks of a cohort are dealt out, rows and states are on each
device, and sums come together in a fixed order.

With one device nothing of this runs.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from covey.core import tree
from covey.core.shard import Shard
from covey.engines import round as rounds
from covey.engines.programs import RoundParts

AXIS = "devices"


def mesh_of(devices: Sequence[Any]) -> Mesh:
    """The devices in a row."""
    return Mesh(list(devices), (AXIS,))


def replicated(mesh: Mesh, value: PyTree) -> PyTree:
    """The same arrays on every device."""
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec()))


def spread_band(
    parts: RoundParts,
    mesh: Mesh,
    capacity: int,
    slots: rounds.Slots,
    carry: tuple[rounds.Tally, PyTree, jax.Array],
    sent: tuple[Any, ...],
) -> tuple[rounds.Tally, PyTree, jax.Array]:
    """The chunks of a band on all devices; chunk c runs on device c modulo their count.

    Chunks are sorted by size, so that devices get similar work. Clients are in one slot of a round
    only: their nodes are looked up before the band and put back after it.

    Args:
        parts: The parts that rounds are compiled from.
        mesh: The devices.
        capacity: Most rows of a client in the band.
        slots: The clients of the band, as (chunks, clients per chunk).
        carry: The tally so far, the clients' nodes, and which clients have taken part.
        sent: Root key, round, broadcast, and the rows with their starts and counts.

    Returns:
        The carry after the band.
    """
    tally, nodes, seen = carry
    dealt = _dealt(slots, mesh.size)

    def on_one_device(slots, nodes, seen, root, t, down, rows, starts, counts):
        def run_chunk(tally, slots):
            mine = Shard(rows, starts[slots.index], counts[slots.index], capacity)
            old, known = tree.take(nodes, slots.index), seen[slots.index]
            tally, new, good = rounds.chunk_round(
                parts, root, t, down, slots, old, known, mine, tally
            )
            return tally, (new, good)

        def run_if_any(tally, slots):
            def skip(tally, slots):
                return tally, (tree.take(nodes, slots.index), jnp.zeros_like(slots.on))

            return jax.lax.cond(jnp.any(slots.on), run_chunk, skip, tally, slots)

        mine = jax.tree.map(lambda leaf: leaf[0], slots)
        found = jax.lax.scan(run_if_any, rounds.empty_tally(parts.shapes), mine)
        return jax.lax.all_gather(found, AXIS)

    everywhere = PartitionSpec()
    tallies, (new, good) = jax.shard_map(
        on_one_device,
        mesh=mesh,
        in_specs=(PartitionSpec(AXIS), *(everywhere,) * 8),
        out_specs=everywhere,
        check_vma=False,
    )(dealt, nodes, seen, *sent)
    slots_in_all = dealt.index.size
    flat = jax.tree.map(lambda leaf: leaf.reshape(slots_in_all, *leaf.shape[3:]), new)
    index, kept = jnp.asarray(dealt.index).reshape(-1), good.reshape(-1)
    each = [jax.tree.map(lambda leaf, at=at: leaf[at], tallies) for at in range(mesh.size)]
    return (
        rounds.merged([tally, rounds.merged(each)]),
        tree.put(nodes, index, flat, kept),
        tree.put(seen, index, jnp.ones_like(kept), kept),
    )


def _dealt(slots: rounds.Slots, devices: int) -> rounds.Slots:
    """Chunks by device, as (devices, chunks per device, clients per chunk), with empty chunks up to
    the same count for each.
    """

    def deal(leaf):
        padded = jnp.pad(leaf, ((0, -leaf.shape[0] % devices), (0, 0)))
        return padded.reshape(-1, devices, leaf.shape[1]).swapaxes(0, 1)

    return jax.tree.map(deal, slots)
