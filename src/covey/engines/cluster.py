"""The engine of a cluster: blocks of clients in their own processes, and the server here.

A round sends the broadcast to every block that has clients in the cohort, each block sums over its
own, and the sums are added up as a tree, in the order of the blocks. A crew carries the calls
(`ray.py`, or `LocalCrew` in this process).

A block that is lost starts again elsewhere. All blocks then go back to the last point that the
engine has kept, and the rounds since are run again, to the same result.
"""

import warnings
from collections.abc import Mapping, Sequence
from itertools import count as counter
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from covey.core import cohort as cohorts
from covey.core.algorithm import Algorithm
from covey.core.channel import Channel
from covey.core.faults import Faults
from covey.core.node import Node
from covey.data.federated import FederatedData
from covey.engines import node_files
from covey.engines import round as rounds
from covey.engines.block import Done, Work
from covey.engines.chunks import chunk_of
from covey.engines.crew import BlockLostError, Crew
from covey.engines.engine import EngineState
from covey.engines.evaluation import Evaluator
from covey.engines.node_files import Manifest, NodeFiles, Part, manifest_like
from covey.engines.programs import round_parts
from covey.engines.record import Line, Record, as_lines
from covey.engines.remote import Remote
from covey.engines.setup import setup_of
from covey.engines.sharing import shared
from covey.engines.snapshot import Snapshot, snapshot_like, stacked_like
from covey.engines.streamed import call_up_of, close_round_of

KEEP_SECONDS = 20.0  # between points that the engine keeps, where clients keep something
MOST_LOSSES = 5  # of blocks, without a new round in between
_ELSEWHERE = -1  # where blocks are whose round is not known
_numbers = counter()


class Slowest(NamedTuple):
    """The block that took longest in a round, and its seconds."""

    block: Any
    seconds: Any


class Timed(NamedTuple):
    """The record of a round, and the slowest block."""

    record: Record
    slowest: Slowest


# The nodes that a block goes back to: leaves, or the files that hold them. None: no node yet.
_Kept: TypeAlias = list[np.ndarray] | list[Part] | None


class _Point(NamedTuple):
    """A state that all blocks can go back to, and the files that hold its nodes, if any do."""

    state: EngineState
    nodes: Sequence[_Kept]
    manifest: Manifest | None = None


