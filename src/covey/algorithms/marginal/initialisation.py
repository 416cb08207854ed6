"""The start of the search for a maximum: a pooled regression, from one round.

Clients send the normal equations of a weighted regression without effects, as iteratively
reweighted least squares begins:

    response = link(mean), weight     y, 1 (numeric);  log(y + 0.1), y + 0.1 (counts);
                                      logit(p), (m + 1) p (1 - p) (y of m, p = (y + 1/2) / (m + 1))

A regression of any other outcome sends the derivatives of its log-likelihood at zero, and any other
model begins at its own start.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from covey.algorithms.marginal.parameters import is_regression
from covey.core.shard import Rows
from covey.kernels.newton import inverse_root
from covey.models.mixed import MixedModel
from covey.models.predictive import (
    Binomial,
    Categorical,
    Mixture,
    NegativeBinomial,
    Normal,
    Poisson,
    Predictive,
)


class Moments(NamedTuple):
    """Sums over rows, all from the start of phi and without effects.

    Attributes:
        squares: Sum of squared residuals of a numeric outcome; zero for others.
        weight: Sum of the weights of the rows.
        score: By phi.
        information: By phi.
        effects: The diagonal of the information by the effects.
    """

    squares: Float[Array, ""]
    weight: Float[Array, ""]
    score: Float[Array, " p"]
    information: Float[Array, "p p"]
    effects: Float[Array, " q"]


class Start(NamedTuple):
    """The start of Newton's method.

    Attributes:
        phi: The pooled estimate; the noise as well, where it is learned.
        frame: Directions of about one standard error of phi.
        variance: Of phi, by the pooled regression.
        spread: Standard deviation of the linear predictor's unit: the noise of a numeric outcome, 1
            on the scale of a link.
        mean_square: Of the columns that the effects multiply, e.g. 1 for a random intercept.
        unit: Standard deviation of each effect that the rows of an average client can tell from 0.
        per_weight: Variance of phi times the weight of all rows: what one row tells.
    """

    phi: Float[Array, " p"]
    frame: Float[Array, "p p"]
    variance: Float[Array, " p"]
    spread: Float[Array, ""]
    mean_square: Float[Array, " q"]
    unit: Float[Array, " q"]
    per_weight: Float[Array, " p"]


def moments(
    model: MixedModel,
    phi: PyTree,
    none: Float[Array, " q"],
    rows: Rows,
    mask: Bool[Array, " rows"],
) -> Moments:
    """A client's sums for the start.

    Args:
        model: The model.
        phi: The model's own start of the shared parameters.
        none: The effects of a client without rows.
        rows: The client's rows.
        mask: Which of them are real.

    Returns:
        The sums. A model that is no regression has a score of zeros: it begins at its own start.
    """
    flat, unravel = ravel_pytree(phi)

    def predictive(v, z):
        return model.predictive(unravel(v), z, rows.x)

    try:
        shape = jax.eval_shape(predictive, flat, none)
    except ValueError:  # a model that predicts nothing, only a density of parameters
        shape = None
    regression = is_regression(phi)
    predictor = None if shape is None or not regression else _predictor(shape)
    keep = mask.astype(flat.dtype)
    if predictor is None or shape is None:

        def total(v, z):
            return jnp.sum(jnp.where(mask, model.log_likelihood(unravel(v), z, rows), 0.0))

        curvature = -jnp.diagonal(jax.hessian(total, argnums=1)(flat, none))
        return Moments(
            jnp.zeros((), flat.dtype),
            jnp.sum(keep),
            jax.grad(total)(flat, none) * regression,
            -jax.hessian(total)(flat, none),
            jnp.maximum(curvature, 0.0),
        )
    x, z = jax.jacfwd(lambda v, z: predictor(predictive(v, z)), argnums=(0, 1))(flat, none)
    response, weight = _working(predictive(flat, none), rows.y, flat.dtype)
    weight, off = weight * keep, response - predictor(predictive(flat, none))
    numeric = isinstance(_middle(shape) if isinstance(shape, Mixture) else shape, Normal)
    return Moments(
        jnp.sum(weight * off**2) if numeric else jnp.zeros((), flat.dtype),
        jnp.sum(weight),
        x.T @ (weight * off),
        (x.T * weight) @ x,
        weight @ z**2,
    )


def start(
    of: Moments, phi: Float[Array, " p"], noise: Bool[Array, " p"], clients: Float[Array, ""]
) -> Start:
    """The pooled estimate from the sums over clients.

    Args:
        of: The sums.
        phi: The model's own start.
        noise: Which of phi is the logarithm of the noise's standard deviation.
        clients: Number of clients.

    Returns:
        The start of Newton's method.
    """
    weight, numeric = jnp.maximum(of.weight, 1e-30), of.squares > 0
    root = inverse_root(of.information)
    step = root @ (root.T @ of.score)
    left = jnp.maximum(of.squares - step @ of.score, 1e-12 * of.squares)
    spread = jnp.where(numeric, jnp.sqrt(left / weight), 1.0)
    # What is known of the logarithm of a deviation: twice the number of rows.
    information = of.information / spread**2 + jnp.diag(jnp.where(noise, 2 * weight, 0.0))
    at = jnp.where(noise & numeric, jnp.log(spread), phi + step)
    frame = inverse_root(information)
    variance = jnp.sum(frame**2, axis=1)
    mean_square = jnp.maximum(of.effects / weight, 1e-30)
    known = jnp.maximum(of.effects / spread**2 / jnp.maximum(clients, 1.0), 1e-30)
    return Start(at, frame, variance, spread, mean_square, 1 / jnp.sqrt(known), variance * weight)


def _predictor(shape: Predictive) -> Callable[[Any], Array] | None:
    """The linear predictor of a predictive distribution of this kind; None where it has none."""
    if isinstance(shape, Mixture):  # over the effects of unseen groups, 0 in the middle
        inner = _predictor(_middle(shape))
        return None if inner is None else lambda one: inner(_middle(one))
    if isinstance(shape, Normal) and shape.mean.ndim == 1:
        return lambda one: one.mean
    if isinstance(shape, Poisson) and shape.log_rate.ndim == 1:
        return lambda one: one.log_rate
    if isinstance(shape, NegativeBinomial) and shape.log_mean.ndim == 1:
        return lambda one: one.log_mean
    if isinstance(shape, Binomial) and shape.logit.ndim == 1:
        return lambda one: one.logit
    if isinstance(shape, Categorical) and shape.log_probability.shape[-1] == 2:
        return lambda one: one.log_probability[:, 1] - one.log_probability[:, 0]
    return None


def _middle(mixture: Mixture) -> Any:
    """The member of a mixture that stands in the middle; its shapes, given those of a mixture."""
    index = mixture.weight.shape[-1] // 2

    def member(leaf):
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape[:-1], leaf.dtype)
        return leaf[..., index]

    return jax.tree.map(member, mixture.members)


def _working(found: Predictive, y: Array, dtype: jnp.dtype) -> tuple[Array, Array]:
    """The working response and weight of each row."""
    y = y.astype(dtype)
    if isinstance(found, Mixture):
        return _working(_middle(found), y, dtype)
    if isinstance(found, Normal):
        return y, jnp.ones_like(y)
    if isinstance(found, Poisson | NegativeBinomial):
        return jnp.log(y + 0.1), y + 0.1
    total = found.total if isinstance(found, Binomial) else 1.0
    mean = (y + 0.5) / (total + 1)
    return jnp.log(mean / (1 - mean)), (total + 1) * mean * (1 - mean)
