"""Z-scores from federated sums.

Each client gives the number of observed values of a feature, their sum and the sum of their squares
over its training rows; the totals give the mean and the scale that every client then uses. No row
leaves a client; validation and test rows are not used.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Shaped

from covey.data.checks import blocks


class Scaling(NamedTuple):
    """x becomes (x - mean) / scale. A missing value becomes the training mean, which is zero on the
    new scale.
    """

    mean: Float[np.ndarray, "*features"]
    scale: Float[np.ndarray, "*features"]

    def apply(
        self, x: Shaped[np.ndarray, " rows *features"]
    ) -> Float32[np.ndarray, " rows *features"]:
        """Rows on this scale."""
        if x.shape[1:] != self.mean.shape:
            raise ValueError(
                f"rows of shape {x.shape[1:]} were given to a scaling of features of shape {self.mean.shape}"
            )
        out = np.empty(x.shape, np.float32)
        for begin, block in blocks(x):
            scores = (block.astype(np.float64) - self.mean) / self.scale
            out[begin : begin + len(block)] = np.where(np.isnan(scores), 0.0, scores)
        return out


def fit(
    x: Shaped[np.ndarray, " rows *features"],
    is_train: Bool[np.ndarray, " rows"],
    names: Sequence[str] | None = None,
) -> Scaling:
    """The scaling of the training rows: mean = S1/n and scale^2 = S2/n - mean^2 over observed
    values, summed in float64.

    names: of the columns, for errors.
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
    if np.any(count == 0):
        place = np.argwhere(count == 0)[0].tolist()
        feature = place if names is None else repr(names[place[0]])
        raise ValueError(
            f"feature {feature} has no observed value in any training row; leave that column out"
        )
    mean = total / count
    variance = squares / count - np.square(mean)
    # Rows are float32: a spread below its resolution is rounding, not information.
    is_constant = variance <= np.square(np.finfo(np.float32).eps * mean)
    return Scaling(mean, np.where(is_constant, 1.0, np.sqrt(np.maximum(variance, 0.0))))
