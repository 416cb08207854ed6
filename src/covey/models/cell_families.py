"""Families of the observations of a matrix: Gaussian, Bernoulli, Poisson and negative binomial."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covey.models.predictive import Categorical, NegativeBinomial, Normal, Poisson, Predictive

FamilyName = Literal["gaussian", "bernoulli", "poisson", "negative_binomial"]


class Family(NamedTuple):
    """The distribution of an observation y with the parameter theta, as pure functions.

    Attributes:
        name: Its name in options and messages.
        mean: (theta) -> E[y], mu(theta).
        score: (theta, y) -> the derivative of log p(y; theta) in theta.
        curvature: (theta, y) -> minus its second derivative, at least 0.
        predictive: (theta) -> the distribution as a predictive.
        is_value: (y) -> which values are possible.
        values: The possible values, in words.
        bend: A bound b of |third derivative| <= b |second derivative|: steps are shortened by it.
        canonical: Whether the score is y - mu(theta), so that an unobserved cell can be completed
            by its mean.
    """

    name: FamilyName
    mean: Callable[[Array], Array]
    score: Callable[[Array, Array], Array]
    curvature: Callable[[Array, Array], Array]
    predictive: Callable[[Float[Array, " rows"]], Predictive]
    is_value: Callable[[np.ndarray | Array], np.ndarray | Array]
    values: str
    bend: float
    canonical: bool


def family_of(name: FamilyName, dispersion: float = 3.0) -> Family:
    """The family of a name.

    Args:
        name: "gaussian" with variance 1 (theta is the mean), "bernoulli" (log-odds), "poisson"
            (log-rate) or "negative_binomial" (log-mean).
        dispersion: k of the negative binomial, with variance mu + mu^2 / k; smaller means more
            overdispersed. Other families do not use it.

    Returns:
        The family.

    Example:
        >>> float(family_of("poisson").score(0.0, 3.0))
        2.0
    """
    if name not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {name!r}")
    if not 0 < dispersion < float("inf"):
        raise ValueError(f"dispersion must be above 0 and finite, got {dispersion:g}")
    return _negative_binomial(dispersion) if name == "negative_binomial" else FAMILIES[name]


def is_count(y: np.ndarray | Array) -> np.ndarray | Array:
    """Which values are whole numbers of at least 0."""
    return (y >= 0) & (y == y // 1)


def _canonical(
    name: FamilyName,
    mean: Callable[[Array], Array],
    variance: Callable[[Array], Array],
    predictive: Callable[[Float[Array, " rows"]], Predictive],
    is_value: Callable[[np.ndarray | Array], np.ndarray | Array],
    values: str,
    bend: float,
) -> Family:
    """An exponential family in its natural parameter: mu' is the variance of an observation."""
    return Family(
        name,
        mean,
        lambda theta, y: y - mean(theta),
        lambda theta, y: variance(theta),
        predictive,
        is_value,
        values,
        bend,
        canonical=True,
    )


def _negative_binomial(dispersion: float) -> Family:
    """In its log-mean: (y + k) times a logistic loss in theta - log k, which bounds its bend."""

    def share(theta: Array) -> Array:
        return jax.nn.sigmoid(theta - jnp.log(dispersion))

    return Family(
        "negative_binomial",
        jnp.exp,
        lambda theta, y: y - (y + dispersion) * share(theta),
        lambda theta, y: (y + dispersion) * share(theta) * (1 - share(theta)),
        lambda theta: NegativeBinomial(theta, jnp.full_like(theta, dispersion)),
        is_count,
        "a whole number of at least 0",
        1.0,
        canonical=False,
    )


FAMILIES: dict[FamilyName, Family] = {
    "gaussian": _canonical(
        "gaussian",
        lambda theta: theta,
        jnp.ones_like,
        lambda theta: Normal(theta, jnp.ones_like(theta)),
        lambda y: y == y,
        "any number",
        0.0,
    ),
    "bernoulli": _canonical(
        "bernoulli",
        jax.nn.sigmoid,
        lambda theta: jax.nn.sigmoid(theta) * jax.nn.sigmoid(-theta),
        Categorical.of_logit,
        lambda y: (y == 0) | (y == 1),
        "0 or 1",
        1.0,
    ),
    "poisson": _canonical(
        "poisson", jnp.exp, jnp.exp, Poisson, is_count, "a whole number of at least 0", 1.0
    ),
    "negative_binomial": _negative_binomial(3.0),
}
