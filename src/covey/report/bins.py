"""Bins of many rows: a page must not be about one person."""

from typing import Any

import numpy as np
from scipy import special  # not scipy.stats, which takes a second to import

FEWEST_ROWS = 10
_MOST_BINS = 10


def share_interval(hits: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Interval of probability 0.9 of a share, from a Beta posterior under Jeffreys' prior.

    Example:
        >>> low, high = share_interval(np.array([5]), np.array([10]))
        >>> float(low[0]).__round__(3), float(high[0]).__round__(3)
        (0.262, 0.738)
    """
    ends = [special.betaincinv(hits + 0.5, count - hits + 0.5, side) for side in (0.05, 0.95)]
    return ends[0], ends[1]


def at_least(counts: np.ndarray, fewest: int) -> np.ndarray:
    """Groups of neighbouring bins with at least `fewest` rows each, where there are enough."""
    groups, inside, current = [], 0, 0
    for count in counts:
        groups.append(current)
        inside += count
        if inside >= fewest:
            current, inside = current + 1, 0
    made = np.array(groups, int)
    if inside and current:  # too few are left at the end: they join the bin before
        made[made == current] = current - 1
    return made


def equal_bins(values: np.ndarray, *, most: int = _MOST_BINS) -> np.ndarray:
    """The bin of each value, from bins of about equally many values, ten or more each.

    Args:
        values: Values to bin, e.g. predictions.
        most: Largest number of bins. Default: 10.

    Returns:
        Integers from 0; one bin where there are fewer than twenty values. Equal values share a bin.

    Example:
        >>> np.bincount(equal_bins(np.arange(45.0))).tolist()
        [12, 11, 11, 11]
    """
    bins = int(np.clip(len(values) // FEWEST_ROWS, 1, most))
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1))[1:-1])
    index = np.searchsorted(edges, values, side="left")
    counts = np.bincount(index)
    return at_least(counts, FEWEST_ROWS)[index]


def interval_of_mean(values: Any) -> tuple[float, float]:
    """Interval of probability 0.9 of a mean, from the normal distribution."""
    half = 1.645 * float(values.std(ddof=1)) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(values.mean()) - half, float(values.mean()) + half
