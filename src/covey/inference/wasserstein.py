"""The Wasserstein-2 distance between Gaussians, in closed form."""

import numpy as np
from jaxtyping import Float


def gaussian_distance(
    mean: Float[np.ndarray, " dimensions"],
    covariance: Float[np.ndarray, "dimensions dimensions"],
    other_mean: Float[np.ndarray, " dimensions"],
    other_covariance: Float[np.ndarray, "dimensions dimensions"],
) -> float:
    """Wasserstein-2 distance between two Gaussians.

        W2^2 = |m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1^(1/2) C_2 C_1^(1/2))^(1/2))

    Args:
        mean: Mean of one Gaussian (m_1).
        covariance: Its covariance (C_1).
        other_mean: Mean of the other (m_2).
        other_covariance: Its covariance (C_2).

    Returns:
        The distance W2, in units of the variables.

    Example:
        >>> import numpy as np
        >>> gaussian_distance(np.zeros(2), np.eye(2), np.array([3.0, 4.0]), np.eye(2))
        5.0

    Reference: Dowson and Landau (1982), The Frechet distance between multivariate normal
    distributions.
    """
    root = _root(covariance)
    between = np.trace(covariance + other_covariance - 2 * _root(root @ other_covariance @ root))
    return float(np.sqrt(np.sum((mean - other_mean) ** 2) + max(between, 0.0)))


def distance_of_draws(
    draws: Float[np.ndarray, "draws dimensions"],
    mean: Float[np.ndarray, " dimensions"],
    covariance: Float[np.ndarray, "dimensions dimensions"],
) -> float:
    """Wasserstein-2 distance between the Gaussian fitted to draws and a given Gaussian.

    Mean and covariance of R independent draws are off by chance: even for draws of the target
    itself the distance is about sqrt(tr(C) / R), not zero.

    Args:
        draws: Draws, one per row.
        mean: Mean of the given Gaussian.
        covariance: Its covariance.

    Returns:
        The distance W2, in units of the variables.

    Example:
        >>> import numpy as np
        >>> draws = np.array([[-1.0], [1.0], [-1.0], [1.0]])
        >>> round(distance_of_draws(draws, np.array([2.0]), np.array([[4 / 3]])), 3)
        2.0
    """
    if len(draws) < 2:
        raise ValueError(f"a covariance needs at least 2 draws, got {len(draws)}")
    return gaussian_distance(draws.mean(0), np.atleast_2d(np.cov(draws.T)), mean, covariance)


def _root(matrix: np.ndarray) -> np.ndarray:
    """The symmetric square root; eigenvalues that rounding made negative count as zero."""
    values, axes = np.linalg.eigh((matrix + matrix.T) / 2)
    return (axes * np.sqrt(np.maximum(values, 0.0))) @ axes.T
