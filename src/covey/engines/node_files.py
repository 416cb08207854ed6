"""Nodes of a cluster in a run directory: each block writes and reads its own, in one file per round
and block. A checkpoint names the files and their checksums, and is written after them.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from covey.core import atomic_files, wire

_ENDING = ".nodes"


class Manifest(NamedTuple):
    """The files of one round, in the order of the clients. Leaves are arrays, or their shapes.

    Attributes:
        first: Position of the first client of each file.
        checksum: Checksum of each file.
    """

    first: Any
    checksum: Any


class Part(NamedTuple):
    """Some clients of a file: those from `low` to before `high` of its `clients`."""

    path: str
    checksum: int
    clients: int
    low: int
    high: int


class NodeFiles:
    """The files of a run's nodes.

    Args:
        directory: Their directory; made when it is first needed.
        clients: Number of all clients.
    """

    def __init__(self, directory: Path, clients: int):
        self.directory, self.clients = directory.resolve(), clients
        self._checkpoints: list[int] = []  # rounds of those that are kept

    def path(self, round_: int, block: int) -> str:
        """The file of a block."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return str(self.directory / f"{round_:09d}-{block:05d}{_ENDING}")

    def parts(self, round_: int, manifest: Manifest, low: int, high: int) -> list[Part]:
        """The parts of files with the nodes of the clients from `low` to before `high`."""
        edges = [*map(int, manifest.first), self.clients]
        found = []
        for block, checksum in enumerate(manifest.checksum):
            first, end = edges[block], edges[block + 1]
            here = max(low, first), min(high, end)
            if here[0] < here[1]:
                path = self.path(round_, block)
                part = Part(path, int(checksum), end - first, here[0] - first, here[1] - first)
                found.append(part)
        return found

    def token(self) -> "tempfile._TemporaryFileWrapper[bytes]":
        """A file that nodes see if they share the directory."""
        self.directory.mkdir(parents=True, exist_ok=True)
        return tempfile.NamedTemporaryFile(dir=self.directory, prefix="shared-")

    def restored(self, round_: int) -> None:
        """The checkpoint of a round is what the run resumes from."""
        self._checkpoints = [round_]

    def checkpointed(self, round_: int) -> None:
        """The checkpoint of a round is durable; of the ones before, only the newest is kept."""
        self._checkpoints = [*self._checkpoints[-1:], round_]
        self._remove(lambda found: found not in self._checkpoints)

    def kept(self, round_: int) -> None:
        """Files of a round were written that no checkpoint names: earlier such files can go."""
        least = min(self._checkpoints, default=-1)
        needed = {*self._checkpoints, round_}
        self._remove(lambda found: found > least and found not in needed)

    def _remove(self, is_old: Any) -> None:
        for path in self.directory.glob(f"*{_ENDING}"):
            if is_old(int(path.name.partition("-")[0])):
                path.unlink(missing_ok=True)


def manifest_like() -> Manifest:
    """The shapes of a manifest, of any number of files."""
    return Manifest(jax.ShapeDtypeStruct((-1,), np.int64), jax.ShapeDtypeStruct((-1,), np.uint32))


def write(path: str, leaves: Sequence[np.ndarray]) -> int:
    """Write nodes, durably; returns their checksum."""
    body = wire.pack(list(leaves))
    atomic_files.write(Path(path), body)
    return int.from_bytes(body[-4:], "little")


def read(parts: Sequence[Part], like: Sequence[Any]) -> list[np.ndarray]:
    """Nodes of the clients of some parts, one after the other.

    Args:
        parts: Parts of files that hold them.
        like: The shapes of one client's leaves.

    Raises:
        ValueError: A file is missing, or is not the one that the checkpoint names.
    """
    found = []
    for part in parts:
        try:
            body = Path(part.path).read_bytes()
        except OSError as error:
            raise ValueError(
                f"{part.path} cannot be read: {error.strerror}; states of clients must be at the "
                "same path on every node"
            ) from None
        if int.from_bytes(body[-4:], "little") != part.checksum:
            raise ValueError(
                f"{part.path} is not the file that the checkpoint names: put it back, or start "
                "again in another directory"
            )
        shapes = [jax.ShapeDtypeStruct((part.clients, *one.shape), one.dtype) for one in like]
        leaves = wire.unpack(body, shapes)
        found.append([leaf[part.low : part.high] for leaf in leaves])
    return [np.concatenate(leaves) for leaves in zip(*found, strict=True)]
