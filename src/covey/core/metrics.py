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
    """A mean over rows."""

    total: Float[Array, "*clients"]
    count: Float[Array, "*clients"]

    @classmethod
    def of(cls, values: Float[Array, " rows"], mask: Bool[Array, " rows"]) -> "Mean":
        """The mean of the rows that the mask keeps."""
        return cls(jnp.sum(jnp.where(mask, values, 0.0)), jnp.sum(mask, dtype=values.dtype))

    def value(self) -> np.ndarray:
        """NaN where nothing was counted."""
        return _ratio(self.total, self.count)


class Calibration(NamedTuple):
    """Reliability bins of a classifier: rows binned by their confidence in the predicted label."""

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
        """Equal-width bins, (k/bins, (k+1)/bins], as is usual for the expected calibration
        error.
        """
        place = jnp.clip(jnp.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
        keep = mask.astype(confidence.dtype)

        def in_bins(values):
            return jnp.zeros(bins, confidence.dtype).at[place].add(values * keep)

        return cls(
            in_bins(confidence),
            in_bins(correct.astype(confidence.dtype)),
            in_bins(jnp.ones_like(confidence)),
        )

    def value(self) -> np.ndarray:
        """The expected calibration error: mean over rows of the gap between confidence and accuracy
        of their bin.
        """
        gap = np.abs(np.asarray(self.confidence) - np.asarray(self.correct)).sum(-1)
        return _ratio(gap, np.asarray(self.count).sum(-1))


Metric: TypeAlias = Mean | Calibration


def merge(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """Metrics of many clients, stacked on the leading axis, as those of all together. Summed in
    float64.
    """
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64).sum(0), dict(metrics))


def add(one: PyTree, other: PyTree) -> PyTree:
    """The sum of two metrics, or of two dictionaries of them with the same names."""
    return jax.tree.map(jnp.add, one, other)


def values(metrics: Mapping[str, Metric]) -> dict[str, np.ndarray]:
    """The metrics as numbers."""
    return {name: metric.value() for name, metric in metrics.items()}


def _ratio(total, count) -> np.ndarray:
    total, count = np.asarray(total, np.float64), np.asarray(count, np.float64)
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)
