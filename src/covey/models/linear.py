"""Generalised linear models: the outcome depends on the row x through x'w + b.

Parameters start at zero. The log-likelihoods are concave, so there is no symmetry to break and no
basin to choose: a random start would add noise and nothing else, and from zero every client and
every run begins at the same uninformed prediction.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from covey.core.shard import Axis, Spec
from covey.models.model import Model, flat, flat_size, from_predictive, need_classes, need_number
from covey.models.predictive import Categorical, Normal, Poisson


class Linear(NamedTuple):
    """Weights and intercept; a column for each class in `softmax`, a vector and a scalar
    elsewhere.
    """

    weight: Float[Array, " features *classes"]
    bias: Float[Array, "*classes"]


class Noisy(NamedTuple):
    """Weights and intercept, and the logarithm of the noise's standard deviation."""

    weight: Float[Array, " features"]
    bias: Float[Array, ""]
    log_scale: Float[Array, ""]


def linear(*, scale: float | None = 1.0) -> Model:
    """Linear regression with Gaussian noise of standard deviation `scale`; None learns it, from
    1.
    """
    if scale is not None and scale <= 0:
        raise ValueError(
            f"linear: scale is a standard deviation and must be above 0, got {scale:g}"
        )

    def init(key: Key[Array, ""], spec: Spec) -> Linear | Noisy:
        need_number("linear", spec)
        start = _zeros(spec)
        return start if scale is not None else Noisy(*start, jnp.zeros(()))

    def predictive(params: Linear | Noisy, x: Shaped[Array, " rows *features"]) -> Normal:
        mean = _predictor(params, x)
        deviation = (
            jnp.exp(params.log_scale)
            if isinstance(params, Noisy)
            else jnp.asarray(scale, mean.dtype)
        )
        return Normal(mean, jnp.broadcast_to(deviation, mean.shape))

    return from_predictive("linear", init, predictive)._replace(axes=_axes)


def logistic() -> Model:
    """Logistic regression for two classes."""

    def init(key: Key[Array, ""], spec: Spec) -> Linear:
        classes = need_classes("logistic", spec)
        if classes != 2:
            raise ValueError(
                f"logistic: two classes are needed, these data have {classes}; use softmax()"
            )
        return _zeros(spec)

    def predictive(params: Linear, x: Shaped[Array, " rows *features"]) -> Categorical:
        return Categorical.of_logit(_predictor(params, x))

    return from_predictive("logistic", init, predictive)._replace(axes=_axes)


def softmax() -> Model:
    """Multinomial logistic regression for any number of classes."""

    def init(key: Key[Array, ""], spec: Spec) -> Linear:
        return _zeros(spec, need_classes("softmax", spec))

    def predictive(params: Linear, x: Shaped[Array, " rows *features"]) -> Categorical:
        return Categorical.of_logits(_predictor(params, x))

    return from_predictive("softmax", init, predictive)._replace(axes=_axes)


def poisson() -> Model:
    """Poisson regression of counts with a log link."""

    def init(key: Key[Array, ""], spec: Spec) -> Linear:
        need_number("poisson", spec)
        return _zeros(spec)

    def predictive(params: Linear, x: Shaped[Array, " rows *features"]) -> Poisson:
        return Poisson(_predictor(params, x))

    return from_predictive("poisson", init, predictive)._replace(axes=_axes)


def _zeros(spec: Spec, *classes: int) -> Linear:
    return Linear(jnp.zeros((flat_size(spec), *classes)), jnp.zeros(classes))


def _axes(spec: Spec) -> dict[str, Axis]:
    return {} if spec.features is None else {"weight": Axis("column", spec.features)}


def _predictor(
    params: Linear | Noisy, x: Shaped[Array, " rows *features"]
) -> Float[Array, " rows *classes"]:
    # A product of matrices stays one under vmap over clients; multiplying and summing took 1.3 to
    # 1.9 times as long.
    return flat(x) @ params.weight + params.bias
