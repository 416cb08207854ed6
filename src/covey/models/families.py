"""Families of outcomes: how an outcome depends on its linear predictor.

A family is one small record, used by the generalised linear models and the mixed models alike.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from covey.core.shard import Spec
from covey.models.model import need_classes, need_number
from covey.models.predictive import Categorical, Normal, Poisson, Predictive


class Family(NamedTuple):
    """A family of outcomes with its link.

    Attributes:
        name: Name of the family.
        link: Name of the function that maps the mean of the outcome to the linear predictor.
        need: (model name, spec) -> None; raises a ValueError for outcomes of another kind.
        predictive: (linear predictor, noise scale or None) -> the distribution of the outcomes; its
            `log_prob` is the log-likelihood.
        noise: Whether outcomes have a noise scale, given or learned.
    """

    name: str
    link: str
    need: Callable[[str, Spec], None]
    predictive: Callable[[Float[Array, " rows"], float | Float[Array, ""] | None], Predictive]
    noise: bool = False


def _normal(predictor: Float[Array, " rows"], scale: float | Float[Array, ""] | None) -> Normal:
    deviation = jnp.asarray(1.0 if scale is None else scale, predictor.dtype)
    return Normal(predictor, jnp.broadcast_to(deviation, predictor.shape))


def _need_two_classes(name: str, spec: Spec) -> None:
    classes = need_classes(name, spec)
    if classes != 2:
        raise ValueError(
            f"{name}: two classes are needed, these data have {classes}; use softmax()"
        )


GAUSSIAN = Family("gaussian", "identity", need_number, _normal, noise=True)
BERNOULLI = Family(
    "bernoulli",
    "logit",
    _need_two_classes,
    lambda predictor, scale: Categorical.of_logit(predictor),
)
POISSON = Family("poisson", "log", need_number, lambda predictor, scale: Poisson(predictor))
