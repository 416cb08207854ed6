"""Standard errors from an information matrix that is known up to Monte Carlo error and that may be
singular.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

_ROUNDING = 1e-9  # of the largest eigenvalue: an information below this is zero
_SURE = 3.0  # Monte Carlo errors that an eigenvalue must be above zero
_HIDDEN = 0.1  # share of a variance that may come from directions without information


class StandardErrors(NamedTuple):
    """Standard errors of some functions of the parameters.

    Attributes:
        value: The standard errors; NaN where a function is not identified.
        monte_carlo: Relative Monte Carlo error of each standard error.
        identified: Whether the information determines the function.
        factor: A factor of the parameters' covariance, which is factor @ factor.T; directions
            without information have no variance in it.
    """

    value: Float[np.ndarray, " functions"]
    monte_carlo: Float[np.ndarray, " functions"]
    identified: Bool[np.ndarray, " functions"]
    factor: Float[np.ndarray, "parameters directions"]


def standard_errors(
    batches: Float[np.ndarray, "batches parameters parameters"],
    prior: Float[np.ndarray, "parameters parameters"],
    scale: Float[np.ndarray, " parameters"],
    gradients: Float[np.ndarray, "functions parameters"],
) -> StandardErrors:
    """Standard errors of functions of parameters, by the delta method.

    The information is scaled to about a unit diagonal and taken apart into its eigenvectors. A
    direction whose eigenvalue is not above three times its Monte Carlo error has no information: a
    function that depends on it is not identified, and its standard error is NaN. Functions that do
    not depend on it, such as the sum of an intercept and a mean effect, keep theirs.

    Args:
        batches: Independent unbiased estimates of the information.
        prior: Information of the priors.
        scale: A positive size of each parameter's information, such as that of the complete data.
        gradients: The gradient of each function.

    Returns:
        Standard errors, and how exactly they are known.

    Example:
        >>> import numpy as np
        >>> only_the_sum = np.array([[[4.0, 4.0], [4.0, 4.0]]] * 2)
        >>> functions = np.array([[1.0, 1.0], [1.0, -1.0]])  # the sum and the difference
        >>> found = standard_errors(only_the_sum, np.zeros((2, 2)), np.ones(2), functions)
        >>> found.value.round(3).tolist()
        [0.5, nan]
    """
    size = np.abs(scale) + np.abs(np.diag(prior))
    unit = 1 / np.sqrt(np.where(size > 0, size, 1.0))
    values, axes = np.linalg.eigh(unit[:, None] * (batches.mean(0) + prior) * unit)
    noise = _error(_quadratic(batches, (unit[:, None] * axes).T))
    least = _SURE * noise + _ROUNDING * max(values.max(), 0.0) + np.finfo(float).tiny
    known = values > least
    # Functions in terms of the eigenvectors, and what each of these adds to their variance.
    parts = (gradients * unit) @ axes
    inverse = np.where(known, 1 / np.where(known, values, 1.0), 0.0)
    variance = parts**2 @ inverse
    # A direction without information adds at least this much, as its eigenvalue is at most that.
    hidden = parts**2 @ np.where(known, 0.0, 1 / (np.maximum(values, 0.0) + least))
    identified = hidden <= _HIDDEN * variance
    influence = (parts * inverse) @ axes.T * unit
    error = _error(_quadratic(batches, influence))
    return StandardErrors(
        np.where(identified, np.sqrt(variance), np.nan),
        np.divide(error, 2 * variance, out=np.zeros_like(variance), where=variance > 0),
        identified,
        (unit[:, None] * axes * np.sqrt(inverse))[:, known],
    )


def _quadratic(
    batches: Float[np.ndarray, "batches parameters parameters"],
    directions: Float[np.ndarray, "directions parameters"],
) -> Float[np.ndarray, "batches directions"]:
    """The form v'Iv of every batch and direction."""
    return np.einsum("ki,bij,kj->bk", directions, batches, directions)


def _error(values: Float[np.ndarray, "batches directions"]) -> Float[np.ndarray, " directions"]:
    """The standard error of the mean over batches."""
    return values.std(axis=0, ddof=1) / np.sqrt(len(values))
