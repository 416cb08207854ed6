"""Calibration of a classifier: the accuracy of its predictions, by their confidence.

Rows are binned by the confidence in the predicted label. Bins are sums, so those of many clients
add up.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from covey.core.metrics import Calibration, merge


class CalibrationErrors(NamedTuple):
    """Expected calibration errors.

    Attributes:
        pooled: Of all rows together.
        clients: Of each client; NaN for a client without rows.
        mean: Mean over the clients with rows.
    """

    pooled: float
    clients: Float[np.ndarray, " clients"]
    mean: float


def reliability(bins: Calibration) -> pd.DataFrame:
    """Table of a reliability diagram, one row per bin.

    Args:
        bins: Bins of one client, or stacked over clients, which are added up first; the measure
            `ece` of an evaluation.

    Returns:
        Columns lower, upper (edges), confidence, accuracy (means; NaN in an empty bin) and count.

    Example:
        >>> import numpy as np
        >>> bins = Calibration(np.array([0.6, 3.6]), np.array([1.0, 3.0]), np.array([2.0, 4.0]))
        >>> reliability(bins)["accuracy"].tolist()
        [0.5, 0.75]
    """
    if np.ndim(bins.count) == 2:
        bins = pooled(bins)
    if np.ndim(bins.count) != 1:
        raise ValueError(
            "the bins of one client or stacked over clients are needed, got shape "
            f"{np.shape(bins.count)}"
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
    """Expected calibration errors of all rows together and of each client.

    The error of a set of rows is the mean of |accuracy - confidence| of their bins. The pooled
    error may be far below the mean over clients, as overconfident and underconfident clients
    cancel. With few rows in a bin an error is above zero by chance alone.

    Args:
        bins: Bins stacked over clients.

    Returns:
        The pooled error, one error per client, and their mean.

    Example:
        >>> import numpy as np
        >>> half, correct = np.array([[2.0], [2.0]]), np.array([[4.0], [0.0]])
        >>> bins = Calibration(half, correct, count=np.array([[4.0], [4.0]]))
        >>> found = calibration_errors(bins)  # one client underconfident, one overconfident
        >>> float(found.pooled), float(found.mean)
        (0.0, 0.5)

    Reference: Naeini, Cooper and Hauskrecht (2015), Obtaining well calibrated probabilities using
    Bayesian binning.
    """
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
