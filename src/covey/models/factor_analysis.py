"""Factor analysis and probabilistic PCA of rows with missing features."""

import math
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, Shaped

from covey.core.shard import Batch, Rows, Spec
from covey.models.latent import EMPTY, LOW, LatentModel, Repairs, divided, given_or, kept, lifted
from covey.models.model import flat, flat_size
from covey.models.predictive import Normal

Noise = Literal["diagonal", "isotropic"]


class FactorAnalysis(NamedTuple):
    """Theta: the loading of each feature on each factor, the features' means, and the variances of
    their noise.
    """

    loadings: Float[Array, "*clients features factors"]
    means: Float[Array, "*clients features"]
    variances: Float[Array, "*clients features"]


class Regressions(NamedTuple):
    """The count n of rows; and for each feature n_j, G_j, c_j and q_j."""

    rows: Float[Array, "*clients"]
    weight: Float[Array, "*clients features"]
    gram: Float[Array, "*clients features columns columns"]
    cross: Float[Array, "*clients features columns"]
    square: Float[Array, "*clients features"]


class FactorPosterior(NamedTuple):
    """The factors of each row given its observed features; and the observed features as
    deviations from the mean, zero where missing.
    """

    mean: Float[Array, "rows factors"]
    covariance: Float[Array, "rows factors factors"]
    deviation: Float[Array, "rows features"]
    observed: Bool[Array, "rows features"]


def factor_analysis(
    *,
    factors: int,
    noise: Noise = "diagonal",
    ridge: float = 1e-6,
    loadings: list[list[float]] | np.ndarray | Array | None = None,
    means: list[float] | np.ndarray | Array | None = None,
    spread: float = 0.5,
    start_scale: float = 1.0,
) -> LatentModel:
    """Factor analysis, or probabilistic PCA, of features that may be missing (NaN).

        x_j = mu_j + w_j'z + noise_j,    z ~ N(0, I),    noise_j ~ N(0, psi_j)

    What is missing must not depend on the missing values. With o the observed features of a row,
    its factors are Gaussian with

        covariance C = (I + sum_o w_j w_j' / psi_j)^-1  and mean C sum_o w_j (x_j - mu_j) / psi_j.

    Only z is latent, so that a feature is learnt from the rows that have it. With t = (z, 1), the
    statistics are the count n of all rows and, over the rows in which feature j is observed, their
    count n_j, G_j = t t', c_j = t x_j and q_j = x_j^2. T(s) regresses each feature on the factors:
    with D the identity but for a zero for mu_j,

        (w_j, mu_j) = b_j = (G_j + ridge n D)^-1 c_j,  psi_j = (q_j - b_j'c_j + ridge n) / n_j,

    or, for noise="isotropic", the sum over j of the numerators over that of the n_j: the exact
    minimum with the penalty R = ridge/2 sum_j (|w_j|^2 + 1) / psi_j. The factors are determined up
    to a rotation. The predictive distribution is that of every feature measured again, given those
    observed: of missing ones, their imputation.

    Args:
        factors: Hidden factors, fewer than the features.
        noise: "diagonal" (default) has a variance for each feature (factor analysis); "isotropic"
            has one for all (probabilistic PCA).
        ridge: Penalty on large loadings and small variances. Default 1e-6.
        loadings: Starting loadings, one row per feature. Default: drawn from N(0, spread^2).
        means: Starting means. Default: zero, for standardised features.
        spread: Standard deviation of drawn loadings. Default 0.5.
        start_scale: Starting standard deviation of the noise. Default 1.

    Returns:
        A model for `covey.fedem`, `covey.vr_fedem` and `covey.em`.

    Example:
        >>> import jax, numpy as np, covey
        >>> data = covey.FederatedData.from_arrays(np.zeros((4, 3)), np.zeros(4), [0, 0, 1, 1])
        >>> theta = factor_analysis(factors=2).init(jax.random.key(0), data.spec)
        >>> theta.loadings.shape
        (3, 2)

    Reference: Rubin and Thayer (1982), EM algorithms for ML factor analysis; Tipping and Bishop
    (1999), Probabilistic principal component analysis.
    """
    name = "factor_analysis"
    if factors < 1 or not ridge >= 0:
        raise ValueError(
            f"{name}: factors must be at least 1 and ridge at least 0, got {factors} and {ridge:g}"
        )
    if noise not in ("diagonal", "isotropic"):
        raise ValueError(f'{name}: noise must be "diagonal" or "isotropic", got {noise!r}')
    if not start_scale > 0:
        raise ValueError(
            f"{name}: start_scale is a standard deviation and must be above 0, got {start_scale:g}"
        )

    def init(key: Key[Array, ""], spec: Spec) -> FactorAnalysis:
        d = flat_size(spec)
        if factors >= d:
            raise ValueError(
                f"{name}: {factors} factors cannot be told apart in {d} features; ask for at most "
                f"{d - 1}"
            )
        return FactorAnalysis(
            given_or(
                name,
                "loadings",
                loadings,
                (d, factors),
                lambda: spread * jax.random.normal(key, (d, factors)),
            ),
            given_or(name, "means", means, (d,), lambda: jnp.zeros(d)),
            jnp.full(d, start_scale**2, float),
        )

    def expected(theta: FactorAnalysis) -> Regressions:
        b = jnp.column_stack([theta.loadings, theta.means])
        gram = jnp.broadcast_to(
            jnp.eye(factors + 1), (*theta.means.shape, factors + 1, factors + 1)
        )
        return Regressions(
            jnp.ones(()),
            jnp.ones_like(theta.means),
            gram,
            b,
            theta.variances + jnp.sum(b**2, axis=-1),
        )

    def penalty(theta: FactorAnalysis) -> Float[Array, ""]:
        return 0.5 * ridge * jnp.sum((jnp.sum(theta.loadings**2, axis=-1) + 1) / theta.variances)

    def predictive(theta: FactorAnalysis, x: Shaped[Array, " rows *features"]) -> Normal:
        found = posterior(theta, flat(x).astype(float))
        spread = jnp.einsum("ja,nab,jb->nj", theta.loadings, found.covariance, theta.loadings)
        return Normal(
            theta.means + found.mean @ theta.loadings.T, jnp.sqrt(spread + theta.variances)
        )

    return LatentModel(
        name,
        init,
        expected,
        _statistics,
        partial(_maximise, noise, ridge),
        _log_likelihood,
        penalty,
        predictive,
    )


