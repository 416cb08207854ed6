"""The Wasserstein-2 distance between Gaussians, in closed form (Dowson and Landau 1982).

    W2^2 = |m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1^(1/2) C_2 C_1^(1/2))^(1/2))

Of R independent draws it is taken with their mean and covariance. These are off by chance alone:
even for draws of the target itself the distance is about sqrt(tr(C) / R), not zero.
"""

import numpy as np
from jaxtyping import Float


def gaussian_distance(
    mean: Float[np.ndarray, " numbers"],
    covariance: Float[np.ndarray, "numbers numbers"],
    other_mean: Float[np.ndarray, " numbers"],
    other_covariance: Float[np.ndarray, "numbers numbers"],
) -> float:
    """W2 between N(mean, covariance) and another Gaussian."""
    root = _root(covariance)
    between = np.trace(covariance + other_covariance - 2 * _root(root @ other_covariance @ root))
    return float(np.sqrt(np.sum((mean - other_mean) ** 2) + max(between, 0.0)))


def distance_of_draws(
    draws: Float[np.ndarray, "draws numbers"],
    mean: Float[np.ndarray, " numbers"],
    covariance: Float[np.ndarray, "numbers numbers"],
) -> float:
    """W2 between the Gaussian that has the draws' mean and covariance, and N(mean, covariance)."""
    if len(draws) < 2:
        raise ValueError(f"a covariance needs at least 2 draws, got {len(draws)}")
    return gaussian_distance(draws.mean(0), np.atleast_2d(np.cov(draws.T)), mean, covariance)


def _root(matrix: np.ndarray) -> np.ndarray:
    """The symmetric square root; eigenvalues that rounding made negative count as zero."""
    values, axes = np.linalg.eigh((matrix + matrix.T) / 2)
    return (axes * np.sqrt(np.maximum(values, 0.0))) @ axes.T