class Cluster(Remote):
    """A method on federated data whose clients live in the blocks of a crew.

    A state moves on with the blocks: an old one cannot be continued.

    crew: the blocks.
    chunk: clients that a block runs side by side; "auto" chooses by the size of rows and upload.
    node_directory: where checkpoints store client states, written by the blocks that own them if
        all nodes see it, and by this process otherwise; None: inside the snapshot.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        data: FederatedData,
        *,
        crew: Crew,
        seed: int,
        cohort: cohorts.Scheme | None = None,
        channel: Channel | None = None,
        faults: Faults | None = None,
        rounds: int | None = None,
        chunk: int | Literal["auto"] = "auto",
        node_directory: Path | None = None,
    ):
        self.data, self.seed, self.crew = data, seed, crew
        self.setup = setup_of(
            algorithm,
            data,
            seed=seed,
            cohort=cohort,
            channel=channel,
            faults=faults,
            rounds=rounds,
        )
        self.ids = jnp.asarray(data.ids, jnp.int32)
        self.blocks = len(crew.edges) - 1
        self.chunk = chunk_of(chunk, self.setup, data, self.blocks)
        self.evaluator = Evaluator(algorithm, self.setup.root, self.chunk)
        self._programs(algorithm)
        x64 = bool(jax.config.read("jax_enable_x64"))
        work = Work(algorithm, self.setup.channel, self.setup.shapes, seed, self.chunk, x64)
        self._run, self._work = next(_numbers), work
        self._heard = [0] * self.blocks  # which start of each block has heard of this run
        self._at, self._reached, self._losses = _ELSEWHERE, 0, 0
        self._kept_at = perf_counter()
        stateful = bool(jax.tree.leaves(self.setup.shapes.node))
        on_disk = node_directory if stateful else None
        self._files = None if on_disk is None else NodeFiles(on_disk, data.clients)
        self._is_shared: bool | None = None
        self._point = _Point(self.start(), [None] * self.blocks)

    def _programs(self, algorithm: Algorithm) -> None:
        parts = round_parts(self.setup)
        self._call_up = shared(call_up_of, parts)
        self._close = shared(close_round_of, parts)
        self._merged = shared(jax.jit, rounds.merged)
        self._sent = shared(jax.jit, algorithm.broadcast)
        self._empty = rounds.empty_tally(self.setup.shapes)

    def start(self) -> EngineState:
        """The state before the first round."""
        nobody = np.zeros(self.data.clients, bool)
        state = EngineState(0, self.setup.first_server(), None, nobody)
        self._keep(state, [None] * self.blocks)
        self._at = _ELSEWHERE
        return state

    def snapshot(self, state: EngineState) -> Snapshot:
        """The state as arrays, for a checkpoint; nodes on disk as the names of their files."""
        known = self._point.state.round == state.round and self._point.manifest is not None
        if self._files is None or not (known or self._shared(self._files)):
            nodes = self._gathered(state)
        else:
            nodes = self._point.manifest if known else self._written(state, self._files)
        return Snapshot(np.int64(state.round), state.server, nodes, np.asarray(state.seen))

    def _gathered(self, state: EngineState) -> PyTree:
        """The nodes of all blocks here; with a directory, in one file there."""
        found = self._ask(state, "snapshot", dict.fromkeys(range(self.blocks), ()))
        apart = [found[block] for block in range(self.blocks)]
        leaves = [np.concatenate(parts) for parts in zip(*apart, strict=True)]
        if self._files is None:
            self._keep(state, apart)
            return jax.tree.unflatten(jax.tree.structure(self.setup.shapes.node), leaves)
        checksum = node_files.write(self._files.path(state.round, 0), leaves)
        manifest = Manifest(np.zeros(1, np.int64), np.array([checksum], np.uint32))
        self._keep(state, apart, manifest)
        return manifest

    def _written(self, state: EngineState, files: NodeFiles) -> Manifest:
        """The nodes of each block in a file that the block has written."""
        paths = {block: (files.path(state.round, block),) for block in range(self.blocks)}
        found = self._ask(state, "save", paths)
        checksums = np.array([found[block] for block in range(self.blocks)], np.uint32)
        manifest = Manifest(np.asarray(self.crew.edges[:-1], np.int64), checksums)
        self._keep(state, self._parts(files, state.round, manifest), manifest)
        return manifest

    def _parts(self, files: NodeFiles, round_: int, manifest: Manifest) -> list[list[Part]]:
        return [
            files.parts(round_, manifest, *map(int, self.crew.edges[block : block + 2]))
            for block in range(self.blocks)
        ]

    def _shared(self, files: NodeFiles) -> bool:
        """Whether every block sees the files of this process; found out once."""
        if self._is_shared is None:
            with files.token() as token:
                asked = dict.fromkeys(range(self.blocks), (token.name,))
                seen = self._patiently(None, lambda _: self.crew.call("sees", asked))
            blind = [self.crew.node_of(block) for block, there in seen.items() if not there]
            self._is_shared = not blind
            if blind:
                warnings.warn(
                    f"node {blind[0]} does not see {files.directory}: checkpoints pass through this"
                    " process; put the run directory on a path that all nodes share, and each "
                    "actor writes its own clients",
                    stacklevel=2,
                )
        return self._is_shared

    def snapshot_like(self) -> Snapshot:
        """The shapes of a snapshot."""
        nodes = (
            stacked_like(self.setup.shapes.node, self.data.clients)
            if self._files is None
            else manifest_like()
        )
        return snapshot_like(self.setup.shapes.server, nodes, self.data.clients)

    def restore(self, snapshot: Snapshot) -> EngineState:
        """The state that a snapshot was made of."""
        server = jax.tree.map(jnp.asarray, snapshot.server)
        state = EngineState(int(snapshot.round), server, None, np.array(snapshot.seen))
        if self._files is None:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(snapshot.nodes)]
            apart = [[leaf[self._part(b)] for leaf in leaves] for b in range(self.blocks)]
            self._keep(state, apart)
        else:
            self._files.restored(state.round)
            apart = self._parts(self._files, state.round, snapshot.nodes)
            if not self._shared(self._files):
                one = jax.tree.leaves(self.setup.shapes.node)
                apart = [node_files.read(parts, one) for parts in apart]
            self._keep(state, apart, snapshot.nodes)
        self._at = _ELSEWHERE
        return state

    def checkpointed(self) -> None:
        """To be called once the newest snapshot is safely on disk."""
        if self._files is not None:
            self._files.checkpointed(self._point.state.round)

    def _block_of(self, state: EngineState, count: int) -> tuple[EngineState, Timed]:
        timed = []
        for _ in range(count):
            state, one = self._patiently(state, self._round)
            timed.append(one)
        self._keep_now_and_then(state)
        return state, jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(timed))

    def _lines(self, first: int, count: int, record: Timed, before: Sequence[Line]) -> list[Line]:
        lines = as_lines(first, count, record.record, self.setup.sizes, before)
        slowest = zip(*record.slowest, strict=True)
        return [
            line | {"slowest_actor": int(block), "slowest_seconds": float(seconds)}
            for line, (block, seconds) in zip(lines, slowest, strict=True)
        ]

    def _round(self, state: EngineState) -> tuple[EngineState, Timed]:
        """One round, from the state that the blocks are in."""
        root, t = self.setup.root, state.round
        slots, counts = self._call_up(root, t, self.ids)
        down = [np.asarray(leaf) for leaf in jax.tree.leaves(self._sent(state.server))]
        called = {
            block: (self._run, t, some)
            for block, some in self._routed(rounds.Slots(*jax.device_get(slots))).items()
        }
        self._at = _ELSEWHERE  # until all blocks have answered
        done = self.crew.call("round", called, down)
        tallies = [self._tally(done.get(block)) for block in range(self.blocks)]
        seen = np.array(state.seen)
        for block, part in done.items():
            seen[self.crew.edges[block] + part.new] = True
        server, record = self._close(root, t, state.server, self._merged(tallies), counts)
        self._moved_to(t + 1)
        slowest = max(done, key=lambda block: done[block].seconds, default=-1)
        seconds = done[slowest].seconds if done else 0.0
        new = EngineState(t + 1, server, None, seen)
        return new, Timed(record, Slowest(np.int64(slowest), np.float64(seconds)))

    def _routed(self, slots: rounds.Slots) -> dict[int, rounds.Slots]:
        """The slots that run, by the block that owns the client; positions are those in it."""
        index = np.asarray(slots.index)
        owner = np.searchsorted(self.crew.edges, index, side="right") - 1
        owner = np.where(slots.on, owner, -1)
        routed = {}
        for block in np.unique(owner[owner >= 0]):
            some = rounds.Slots(*(np.asarray(leaf)[owner == block] for leaf in slots))
            routed[int(block)] = some._replace(index=some.index - self.crew.edges[block])
        return routed

    def _tally(self, done: Done | None) -> rounds.Tally:
        """A block's sums; those of a block without clients in the round are empty."""
        if done is None:
            return self._empty
        return jax.tree.unflatten(jax.tree.structure(self._empty), done.tally)

    def _ask(
        self, state: EngineState, name: str, asked: Mapping[int, tuple], sent: PyTree = None
    ) -> dict[int, Any]:
        """Call blocks that are in a state."""
        arguments = {block: (self._run, *given) for block, given in asked.items()}
        return self._patiently(state, lambda _: self.crew.call(name, arguments, sent))

    def _patiently(self, state: EngineState | None, do: Any) -> Any:
        """Call blocks in a state, or in any, again until none of them is lost."""
        while True:
            try:
                if state is not None:
                    self._settle(state)
                return do(state)
            except BlockLostError as error:
                self._start_again(error, self._reached if state is None else state.round)

    def _settle(self, state: EngineState) -> None:
        """Bring the blocks into a state: those that are elsewhere go back and run the rounds since
        again.
        """
        if self._heard == self.crew.starts and self._at == state.round:
            return
        point = self._point
        if point.state.round > state.round:
            raise ValueError(
                f"the clients are past round {state.round} and keep round {point.state.round}: "
                "an old state of a cluster cannot be continued; resume from a checkpoint"
            )
        starts = list(self.crew.starts)
        fresh = [block for block in range(self.blocks) if self._heard[block] != starts[block]]
        if fresh:
            self.crew.call("begin", dict.fromkeys(fresh, (self._run,)), self._work)
            self._heard = starts
        seen = np.asarray(point.state.seen)
        back = {
            block: (self._run, nodes, seen[self._part(block)])
            for block, nodes in enumerate(point.nodes)
        }
        self.crew.call("restore", back)
        self._at, at = point.state.round, point.state
        while at.round < state.round:
            at, _ = self._round(at)

    def _start_again(self, error: BlockLostError, round_: int) -> None:
        self._at = _ELSEWHERE
        self._losses += 1
        nodes = ", ".join(f"{block} (node {self.crew.node_of(block)})" for block in error.blocks)
        if self._losses > MOST_LOSSES:
            raise OSError(
                f"actors were lost {self._losses} times without a new round after round {round_}, "
                f"last {nodes}: look for lack of memory there, use more actors or a smaller chunk, "
                "and resume from the last checkpoint"
            ) from error
        warnings.warn(
            f"lost actor {nodes} after round {round_}; it starts again, and the run continues from "
            f"round {self._point.state.round}",
            stacklevel=2,
        )
        for block in error.blocks:
            self.crew.restart(block)

    def _moved_to(self, round_: int) -> None:
        self._at = round_
        if round_ > self._reached:
            self._reached, self._losses = round_, 0

    def _keep(
        self, state: EngineState, nodes: Sequence[_Kept], manifest: Manifest | None = None
    ) -> None:
        self._point, self._kept_at = _Point(state, nodes, manifest), perf_counter()
        if self._files is not None and manifest is not None:
            self._files.kept(state.round)

    def _keep_now_and_then(self, state: EngineState) -> None:
        """Store a point to go back to: at once where clients have no state."""
        if not jax.tree.leaves(self.setup.shapes.node):
            self._keep(state, [None] * self.blocks)
        elif perf_counter() - self._kept_at > KEEP_SECONDS:
            self.snapshot(state)

    def _part(self, block: int) -> slice:
        return slice(int(self.crew.edges[block]), int(self.crew.edges[block + 1]))

    def _take(self, state: EngineState, positions: np.ndarray) -> Node:
        raise NotImplementedError("nodes are with the blocks")
