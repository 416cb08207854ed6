"""Small counts: the counts that a site may tell, and the rows that it leaves out, so that nobody
can read a count of a few rows.

A count below `least` (a site's `min_count`) cannot be hidden by leaving out its number alone. The
number of rows less the other counts is the same count, the mean of a column of 0 and 1 is one, and
two sums that differ by one row are that row. So there are three rules, and all of them are here:

* `kept`: rows with something that fewer than `least` rows have are left out of the study before
  anything is counted: a level of a factor, a combination of levels that the formula names, a value
  of a column of numbers that has up to three values, a missing cell that would be filled.
* `told`: counts beside the number of rows are rounded down to multiples of `least`.
* `summed`: two sums are over the same rows, or over rows that differ by `least` or more.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

FEW_VALUES = 3  # of a column of numbers: mean and variance then tell how many rows have each


class Part(NamedTuple):
    """The values to be counted: a factor of a term of the formula, by row.

    Attributes:
        text: Its name in the formula.
        codes: The index of each row's value; -1 where it is missing.
        values: The values.
        is_factor: Whether its values are levels. Numbers count where they are few different ones.
    """

    text: str
    codes: np.ndarray
    values: Sequence[Any]
    is_factor: bool

    def has_levels(self, rows: np.ndarray) -> bool:
        """Whether these rows have so few different values that sums tell their counts.

        Args:
            rows: The rows.
        """
        found = self.codes[rows]
        return self.is_factor or len(np.unique(found[found >= 0])) <= FEW_VALUES


class Rare(NamedTuple):
    """Rows that are left out.

    Attributes:
        text: What they have, in the words of the formula.
        value: The value that few rows have.
        rows: How many rows.
    """

    text: str
    value: str
    rows: int


class Kept(NamedTuple):
    """The rows of a table that a study uses.

    Attributes:
        rows: Whether each row is one of them.
        rare: What the others have.
    """

    rows: np.ndarray
    rare: tuple[Rare, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """What has rare values, each once."""
        return tuple(dict.fromkeys(one.text for one in self.rare))


def kept(terms: Sequence[Sequence[Part]], used: np.ndarray, least: int) -> Kept:
    """Leave out rows until no value, and no combination inside a term, has fewer than `least`.

    Args:
        terms: What is counted together.
        used: Rows that a study would use.
        least: Smallest count.

    Example:
        >>> sex = Part("sex", np.array([0] * 6 + [1] * 5 + [2] * 2), ["f", "m", "x"], True)
        >>> found = kept([[sex]], np.ones(13, bool), 5)
        >>> int(found.rows.sum()), found.rare
        (11, (Rare(text='sex', value="'x'", rows=2),))
    """
    rows, rare = np.ones(len(used), bool), []
    while True:
        before = rows
        for term in terms:
            for found, mask in _few(term, used & rows, least):
                rows, rare = rows & ~mask, [*rare, found]
        if np.array_equal(before, rows):
            return Kept(rows, tuple(rare))


def _few(term: Sequence[Part], used: np.ndarray, least: int) -> Iterator[tuple[Rare, np.ndarray]]:
    """What fewer than `least` of the used rows have, and all rows that have it."""
    parts = [one for one in term if one.has_levels(used)]
    if not parts:
        return
    codes = np.stack([one.codes for one in parts])
    known = (codes >= 0).all(0)
    for cell in np.unique(codes[:, used & known], axis=1).T:
        mask = (codes == cell[:, None]).all(0)
        count = int((mask & used).sum())
        if count < least:
            values = [repr(one.values[at]) for one, at in zip(parts, cell, strict=True)]
            yield Rare(" with ".join(one.text for one in parts), " with ".join(values), count), mask


def told(count: int, least: int) -> int:
    """A count as it is told: rounded down to a multiple of `least`; 0 tells it as it is.

    Args:
        count: The count.
        least: Smallest count.

    Example:
        >>> told(4, 5), told(13, 5), told(4, 0)
        (0, 10, 4)
    """
    return count - count % least if least else count


def summed(
    known: np.ndarray, used: np.ndarray, before: Sequence[np.ndarray], least: int
) -> np.ndarray:
    """Rows that a sum is over: those whose value is known, or the used ones of them, where another
    sum would differ by fewer than `least` rows.

    Args:
        known: Rows whose value is known.
        used: Rows that the study uses; sums over them are told later.
        before: Rows of the sums that are told already.
        least: Smallest count.
    """
    more, less = [known & ~one for one in (used, *before)], [one & ~known for one in before]
    return known & used if any(0 < rows.sum() < least for rows in more + less) else known
