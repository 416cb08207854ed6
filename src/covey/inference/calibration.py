"""Calibration of a classifier: are its labels right as often as it is sure of them?

Rows are binned by the confidence in the predicted label. The expected calibration error (Naeini,
Cooper and Hauskrecht 2015) is the mean over rows of |accuracy - confidence| of their bin. Bins are
sums, so those of many clients add up; the error of their sum may be far below the mean of their
errors, as clients that are too sure and clients that are too timid cancel. Both are given. With few
rows in a bin the error is above zero by chance alone, so a small client's is no proof of bad
calibration.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from covey.core.metrics import Calibration, merge


class CalibrationErrors(NamedTuple):
    """Expected calibration errors: of all rows together, of each client (NaN without rows), and the
    mean over clients.
    """

    pooled: float
    clients: Float[np.ndarray, " clients"]
    mean: float


def reliability(bins: Calibration) -> pd.DataFrame:
    """A line a bin: lower and upper edge, mean confidence and accuracy (NaN where it is empty), and
    count.

    Bins stacked over clients are added up first.
    """
    if np.ndim(bins.count) == 2:
        bins = pooled(bins)
    if np.ndim(bins.count) != 1:
        raise ValueError(
            f"the bins of one client or stacked over clients are needed, got shape {np.shape(bins.count)}"
        )
    count = np.asarray(bins.count, float)
    edges = np.linspace(0, 1, len(count) + 1)

    def mean(total):
        return np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)

    return pd.DataFrame(
        {
            "lower": edges[:-1],
            "upper": edges[1:],
            "confidence": mean(np.asarray(bins.confidence, float)),
            "accuracy": mean(np.asarray(bins.correct, float)),
            "count": count.astype(int),
        }
    )


def calibration_errors(bins: Calibration) -> CalibrationErrors:
    """The errors of bins that are stacked over clients."""
    if np.ndim(bins.count) != 2:
        raise ValueError(f"bins stacked over clients are needed, got shape {np.shape(bins.count)}")
    each = bins.value()
    known = each[~np.isnan(each)]
    return CalibrationErrors(
        float(pooled(bins).value()), each, float(known.mean()) if known.size else float("nan")
    )


def pooled(bins: Calibration) -> Calibration:
    """The bins of all clients together."""
    return Calibration(*merge({"bins": bins})["bins"])
