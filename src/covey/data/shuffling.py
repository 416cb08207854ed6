"""Row indices of clients: their ranges, and their random order by hashes.

A hash replaces a random generator: the ticket that orders a row depends on the seed, its client
and its index within the client alone.
"""

import numpy as np
from jaxtyping import Int64, UInt64


def ranges(
    starts: Int64[np.ndarray, " n"], counts: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " rows"]:
    """The indices starts[i], ..., starts[i] + counts[i] - 1, for every i in turn.

    Args:
        starts: First index of each range.
        counts: Length of each range, which may be 0.

    Returns:
        The indices of all ranges, one range after the other.

    Example:
        >>> ranges(np.array([10, 20, 30]), np.array([2, 0, 1])).tolist()
        [10, 11, 30]
    """
    ends = np.cumsum(counts)
    return np.arange(counts.sum()) + np.repeat(starts - (ends - counts), counts)


def words_of(seed: int, ids: Int64[np.ndarray, " clients"]) -> UInt64[np.ndarray, " clients"]:
    """A random word of 64 bits for each client.

    Args:
        seed: Any integer; its lower 64 bits count.
        ids: The clients' ids.

    Returns:
        The words. A client's word does not depend on the other clients.

    Example:
        >>> bool(words_of(1, np.array([7, 9]))[1] == words_of(1, np.array([9]))[0])
        True
    """
    return hashed(hashed(_words(seed)) + _words(ids))


def shuffled(
    words: UInt64[np.ndarray, " clients"], counts: Int64[np.ndarray, " clients"]
) -> Int64[np.ndarray, " rows"]:
    """Row indices client after client, the rows of each client in random order.

    Args:
        words: A random word for each client, from which the tickets of its rows are made.
        counts: Rows per client.

    Returns:
        For each row in the new order, its index in the old order.

    Example:
        >>> sorted(shuffled(words_of(1, np.array([0, 1])), np.array([3, 2]))[:3].tolist())
        [0, 1, 2]
    """
    tickets = hashed(np.repeat(words, counts) + _words(ranges(np.zeros_like(counts), counts)))
    position = np.repeat(np.arange(len(counts), dtype=np.uint64), counts)
    # One sort key, the client in its upper 31 bits and the ticket below: far faster than a sort by
    # two keys.
    return np.argsort((position << np.uint64(33)) | (tickets >> np.uint64(31)), kind="stable")


def hashed(words: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """The finaliser of SplitMix64: a bijection of 64-bit words; each bit touches all others.

    Args:
        words: The words.

    Returns:
        Their hashes.

    Example:
        >>> hashed(np.array([0, 1], np.uint64)).tolist()
        [0, 6238072747940578789]

    Reference: Steele, Lea and Flood (2014), Fast splittable pseudorandom number generators.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _words(values: int | np.ndarray) -> np.ndarray:
    """Integers as 64-bit words, spread by an odd constant (the golden ratio) so that neighbours
    differ in all bits.
    """
    words = (
        np.asarray([values & (2**64 - 1)], np.uint64)
        if isinstance(values, int)
        else values.astype(np.uint64)
    )
    return (words + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
