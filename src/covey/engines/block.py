"""A block of clients, on any machine: their rows, their states, and their share of every round.

A block knows nothing of the other blocks, of cohorts and of the server. It serves several runs on
the same rows, one piece of work each: the rounds of a method, and questions beyond them.
"""

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from covey.core.algorithm import Algorithm
from covey.core.channel import Channel
from covey.core.keys import root_key
from covey.core.mapped import location
from covey.core.metrics import Metric
from covey.core.node import Node
from covey.data.federated import FederatedData, Split
from covey.engines import node_files
from covey.engines.evaluation import Evaluator
from covey.engines.node_files import Part
from covey.engines.nodes import MemoryNodes
from covey.engines.programs import chunk_parts
from covey.engines.round import Slots
from covey.engines.rows import Storage, rows_of
from covey.engines.setup import Shapes
from covey.engines.streamed import HostClients


class MappedRows(NamedTuple):
    """Rows in a file, which a block opens by itself."""

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str

    def open(self, node: str) -> np.ndarray:
        """The rows, memory-mapped.

        Raises:
            ValueError: The file cannot be opened on this node.
        """
        try:
            return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise ValueError(
                f"{self.path} cannot be opened on node {node}: {why}; rows that are memory-mapped "
                "must be at the same path on every node"
            ) from None


class Share(NamedTuple):
    """The clients of a block.

    Attributes:
        data: The clients, with their rows or the path of these (`MappedRows`).
        storage: Storage of the rows in a block.
        x64: Whether floats have 64 bits.
    """

    data: Any
    storage: Storage
    x64: bool

    @classmethod
    def of(cls, data: FederatedData, storage: Storage) -> "Share":
        """The share of these clients. Memory-mapped rows are named, not sent."""
        rows = jax.tree.map(_named, data.rows)
        x64 = bool(jax.config.read("jax_enable_x64"))
        return cls((rows, data.bounds, data.ids, data.spec), storage, x64)

    def opened(self, node: str) -> FederatedData:
        """The clients with their rows."""
        rows, bounds, ids, spec = self.data
        mapped = jax.tree.map(
            lambda leaf: leaf.open(node) if isinstance(leaf, MappedRows) else leaf,
            rows,
            is_leaf=lambda leaf: isinstance(leaf, MappedRows),
        )
        return FederatedData(mapped, bounds, ids, None, spec, None)


class Work(NamedTuple):
    """The settings of a run, or of a question, which may have another precision."""

    algorithm: Algorithm
    channel: Channel
    shapes: Shapes
    seed: int
    chunk: int
    x64: bool


class Hello(NamedTuple):
    """The identity of a block: its node, its process, and the versions there."""

    node: str
    process: int
    covey: str
    jax: str


class Done(NamedTuple):
    """A block's share of a round: the leaves of its tally, whose clients were new, and the time."""

    tally: list[np.ndarray]
    new: np.ndarray
    seconds: float


