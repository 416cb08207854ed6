"""Mixtures of Gaussians in the features of a row; the outcome is not used.

Statistics, z the component of row y:  s_1 = 1{z = l},  s_2 = y 1{z = l},  and the second moments that the covariance needs. With
m = sum_l s_1l, the weight of the statistics, T(s) is pi_l = s_1l / m, mu_l = s_2l / s_1l, and

    tied      s_3 = y y'             Sigma = s_3 / m - sum_l pi_l mu_l mu_l' + ridge I
    full      s_3l = y y' 1{z = l}   Sigma_l = s_3l / s_1l - mu_l mu_l' + (ridge / pi_l) I
    diagonal  the diagonals of these
    known     Sigma is given

The ridge is the penalty R = ridge/2 tr(Sigma^-1), summed over components where each has its own,
and T its exact minimum: the penalised likelihood of EM never decreases. In "tied", s_3 does not
depend on theta; where the mean of y y' over all rows is known, summed once over the clients,
`second_moment` gives it and it does not travel.
"""

import math
from typing import Literal, NamedTuple

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
from covey.models.model import flat, flat_size
from covey.models.predictive import Categorical

Covariance = Literal["known", "tied", "diagonal", "full"]
Numbers = list[list[float]] | np.ndarray | Array


class GaussianMixture(NamedTuple):
    """theta. covariance: one matrix (known, tied), one for each component (full), or their
    diagonals.
    """

    weights: Float[Array, "*clients components"]
    means: Float[Array, "*clients components features"]
    covariance: Float[Array, "*s features"]


class Moments(NamedTuple):
    """s_1, s_2 and s_3; s_3 has no entries where the covariance or the second moment is known."""

    weight: Float[Array, "*clients components"]
    first: Float[Array, "*clients components features"]
    second: Float[Array, "*s"]


