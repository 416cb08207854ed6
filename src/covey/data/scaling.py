"""Z-scores from federated sums: standardised features, and the scale to put new rows on."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped

from covey.data.checks import check_same_columns
from covey.data.values import blocks, float_type


class Scaling(NamedTuple):
    """A map of features to z-scores: x becomes (x - mean) / scale.

    mean: of each feature over the training rows.
    scale: standard deviation of each feature over the training rows; 1 for a constant feature.
    names: of the features, where they have names.
    kept: indices of the columns that stay as they are, with mean 0 and scale 1; of these no value
        may be missing.

    Example:
        >>> scaling = Scaling(np.array([50.0]), np.array([10.0]), ("age",))
        >>> scaling.apply(np.array([[65.0], [np.nan]])).tolist()
        [[1.5], [0.0]]
        >>> scaling.invert(np.array([[1.5]])).tolist()
        [[65.0]]
    """

    mean: Float[np.ndarray, "*features"]
    scale: Float[np.ndarray, "*features"]
    names: tuple[str, ...] | None = None
    kept: tuple[int, ...] = ()

    def apply(
        self, x: Shaped[np.ndarray, " rows *features"]
    ) -> Float[np.ndarray, " rows *features"]:
        """Rows as z-scores.

        Args:
            x: Rows on the original scale. A missing value becomes the training mean, which is 0
                on the new scale.

        Returns:
            The z-scores, float32 (or float64, see `covey.data.values.float_type`).

        Example:
            >>> Scaling(np.array([50.0]), np.array([10.0])).apply(np.array([[65.0]])).tolist()
            [[1.5]]
        """
        self._check_shape(x)
        self._check_kept(x)
        out = np.empty(x.shape, float_type(x.dtype))
        for begin, block in blocks(x):
            scores = (block.astype(np.float64) - self.mean) / self.scale
            out[begin : begin + len(block)] = np.where(np.isnan(scores), 0.0, scores)
        return out

    def invert(
        self, x: Shaped[np.ndarray, " rows *features"]
    ) -> Float[np.ndarray, " rows *features"]:
        """Rows on their original scale, mean + scale x.

        Args:
            x: Rows as z-scores.

        Returns:
            The rows on the original scale, in float64. What was missing is the training mean.

        Example:
            >>> Scaling(np.array([50.0]), np.array([10.0])).invert(np.array([[1.5]])).tolist()
            [[65.0]]
        """
        self._check_shape(x)
        return x.astype(np.float64) * self.scale + self.mean

    def after(self, first: "Scaling | None") -> "Scaling":
        """The scaling that does `first` and then this one, in one step.

        Args:
            first: The scaling that the rows went through before, if any.

        Returns:
            The scaling from the original rows to the final ones.

        Example:
            >>> second = Scaling(np.array([1.0]), np.array([2.0]))
            >>> second.after(Scaling(np.array([50.0]), np.array([10.0]))).mean.tolist()
            [60.0]
        """
        if first is None:
            return self
        kept = tuple(index for index in self.kept if index in first.kept)
        mean, scale = first.mean + first.scale * self.mean, first.scale * self.scale
        return Scaling(mean, scale, self.names, kept)

    def keeping(self, columns: Sequence[str | int]) -> "Scaling":
        """The scaling that leaves some columns as they are.

        Args:
            columns: The columns, by name or index.

        Returns:
            The scaling, with mean 0 and scale 1 for these columns.

        Example:
            >>> scaling = Scaling(np.array([50.0, 3.0]), np.array([10.0, 2.0]), ("age", "size"))
            >>> scaling.keeping(["size"]).apply(np.array([[65.0, 7.0]])).tolist()
            [[1.5, 7.0]]
        """
        if not columns:
            return self
        if self.mean.ndim != 1 or isinstance(columns, str):
            raise ValueError(f"keep is a list of columns of a table, got {columns!r}")
        indices = tuple(sorted({self._index(column) for column in columns}))
        mean, scale = self.mean.copy(), self.scale.copy()
        mean[list(indices)], scale[list(indices)] = 0.0, 1.0
        return self._replace(mean=mean, scale=scale, kept=indices)

    def _index(self, column: str | int) -> int:
        known = self.names or ()
        if isinstance(column, str) and column in known:
            return known.index(column)
        if not isinstance(column, str) and 0 <= column < len(self.mean):
            return int(column)
        near = get_close_matches(str(column), known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        called = ", ".join(known) or f"0 to {len(self.mean) - 1}"
        raise ValueError(f"keep has {column!r}, but the columns of these data are {called}{hint}")

    def _check_kept(self, x: np.ndarray) -> None:
        for index in self.kept:
            gaps = int(np.isnan(x[:, index].astype(np.float64)).sum())
            if gaps:
                column = index if self.names is None else self.names[index]
                raise ValueError(
                    f"column {column!r} stays as it is (keep=), but is missing in {gaps} rows; "
                    "fill or remove these"
                )

    def _check_shape(self, x: np.ndarray) -> None:
        if x.shape[1:] != self.mean.shape:
            raise ValueError(
                f"rows of shape {x.shape[1:]} were given to a scaling of features of shape"
                f" {self.mean.shape}"
            )


def fit(
    x: Shaped[np.ndarray, " rows *features"],
    is_train: Bool[np.ndarray, " rows"],
    names: Sequence[str] | None = None,
) -> Scaling:
    """The scaling of the training rows, from sums that clients may share.

    Each client gives the count n of observed values of a feature, their sum S1 and the sum of
    their squares S2 over its training rows; no row leaves a client. Of the totals, in float64,

        mean = S1 / n,    scale^2 = S2 / n - mean^2.

    Args:
        x: Features of all rows; NaN is a missing value.
        is_train: True for training rows; the others are not used.
        names: Names of the features.

    Returns:
        The scaling.

    Example:
        >>> fit(np.array([[1.0], [3.0], [99.0]]), np.array([True, True, False])).mean.tolist()
        [2.0]
    """
    if not is_train.any():
        raise ValueError(
            "there are no training rows to take means and scales from; pass scaling=, the scaling"
            " of the data that the model is trained on"
        )
    return of_sums(sums(x, is_train), names)


class Sums(NamedTuple):
    """Sums over the observed values of each feature in training rows; those of clients add up.

    Attributes:
        count: Number of observed values (n).
        total: Their sum (S1).
        squares: Sum of their squares (S2).
        resolution: Relative spread below which a feature is taken as constant, by the precision
            of the rows; not summed.
    """

    count: Shaped[np.ndarray, "*features"]
    total: Float[np.ndarray, "*features"]
    squares: Float[np.ndarray, "*features"]
    resolution: float

    def __add__(self, other: "Sums") -> "Sums":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Sums(
            self.count + other.count,
            self.total + other.total,
            self.squares + other.squares,
            max(self.resolution, other.resolution),
        )


def sums(x: Shaped[np.ndarray, " rows *features"], is_train: Bool[np.ndarray, " rows"]) -> Sums:
    """A client's sums of its features, for a scaling.

    Args:
        x: Features of all rows; NaN is a missing value.
        is_train: True for training rows; the others are not used.

    Returns:
        The sums.

    Example:
        >>> sums(np.array([[1.0], [3.0], [99.0]]), np.array([True, True, False])).total.tolist()
        [4.0]
    """
    count = np.zeros(x.shape[1:], np.int64)
    total, squares = np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    for begin, block in blocks(x):
        values = block[is_train[begin : begin + len(block)]].astype(np.float64)
        observed = ~np.isnan(values)
        values = np.where(observed, values, 0.0)
        count += observed.sum(0)
        total += values.sum(0)
        squares += np.square(values).sum(0)
    # A spread below the resolution of the rows, or of the sums, is rounding and no information.
    resolution = max(np.finfo(float_type(x.dtype)).eps ** 2, 16 * np.finfo(np.float64).eps)
    return Sums(count, total, squares, float(resolution))


def of_sums(found: Sums, names: Sequence[str] | None = None) -> Scaling:
    """The scaling of rows that only their sums are known of; see `fit`.

    Args:
        found: Sums over all clients.
        names: Names of the features.

    Returns:
        The scaling.

    Example:
        >>> of_sums(Sums(np.array([2]), np.array([4.0]), np.array([10.0]), 1e-12)).scale.tolist()
        [1.0]
    """
    count, total, squares, resolution = found
    if np.any(count == 0):
        index = np.argwhere(count == 0)[0].tolist()
        feature = index if names is None else repr(names[index[0]])
        raise ValueError(
            f"feature {feature} has no observed value in any training row; leave that column out"
        )
    mean = total / count
    variance = squares / count - np.square(mean)
    is_constant = variance <= resolution * np.square(mean)
    scale = np.where(is_constant, 1.0, np.sqrt(np.maximum(variance, 0.0)))
    return Scaling(mean, scale, None if names is None else tuple(names))


def check_same_scaling(known: Scaling | None, given: Scaling | None) -> None:
    """Check that other data are on the scale of the data that a model was trained on.

    Args:
        known: Scaling of the model's data; None where they were not standardised.
        given: Scaling of the other data, or None.

    Example:
        >>> check_same_scaling(None, Scaling(np.zeros(1), np.ones(1)))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: these data were standardised and those of the run were not; ...
    """
    if known is None and given is None:
        return
    if known is None:
        raise ValueError(
            "these data were standardised and those of the run were not; pass them as they were"
        )
    if given is None:
        raise ValueError(
            "the data of the run were standardised and these were not; pass"
            " data.standardised(scaling=run.data.scaling)[0]"
        )
    check_same_columns(known.names, given.names)
    if not (np.array_equal(known.mean, given.mean) and np.array_equal(known.scale, given.scale)):
        raise ValueError(
            "these data were standardised by other rows than those of the run; pass"
            " data.standardised(scaling=run.data.scaling)[0], made of the original data"
        )
