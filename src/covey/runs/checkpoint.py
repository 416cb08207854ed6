"""Checkpoints: the newest two states of a run, each a file that is whole or absent.

A file is a magic word, a JSON header with its length, the state's bytes (`core.wire`), and a CRC-32
of all that. Two are kept, so that one damaged on disk leaves the one before it.
"""

import json
import struct
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from covey.core import atomic_files

_MAGIC = b"covey checkpoint 1\n"
_ENDING = ".checkpoint"
_KEPT = 2


class Header(NamedTuple):
    """The round, the method and the configuration (its digest) of a checkpoint.

    privacy: the totals of the privacy ledger at this round; None without a ledger.
    """

    round: int
    method: str
    digest: str
    privacy: Mapping[str, float] | None = None


class Checkpoint(NamedTuple):
    """A header and the bytes of the state."""

    header: Header
    body: bytes


class DamagedError(ValueError):
    """A file that differs from what was written."""


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint, then remove all but the newest two. On a full disk the ones before stay
    as they are.
    """
    header = json.dumps(checkpoint.header._asdict()).encode()
    head = _MAGIC + struct.pack("<I", len(header)) + header
    checksum = zlib.crc32(checkpoint.body, zlib.crc32(head))
    atomic_files.write(
        _path(folder, checkpoint.header.round), head, checkpoint.body, struct.pack("<I", checksum)
    )
    for old in rounds(folder)[:-_KEPT]:
        _path(folder, old).unlink(missing_ok=True)


def newest(folder: Path, *, at_most: int) -> Checkpoint | None:
    """The newest checkpoint that is whole, with a warning for each that cannot be used.

    Args:
        folder: The folder of the checkpoints.
        at_most: The last round whose metrics are on disk; later checkpoints do not fit them.

    Returns:
        None where there is no checkpoint; then a run starts again at round 0.
    """
    damaged: list[str] = []
    found: Checkpoint | None = None
    for round_ in reversed(rounds(folder)):
        path = _path(folder, round_)
        if round_ > at_most:
            warnings.warn(
                f"{path} is of round {round_}, and metrics are whole up to round {at_most} only; "
                "the run goes back to an earlier checkpoint",
                stacklevel=2,
            )
            continue
        try:
            found = load(path)
            break
        except DamagedError as error:
            damaged.append(str(error))
            warnings.warn(f"{error}; the checkpoint before it is used instead", stacklevel=2)
    if found is None and damaged:
        raise ValueError(
            f"no checkpoint in {folder} can be read: {'; '.join(damaged)}. "
            "Start again in another directory."
        )
    return found


def load(path: Path) -> Checkpoint:
    """Read and check one file.

    Raises:
        DamagedError: the file was cut short or changed.
    """
    data = path.read_bytes()
    start = len(_MAGIC) + 4
    if len(data) < start + 4 or not data.startswith(_MAGIC):
        raise DamagedError(f"{path} is damaged: not a checkpoint")
    if zlib.crc32(memoryview(data)[:-4]) != struct.unpack("<I", data[-4:])[0]:
        raise DamagedError(f"{path} is damaged: its checksum does not match")
    end = start + struct.unpack_from("<I", data, len(_MAGIC))[0]
    return Checkpoint(Header(**json.loads(data[start:end])), data[end:-4])


def rounds(folder: Path) -> list[int]:
    """The rounds that have a checkpoint, oldest first."""
    return sorted(int(path.stem) for path in folder.glob(f"*{_ENDING}") if path.stem.isdigit())


def discard_after(folder: Path, round_: int) -> None:
    """Remove checkpoints past a round: damaged ones, before the run writes those rounds again."""
    for later in [found for found in rounds(folder) if found > round_]:
        _path(folder, later).unlink()


def _path(folder: Path, round_: int) -> Path:
    return folder / f"{round_:09d}{_ENDING}"