def gaussian_mixture(
    *,
    components: int,
    covariance: Covariance = "tied",
    ridge: float = 1e-6,
    weights: list[float] | np.ndarray | Array | None = None,
    means: Numbers | None = None,
    start_covariance: Numbers | None = None,
    second_moment: Numbers | None = None,
    spread: float = 1.0,
) -> LatentModel:
    """Mixture of Gaussians with a known, tied, diagonal or full covariance.

    EM starts at `weights` (default: equal), `means` (default: drawn from N(0, spread^2), for
    standardised features) and, for every component, the matrix `start_covariance` (default: the
    identity), which with "known" is the covariance itself.
    """
    name = "gaussian_mixture"
    check_components(name, components, ridge)
    if covariance not in ("known", "tied", "diagonal", "full"):
        raise ValueError(
            f'{name}: covariance must be "known", "tied", "diagonal" or "full", got {covariance!r}'
        )
    if covariance == "known" and start_covariance is None:
        raise ValueError(f'{name}: with covariance="known" give it as start_covariance')
    if second_moment is not None and covariance != "tied":
        raise ValueError(
            f'{name}: second_moment is for covariance="tied" only, which is {covariance!r} here'
        )
    constant = None if second_moment is None else np.asarray(second_moment, float)

    def init(key: Key[Array, ""], spec: Spec) -> GaussianMixture:
        d = flat_size(spec)
        start = given_or(name, "start_covariance", start_covariance, (d, d), lambda: jnp.eye(d))
        if not np.all(
            np.linalg.eigvalsh(
                np.asarray(start_covariance if start_covariance is not None else np.eye(d))
            )
            > 0
        ):
            raise ValueError(
                f"{name}: start_covariance must be positive definite; add to its diagonal"
            )
        if constant is not None and constant.shape != (d, d):
            raise ValueError(
                f"{name}: second_moment must have the shape {(d, d)} for these data, got {constant.shape}"
            )
        own = {"diagonal": jnp.diag(start), "full": start}.get(covariance)
        return GaussianMixture(
            weights_or_equal(name, weights, components),
            given_or(
                name,
                "means",
                means,
                (components, d),
                lambda: spread * jax.random.normal(key, (components, d)),
            ),
            start if own is None else jnp.broadcast_to(own, (components, *own.shape)),
        )

    def expected(theta: GaussianMixture) -> Moments:
        first = theta.weights[:, None] * theta.means
        if covariance == "known" or constant is not None:
            return Moments(theta.weights, first, jnp.zeros(0))
        if covariance == "diagonal":
            return Moments(
                theta.weights, first, theta.weights[:, None] * (theta.covariance + theta.means**2)
            )
        outer = jnp.einsum("k,ki,kj->kij", theta.weights, theta.means, theta.means)
        if covariance == "tied":
            return Moments(theta.weights, first, theta.covariance + outer.sum(0))
        return Moments(
            theta.weights, first, theta.weights[:, None, None] * theta.covariance + outer
        )

    def statistics(theta: GaussianMixture, batch: Batch) -> Moments:
        x = _numbers(batch.rows.x)
        r = responsibilities(log_joint(theta, x), batch.mask)
        first = r.T @ x
        if covariance == "known" or constant is not None:
            return Moments(r.sum(0), first, jnp.zeros(0))
        if covariance == "diagonal":
            return Moments(r.sum(0), first, r.T @ x**2)
        if covariance == "tied":
            return Moments(r.sum(0), first, jnp.where(batch.mask[:, None], x, 0.0).T @ x)
        return Moments(r.sum(0), first, jnp.einsum("nk,ni,nj->kij", r, x, x))

    def maximise(s: Moments, before: GaussianMixture) -> tuple[GaussianMixture, Repairs]:
        share, empty = shares_of(s.weight)
        means = kept(empty, before.means, divided(s.first, s.weight))
        if covariance == "known":
            return GaussianMixture(share, means, before.covariance), Repairs(
                jnp.sum(empty, dtype=float), jnp.zeros(())
            )
        if covariance == "tied":
            moment = (
                s.second / jnp.sum(s.weight) if constant is None else jnp.asarray(constant, float)
            )
            sigma = moment - jnp.einsum("k,ki,kj->ij", jnp.where(empty, 0.0, share), means, means)
            sigma, low = lifted(sigma, _scale(before.covariance), ridge)
            sigma = sigma + ridge * jnp.eye(sigma.shape[-1])
        elif covariance == "full":
            sigma = divided(s.second, s.weight) - jnp.einsum("ki,kj->kij", means, means)
            sigma, low = lifted(sigma, _scale(before.covariance), ridge)
            sigma = kept(
                empty,
                before.covariance,
                sigma + (ridge / share)[:, None, None] * jnp.eye(sigma.shape[-1]),
            )
        else:
            sigma = divided(s.second, s.weight) - means**2
            low = jnp.any(sigma < jnp.maximum(LOW * before.covariance, ridge), axis=-1)
            sigma = jnp.maximum(sigma, LOW * before.covariance) + (ridge / share)[:, None]
            sigma = kept(empty, before.covariance, sigma)
        low = low if covariance == "tied" else low & ~empty
        return GaussianMixture(share, means, sigma), Repairs(
            jnp.sum(empty, dtype=float), jnp.sum(low, dtype=float)
        )

    def log_joint(
        theta: GaussianMixture, x: Float[Array, "rows features"]
    ) -> Float[Array, "rows components"]:
        if covariance == "diagonal":
            square = jnp.sum((x[:, None, :] - theta.means) ** 2 / theta.covariance, axis=-1)
            log_det = jnp.sum(jnp.log(theta.covariance), axis=-1)
        # one matrix that all components share is factored once, and the rows are multiplied by it
        # once
        else:
            root = jnp.linalg.cholesky(
                theta.covariance if covariance == "full" else theta.covariance[None]
            )
            whitening = jax.scipy.linalg.solve_triangular(
                root, jnp.broadcast_to(jnp.eye(x.shape[-1]), root.shape), lower=True
            )
            white = jnp.einsum("kij,nj->nki", whitening, x)
            centre = jnp.sum(whitening * theta.means[:, None, :], axis=-1)
            square = jnp.sum((white - centre) ** 2, axis=-1)
            log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)), axis=-1)
        return jnp.log(theta.weights) - 0.5 * (
            square + log_det + x.shape[-1] * math.log(2 * math.pi)
        )

    def penalty(theta: GaussianMixture) -> Float[Array, ""]:
        if covariance == "known":
            return jnp.zeros(())
        if covariance == "diagonal":
            return 0.5 * ridge * jnp.sum(1 / theta.covariance)
        return (
            0.5 * ridge * jnp.sum(jnp.trace(jnp.linalg.inv(theta.covariance), axis1=-2, axis2=-1))
        )

    def log_likelihood(theta: GaussianMixture, rows: Rows) -> Float[Array, " rows"]:
        return jax.nn.logsumexp(log_joint(theta, _numbers(rows.x)), axis=-1)

    def predictive(theta: GaussianMixture, x: Shaped[Array, " rows *features"]) -> Categorical:
        return Categorical.of_logits(log_joint(theta, _numbers(x)))

    return LatentModel(
        name, init, expected, statistics, maximise, log_likelihood, penalty, predictive
    )


def _numbers(x: Shaped[Array, " rows *features"]) -> Float[Array, "rows features"]:
    return flat(x).astype(float)


def _scale(covariance: Float[Array, "*components d d"]) -> Float[Array, "*components"]:
    return jnp.mean(jnp.diagonal(covariance, axis1=-2, axis2=-1), axis=-1)
