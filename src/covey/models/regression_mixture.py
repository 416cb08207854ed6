"""Mixtures of linear regressions: each row's outcome follows the regression of its hidden
component.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, Shaped

from covey.core.shard import Batch, Rows, Spec
from covey.models.latent import (
    LOW,
    LatentModel,
    Repairs,
    check_components,
    divided,
    given_or,
    kept,
    lifted,
    responsibilities,
    shares_of,
    weights_or_equal,
)
from covey.models.model import flat, flat_size, need_number
from covey.models.predictive import Normal


class RegressionMixture(NamedTuple):
    """Theta: weights, coefficients (the intercept last), and variances of the noise."""

    weights: Float[Array, "*clients components"]
    coefficients: Float[Array, "*clients components columns"]
    variances: Float[Array, "*clients components"]


class Products(NamedTuple):
    """s_1, G, c and q."""

    weight: Float[Array, "*clients components"]
    gram: Float[Array, "*clients components columns columns"]
    cross: Float[Array, "*clients components columns"]
    square: Float[Array, "*clients components"]


def regression_mixture(
    *,
    components: int,
    ridge: float = 1e-6,
    weights: list[float] | np.ndarray | Array | None = None,
    coefficients: list[list[float]] | np.ndarray | Array | None = None,
    spread: float = 1.0,
    start_scale: float = 1.0,
) -> LatentModel:
    """Mixture of linear regressions, each with its own coefficients and noise.

    With x the features and a one for the intercept, the statistics of a row with the component z
    are s_1 = 1{z = l}, G = x x' 1{z = l}, c = x y 1{z = l} and q = y^2 1{z = l}. With
    m = sum_l s_1l, T(s) is pi_l = s_1l / m and

        b_l = (G_l + ridge m I)^-1 c_l,    sigma_l^2 = (q_l - b_l'c_l + ridge m) / s_1l,

    the exact minimum with the penalty R = ridge/2 sum_l (|b_l|^2 + 1) / sigma_l^2.

    Args:
        components: Components of the mixture.
        ridge: Penalty on large coefficients and small variances. Default 1e-6.
        weights: Starting weights. Default: equal.
        coefficients: Starting coefficients, one row per component with the intercept last.
            Default: drawn from N(0, spread^2). The first statistics are those of features with
            second moments of one.
        spread: Standard deviation of drawn coefficients. Default 1.
        start_scale: Starting standard deviation of the noise. Default 1.

    Returns:
        A model for `covey.fedem`, `covey.vr_fedem` and `covey.em`.

    Example:
        >>> import jax, numpy as np, covey
        >>> data = covey.FederatedData.from_arrays(np.zeros((4, 2)), np.zeros(4), [0, 0, 1, 1])
        >>> model = regression_mixture(components=2)
        >>> model.init(jax.random.key(0), data.spec).coefficients.shape
        (2, 3)

    Reference: DeSarbo and Cron (1988), A maximum likelihood methodology for clusterwise linear
    regression.
    """
    name = "regression_mixture"
    check_components(name, components, ridge)
    if not start_scale > 0:
        raise ValueError(
            f"{name}: start_scale is a standard deviation and must be above 0, got {start_scale:g}"
        )

    def init(key: Key[Array, ""], spec: Spec) -> RegressionMixture:
        need_number(name, spec)
        shape = (components, flat_size(spec) + 1)
        start = given_or(
            name,
            "coefficients",
            coefficients,
            shape,
            lambda: spread * jax.random.normal(key, shape),
        )
        return RegressionMixture(
            weights_or_equal(name, weights, components),
            start,
            jnp.full(components, start_scale**2, float),
        )

    def expected(theta: RegressionMixture) -> Products:
        w, b = theta.weights, theta.coefficients
        gram = jnp.broadcast_to(jnp.eye(b.shape[-1]), (components, b.shape[-1], b.shape[-1]))
        square = w * (theta.variances + jnp.sum(b**2, axis=-1))
        return Products(w, w[:, None, None] * gram, w[:, None] * b, square)

    def statistics(theta: RegressionMixture, batch: Batch) -> Products:
        x, y = _design(batch.rows.x), batch.rows.y.astype(float)
        r = responsibilities(_log_joint(theta, x, y), batch.mask)
        return Products(
            r.sum(0), jnp.einsum("nk,ni,nj->kij", r, x, x), r.T @ (x * y[:, None]), r.T @ y**2
        )

    def log_likelihood(theta: RegressionMixture, rows: Rows) -> Float[Array, " rows"]:
        return jax.nn.logsumexp(_log_joint(theta, _design(rows.x), rows.y.astype(float)), axis=-1)

    def penalty(theta: RegressionMixture) -> Float[Array, ""]:
        return (
            0.5 * ridge * jnp.sum((jnp.sum(theta.coefficients**2, axis=-1) + 1) / theta.variances)
        )

    def predictive(theta: RegressionMixture, x: Shaped[Array, " rows *features"]) -> Normal:
        """The Gaussian with the mixture's mean and variance."""
        means = _design(x) @ theta.coefficients.T
        mean = means @ theta.weights
        return Normal(mean, jnp.sqrt((means**2 + theta.variances) @ theta.weights - mean**2))

    return LatentModel(
        name,
        init,
        expected,
        statistics,
        partial(_maximise, ridge),
        log_likelihood,
        penalty,
        predictive,
    )


def _maximise(
    ridge: float, s: Products, before: RegressionMixture
) -> tuple[RegressionMixture, Repairs]:
    share, empty = shares_of(s.weight)
    identity = jnp.eye(s.cross.shape[-1])
    gram, cross, square = (divided(one, s.weight) for one in (s.gram, s.cross, s.square))
    gram, low = lifted(gram, jnp.abs(jnp.trace(gram, axis1=-2, axis2=-1)), 0.0)
    ridges = ridge / share
    b = jnp.linalg.solve(
        jnp.where(empty[:, None, None], identity, gram + ridges[:, None, None] * identity),
        cross[..., None],
    )
    b = kept(empty, before.coefficients, b[..., 0])
    variances = square - jnp.sum(b * cross, axis=-1)
    low = (low | (variances < jnp.maximum(LOW * before.variances, ridge))) & ~empty
    variances = jnp.maximum(variances, LOW * before.variances) + ridges
    variances = kept(empty, before.variances, variances)
    return RegressionMixture(share, b, variances), Repairs(
        jnp.sum(empty, dtype=float), jnp.sum(low, dtype=float)
    )


def _log_joint(
    theta: RegressionMixture, x: Float[Array, "rows columns"], y: Float[Array, " rows"]
) -> Float[Array, "rows components"]:
    square = (y[:, None] - x @ theta.coefficients.T) ** 2 / theta.variances
    return jnp.log(theta.weights) - 0.5 * (
        square + jnp.log(theta.variances) + math.log(2 * math.pi)
    )


def _design(x: Shaped[Array, " rows *features"]) -> Float[Array, "rows columns"]:
    features = flat(x).astype(float)
    return jnp.column_stack([features, jnp.ones(features.shape[0])])
