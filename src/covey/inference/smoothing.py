"""A curve through points, as LOESS draws it (Cleveland 1979, without its robustness iterations)."""

import numpy as np
from jaxtyping import Float, Real


def local_linear(
    x: Real[np.ndarray, " points"], y: Real[np.ndarray, " points *series"], *, span: float = 0.75
) -> Float[np.ndarray, " points *series"]:
    """At each x, the line through the nearest share `span` of the points, weighted by (1 -
    (distance / farthest)^3)^3.

    Linear in y: smoothing replicas of a series costs no more than one, and averages of smooths are
    smooths of averages.
    """
    nearest = int(np.floor(span * len(x) + 1e-5))
    if not span <= 1 or nearest < 4:
        raise ValueError(
            f"local_linear: span must be at most 1 and reach at least 4 of the {len(x)} points, got {span:g}"
        )
    away = (x[None] - x[:, None]).astype(float)
    farthest = np.sort(np.abs(away), axis=1)[:, nearest - 1, None]
    if not np.all(np.sum(np.abs(away) < farthest, axis=1) >= 2) or np.any(farthest == 0):
        raise ValueError(
            "local_linear: too many points have the same x; average them first, or widen the span"
        )
    weight = np.clip(1 - (np.abs(away) / farthest) ** 3, 0, None) ** 3
    zeroth, first, second = ((weight * away**power).sum(1, keepdims=True) for power in (0, 1, 2))
    # The height at x of the weighted line, as a weighted mean of y.
    kernel = weight * (second - first * away) / (zeroth * second - first**2)
    return np.tensordot(kernel, y, 1)
