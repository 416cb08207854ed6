"""What clients keep between rounds, when it lies on the host: in memory, or memory-mapped on disk
for very many clients.

On disk, files hold the nodes as of the checkpoint before the newest. Later changes are kept in
memory and go into every checkpoint (a redo log); they are written to the files only after a
checkpoint that holds them, and one after it, are durable. A crash at any moment therefore leaves
files that either kept checkpoint can complete, and never state from after it.
"""

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from covey.core import tree
from covey.core.node import Node


class Log(NamedTuple):
    """Changed nodes: their positions, and a row for each. Leaves are arrays, or their shapes."""

    position: Any
    rows: PyTree


class MemoryNodes:
    """All nodes in arrays of the host."""

    def __init__(self, like: Node, clients: int):
        self.nodes = jax.tree.map(lambda s: np.zeros((clients, *s.shape), s.dtype), like)

    def take(self, positions: np.ndarray) -> Node:
        """Nodes at `positions`, stacked."""
        return jax.tree.map(lambda leaf: leaf[positions], self.nodes)

    def put(self, positions: np.ndarray, rows: Node) -> None:
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

    def checkpointed(self) -> None:
        """Nothing to do: a snapshot holds everything."""


class DiskNodes:
    """Nodes in memory-mapped files, one a leaf, with the changes since the checkpoint before the
    newest in memory.
    """

    def __init__(self, like: Node, clients: int, directory: Path):
        self.specs, self.structure = jax.tree.flatten(like)
        self.clients, self.directory = clients, directory
        self.newest = _Overlay(self.specs)  # since the newest checkpoint
        self.previous = _Overlay(self.specs)  # between the newest checkpoint and the one before

    @cached_property
    def files(self) -> list[np.ndarray]:
        """Opened when first used, so that a run that cannot begin leaves nothing behind."""
        self.directory.mkdir(parents=True, exist_ok=True)
        paths = [self.directory / f"leaf{index}.bin" for index in range(len(self.specs))]
        return [
            _open(path, (self.clients, *spec.shape), spec.dtype)
            for path, spec in zip(paths, self.specs, strict=True)
        ]

    def take(self, positions: np.ndarray) -> Node:
        """Nodes at `positions`, stacked: the newest version of each."""
        leaves = [file[positions] for file in self.files]
        for overlay in (self.previous, self.newest):
            overlay.lay_over(positions, leaves)
        return jax.tree.unflatten(self.structure, leaves)

    def put(self, positions: np.ndarray, rows: Node) -> None:
        """Replace the nodes at `positions`."""
        self.newest.put(positions, jax.tree.leaves(rows))

    def snapshot(self) -> Log:
        """The redo log: everything that the files may lack."""
        both = _Overlay(self.specs)
        for overlay in (self.previous, self.newest):
            both.put(*overlay.entries())
        positions, leaves = both.entries()
        return Log(positions, jax.tree.unflatten(self.structure, leaves))

    def restore(self, snapshot: Log) -> None:
        """Go back to a snapshot: complete the files from its log."""
        for file, rows in zip(self.files, jax.tree.leaves(snapshot.rows), strict=True):
            file[snapshot.position] = rows
        self._flush()
        self.newest, self.previous = _Overlay(self.specs), _Overlay(self.specs)

    def like(self) -> Log:
        """Shapes of a snapshot; -1 stands for any length."""
        rows = [jax.ShapeDtypeStruct((-1, *spec.shape), spec.dtype) for spec in self.specs]
        return Log(jax.ShapeDtypeStruct((-1,), np.int64), jax.tree.unflatten(self.structure, rows))

    def checkpointed(self) -> None:
        """A checkpoint is durable: what the checkpoint before it held may go into the files."""
        positions, leaves = self.previous.entries()
        for file, rows in zip(self.files, leaves, strict=True):
            file[positions] = rows
        self._flush()
        self.previous, self.newest = self.newest, _Overlay(self.specs)

    def _flush(self) -> None:
        for file in self.files:
            if isinstance(file, np.memmap):
                file.flush()


class _Overlay:
    """Rows by position, growing as they come."""

    def __init__(self, specs: list):
        self.slot_of: dict[int, int] = {}
        self.leaves = [np.empty((0, *spec.shape), spec.dtype) for spec in specs]

    def put(self, positions: np.ndarray, leaves: list) -> None:
        slots = np.array(
            [self.slot_of.setdefault(int(p), len(self.slot_of)) for p in positions], np.int64
        )
        for index, rows in enumerate(leaves):
            if len(self.slot_of) > len(self.leaves[index]):
                grown = np.empty(
                    (2 * len(self.slot_of), *self.leaves[index].shape[1:]), self.leaves[index].dtype
                )
                grown[: len(self.leaves[index])] = self.leaves[index]
                self.leaves[index] = grown
            self.leaves[index][slots] = rows

    def lay_over(self, positions: np.ndarray, leaves: list) -> None:
        """Overwrite the rows of `leaves` whose positions are held here."""
        found = [
            (row, self.slot_of[int(p)]) for row, p in enumerate(positions) if int(p) in self.slot_of
        ]
        if found:
            rows, slots = np.array(found).T
            for leaf, held in zip(leaves, self.leaves, strict=True):
                leaf[rows] = held[slots]

    def entries(self) -> tuple[np.ndarray, list]:
        positions = np.fromiter(self.slot_of, np.int64, len(self.slot_of))
        return positions, [leaf[: len(positions)] for leaf in self.leaves]


def _open(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if not size:
        return np.zeros(shape, dtype)
    if path.exists() and path.stat().st_size != size:
        raise ValueError(
            f"{path} holds client states of another run ({path.stat().st_size} bytes, {size} "
            "expected); move it away"
        )
    return np.memmap(path, dtype, "r+" if path.exists() else "w+", shape=shape)
