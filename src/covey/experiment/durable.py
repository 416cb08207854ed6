"""Files that are either whole or not there: written beside their place, forced to disk, then moved into it."""

import errno
import os
from pathlib import Path

SUFFIX = ".part"  # of a file that is being written


def write(path: Path, *parts: bytes) -> None:
    """Write or replace a file. After a crash or on a full disk the old file is there, whole, and nothing else.

    Raises:
        OSError: it could not be written; what was at `path` before is untouched.
    """
    part = path.with_name(path.name + SUFFIX)
    try:
        with part.open("wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise explained(error, path) from error


def sync_folder(folder: Path) -> None:
    """Force names, not only contents, to disk: without it a rename may be lost with the power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def explained(error: OSError, path: Path) -> OSError:
    """The same error, naming the file and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = "the disk is full (or the quota used up); make room and resume"
    else:
        reason = error.strerror or str(error)
    return OSError(error.errno, f"could not write: {reason}", str(path))