class Block:
    """Some clients, in a process that has nothing else."""

    def __init__(self) -> None:
        self.node = platform.node()
        self.works: dict[int, _Working] = {}

    def hello(self) -> Hello:
        """Which node this is, and the versions on it."""
        return Hello(self.node, os.getpid(), version("covey"), jax.__version__)

    def open(self, share: Share) -> None:
        """Take over clients."""
        jax.config.update("jax_enable_x64", share.x64)
        self.rows = rows_of(share.opened(self.node), share.storage)

    def begin(self, run: int, work: Work) -> None:
        """Take on a run, whose clients have no state yet."""
        with jax.enable_x64(work.x64):
            self.works[run] = _Working(work, self.rows)

    def round(self, run: int, t: int, slots: Slots, down: list[np.ndarray]) -> Done:
        """The round of the clients called up, by their positions in the block."""
        start = perf_counter()
        with self._on(run) as work:
            before = work.seen.copy()
            shaped = jax.tree.unflatten(work.down, [jnp.asarray(leaf) for leaf in down])
            tally = work.clients.round(t, shaped, slots, work.seen)
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tally)]
        return Done(leaves, np.flatnonzero(work.seen & ~before), perf_counter() - start)

    def measures(
        self, run: int, t: int, split: Split, draws: int | None, down: PyTree
    ) -> dict[str, Metric]:
        """Metrics of every client, stacked; predictions average over `draws` draws."""
        with self._on(run) as work:
            evaluator = work.evaluator.over(draws)
            return jax.device_get(
                evaluator.measures(self.rows, t, down, work.store.take, work.seen, split)
            )

    def predict(
        self, run: int, t: int, client: int, x: PyTree, draws: int | None, down: PyTree
    ) -> PyTree:
        """The predictive distribution of one client, averaged over `draws` draws."""
        with self._on(run) as work:
            node = work.store.take(np.array([client])) if work.seen[client] else None
            evaluator = work.evaluator.over(draws)
            return jax.device_get(evaluator.predict(self.rows, t, down, node, client, x))

    def draws(
        self,
        run: int,
        t: int,
        clients: np.ndarray,
        count: int,
        chains: Sequence[int],
        down: PyTree,
    ) -> PyTree:
        """Posterior draws of some clients."""
        with self._on(run) as work:
            return work.evaluator.draws(
                self.rows, t, down, work.store.take, work.seen, clients, count, chains
            )

    def snapshot(self, run: int) -> list[np.ndarray]:
        """The leaves of the states of all clients."""
        return jax.tree.leaves(self.works[run].store.snapshot())

    def sees(self, path: str) -> bool:
        """Whether a file is there."""
        return Path(path).exists()

    def save(self, run: int, path: str) -> int:
        """Write the states of all clients to a file; its checksum."""
        return node_files.write(path, jax.tree.leaves(self.works[run].store.nodes))

    def restore(
        self, run: int, kept: Sequence[np.ndarray] | Sequence[Part] | None, seen: np.ndarray
    ) -> None:
        """Go back to a snapshot, or to files; None: no client has a state yet."""
        work = self.works[run]
        work.store.restore(work.nodes(kept))
        work.seen[:] = seen

    @contextmanager
    def _on(self, run: int) -> Iterator["_Working"]:
        """A run, with its precision: this process has that of the rows."""
        work = self.works[run]
        with jax.enable_x64(work.x64):
            yield work


class _Working:
    """A run, as a block works on it."""

    def __init__(self, work: Work, rows: Any):
        self.x64 = work.x64
        root, clients = root_key(work.seed), rows.data.clients
        self.store = MemoryNodes(work.shapes.node, clients)
        self.one = jax.tree.leaves(work.shapes.node)
        self.seen = np.zeros(clients, bool)
        self.down = jax.tree.structure(work.shapes.down)
        parts = chunk_parts(work.algorithm, work.channel, work.shapes)
        devices = jax.local_devices()
        self.clients = HostClients(parts, root, rows, self.store, work.chunk, devices)
        self.evaluator = Evaluator(work.algorithm, root, work.chunk)

    def nodes(self, kept: Sequence[np.ndarray] | Sequence[Part] | None) -> Node:
        like, structure = jax.tree.flatten(self.store.like())
        if kept is None:
            leaves: Sequence[Any] = [np.zeros(spec.shape, spec.dtype) for spec in like]
        elif kept and isinstance(kept[0], Part):
            leaves = node_files.read(kept, self.one)  # pyright: ignore[reportArgumentType]
        else:
            leaves = kept
        return jax.tree.unflatten(structure, leaves)


def _named(leaf: np.ndarray) -> np.ndarray | MappedRows:
    """The path of the rows, or the rows themselves."""
    where = location(leaf)
    if where is None:
        return np.ascontiguousarray(leaf)
    return MappedRows(where.path, where.offset, leaf.shape, leaf.dtype.str)
