"""Families of outcomes: how an outcome depends on its linear predictor.

A family is one small record, used by the generalised linear models and the mixed models alike.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from covey.core.shard import Spec
from covey.models.log_sigmoid import log_sigmoid
from covey.models.model import need_classes, need_number
from covey.models.predictive import (
    Binomial,
    Categorical,
    NegativeBinomial,
    Normal,
    Poisson,
    Predictive,
)


class Given(NamedTuple):
    """Values that the distribution of an outcome needs beside its predictor.

    Attributes:
        scale: The family's scale parameter: the noise's standard deviation of the Gaussian, the
            dispersion of the negative binomial; None for 1, and for families without.
        totals: Binomial totals by row; None for other families.
        weights: Prior weights by row; None where all are one.
    """

    scale: float | Float[Array, ""] | None = None
    totals: Float[Array, " rows"] | None = None
    weights: Float[Array, " rows"] | None = None


class Family(NamedTuple):
    """A family of outcomes with its link.

    Attributes:
        name: Name of the family.
        link: Name of the function that maps the mean of the outcome to the linear predictor.
        need: (model name, spec) -> None; raises a ValueError for outcomes of another kind.
        predictive: (linear predictor, given) -> the distribution of the outcomes; its `log_prob` is
            the log-likelihood.
        scale: The field of the parameters with the logarithm of the scale parameter, where it is
            learned; None for families without.
        divides: Whether a prior weight divides the variance of an outcome, as for Gaussian ones.
            Otherwise it multiplies the log-likelihood: a row of weight 2 counts as two rows.
        log_prob: (linear predictor, outcomes) -> the log-likelihood by row, where that is quicker
            than by `predictive`; None otherwise.
        counts: Whether outcomes are counts: 0, 1, 2, ...
    """

    name: str
    link: str
    need: Callable[[str, Spec], None]
    predictive: Callable[[Float[Array, " rows"], Given], Predictive]
    scale: Literal["log_scale", "log_dispersion"] | None = None
    divides: bool = False
    log_prob: Callable[[Float[Array, " rows"], Array], Float[Array, " rows"]] | None = None
    counts: bool = False


def _normal(predictor: Float[Array, " rows"], given: Given) -> Normal:
    deviation = jnp.asarray(1.0 if given.scale is None else given.scale, predictor.dtype)
    if given.weights is not None:
        deviation = deviation / jnp.sqrt(given.weights)
    return Normal(predictor, jnp.broadcast_to(deviation, predictor.shape))


def _negative_binomial(predictor: Float[Array, " rows"], given: Given) -> NegativeBinomial:
    dispersion = jnp.asarray(1.0 if given.scale is None else given.scale, predictor.dtype)
    return NegativeBinomial(predictor, jnp.broadcast_to(dispersion, predictor.shape))


def _binomial(predictor: Float[Array, " rows"], given: Given) -> Binomial:
    if given.totals is None:
        raise ValueError(
            "binomial outcomes need the column of their totals: totals=; take the parameters from "
            "the model's own init"
        )
    return Binomial(predictor, given.totals.astype(predictor.dtype))


def _bernoulli(predictor: Float[Array, " rows"], y: Array) -> Float[Array, " rows"]:
    """The log-likelihood without the table of both classes."""
    return log_sigmoid(jnp.where(y == 1, predictor, -predictor))


def _need_two_classes(name: str, spec: Spec) -> None:
    classes = need_classes(name, spec)
    if classes != 2:
        raise ValueError(
            f"{name}: two classes are needed, these data have {classes}; use softmax()"
        )


GAUSSIAN = Family("gaussian", "identity", need_number, _normal, scale="log_scale", divides=True)
BERNOULLI = Family(
    "bernoulli",
    "logit",
    _need_two_classes,
    lambda predictor, given: Categorical.of_logit(predictor),
    log_prob=_bernoulli,
)
BINOMIAL = Family("binomial", "logit", need_number, _binomial, counts=True)
POISSON = Family(
    "poisson", "log", need_number, lambda predictor, given: Poisson(predictor), counts=True
)
NEGATIVE_BINOMIAL = Family(
    "negative_binomial",
    "log",
    need_number,
    _negative_binomial,
    scale="log_dispersion",
    counts=True,
)
