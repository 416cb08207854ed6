"""Files that are either whole or not there: written beside their place, forced to disk, then moved
into it.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".part"  # of a file that is being written


def write(path: Path, *parts: bytes, private: bool = False) -> None:
    """Write or replace a file. After a crash or on a full disk the old file is there, whole, and
    nothing else.

    Args:
        path: The file.
        parts: Its bytes, one part after the other.
        private: Whether only its owner may read and write it (mode 600).

    Raises:
        OSError: it could not be written; what was at `path` before is untouched.
    """
    part = path.with_name(path.name + SUFFIX)
    with explained(path):
        try:
            with part.open("wb") as file:
                if private:
                    os.fchmod(file.fileno(), 0o600)  # before there is anything to read
                file.writelines(parts)
                sync(file)
            part.replace(path)
            sync_folder(path.parent)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def sync(file: BinaryIO) -> None:
    """Force what was written to disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Force names, not only contents, to disk: without it a rename may be lost with the power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Errors in writing, told with the file and what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        reason = (
            "the disk is full, or the quota used up; make room and resume"
            if full
            else error.strerror or str(error)
        )
        raise OSError(error.errno, f"could not write: {reason}", str(path)) from error
