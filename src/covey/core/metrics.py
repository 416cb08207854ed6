"""Metrics that merge: each is a tree of sums, so the metric of many clients is the sum of theirs.

A client returns `{name: metric}`; engines add them up in any order and grouping, and `value()`
divides at the end.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree


class Mean(NamedTuple):
    """A mean over rows.

    Attributes:
        total: Sum of the values.
        count: Number of rows.

    Example:
        >>> mask = jnp.array([True, True, False])
        >>> float(Mean.of(jnp.array([1.0, 3.0, 100.0]), mask).value())
        2.0
    """

    total: Float[Array, "*clients"]
    count: Float[Array, "*clients"]

    @classmethod
    def of(cls, values: Float[Array, " rows"], mask: Bool[Array, " rows"]) -> "Mean":
        """The mean of the rows that the mask keeps."""
        return cls(jnp.sum(jnp.where(mask, values, 0.0)), jnp.sum(mask, dtype=values.dtype))

    def value(self) -> np.ndarray:
        """The mean; NaN where no row was counted."""
        return _ratio(self.total, self.count)


class Calibration(NamedTuple):
    """Reliability bins of a classifier: rows binned by their confidence in the predicted label.

    Attributes:
        confidence: Sum of the confidences in each bin.
        correct: Correct predictions in each bin.
        count: Rows in each bin.

    Example:
        >>> right, mask = jnp.array([False, True]), jnp.ones(2, bool)
        >>> bins = Calibration.of(jnp.array([0.6, 0.9]), right, mask)
        >>> round(float(bins.value()), 4)  # (|0.6 - 0| + |0.9 - 1|) / 2
        0.35
    """

    confidence: Float[Array, "*clients bins"]
    correct: Float[Array, "*clients bins"]
    count: Float[Array, "*clients bins"]

    @classmethod
    def of(
        cls,
        confidence: Float[Array, " rows"],
        correct: Bool[Array, " rows"],
        mask: Bool[Array, " rows"],
        bins: int = 15,
    ) -> "Calibration":
        """Equal-width bins, (k/bins, (k+1)/bins], as usual for the expected calibration error.

        Args:
            confidence: Predicted probability of the predicted label.
            correct: Whether the prediction is right.
            mask: Rows to count.
            bins: Number of bins. Default: 15, as in the literature.
        """
        index = jnp.clip(jnp.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
        keep = mask.astype(confidence.dtype)

        def in_bins(values):
            return jnp.zeros(bins, confidence.dtype).at[index].add(values * keep)

        return cls(
            in_bins(confidence),
            in_bins(correct.astype(confidence.dtype)),
            in_bins(jnp.ones_like(confidence)),
        )

    def value(self) -> np.ndarray:
        """The expected calibration error: the mean over rows of their bin's gap between confidence
        and accuracy.
        """
        gap = np.abs(np.asarray(self.confidence) - np.asarray(self.correct)).sum(-1)
        return _ratio(gap, np.asarray(self.count).sum(-1))


Metric: TypeAlias = Mean | Calibration


def merge(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The metrics of all clients together.

    Args:
        metrics: Metrics by name, with clients stacked on the leading axis.

    Returns:
        Metrics by name, summed over clients in float64.

    Example:
        >>> stacked = Mean(jnp.array([2.0, 6.0]), jnp.array([1.0, 3.0]))
        >>> float(merge({"loss": stacked})["loss"].value())
        2.0
    """
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64).sum(0), dict(metrics))


def add(one: PyTree, other: PyTree) -> PyTree:
    """The sum of two metrics, or of two dictionaries of metrics with the same names.

    Example:
        >>> one = Mean(jnp.array(1.0), jnp.array(1.0))
        >>> float(add(one, Mean(jnp.array(5.0), jnp.array(1.0))).value())
        3.0
    """
    return jax.tree.map(jnp.add, one, other)


def values(metrics: Mapping[str, Metric]) -> dict[str, np.ndarray]:
    """The value of each metric, by name.

    Example:
        >>> {n: float(v) for n, v in values({"loss": Mean(jnp.array(3.0), jnp.array(2.0))}).items()}
        {'loss': 1.5}
    """
    return {name: metric.value() for name, metric in metrics.items()}


def _ratio(total, count) -> np.ndarray:
    total, count = np.asarray(total, np.float64), np.asarray(count, np.float64)
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
