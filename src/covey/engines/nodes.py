"""The clients' nodes between rounds, on the host: in memory, or on disk for very many clients.

On disk, a node lies in a slot of a heap, one file per leaf; only clients that have taken part have
a slot. An index in memory says which. A slot that a checkpoint refers to is never written again: a
client that changes afterwards moves to a free slot. A checkpoint is then a length of the index
file, to which every checkpoint appends the slots that changed, and slots become free once neither
of the two kept checkpoints refers to them. A crash at any moment leaves what both need, and no
state from after them is found.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from covey.core import atomic_files, tree
from covey.core.mapped import release
from covey.core.node import Node

_LEAST_SLOTS = 1024
_LEAST_ENTRIES = 1 << 20  # of an index file, before it is written anew
_NONE = np.empty(0, np.int32)


class Log(NamedTuple):
    """The record of nodes on disk in a checkpoint. Leaves are arrays, or their shapes.

    Attributes:
        generation: Sequence number of the index file.
        length: Entries of the index file, each a position and its slot; later ones replace earlier.
        held: Slots that only the checkpoint before this one refers to.
    """

    generation: Any
    length: Any
    held: Any


class MemoryNodes:
    """All nodes in arrays of the host."""

    def __init__(self, like: Node, clients: int):
        self.nodes = jax.tree.map(lambda s: np.zeros((clients, *s.shape), s.dtype), like)

    def take(self, positions: np.ndarray) -> Node:
        """Nodes at `positions`, stacked."""
        return jax.tree.map(lambda leaf: leaf[positions], self.nodes)

    def put(self, positions: np.ndarray, rows: PyTree) -> None:
        """Replace the nodes at `positions`."""
        for leaf, new in zip(jax.tree.leaves(self.nodes), jax.tree.leaves(rows), strict=True):
            leaf[positions] = new

    def snapshot(self) -> Node:
        """A copy for a checkpoint."""
        return jax.tree.map(np.copy, self.nodes)

    def restore(self, snapshot: Node) -> None:
        """Go back to a snapshot."""
        for leaf, old in zip(jax.tree.leaves(self.nodes), jax.tree.leaves(snapshot), strict=True):
            leaf[...] = old

    def like(self) -> Node:
        """Shapes of a snapshot."""
        return tree.specs(self.nodes)

    def clear(self) -> None:
        """Nothing to do: who has taken part is known elsewhere."""

    def checkpointed(self) -> None:
        """Nothing to do: a snapshot holds everything."""


class DiskNodes:
    """Nodes of the clients that have taken part, in files; 4 bytes of memory for every other."""

    def __init__(self, like: Node, clients: int, directory: Path):
        self.specs, self.structure = jax.tree.flatten(like)
        self.heap = _Heap(self.specs, directory)
        self.index = _Index(directory)
        self.slot_of = np.full(clients, -1, np.int32)
        self._forget()

    def _forget(self) -> None:
        self.changed: list[np.ndarray] = []  # positions that have moved since the newest snapshot
        self.left: list[np.ndarray] = []  # slots that were left since the newest checkpoint
        self.held = _NONE  # slots that only the checkpoint before the newest refers to
        self.pending = 0  # of those left, how many lists the newest snapshot knows

    def take(self, positions: np.ndarray) -> Node:
        """Nodes at `positions`, stacked; zeros for clients that have not taken part."""
        slots = self.slot_of[positions]
        known = slots >= 0
        return jax.tree.unflatten(self.structure, self.heap.read(slots, known))

    def put(self, positions: np.ndarray, rows: PyTree) -> None:
        """Replace the nodes at `positions`, all different."""
        slots = self.slot_of[positions]
        moving = self.heap.is_kept(slots)
        if moving.any():
            old, where = slots[moving], positions[moving]
            slots[moving] = self.slot_of[where] = self.heap.allocate(len(where))
            self.changed.append(where)
            self.left.append(old[old >= 0])
        self.heap.write(slots, jax.tree.leaves(rows))

    def seen(self) -> np.ndarray:
        """Which clients have a node."""
        return self.slot_of >= 0

    def snapshot(self) -> Log:
        """Make everything durable that a checkpoint refers to, and say where it is."""
        self.heap.flush()
        changed = np.unique(np.concatenate(self.changed)) if self.changed else _NONE
        self.index.append(changed, self.slot_of)
        self.changed, self.pending = [], len(self.left)
        held = np.concatenate([_NONE, *self.left])
        return Log(np.int64(self.index.generation), np.int64(self.index.length), held)

    def restore(self, snapshot: Log) -> None:
        """Go back to a snapshot."""
        positions, slots = self.index.read(int(snapshot.generation), int(snapshot.length))
        if len(positions) and positions.max() >= len(self.slot_of):
            raise ValueError(
                f"{self.index.directory} holds states of more than {len(self.slot_of)} clients; it "
                "is of another run"
            )
        self._forget()
        self.held = np.array(snapshot.held, np.int32)
        self.slot_of[:] = -1
        self.slot_of[positions] = slots  # of entries with one position, the last one counts
        taken = self.slot_of[self.slot_of >= 0]
        self.heap.occupy(np.concatenate([taken, self.held]))

    def clear(self) -> None:
        """Forget all nodes: a run begins."""
        self._forget()
        self.slot_of[:] = -1
        self.heap.occupy(_NONE)
        self.index.generation = self.index.length = 0

    def like(self) -> Log:
        """Shapes of a snapshot; -1 stands for any length."""
        scalar = jax.ShapeDtypeStruct((), np.int64)
        return Log(scalar, scalar, jax.ShapeDtypeStruct((-1,), np.int32))

    def checkpointed(self) -> None:
        """A checkpoint is durable: slots that neither it nor the one before refers to are free."""
        self.heap.free(self.held)
        self.held = np.concatenate([_NONE, *self.left[: self.pending]])
        self.left, self.pending = self.left[self.pending :], 0
        self.index.checkpointed()
        self.heap.release()


class _Heap:
    """Rows in slots, one memory-mapped file per leaf, which grow as slots are needed."""

    def __init__(self, specs: list, directory: Path):
        self.specs, self.directory = specs, directory
        self.files = [np.zeros((0, *spec.shape), spec.dtype) for spec in specs]
        self.fresh = np.zeros(0, bool)  # slots that no snapshot refers to
        self.used, self.spare = 0, _NONE  # slots below `used` that are free

    def is_kept(self, slots: np.ndarray) -> np.ndarray:
        """Which nodes need another slot: those without one, and those that a snapshot has."""
        if not len(self.fresh):
            return np.ones(len(slots), bool)
        return (slots < 0) | ~self.fresh[slots]

    def allocate(self, count: int) -> np.ndarray:
        """Slots that nothing refers to."""
        spare, self.spare = self.spare[:count], self.spare[count:]
        more = count - len(spare)
        found = np.concatenate([spare, np.arange(self.used, self.used + more, dtype=np.int32)])
        self.used += more
        self._grow()
        self.fresh[found] = True
        return found

    def read(self, slots: np.ndarray, known: np.ndarray) -> list[np.ndarray]:
        """Rows of slots, zeros where none is known."""
        if known.all():
            return [np.asarray(file[slots]) for file in self.files]
        rows = [np.zeros((len(slots), *spec.shape), spec.dtype) for spec in self.specs]
        if known.any():
            for row, file in zip(rows, self.files, strict=True):
                row[known] = file[slots[known]]
        return rows

    def write(self, slots: np.ndarray, leaves: list) -> None:
        """Replace the rows of slots."""
        for file, rows in zip(self.files, leaves, strict=True):
            file[slots] = rows

    def occupy(self, taken: np.ndarray) -> None:
        """Begin with these slots taken, which are in the files."""
        self.used = int(taken.max(initial=-1)) + 1
        for index, spec in enumerate(self.specs):
            path, size = self._path(index), self.used * _bytes(spec.shape, spec.dtype)
            if size and (not path.exists() or path.stat().st_size < size):
                raise ValueError(
                    f"{path} has fewer client states than the checkpoint: put the file back, or "
                    "start again in another directory"
                )
        free = np.ones(self.used, bool)
        free[taken] = False
        self.spare = np.flatnonzero(free).astype(np.int32)
        self.fresh = np.zeros(0, bool)
        self._grow()

    def free(self, slots: np.ndarray) -> None:
        """Slots may be used again, the first ones first."""
        if len(slots):
            self.spare = np.sort(np.concatenate([self.spare, slots]))

    def flush(self) -> None:
        """Make all rows durable. From now on a snapshot refers to them."""
        for file in self.files:
            if isinstance(file, np.memmap):
                file.flush()
        self.fresh[:] = False

    def release(self) -> None:
        for file in self.files:
            release(file)

    def _grow(self) -> None:
        if self.used <= len(self.fresh):
            return
        slots = max(self.used + self.used // 4, _LEAST_SLOTS)
        self.fresh = np.concatenate([self.fresh, np.zeros(slots - len(self.fresh), bool)])
        self.files = [
            _mapped(self._path(index), (slots, *spec.shape), spec.dtype)
            for index, spec in enumerate(self.specs)
        ]

    def _path(self, leaf: int) -> Path:
        return self.directory / f"leaf{leaf}.bin"


class _Index:
    """Which slot each node has, as a file of entries that is only added to, and now and then
    written anew without those that were replaced.
    """

    def __init__(self, directory: Path):
        self.directory = directory
        self.generation = self.length = 0
        self.before = 0  # the generation of the newest checkpoint

    def append(self, changed: np.ndarray, slot_of: np.ndarray) -> None:
        """Add entries, durably."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.length + len(changed) > _LEAST_ENTRIES:
            live = int(np.count_nonzero(slot_of >= 0))
            if self.length + len(changed) > 2 * live + _LEAST_ENTRIES:
                self._write_anew(slot_of)
                return
        path = self._path(self.generation)
        with atomic_files.explained(path), path.open("r+b" if path.exists() else "w+b") as file:
            if path.stat().st_size < 8 * self.length:
                raise ValueError(f"{path} is too short; was it changed during the run?")
            file.truncate(8 * self.length)  # entries that no checkpoint knows
            file.seek(0, os.SEEK_END)
            file.write(_entries(changed, slot_of))
            atomic_files.sync(file)
        if not self.length:
            atomic_files.sync_folder(self.directory)
        self.length += len(changed)

    def read(self, generation: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions and slots of the first entries."""
        path = self._path(generation)
        entries = np.fromfile(path, "<i4", 2 * length) if length and path.exists() else _NONE
        if len(entries) != 2 * length:
            raise ValueError(
                f"{path} has fewer client states than the checkpoint: put the file back, or start "
                "again in another directory"
            )
        self.generation = self.before = generation
        self.length = length
        return entries[::2], entries[1::2]

    def checkpointed(self) -> None:
        """Remove files that neither kept checkpoint refers to."""
        for path in self.directory.glob("index*.bin"):
            if int(path.stem.removeprefix("index")) < self.before:
                path.unlink()
        self.before = self.generation

    def _write_anew(self, slot_of: np.ndarray) -> None:
        live = np.flatnonzero(slot_of >= 0)
        self.generation += 1
        atomic_files.write(self._path(self.generation), _entries(live, slot_of))
        self.length = len(live)

    def _path(self, generation: int) -> Path:
        return self.directory / f"index{generation}.bin"


def _entries(positions: np.ndarray, slot_of: np.ndarray) -> bytes:
    return np.stack([positions, slot_of[positions]], axis=1).astype("<i4").tobytes()


def _mapped(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A file of at least this shape, with its room on disk: a full disk is an error now, and not
    a signal when a page is written.
    """
    size = _bytes(shape, dtype)
    if not size:
        return np.zeros(shape, dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_files.explained(path), path.open("r+b" if path.exists() else "w+b") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        elif path.stat().st_size < size:  # macOS
            file.truncate(size)
    return np.memmap(path, dtype, "r+", shape=shape)


def _bytes(shape: tuple[int, ...], dtype: np.dtype) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
