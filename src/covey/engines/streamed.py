"""Clients whose rows and nodes are on the host: the rows of those at hand are gathered, and their
chunks are dispatched one by one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from covey.core.algorithm import Message
from covey.core.node import Node
from covey.core.shard import Shard
from covey.engines import round as rounds
from covey.engines.nodes import DiskNodes, MemoryNodes
from covey.engines.programs import RoundParts
from covey.engines.rows import DeviceRows, HostRows, View
from covey.engines.sharing import shared


class HostClients:
    """Some clients: their rows, their nodes, and their share of a round.

    Args:
        parts: The parts that their rounds are compiled from, of `chunk_parts`.
        root: The key of the run.
        rows: Their rows.
        store: Their nodes.
        chunk: Clients that run side by side.
        devices: Devices that chunks are dealt out to.
    """

    def __init__(
        self,
        parts: RoundParts,
        root: Key[Array, ""],
        rows: DeviceRows | HostRows,
        store: MemoryNodes | DiskNodes,
        chunk: int,
        devices: Sequence[Any],
    ):
        self.root, self.rows, self.store, self.chunk = root, rows, store, chunk
        self.devices = list(devices)
        self.chunk_round = shared(chunk_round_of, parts)
        self.merge = shared(jax.jit, rounds.merged)
        self.empty = rounds.empty_tally(parts.shapes)
        self.stateful = bool(jax.tree.leaves(parts.shapes.node))

    def round(self, t: int, down: Message, slots: rounds.Slots, seen: np.ndarray) -> rounds.Tally:
        """The round of the clients that were called up. Their nodes are updated.

        Args:
            t: The round.
            down: The broadcast.
            slots: The clients, by their positions among these, as arrays of the host.
            seen: Which clients have taken part; changed in place.

        Returns:
            The sums over those who were heard.
        """
        slots = _running(slots, self.rows.ranges("train")[1])
        slots, view = _padded(slots, self.rows.view(np.asarray(slots.index), "train"), self.chunk)
        arguments = [self._on(device, (self.root, down, view.rows)) for device in self.devices]
        tallies = [self._on(device, self.empty) for device in self.devices]
        for first in range(0, len(slots.index), self.chunk * len(self.devices)):
            begun = []  # a chunk on each device, before any answer is waited for
            starts = range(first, len(slots.index), self.chunk)
            for at, (device, sent) in zip(starts, enumerate(arguments), strict=False):
                here = slice(at, at + self.chunk)
                some = rounds.Slots(*(leaf[here] for leaf in slots))
                mine = View(sent[2], view.starts[here], view.counts[here])
                tallies[device], nodes, good = self._chunk(
                    t, sent, some, mine, seen, tallies[device]
                )
                begun.append((some, nodes, good))
            for some, nodes, good in begun:
                self._keep(some, nodes, good, seen)
        if len(tallies) == 1:
            return tallies[0]
        return self.merge(self._on(self.devices[0], tallies))

    def _on(self, device: Any, value: PyTree) -> PyTree:
        """Arrays on a device; where there is only one, as they are."""
        return value if len(self.devices) == 1 else jax.device_put(value, device)

    def _chunk(self, t: int, sent: tuple, some: rounds.Slots, view: View, seen, tally):
        """A chunk, on the device of the arrays that were sent to it."""
        where = np.asarray(some.index)
        return self.chunk_round(
            sent[0],
            t,
            sent[1],
            some,
            self.store.take(where),
            seen[where],
            view.rows,
            view.starts,
            view.counts,
            tally,
            capacity=rounds.bucket_size(int(view.counts[0])),
        )

    def _keep(self, some: rounds.Slots, nodes: Node, good: jax.Array, seen: np.ndarray) -> None:
        """Put back the nodes of a chunk's clients, and note who took part.

        Only stateful clients need the answer now; without state the chunks queue up behind one
        another.
        """
        where = np.asarray(some.index)
        if not self.stateful:
            self.store.put(where[some.on], ())
            seen[where[some.on]] = True
            return
        kept = np.asarray(good)
        self.store.put(where[kept], jax.tree.map(lambda leaf: np.asarray(leaf)[kept], nodes))
        seen[where[kept]] = True


def call_up_of(parts: RoundParts):
    """The compiled draw of a cohort."""
    return jax.jit(partial(rounds.call_up, parts))


def chunk_round_of(parts: RoundParts):
    """The compiled round of a chunk, once per capacity."""

    def chunk_round(
        root, t, down, slots, nodes, seen, rows, starts, counts, tally, *, capacity: int
    ):
        data = Shard(rows, starts, counts, capacity)
        return rounds.chunk_round(parts, root, t, down, slots, nodes, seen, data, tally)

    return jax.jit(chunk_round, static_argnames="capacity")


def close_round_of(parts: RoundParts):
    """The compiled step of the server."""
    return jax.jit(partial(rounds.close_round, parts))


def _running(slots: rounds.Slots, counts: np.ndarray) -> rounds.Slots:
    """The slots whose clients run, largest first."""
    running = np.flatnonzero(slots.on)
    order = running[np.argsort(-counts[slots.index[running]], kind="stable")]
    return rounds.Slots(*(np.asarray(leaf)[order] for leaf in slots))


def _padded(slots: rounds.Slots, view: View, chunk: int) -> tuple[rounds.Slots, View]:
    """Both with empty slots up to whole chunks."""

    def pad(leaf):
        return np.pad(leaf, (0, -len(leaf) % chunk))

    return rounds.Slots(*map(pad, slots)), View(view.rows, pad(view.starts), pad(view.counts))
