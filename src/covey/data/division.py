"""Which rows of a client are training, validation and test rows: arithmetic on row indices.

`bounds` has, for each client, the indices where its training, validation and test rows start, and
where it ends; clients lie one after the other, without gaps.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int64, Shaped

from covey.data.shuffling import hashed, ranges, shuffled, words_of

Split: TypeAlias = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


class Division(NamedTuple):
    """A new division of rows: the old index of each row in the new order, and the new bounds."""

    order: Int64[np.ndarray, " rows"]
    bounds: Int64[np.ndarray, "clients 4"]


def split_index(split: str) -> int:
    """The index of a split among `SPLITS`.

    Args:
        split: "train", "validation" or "test".

    Returns:
        0, 1 or 2.

    Example:
        >>> split_index("test")
        2
    """
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; the splits are {', '.join(SPLITS)}")
    return SPLITS.index(split)


def split_codes(
    labels: Shaped[np.ndarray, " rows"], row_text: Callable[[int], str]
) -> Int64[np.ndarray, " rows"]:
    """The splits of rows as codes.

    Args:
        labels: "train", "validation" or "test" for each row.
        row_text: (index) -> the name of a row in errors.

    Returns:
        The index of each row's split among `SPLITS`.

    Example:
        >>> split_codes(np.array(["test", "train"]), str).tolist()
        [2, 0]
    """
    text = labels.astype(str)
    codes = np.full(len(text), -1, np.int64)
    for index, split in enumerate(SPLITS):
        codes[text == split] = index
    wrong = np.flatnonzero(codes < 0)
    if wrong.size:
        raise ValueError(
            f"{row_text(int(wrong[0]))}: {str(text[wrong[0]])!r} is not a split; write"
            f" {', '.join(SPLITS[:-1])} or {SPLITS[-1]}"
        )
    return codes


def given(counts: Int64[np.ndarray, " clients"], codes: Int64[np.ndarray, " rows"]) -> Division:
    """The division in which every row is in a given split.

    Args:
        counts: Rows per client.
        codes: The index of each row's split; rows of a split stay in their order.

    Returns:
        The division.

    Example:
        >>> given(np.array([3, 1]), np.array([2, 0, 2, 1])).order.tolist()
        [1, 0, 2, 3]
    """
    cell = np.repeat(np.arange(len(counts)), counts) * len(SPLITS) + codes
    sizes = np.bincount(cell, minlength=len(counts) * len(SPLITS)).reshape(-1, len(SPLITS))
    starts = np.cumsum(counts) - counts
    bounds = np.concatenate([starts[:, None], starts[:, None] + np.cumsum(sizes, axis=1)], axis=1)
    return Division(np.argsort(cell, kind="stable"), bounds)


def at_random(
    bounds: Int64[np.ndarray, "clients 4"],
    ids: Int64[np.ndarray, " clients"],
    *,
    validation: int | float,
    test: int | float,
    seed: int,
) -> Division:
    """Divide each client's rows at random; see `FederatedData.split`.

    Args:
        bounds: The bounds before.
        ids: The clients' ids.
        validation: Fraction of validation rows.
        test: Fraction of test rows.
        seed: Seed of the random order.

    Returns:
        The division.

    Example:
        >>> bounds = np.array([[0, 5, 5, 5]])
        >>> at_random(bounds, np.array([0]), validation=0.2, test=0.4, seed=1).bounds.tolist()
        [[0, 2, 3, 5]]
    """
    if min(validation, test) < 0 or validation + test >= 1:
        raise ValueError(
            f"fractions must be at least 0 and add up to less than 1, got {validation=}, {test=}"
        )
    starts, ends = bounds[:, 0], bounds[:, 3]
    sizes = ends - starts
    spare = np.maximum(sizes - 1, 0)
    to_test = np.minimum(np.floor(sizes * test + 0.5).astype(np.int64), spare)
    to_validation = np.minimum(np.floor(sizes * validation + 0.5).astype(np.int64), spare - to_test)
    new = np.stack([starts, ends - to_test - to_validation, ends - to_test, ends], axis=1)
    return Division(shuffled(words_of(seed, ids), sizes), new)


def limited(
    bounds: Int64[np.ndarray, "clients 4"],
    ids: Int64[np.ndarray, " clients"],
    *,
    train_rows: int | None,
    few_rows: int | None,
    few_share: int | float,
    seed: int,
) -> Division:
    """Drop training rows at random; see `FederatedData.limited`.

    Args:
        bounds: The bounds before.
        ids: The clients' ids.
        train_rows: Most training rows per client; None keeps all.
        few_rows: Most training rows of a client that is drawn to have few.
        few_share: Share of the clients that are drawn to have few.
        seed: Seed of the draw.

    Returns:
        The division of the rows that are kept.

    Example:
        >>> bounds, ids = np.array([[0, 4, 4, 5]]), np.array([0])
        >>> limited(bounds, ids, train_rows=1, few_rows=None, few_share=0, seed=1).bounds.tolist()
        [[0, 1, 1, 2]]
    """
    trained = bounds[:, 1] - bounds[:, 0]
    # Hashed once more than for a split: of the same seed, both would otherwise order the rows
    # by the same tickets.
    words = hashed(words_of(seed, ids))
    most = np.full(len(ids), np.iinfo(np.int64).max if train_rows is None else train_rows)
    if few_rows is not None:
        few = int(np.floor(few_share * len(ids) + 0.5))
        most[np.argsort(words, kind="stable")[:few]] = few_rows
    kept = np.minimum(trained, most)
    first = shuffled(words, trained)[ranges(np.cumsum(trained) - trained, kept)]
    others = ranges(bounds[:, 1], bounds[:, 3] - bounds[:, 1])
    order = np.sort(np.concatenate([ranges(bounds[:, 0], trained)[first], others]))
    new = bounds - np.cumsum(trained - kept)[:, None]
    new[:, 0] += trained - kept
    return Division(order, new)
