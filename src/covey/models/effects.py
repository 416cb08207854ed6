"""Laws of random effects, p(z | beta): how the effects of clients vary over the population.

gaussian   a mean and a covariance: one deviation for all effects, one each, or a full matrix
mixture    several Gaussians: kinds of clients
energy     exp(-E(z; beta)), E a small network: any shape (see `energy.py`)
fixed      a Gaussian that is given and not learned: for few clients
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covey.models.energy import Energy, energy
from covey.models.law import Law, Normaliser

__all__ = [
    "LAWS",
    "Correlated",
    "Energy",
    "Gaussian",
    "Law",
    "Mixture",
    "Normaliser",
    "energy",
    "fixed",
    "gaussian",
    "mixture",
]


class Gaussian(NamedTuple):
    """Parameters of a Gaussian: a mean, and log standard deviations, one for all effects or one for
    each.
    """

    mean: Float[Array, "*components effects"]
    log_scale: Float[Array, "*deviations"]

    def log_density(self, z: Float[Array, " effects"]) -> Float[Array, ""]:
        """The Gaussian log-density."""
        return jnp.sum(jax.scipy.stats.norm.logpdf(z, self.mean, jnp.exp(self.log_scale)))


class Correlated(NamedTuple):
    """Parameters of a Gaussian with any covariance LL': L = (I + lower) diag(exp(log_scale)),
    lower strictly triangular.
    """

    mean: Float[Array, " effects"]
    log_scale: Float[Array, " effects"]
    lower: Float[Array, "effects effects"]

    @property
    def root(self) -> Float[Array, "effects effects"]:
        """The Cholesky factor L of the covariance."""
        return (
            jnp.eye(len(self.mean), dtype=self.mean.dtype) + jnp.tril(self.lower, -1)
        ) * jnp.exp(self.log_scale)

    @property
    def covariance(self) -> Float[Array, "effects effects"]:
        """LL'."""
        return self.root @ self.root.T

    def log_density(self, z: Float[Array, " effects"]) -> Float[Array, ""]:
        """The Gaussian log-density."""
        white = jax.scipy.linalg.solve_triangular(self.root, z - self.mean, lower=True)
        return jnp.sum(jax.scipy.stats.norm.logpdf(white)) - jnp.sum(self.log_scale)


Bounded = TypeVar("Bounded", Gaussian, Correlated)  # laws with deviations to keep within bounds


class Mixture(NamedTuple):
    """Parameters of a mixture: Gaussian components, with log weights up to a constant."""

    logits: Float[Array, " components"]
    components: Gaussian


def gaussian(
    *,
    covariance: Literal["isotropic", "diagonal", "full"] = "diagonal",
    initial_scale: float = 1.0,
    scale_bounds: tuple[float, float] = (1e-2, 1e2),
) -> Law:
    """Gaussian law of random effects whose mean and covariance are learned.

        z ~ N(mean, Sigma),   Sigma = s^2 I, diag(s^2) or LL'

    Args:
        covariance: "isotropic" for one standard deviation of all effects, "diagonal" for one each
            (the default), "full" for correlated effects.
        initial_scale: Standard deviation at which learning starts, in units of the effects.
        scale_bounds: Smallest and largest standard deviation allowed. With a full covariance they
            bound each effect's deviation given the effects before it.

    Returns:
        A law for `fedpop(effects=...)`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from covey.core.shard import Spec
        >>> law = gaussian(covariance="full", initial_scale=0.5)
        >>> beta = law.init(jax.random.key(0), jnp.zeros(2), Spec(None))
        >>> law.describe(beta)["deviation"].tolist()
        [0.5, 0.5]
    """
    if covariance not in ("isotropic", "diagonal", "full"):
        raise ValueError(
            f"gaussian: covariance must be 'isotropic', 'diagonal' or 'full', got {covariance!r}"
        )
    _check_scales("gaussian", initial_scale, scale_bounds)

    def init(key, z, spec):
        shape = () if covariance == "isotropic" else z.shape
        log_scale = jnp.full(shape, math.log(initial_scale), z.dtype)
        if covariance == "full":
            return Correlated(z, log_scale, jnp.zeros((len(z), len(z)), z.dtype))
        return Gaussian(z, log_scale)

    def draws(key, beta, count):
        noise = jax.random.normal(key, (count, *beta.mean.shape), beta.mean.dtype)
        return beta.mean + (
            noise @ beta.root.T if covariance == "full" else jnp.exp(beta.log_scale) * noise
        )

    def transport(beta, other, z):
        if covariance == "full":
            return other.mean + other.root @ jax.scipy.linalg.solve_triangular(
                beta.root, z - beta.mean, lower=True
            )
        return other.mean + jnp.exp(other.log_scale - beta.log_scale) * (z - beta.mean)

    return Law(
        init=init,
        log_density=lambda beta, z: beta.log_density(z),
        start=lambda beta: beta.mean,
        draws=draws,
        project=lambda beta: _clipped(beta, scale_bounds),
        transport=transport,
        describe=_deviations,
    )


