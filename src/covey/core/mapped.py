"""Arrays that are memory-mapped files."""

import mmap
import os
import weakref
from pathlib import Path
from typing import NamedTuple

import numpy as np


def release(array: np.ndarray) -> None:
    """Take the pages of a memory-mapped array out of this process; the kernel may keep them cached.

    Nothing is lost: pages are shared with the file and come back when they are next used. Arrays in
    memory, and private copies of a file, are left as they are.

    Args:
        array: Any array.

    Example:
        >>> release(np.zeros(3))
    """
    pages = getattr(array, "_mmap", None)
    if isinstance(pages, mmap.mmap) and getattr(array, "mode", "c") != "c":
        pages.madvise(mmap.MADV_DONTNEED)


class Location(NamedTuple):
    """Where an array begins in its file."""

    path: str
    offset: int


def location(array: np.ndarray) -> Location | None:
    """The file of a memory-mapped array whose rows follow one another there; None for others.

    Args:
        array: Any array.

    Example:
        >>> location(np.zeros(3))
    """
    root = array
    while isinstance(root.base, np.memmap):
        root = root.base
    name = getattr(root, "filename", None)
    if not isinstance(root, np.memmap) or name is None or not array.flags.c_contiguous:
        return None
    skipped = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
    return Location(str(Path(name).resolve()), root.offset + skipped)


class RandomReads:
    """Reads rows of a large file here and there with system calls: they cost half as much as page
    faults of a memory map, and no pages stay in this process.

    Args:
        array: The memory-mapped rows.
        where: Their location.
    """

    def __init__(self, array: np.ndarray, where: Location):
        self.shape, self.dtype, self.where = array.shape[1:], array.dtype, where
        self.width = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        self.file = os.open(where.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.file)
        if hasattr(os, "posix_fadvise"):  # not the 30 pages around each as well; not on macOS
            os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_RANDOM)

    def read(self, starts: np.ndarray, counts: np.ndarray, size: int) -> np.ndarray:
        """Ranges of rows, one after the other.

        Args:
            starts: First row of each range.
            counts: Rows of each range.
            size: Rows of the result; those beyond the ranges are zeros.

        Raises:
            ValueError: The file has become shorter.
        """
        found = np.zeros((size, *self.shape), self.dtype)
        room, end = found.reshape(-1).view(np.uint8).data, 0
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            begin, end = end, end + count * self.width
            at = self.where.offset + start * self.width
            if os.preadv(self.file, [room[begin:end]], at) != end - begin:
                raise ValueError(
                    f"{self.where.path} is shorter than when it was opened; put it back"
                )
        return found
