"""A Gaussian of many parameters whose precision is a multiple of I minus a matrix of low rank, from
sums alone.

A client's estimate of its precision (`shrinkage`) is c_i I - L_i with L_i of low rank. Sums over
clients of such matrices are again of this form, c I - L, but nobody sends matrices: clients send
c_i and L_i Omega for columns Omega that all of them know, and these add up to c and L Omega. What L
is follows by Nystrom's approximation,

    L ~ (L Omega) (Omega' L Omega)^+ (L Omega)' = Q diag(shrunk) Q'

exact where L has no more than `rank` directions, and never more than L (Tropp, Yurtsever, Udell and
Cevher, 2017): directions that are missed keep the precision c, and their spread is underestimated.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Key, UInt32


class LowRank(NamedTuple):
    """Precision level (I - axes diag(shrunk) axes'), axes orthonormal, shrunk from 0 to below 1;
    level 0: nothing known.
    """

    level: Float[Array, ""]
    axes: Float[Array, "d rank"]
    shrunk: Float[Array, " rank"]


def columns(
    seed: UInt32[Array, ""], size: int, rank: int, dtype: DTypeLike = float
) -> Float[Array, "d rank"]:
    """Omega: `rank` orthonormal columns in random directions, as many as there can be."""
    key = jax.random.key(seed, impl="threefry2x32")
    return jnp.linalg.qr(jax.random.normal(key, (size, min(rank, size)), dtype))[0]


def from_image(
    level: Float[Array, ""], image: Float[Array, "d rank"], omega: Float[Array, "d rank"]
) -> LowRank:
    """The Gaussian of precision level I - L, from L Omega."""
    epsilon = jnp.finfo(image.dtype).eps
    core = omega.T @ image
    values, vectors = jnp.linalg.eigh((core + core.T) / 2)
    known = values > 10 * len(values) * epsilon * jnp.max(jnp.abs(values))  # the rest is rounding
    inverse_root = vectors * jnp.where(known, 1 / jnp.sqrt(jnp.where(known, values, 1.0)), 0.0)
    axes, root, _ = jnp.linalg.svd(image @ inverse_root, full_matrices=False)
    share = root**2 / jnp.where(level > 0, level, 1.0)
    return LowRank(level, axes, jnp.clip(share, 0.0, 1 - 10 * epsilon))


def deviations(key: Key[Array, ""], law: LowRank, number: int) -> Float[Array, "draws d"]:
    """Draws of the Gaussian with mean zero; not finite where the precision is unknown."""
    noise = jax.random.normal(key, (number, law.axes.shape[0]), law.axes.dtype)
    stretch = 1 / jnp.sqrt(1 - law.shrunk) - 1
    return (noise + (noise @ law.axes * stretch) @ law.axes.T) / jnp.sqrt(
        jnp.where(law.level > 0, law.level, jnp.nan)
    )
