"""A smooth curve through points, by local linear regression."""

import numpy as np
from jaxtyping import Float, Real


def local_linear(
    x: Real[np.ndarray, " points"], y: Real[np.ndarray, " points *series"], *, span: float = 0.75
) -> Float[np.ndarray, " points *series"]:
    """Local linear regression (LOESS without its robustness iterations).

    At each x, a line is fitted to the nearest points with weights (1 - (distance / farthest)^3)^3.
    The result is linear in y.

    Args:
        x: Positions of the points.
        y: Values at the points; further axes are series that are smoothed alike.
        span: Share of the points that each line is fitted to. Default: 0.75; smaller values follow
            the points more closely.

    Returns:
        Smoothed values at each x.

    Example:
        >>> import numpy as np
        >>> x = np.arange(10.0)
        >>> local_linear(x, 2 * x + 1)[:3].round(6).tolist()  # a line stays a line
        [1.0, 3.0, 5.0]

    Reference: Cleveland (1979), Robust locally weighted regression and smoothing scatterplots.
    """
    nearest = int(np.floor(span * len(x) + 1e-5))
    if not span <= 1 or nearest < 4:
        raise ValueError(
            f"local_linear: span must be at most 1 and reach at least 4 of the {len(x)} points, "
            f"got {span:g}"
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
