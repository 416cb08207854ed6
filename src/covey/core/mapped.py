"""Arrays that are memory-mapped files."""

import mmap

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


def read_at_random(array: np.ndarray) -> None:
    """Tell the kernel that pages of a memory-mapped array are used at random: it then reads
    these, and not also the 30 around each.

    Args:
        array: Any array; one in memory is left as it is.

    Example:
        >>> read_at_random(np.zeros(3))
    """
    pages = getattr(array, "_mmap", None)
    if isinstance(pages, mmap.mmap):
        pages.madvise(mmap.MADV_RANDOM)
