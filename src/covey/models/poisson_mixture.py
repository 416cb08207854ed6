"""Mixtures of Poisson counts in the features of a row."""

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
    responsibilities,
    shares_of,
    weights_or_equal,
)
from covey.models.model import flat_size
from covey.models.predictive import Categorical


class PoissonMixture(NamedTuple):
    """Theta: the weights and the rates of the components."""

    weights: Float[Array, "*clients components"]
    rates: Float[Array, "*clients components features"]


class Counts(NamedTuple):
    """s_1 and s_2."""

    weight: Float[Array, "*clients components"]
    first: Float[Array, "*clients components features"]


def poisson_mixture(
    *,
    components: int,
    ridge: float = 1e-6,
    weights: list[float] | np.ndarray | Array | None = None,
    rates: list[list[float]] | np.ndarray | Array | None = None,
    typical: float = 1.0,
) -> LatentModel:
    """Mixture of Poisson counts, independent given the component; no outcome is used.

    The statistics of a row y with the component z are s_1 = 1{z = l} and s_2 = y 1{z = l}. With
    m = sum_l s_1l, T(s) is pi_l = s_1l / m and

        lambda_l = (s_2l + ridge m) / s_1l,

    the exact minimum with the penalty R = -ridge sum log lambda, which keeps every rate above zero
    where nothing was counted. A feature that is not a count, negative or not whole, gives NaN, so
    that its client is left out of the round and named.

    Args:
        components: Components of the mixture.
        ridge: Penalty on small rates. Default 1e-6.
        weights: Starting weights. Default: equal.
        rates: Starting rates, one row per component, above 0. Default: drawn from an exponential
            distribution of mean `typical`.
        typical: Mean of drawn rates: a typical count. Default 1.

    Returns:
        A model for `covey.fedem`, `covey.vr_fedem` and `covey.em`.

    Example:
        >>> import jax, numpy as np, covey
        >>> data = covey.FederatedData.from_arrays(np.ones((4, 2)), np.zeros(4), [0, 0, 1, 1])
        >>> model = poisson_mixture(components=3, typical=2.0)
        >>> model.init(jax.random.key(0), data.spec).rates.shape
        (3, 2)

    Reference: Karlis and Meligkotsidou (2007), Finite mixtures of multivariate Poisson
    distributions with application; here without correlation within a component.
    """
    name = "poisson_mixture"
    check_components(name, components, ridge)
    if not typical > 0:
        raise ValueError(
            f"{name}: typical is the mean of a count and must be above 0, got {typical:g}"
        )

    def init(key: Key[Array, ""], spec: Spec) -> PoissonMixture:
        shape = (components, flat_size(spec))
        start = given_or(
            name,
            "rates",
            rates,
            shape,
            lambda: typical * jax.random.exponential(key, shape) + 1e-3 * typical,
        )
        if rates is not None and not np.all(np.asarray(rates) > 0):
            raise ValueError(f"{name}: rates must be above 0")
        return PoissonMixture(weights_or_equal(name, weights, components), start)

    def expected(theta: PoissonMixture) -> Counts:
        return Counts(theta.weights, theta.weights[:, None] * theta.rates)

    def statistics(theta: PoissonMixture, batch: Batch) -> Counts:
        x = _counts(batch.rows.x)
        r = responsibilities(log_joint(theta, x), batch.mask)
        return Counts(r.sum(0), r.T @ jnp.where(batch.mask[:, None], x, 0.0))

    def maximise(s: Counts, before: PoissonMixture) -> tuple[PoissonMixture, Repairs]:
        share, empty = shares_of(s.weight)
        rates = divided(s.first, s.weight) + (ridge / share)[:, None]
        low = jnp.any(rates < LOW * before.rates, axis=-1) & ~empty
        rates = kept(empty, before.rates, jnp.maximum(rates, LOW * before.rates))
        return PoissonMixture(share, rates), Repairs(
            jnp.sum(empty, dtype=float), jnp.sum(low, dtype=float)
        )

    def log_joint(
        theta: PoissonMixture, x: Float[Array, "rows features"]
    ) -> Float[Array, "rows components"]:
        constant = jnp.sum(jax.lax.lgamma(x + 1), axis=-1)
        return (
            jnp.log(theta.weights)
            + x @ jnp.log(theta.rates).T
            - jnp.sum(theta.rates, axis=-1)
            - constant[:, None]
        )

    def log_likelihood(theta: PoissonMixture, rows: Rows) -> Float[Array, " rows"]:
        return jax.nn.logsumexp(log_joint(theta, _counts(rows.x)), axis=-1)

    def penalty(theta: PoissonMixture) -> Float[Array, ""]:
        return -ridge * jnp.sum(jnp.log(theta.rates))

    def predictive(theta: PoissonMixture, x: Shaped[Array, " rows *features"]) -> Categorical:
        return Categorical.of_logits(log_joint(theta, _counts(x)))

    return LatentModel(
        name, init, expected, statistics, maximise, log_likelihood, penalty, predictive
    )


def _counts(x: Shaped[Array, " rows *features"]) -> Float[Array, "rows features"]:
    counts = x.reshape(x.shape[0], -1).astype(float)
    return jnp.where((counts >= 0) & (counts == jnp.floor(counts)), counts, jnp.nan)
