"""Draws that a run collects from its server's state: in memory, and on disk in chunks that are
never written twice.

A chunk is a file of draws `first` to `end`, whole or absent, in the format of messages
(`core.wire`), with a checksum. It is written before the checkpoint that its draws belong to. A run
that is resumed from a checkpoint finds every draw up to it, and removes later chunks, which the
rounds to come make again, with the same values.
"""

from pathlib import Path

import jax
import numpy as np
from jaxtyping import PyTree

from covey.core import atomic_files, tree, wire
from covey.core.algorithm import Kept

_ENDING = ".draws"


class Draws:
    """All draws of a run, in order, on the leading axis. `folder=None` keeps them in memory."""

    def __init__(self, kept: Kept, folder: Path | None):
        self.folder = folder
        self.size = len(jax.tree.leaves(kept.draws)[0])
        self._like = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((-1, *s.shape[1:]), s.dtype), tree.specs(kept.draws)
        )
        self._empty = jax.tree.map(lambda s: np.zeros((0, *s.shape[1:]), s.dtype), self._like)
        self._pending: list[PyTree] = []
        self.count = int(kept.count)
        if folder is not None:
            self._cut(folder)

    def add(self, kept: Kept) -> None:
        """Take over the draws that are new in the ring buffer."""
        total = int(kept.count)
        if total - self.count > self.size:
            raise ValueError(
                f"{total - self.count} draws since the last block, and {self.size} fit the buffer"
            )
        if total > self.count:
            index = np.arange(self.count, total) % self.size
            self._pending.append(jax.tree.map(lambda leaf: np.asarray(leaf)[index], kept.draws))
        self.count = total

    def save(self) -> None:
        """Write the draws that are not yet on disk, as one chunk."""
        if self.folder is None or not self._pending:
            return
        chunk = _joined([self._empty, *self._pending])
        count = len(jax.tree.leaves(chunk)[0])
        self.folder.mkdir(exist_ok=True)
        atomic_files.write(
            self.folder / f"{self.count - count:09d}-{self.count:09d}{_ENDING}", wire.pack(chunk)
        )
        self._pending = []

    def all(self) -> PyTree:
        """Every draw, (draws, chains, ...)."""
        return _joined(
            [self._empty, *(self._read(path) for path, _, _ in self._chunks()), *self._pending]
        )

    def _chunks(self) -> list[tuple[Path, int, int]]:
        if self.folder is None:
            return []
        return [
            (path, int(path.stem[:9]), int(path.stem[10:]))
            for path in sorted(self.folder.glob(f"*{_ENDING}"))
        ]

    def _read(self, path: Path) -> PyTree:
        try:
            return wire.unpack(path.read_bytes(), self._like)
        except wire.WireError as error:
            raise ValueError(
                f"{path} is damaged: {error}. Put the file back, or start again in another "
                "directory."
            ) from error

    def _cut(self, folder: Path) -> None:
        """Remove chunks past the checkpoint and leftovers of writing; the draws before it must
        be there.
        """
        for leftover in folder.glob(f"*{atomic_files.SUFFIX}"):
            leftover.unlink()
        end = 0
        for path, first, last in self._chunks():
            if last > self.count:
                path.unlink()
            elif first == end:
                end = last
        if end != self.count:
            raise ValueError(
                f"{folder} has draws 1 to {end} without a gap, but the checkpoint has made "
                f"{self.count}: put the files back, or "
                "start again in another directory"
            )


def _joined(chunks: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *chunks)
