"""A site's effects from its own rows alone, to show the change by learning together."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.special import expit

_STEPS = 50
_SETTLED = 1e-8  # largest change of a coefficient in the last step
_LARGEST = 12.0  # effect; beyond, rows are separated and no finite estimate exists

Moments = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
_LINKS: dict[str, Moments] = {  # predictor -> mean of the outcome, and its derivative
    "bernoulli": lambda eta: (expit(eta), expit(eta) * expit(-eta)),
    "poisson": lambda eta: (np.exp(eta), np.exp(eta)),
    "gaussian": lambda eta: (eta, np.ones_like(eta)),
}


def estimated_alone(
    family: str,
    effects: Float[np.ndarray, "rows effects"],
    outcome: Float[np.ndarray, " rows"],
    offset: Float[np.ndarray, " rows"],
) -> Float[np.ndarray, " effects"]:
    """The effects that maximise a site's own likelihood, with the shared coefficients held fixed.

    Newton's method (Fisher scoring) without any prior: this is what a site would find by itself,
    while the estimate together is drawn towards those of the other sites.

    Args:
        family: "bernoulli", "poisson" or "gaussian".
        effects: Columns of the site's rows that its effects multiply; a column of ones for an
            intercept.
        outcome: The outcome of each row.
        offset: Contribution of the shared coefficients to the predictor of each row.

    Returns:
        The estimates; NaN where the site's rows do not determine them, e.g. where all outcomes are
        the same.

    Example:
        >>> ones, y = np.ones((4, 1)), np.array([1.0, 1.0, 1.0, 0.0])
        >>> float(estimated_alone("bernoulli", ones, y, np.zeros(4))[0].round(3))  # log(3 / 1)
        1.099
    """
    if family not in _LINKS:
        raise ValueError(f"family must be one of {', '.join(_LINKS)}, got {family!r}")
    moments, found = _LINKS[family], np.zeros(effects.shape[1])
    unknown = np.full(effects.shape[1], np.nan)
    if len(outcome) < effects.shape[1]:
        return unknown
    for _ in range(_STEPS):
        mean, weight = moments(np.clip(offset + effects @ found, -50, 50))
        information = effects.T @ (weight[:, None] * effects)
        gradient = effects.T @ (outcome - mean)
        try:
            step = np.linalg.solve(information, gradient)
        except np.linalg.LinAlgError:
            return unknown
        found = found + np.clip(step, -2, 2) if family != "gaussian" else found + step
        if family != "gaussian" and np.abs(found).max() > _LARGEST:
            return unknown
        if np.abs(step).max() < _SETTLED * (1 + np.abs(found).max()):
            return found
    return unknown