def mixture(
    *, components: int, initial_scale: float = 1.0, scale_bounds: tuple[float, float] = (1e-2, 1e2)
) -> Law:
    """Mixture of Gaussians as the law of random effects: several kinds of clients.

        p(z) = sum_k w_k N(z; mean_k, diag(s_k^2))

    Args:
        components: Number of Gaussians, that is of kinds of clients.
        initial_scale: Standard deviation at which learning starts. The components' means start at
            random, this far from the model's start, so that they can separate.
        scale_bounds: Smallest and largest standard deviation allowed.

    Returns:
        A law for `fedpop(effects=...)`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from covey.core.shard import Spec
        >>> law = mixture(components=2)
        >>> beta = law.init(jax.random.key(0), jnp.zeros(3), Spec(None))
        >>> beta.components.mean.shape
        (2, 3)
    """
    if components < 1:
        raise ValueError(f"mixture: components must be at least 1, got {components}")
    _check_scales("mixture", initial_scale, scale_bounds)

    def init(key, z, spec):
        means = z + initial_scale * jax.random.normal(key, (components, *z.shape), z.dtype)
        scales = jnp.full(means.shape, math.log(initial_scale), z.dtype)
        return Mixture(jnp.zeros(components, z.dtype), Gaussian(means, scales))

    def log_density(beta, z):
        each = jax.vmap(lambda one: one.log_density(z))(beta.components)
        return jax.nn.logsumexp(jax.nn.log_softmax(beta.logits) + each)

    def draws(key, beta, count):
        choose, spread = jax.random.split(key)
        which = jax.random.categorical(choose, beta.logits, shape=(count,))
        mean, log_scale = beta.components.mean[which], beta.components.log_scale[which]
        return mean + jnp.exp(log_scale) * jax.random.normal(spread, mean.shape, mean.dtype)

    return Law(
        init=init,
        log_density=log_density,
        start=lambda beta: jax.nn.softmax(beta.logits) @ beta.components.mean,
        draws=draws,
        project=lambda beta: beta._replace(components=_clipped(beta.components, scale_bounds)),
    )


def fixed(
    *,
    scale: float | None = None,
    mean: Sequence[float] | np.ndarray | None = None,
    covariance: Sequence[Sequence[float]] | np.ndarray | None = None,
) -> Law:
    """Gaussian law of random effects that is given, not learned: clients send nothing about it.

        z ~ N(mean, scale^2 I)  or  N(mean, covariance)

    Args:
        scale: Standard deviation of every effect, in units of the effects. Default: 1, unless a
            covariance is given.
        mean: Mean of each effect, in the order of the effects (the intercept first). Default: the
            value at which the model's effects start, zero for generalised linear models.
        covariance: Full covariance matrix of the effects, instead of `scale`: symmetric and
            positive definite, with the intercept first.

    Returns:
        A law for `fedpop(effects=...)`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from covey.core.shard import Spec
        >>> law = fixed(covariance=[[1.0, 0.5], [0.5, 4.0]])
        >>> beta = law.init(jax.random.key(0), jnp.zeros(2), Spec(None))
        >>> law.describe(beta)["correlation"][0, 1].round(3).item()
        0.25
    """
    if scale is not None and covariance is not None:
        raise ValueError("fixed: scale= and covariance= are two ways to say one thing; give one")
    deviation = 1.0 if scale is None else scale
    if deviation <= 0:
        raise ValueError(
            f"fixed: scale is a standard deviation and must be above 0, got {deviation:g}"
        )
    root = None if covariance is None else _cholesky(covariance)
    law = gaussian(
        covariance="isotropic" if root is None else "full",
        initial_scale=deviation,
        scale_bounds=(deviation, deviation),
    )

    def init(key, z, spec):
        for name, given in (("mean", mean), ("covariance", covariance)):
            if given is not None and len(given) != len(z):
                raise ValueError(
                    f"fixed: {name} is of {len(given)} effects, but this model has {len(z)}"
                )
        centre = z if mean is None else jnp.asarray(mean, z.dtype)
        if root is None:
            return law.init(key, centre, spec)
        diagonal = np.diag(root)
        return Correlated(
            centre,
            jnp.asarray(np.log(diagonal), z.dtype),
            jnp.asarray(np.tril(root / diagonal, -1), z.dtype),
        )

    return law._replace(init=init, project=lambda beta: beta, learned=False)


LAWS: dict[str, Callable[..., Law]] = {
    "gaussian": gaussian,
    "mixture": mixture,
    "energy": energy,
    "fixed": fixed,
}
"""Laws by name. The first line of a factory's docstring is its description."""


def _cholesky(
    covariance: Sequence[Sequence[float]] | np.ndarray,
) -> Float[np.ndarray, "effects effects"]:
    matrix = np.asarray(covariance, float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"fixed: covariance must be a square matrix, got shape {matrix.shape}")
    if not np.allclose(matrix, matrix.T, rtol=1e-6):
        raise ValueError("fixed: covariance must be symmetric")
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        raise ValueError(
            "fixed: covariance must be positive definite, its smallest eigenvalue is "
            f"{np.linalg.eigvalsh(matrix)[0]:.3g}"
        ) from None


def _deviations(beta: Gaussian | Correlated) -> dict[str, Array]:
    if isinstance(beta, Gaussian):
        return {"deviation": jnp.exp(beta.log_scale)}
    deviation = jnp.sqrt(jnp.diagonal(beta.covariance))
    return {
        "deviation": deviation,
        "correlation": beta.covariance / jnp.outer(deviation, deviation),
    }


def _check_scales(name: str, initial: float, bounds: tuple[float, float]) -> None:
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError(
            f"{name}: scale_bounds must be two positive numbers in order, got {bounds}"
        )
    if not bounds[0] <= initial <= bounds[1]:
        raise ValueError(
            f"{name}: initial_scale must lie within scale_bounds {bounds}, got {initial:g}"
        )


def _clipped(beta: Bounded, bounds: tuple[float, float]) -> Bounded:
    return beta._replace(
        log_scale=jnp.clip(beta.log_scale, math.log(bounds[0]), math.log(bounds[1]))
    )
