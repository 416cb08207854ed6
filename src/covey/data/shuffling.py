"""Row numbers of clients: their ranges, and their random order by hashes.

A hash takes the place of a generator: the ticket that orders a row depends on the seed, its client
and its number there alone.
"""

import numpy as np
from jaxtyping import Int64


def ranges(
    starts: Int64[np.ndarray, " n"], counts: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " rows"]:
    """The numbers starts[i], ..., starts[i] + counts[i] - 1, for every i in turn."""
    ends = np.cumsum(counts)
    return np.arange(counts.sum()) + np.repeat(starts - (ends - counts), counts)


def words_of(seed: int, ids: Int64[np.ndarray, " clients"]) -> np.ndarray:
    """A random word for each client, 64 bits."""
    return hashed(hashed(_words(seed)) + _words(ids))


def shuffled(
    words: np.ndarray, counts: Int64[np.ndarray, " clients"]
) -> Int64[np.ndarray, " rows"]:
    """Row numbers client after client, each client's in random order by tickets that are made of
    its word.
    """
    tickets = hashed(np.repeat(words, counts) + _words(ranges(np.zeros_like(counts), counts)))
    position = np.repeat(np.arange(len(counts), dtype=np.uint64), counts)
    # One sort key, the client in its upper 31 bits and the ticket below: far faster than a sort by
    # two keys.
    return np.argsort((position << np.uint64(33)) | (tickets >> np.uint64(31)), kind="stable")


def _words(values: int | np.ndarray) -> np.ndarray:
    """Whole numbers as 64-bit words, spread by an odd constant (the golden ratio) so that
    neighbours differ in all bits.
    """
    words = (
        np.asarray([values & (2**64 - 1)], np.uint64)
        if isinstance(values, int)
        else values.astype(np.uint64)
    )
    return (words + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)


def hashed(words: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele, Lea & Flood 2014): a bijection of 64-bit words; each bit
    touches all others.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
