"""Intervals over observers: the fit is made again with observers left out, or weighted at
random.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Real
from scipy import special

Resampling = Literal["jackknife", "exponential", "multinomial"]
RESAMPLINGS: tuple[Resampling, ...] = ("jackknife", "exponential", "multinomial")


class Scale(NamedTuple):
    """A monotone scale on which a jackknife interval is symmetric, and the way back."""

    to: Callable[[np.ndarray], np.ndarray]
    back: Callable[[np.ndarray], np.ndarray]


IDENTITY = Scale(lambda value: value, lambda value: value)
LOGARITHM = Scale(np.log, np.exp)
LOG_ODDS = Scale(special.logit, special.expit)


def observer_weights(
    resampling: Resampling, replicas: int, observers: int, seed: int
) -> Float[np.ndarray, "plans observers"]:
    """The weights of the observers in each replica.

    Args:
        resampling: "jackknife" leaves out one observer per replica, or one group of observers
            where there are more observers than replicas; the others count as much as all did.
            "exponential" draws weights of mean one (the Bayesian bootstrap, Rubin 1981);
            "multinomial" draws observers with replacement, which takes all cells of a site away
            where its only observer is not drawn.
        replicas: Count of replicas; a jackknife has at most one per observer.
        observers: Count of observers.
        seed: Seed of the groups or the weights.

    Returns:
        One row of weights per replica, with the sum `observers`.

    Example:
        >>> observer_weights("jackknife", 5, 3, seed=0).tolist()
        [[0.0, 1.5, 1.5], [1.5, 0.0, 1.5], [1.5, 1.5, 0.0]]
    """
    generator = np.random.default_rng(seed)
    if resampling == "multinomial":
        chance = np.full(observers, 1 / observers)
        return generator.multinomial(observers, chance, replicas).astype(float)
    if resampling == "exponential":
        weights = generator.exponential(size=(replicas, observers))
        return weights * observers / weights.sum(axis=1, keepdims=True)
    groups = min(replicas, observers)
    if groups < 2:
        raise ValueError(
            f"a jackknife needs at least 2 replicas and 2 observers, got {replicas} and {observers}"
        )
    order = np.arange(observers) if groups == observers else generator.permutation(observers)
    group = np.empty(observers, int)
    group[order] = np.arange(observers) % groups
    kept = (group != np.arange(groups)[:, None]).astype(float)
    return kept * observers / kept.sum(axis=1, keepdims=True)


def interval_over_replicas(
    estimate: Float[np.ndarray, " *s"],
    replicas: Real[np.ndarray, " replicas *s"],
    level: float,
    resampling: Resampling,
    scale: Scale = IDENTITY,
) -> Float[np.ndarray, " 2 *s"]:
    """The lower and upper ends of intervals for some estimates.

    A jackknife of G replicas has the variance (G - 1)/G sum (x_g - mean x)^2 on the given scale,
    and its interval is that of Student's t with G - 1 degrees of freedom around the estimate.
    Random weights give the quantiles of the replicas.

    Args:
        estimate: The estimates from all observers.
        replicas: The same from each replica.
        level: The probability that an interval should cover.
        resampling: Method of the replicas.
        scale: The scale on which a jackknife interval is symmetric. Default: the estimate's own.

    Returns:
        The lower ends, then the upper ends; NaN where an estimate or replica has no finite value
        on the scale.

    Example:
        >>> mean, others = np.array([3.0]), np.array([[4.0], [3.5], [1.5]])  # of 1, 2 and 6
        >>> interval_over_replicas(mean, others, 0.9, "jackknife").ravel().round(2).tolist()
        [-1.46, 7.46]
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level:g}")
    if resampling != "jackknife":
        return np.quantile(replicas, ((1 - level) / 2, (1 + level) / 2), axis=0)
    groups = len(replicas)
    with np.errstate(divide="ignore", invalid="ignore"):
        centre, each = scale.to(estimate), scale.to(replicas)
        error = np.sqrt((groups - 1) * np.var(each, axis=0))
    reach = special.stdtrit(groups - 1, (1 + level) / 2) * error
    return scale.back(np.stack([centre - reach, centre + reach]))
