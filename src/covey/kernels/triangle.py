"""Symmetric matrices as their upper triangles, which are half as many values to send."""

from math import isqrt

import numpy as np
from jaxtyping import Array, Float


def packed(matrix: Float[Array, "*batch k k"]) -> Float[Array, "*batch entries"]:
    """The upper triangle of a symmetric matrix by rows; of one that is symmetric up to rounding,
    that of its symmetric part.

    Args:
        matrix: Symmetric matrices, along the last two axes.

    Returns:
        Its k (k + 1) / 2 entries, along the last axis.

    Example:
        >>> import jax.numpy as jnp
        >>> packed(jnp.array([[1.0, 2.0], [2.0, 3.0]])).tolist()
        [1.0, 2.0, 3.0]
    """
    row, column = np.triu_indices(matrix.shape[-1])
    return (matrix[..., row, column] + matrix[..., column, row]) / 2


def unpacked(entries: Float[Array, "*batch entries"]) -> Float[Array, "*batch k k"]:
    """The symmetric matrix of an upper triangle.

    Args:
        entries: Its k (k + 1) / 2 entries by rows, along the last axis.

    Returns:
        The matrices, along the last two axes.

    Example:
        >>> import jax.numpy as jnp
        >>> unpacked(jnp.array([1.0, 2.0, 3.0])).tolist()
        [[1.0, 2.0], [2.0, 3.0]]
    """
    size = triangle_side(entries.shape[-1])
    row, column = np.triu_indices(size)
    index = np.zeros((size, size), int)
    index[row, column] = index[column, row] = np.arange(len(row))
    return entries[..., index]


def triangle_side(entries: int) -> int:
    """k, for a triangle with k (k + 1) / 2 entries."""
    side = (isqrt(8 * entries + 1) - 1) // 2
    if side * (side + 1) // 2 != entries:
        raise ValueError(f"no triangle has {entries} entries; it has k (k + 1) / 2")
    return side