def _statistics(theta: FactorAnalysis, batch: Batch) -> Regressions:
    x = flat(batch.rows.x).astype(float)
    found = posterior(theta, x)
    here = (found.observed & batch.mask[:, None]).astype(float)
    x = jnp.where(here > 0, x, 0.0)
    t = jnp.column_stack([found.mean, jnp.ones(x.shape[0])])
    square = t[:, :, None] * t[:, None, :] + jnp.pad(found.covariance, ((0, 0), (0, 1), (0, 1)))
    gram = jnp.einsum("nj,nab->jab", here, jnp.where(batch.mask[:, None, None], square, 0.0))
    cross = x.T @ jnp.where(batch.mask[:, None], t, 0.0)
    return Regressions(
        jnp.sum(batch.mask, dtype=float), here.sum(0), gram, cross, jnp.sum(x**2, axis=0)
    )


def _maximise(
    noise: Noise, ridge: float, s: Regressions, before: FactorAnalysis
) -> tuple[FactorAnalysis, Repairs]:
    factors = before.loadings.shape[-1]
    share = s.weight / jnp.maximum(s.rows, jnp.finfo(s.weight.dtype).tiny)
    empty = ~(share > EMPTY)
    gram, cross, square = (divided(one, s.weight) for one in (s.gram, s.cross, s.square))
    gram, low = lifted(gram, jnp.abs(jnp.trace(gram, axis1=-2, axis2=-1)), 0.0)
    ridges = ridge / jnp.where(empty, 1.0, share)
    penalised = gram + ridges[:, None, None] * jnp.diag(jnp.ones(factors + 1).at[factors].set(0.0))
    b = jnp.linalg.solve(
        jnp.where(empty[:, None, None], jnp.eye(factors + 1), penalised), cross[..., None]
    )[..., 0]
    b = kept(empty, jnp.column_stack([before.loadings, before.means]), b)
    variances = square - jnp.sum(b * cross, axis=-1) + ridges
    if noise == "isotropic":
        shares = jnp.where(empty, 0.0, share)
        variances = jnp.broadcast_to(
            shares @ variances / jnp.maximum(jnp.sum(shares), EMPTY), empty.shape
        )
    low = (low | (variances < LOW * before.variances)) & ~empty
    variances = kept(empty, before.variances, jnp.maximum(variances, LOW * before.variances))
    return FactorAnalysis(b[:, :-1], b[:, -1], variances), Repairs(
        jnp.sum(empty, dtype=float), jnp.sum(low, dtype=float)
    )


def _log_likelihood(theta: FactorAnalysis, rows: Rows) -> Float[Array, " rows"]:
    found = posterior(theta, flat(rows.x).astype(float))
    # |x - mu|^2 in the metric of W W' + Psi, and its determinant, by the matrices of the
    # factors alone (Woodbury).
    pull = (found.deviation / theta.variances) @ theta.loadings
    square = jnp.sum(found.deviation**2 / theta.variances, axis=-1) - jnp.sum(
        pull * found.mean, axis=-1
    )
    log_det = jnp.sum(
        jnp.where(found.observed, jnp.log(2 * math.pi * theta.variances), 0.0), axis=-1
    )
    return -0.5 * (square + log_det - jnp.linalg.slogdet(found.covariance)[1])


def posterior(theta: FactorAnalysis, x: Float[Array, "rows features"]) -> FactorPosterior:
    """The factors of rows with missing features, given those observed."""
    observed = ~jnp.isnan(x)
    deviation = jnp.where(observed, x - theta.means, 0.0)
    precision = jnp.einsum(
        "nj,ja,jb->nab", observed / theta.variances, theta.loadings, theta.loadings
    )
    covariance = jnp.linalg.inv(precision + jnp.eye(theta.loadings.shape[-1]))
    mean = jnp.einsum("nab,nb->na", covariance, (deviation / theta.variances) @ theta.loadings)
    return FactorPosterior(mean, covariance, deviation, observed)
