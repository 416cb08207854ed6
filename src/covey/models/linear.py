"""Generalised linear models: the outcome depends on the row x through the predictor x'w + b.

Parameters start at zero: the log-likelihoods are concave, so a random start would add noise only.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from covey.core.shard import Axis, Spec
from covey.models.families import BERNOULLI, GAUSSIAN, POISSON, Family
from covey.models.model import Model, flat, flat_size, from_predictive, need_classes
from covey.models.predictive import Categorical, Predictive


class Linear(NamedTuple):
    """Parameters of a linear predictor: weights and intercept, with one column per class in
    `softmax`.
    """

    weight: Float[Array, " features *classes"]
    bias: Float[Array, "*classes"]


class Noisy(NamedTuple):
    """Weights and intercept, and the logarithm of the noise's standard deviation."""

    weight: Float[Array, " features"]
    bias: Float[Array, ""]
    log_scale: Float[Array, ""]


def linear(*, scale: float | None = 1.0) -> Model:
    """Linear regression with Gaussian noise.

        y = x'w + b + scale * noise,   noise ~ N(0, 1)

    Args:
        scale: Standard deviation of the noise, in units of the outcome. Default: 1. None learns it,
            starting from 1.

    Returns:
        A model of data with a numeric outcome.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from covey.data.federated import FederatedData
        >>> data = FederatedData.from_clients({"a": (np.eye(3), np.array([0.5, 1.0, 2.0]))})
        >>> linear().init(jax.random.key(0), data.spec).weight.tolist()
        [0.0, 0.0, 0.0]
    """
    return generalised_linear("linear", GAUSSIAN, scale=scale)


def logistic() -> Model:
    """Logistic regression for two classes.

        log p(1) - log p(0) = x'w + b

    Returns:
        A model of data with two classes.

    Example:
        >>> import jax.numpy as jnp
        >>> params = Linear(jnp.array([2.0]), jnp.array(-1.0))
        >>> logistic().predictive(params, jnp.array([[0.5]])).mean.tolist()
        [[0.5, 0.5]]
    """
    return generalised_linear("logistic", BERNOULLI)


def poisson() -> Model:
    """Poisson regression of counts with a log link.

        log E[y] = x'w + b

    Returns:
        A model of data with a numeric outcome that counts.

    Example:
        >>> import jax.numpy as jnp
        >>> params = Linear(jnp.array([1.0]), jnp.log(jnp.array(3.0)))
        >>> round(float(poisson().predictive(params, jnp.zeros((1, 1))).mean[0]), 3)
        3.0
    """
    return generalised_linear("poisson", POISSON)


def softmax() -> Model:
    """Multinomial logistic regression for any number of classes.

        p(k) proportional to exp(x'w_k + b_k)

    Returns:
        A model of data with classes.

    Example:
        >>> import jax.numpy as jnp
        >>> params = Linear(jnp.zeros((2, 4)), jnp.zeros(4))
        >>> softmax().predictive(params, jnp.ones((1, 2))).mean.tolist()
        [[0.25, 0.25, 0.25, 0.25]]
    """

    def init(key: Key[Array, ""], spec: Spec) -> Linear:
        return _zeros(spec, need_classes("softmax", spec))

    def predictive(params: Linear, x: Shaped[Array, " rows *features"]) -> Categorical:
        return Categorical.of_logits(_predictor(params, x))

    return from_predictive("softmax", init, predictive)._replace(axes=_axes)


def generalised_linear(name: str, family: Family, *, scale: float | None = None) -> Model:
    """The generalised linear model of a family.

    Args:
        name: Name in reports and messages.
        family: How the outcome depends on the predictor.
        scale: Noise scale of a family that has one; None learns it.

    Returns:
        A model with parameters `Linear`, or `Noisy` where the noise is learned.
    """
    if scale is not None and scale <= 0:
        raise ValueError(
            f"{name}: scale is a standard deviation and must be above 0, got {scale:g}"
        )

    def init(key: Key[Array, ""], spec: Spec) -> Linear | Noisy:
        family.need(name, spec)
        start = _zeros(spec)
        return Noisy(*start, jnp.zeros(())) if family.noise and scale is None else start

    def predictive(params: Linear | Noisy, x: Shaped[Array, " rows *features"]) -> Predictive:
        deviation = jnp.exp(params.log_scale) if isinstance(params, Noisy) else scale
        return family.predictive(_predictor(params, x), deviation)

    return from_predictive(name, init, predictive)._replace(axes=_axes)


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
