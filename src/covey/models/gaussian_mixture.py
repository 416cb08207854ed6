"""Mixtures of Gaussians in the features of a row."""

import math
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, Shaped

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
    """Theta: weights, means, and one covariance (known, tied), one per component (full) or their
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


class _Options(NamedTuple):
    """Settings of a model's functions. moment: the mean of y y' over all rows, where known."""

    covariance: Covariance
    ridge: float
    moment: np.ndarray | None

    @property
    def sends_second(self) -> bool:
        return self.covariance != "known" and self.moment is None


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
    """Mixture of Gaussians with a known, tied, diagonal or full covariance; no outcome is used.

    The statistics of a row y with the component z are s_1 = 1{z = l}, s_2 = y 1{z = l} and the
    second moments that the covariance needs. With m = sum_l s_1l, the weight of the statistics,
    T(s) is pi_l = s_1l / m, mu_l = s_2l / s_1l and

        tied      s_3 = y y'             Sigma = s_3 / m - sum_l pi_l mu_l mu_l' + ridge I
        full      s_3l = y y' 1{z = l}   Sigma_l = s_3l / s_1l - mu_l mu_l' + (ridge / pi_l) I
        diagonal  the diagonals of "full"
        known     Sigma is given

    The ridge is the penalty R = ridge/2 tr(Sigma^-1), summed over components where each has its
    own covariance, and T its exact minimum: the penalised likelihood of EM never decreases.

    Args:
        components: Components of the mixture (G).
        covariance: "tied" (default) for all components alike, "full" or "diagonal" for each
            component, or "known" as `start_covariance`.
        ridge: Penalty on small covariances. Default 1e-6; raise it where components collapse on
            few rows.
        weights: Starting weights. Default: equal.
        means: Starting means, one row per component. Default: drawn from N(0, spread^2), for
            standardised features.
        start_covariance: Starting covariance of every component; with "known" the covariance
            itself. Default: the identity.
        second_moment: Mean of y y' over all rows of all clients, for "tied" only: s_3 does not
            depend on theta and then need not travel. Default: it is part of every upload.
        spread: Standard deviation of drawn means. Default 1.

    Returns:
        A model for `covey.fedem`, `covey.vr_fedem` and `covey.em`.

    Example:
        >>> import jax, numpy as np, covey
        >>> data = covey.FederatedData.from_arrays(np.zeros((4, 2)), np.zeros(4), [0, 0, 1, 1])
        >>> model = gaussian_mixture(components=3, means=[[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> theta = model.init(jax.random.key(0), data.spec)
        >>> theta.means.shape, theta.covariance.shape
        ((3, 2), (2, 2))

    Reference: Dieuleveut, Fort, Moulines and Robin (2021), Federated expectation maximization with
    heterogeneity mitigation and variance reduction, section 4 and appendix F.1.
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
    moment = None if second_moment is None else np.asarray(second_moment, float)
    options = _Options(covariance, ridge, moment)

    def init(key: Key[Array, ""], spec: Spec) -> GaussianMixture:
        d = flat_size(spec)
        start = given_or(name, "start_covariance", start_covariance, (d, d), lambda: jnp.eye(d))
        if start_covariance is not None and not np.all(
            np.linalg.eigvalsh(np.asarray(start_covariance)) > 0
        ):
            raise ValueError(
                f"{name}: start_covariance must be positive definite; add to its diagonal"
            )
        if moment is not None and moment.shape != (d, d):
            raise ValueError(
                f"{name}: second_moment must have the shape {(d, d)} for these data, got "
                f"{moment.shape}"
            )
        shape = (components, d)
        own = {"diagonal": jnp.diag(start), "full": start}.get(covariance)
        return GaussianMixture(
            weights_or_equal(name, weights, components),
            given_or(name, "means", means, shape, lambda: spread * jax.random.normal(key, shape)),
            start if own is None else jnp.broadcast_to(own, (components, *own.shape)),
        )

    return LatentModel(
        name,
        init,
        partial(_expected, options),
        partial(_statistics, options),
        partial(_maximise, options),
        partial(_log_likelihood, options),
        partial(_penalty, options),
        lambda theta, x: Categorical.of_logits(_log_joint(options, theta, _features(x))),
    )


def _expected(options: _Options, theta: GaussianMixture) -> Moments:
    first = theta.weights[:, None] * theta.means
    if not options.sends_second:
        return Moments(theta.weights, first, jnp.zeros(0))
    if options.covariance == "diagonal":
        second = theta.weights[:, None] * (theta.covariance + theta.means**2)
        return Moments(theta.weights, first, second)
    outer = jnp.einsum("k,ki,kj->kij", theta.weights, theta.means, theta.means)
    if options.covariance == "tied":
        return Moments(theta.weights, first, theta.covariance + outer.sum(0))
    return Moments(theta.weights, first, theta.weights[:, None, None] * theta.covariance + outer)


def _statistics(options: _Options, theta: GaussianMixture, batch: Batch) -> Moments:
    x = _features(batch.rows.x)
    r = responsibilities(_log_joint(options, theta, x), batch.mask)
    first = r.T @ x
    if not options.sends_second:
        return Moments(r.sum(0), first, jnp.zeros(0))
    if options.covariance == "diagonal":
        return Moments(r.sum(0), first, r.T @ x**2)
    if options.covariance == "tied":
        return Moments(r.sum(0), first, jnp.where(batch.mask[:, None], x, 0.0).T @ x)
    return Moments(r.sum(0), first, jnp.einsum("nk,ni,nj->kij", r, x, x))


def _maximise(
    options: _Options, s: Moments, before: GaussianMixture
) -> tuple[GaussianMixture, Repairs]:
    share, empty = shares_of(s.weight)
    means = kept(empty, before.means, divided(s.first, s.weight))
    if options.covariance == "known":
        sigma, low = before.covariance, jnp.zeros(1, bool)
    elif options.covariance == "tied":
        sigma, low = _tied(options, s, means, jnp.where(empty, 0.0, share), before.covariance)
    else:
        second = divided(s.second, s.weight)
        sigma, low = _own(options, second, means, share, before.covariance)
        sigma, low = kept(empty, before.covariance, sigma), low & ~empty
    repairs = Repairs(jnp.sum(empty, dtype=float), jnp.sum(low, dtype=float))
    return GaussianMixture(share, means, sigma), repairs


def _tied(
    options: _Options,
    s: Moments,
    means: Float[Array, "components features"],
    share: Float[Array, " components"],
    before: Float[Array, "features features"],
) -> tuple[Float[Array, "features features"], Bool[Array, ""]]:
    """One covariance for all components, and whether it had to be lifted."""
    known = options.moment
    moment = s.second / jnp.sum(s.weight) if known is None else jnp.asarray(known, float)
    sigma = moment - jnp.einsum("k,ki,kj->ij", share, means, means)
    sigma, low = lifted(sigma, _scale(before), options.ridge)
    return sigma + options.ridge * jnp.eye(sigma.shape[-1]), low


def _own(
    options: _Options,
    second: Float[Array, " components *features"],
    means: Float[Array, "components width"],
    share: Float[Array, " components"],
    before: Float[Array, " components *features"],
) -> tuple[Float[Array, " components *features"], Bool[Array, " components"]]:
    """A covariance for each component, full or diagonal, and which had to be lifted."""
    ridges = options.ridge / share
    if options.covariance == "full":
        sigma = second - jnp.einsum("ki,kj->kij", means, means)
        sigma, low = lifted(sigma, _scale(before), options.ridge)
        return sigma + ridges[:, None, None] * jnp.eye(sigma.shape[-1]), low
    sigma = second - means**2
    low = jnp.any(sigma < jnp.maximum(LOW * before, options.ridge), axis=-1)
    return jnp.maximum(sigma, LOW * before) + ridges[:, None], low


def _log_joint(
    options: _Options, theta: GaussianMixture, x: Float[Array, "rows features"]
) -> Float[Array, "rows components"]:
    if options.covariance == "diagonal":
        square = jnp.sum((x[:, None, :] - theta.means) ** 2 / theta.covariance, axis=-1)
        log_det = jnp.sum(jnp.log(theta.covariance), axis=-1)
    else:  # one matrix for all components is factored once, and rows are multiplied by it once
        full = options.covariance == "full"
        root = jnp.linalg.cholesky(theta.covariance if full else theta.covariance[None])
        whitening = jax.scipy.linalg.solve_triangular(
            root, jnp.broadcast_to(jnp.eye(x.shape[-1]), root.shape), lower=True
        )
        white = jnp.einsum("kij,nj->nki", whitening, x)
        centre = jnp.sum(whitening * theta.means[:, None, :], axis=-1)
        square = jnp.sum((white - centre) ** 2, axis=-1)
        log_det = 2 * jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)), axis=-1)
    constant = x.shape[-1] * math.log(2 * math.pi)
    return jnp.log(theta.weights) - 0.5 * (square + log_det + constant)


def _log_likelihood(options: _Options, theta: GaussianMixture, rows: Rows) -> Float[Array, " rows"]:
    return jax.nn.logsumexp(_log_joint(options, theta, _features(rows.x)), axis=-1)


def _penalty(options: _Options, theta: GaussianMixture) -> Float[Array, ""]:
    if options.covariance == "known":
        return jnp.zeros(())
    if options.covariance == "diagonal":
        return 0.5 * options.ridge * jnp.sum(1 / theta.covariance)
    inverse = jnp.linalg.inv(theta.covariance)
    return 0.5 * options.ridge * jnp.sum(jnp.trace(inverse, axis1=-2, axis2=-1))


def _features(x: Shaped[Array, " rows *features"]) -> Float[Array, "rows features"]:
    return flat(x).astype(float)


def _scale(covariance: Float[Array, "*components d d"]) -> Float[Array, "*components"]:
    return jnp.mean(jnp.diagonal(covariance, axis1=-2, axis2=-1), axis=-1)
