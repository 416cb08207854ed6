"""Gaussians whose precision is known along some axes and has one value across them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Key


class LowRank(NamedTuple):
    """The precision P = axes diag(values) axes' + level (I - axes axes').

    Attributes:
        axes: Orthonormal columns; with as many as there are parameters P is any matrix.
        values: Precision along each of them.
        level: Precision in all directions across them.
    """

    axes: Float[Array, "d rank"]
    values: Float[Array, " rank"]
    level: Float[Array, ""]


def orthonormal_columns(
    key: Key[Array, ""], size: int, count: int, dtype: DTypeLike = float
) -> Float[Array, "d columns"]:
    """`count` orthonormal columns in random directions, as many as there can be.

    Example:
        >>> omega = orthonormal_columns(jax.random.key(0), 5, 2)
        >>> bool(jnp.allclose(omega.T @ omega, jnp.eye(2), atol=1e-6))
        True
    """
    return jnp.linalg.qr(jax.random.normal(key, (size, min(count, size)), dtype))[0]


def power_of(
    precision: LowRank, exponent: float, right: Float[Array, " *columns d"]
) -> Float[Array, " *columns d"]:
    """P^exponent times a vector, or times each row of a matrix: -1 is the covariance, -1/2 makes
    draws of white noise.

    Example:
        >>> precision = LowRank(jnp.array([[1.0], [0.0]]), jnp.array([4.0]), jnp.array(25.0))
        >>> power_of(precision, -0.5, jnp.ones(2)).tolist()
        [0.5, 0.20000000298023224]
    """
    across = precision.level**exponent
    along = right @ precision.axes * (precision.values**exponent - across)
    return across * right + along @ precision.axes.T


def deviations(key: Key[Array, ""], precision: LowRank, count: int) -> Float[Array, "draws d"]:
    """Draws of the Gaussian with mean zero and this precision."""
    shape = (count, precision.axes.shape[0])
    return power_of(precision, -0.5, jax.random.normal(key, shape, precision.axes.dtype))
