"""Arithmetic on pytrees that JAX and Optax do not already have."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree


def where(condition: Bool[Array, ""], if_true: PyTree, if_false: PyTree) -> PyTree:
    """One tree or the other, by a scalar condition."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)


def take(tree: PyTree, index: Int[Array, "*s"]) -> PyTree:
    """Rows `index` of every leaf. An index out of range takes the nearest row, so masked slots may
    hold anything.
    """
    return jax.tree.map(lambda leaf: leaf.at[index].get(mode="clip"), tree)


def put(tree: PyTree, index: Int[Array, " s"], rows: PyTree, mask: Bool[Array, " s"]) -> PyTree:
    """`tree` with `rows` at `index` where `mask` holds; the other rows are dropped."""

    def put_leaf(leaf, new):
        return leaf.at[jnp.where(mask, index, leaf.shape[0])].set(new, mode="drop")

    return jax.tree.map(put_leaf, tree, rows)


def weighted_sum(weights: Float[Array, " s"], stacked: PyTree) -> PyTree:
    """Sum over the leading axis, weighted. A weight of zero silences its row even when the row is
    not finite.
    """

    def leaf_sum(leaf):
        row_is_on = (weights != 0).reshape((-1,) + (1,) * (leaf.ndim - 1))
        return jnp.tensordot(weights.astype(leaf.dtype), jnp.where(row_is_on, leaf, 0), 1)

    return jax.tree.map(leaf_sum, stacked)


def is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every number in the tree is finite."""
    finite = [
        jnp.all(jnp.isfinite(leaf))
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return jnp.all(jnp.stack(finite)) if finite else jnp.bool_(True)


def specs(tree: PyTree) -> PyTree:
    """The shapes and types of a tree's leaves."""
    return jax.tree.map(_spec, tree)


def bits(tree: PyTree) -> int:
    """Bits that the leaves take as they lie in memory."""
    leaves: Iterable[jax.ShapeDtypeStruct] = jax.tree.leaves(specs(tree))
    return sum(
        8 * leaf.dtype.itemsize * int(np.prod(leaf.shape, dtype=np.int64)) for leaf in leaves
    )


def size(tree: PyTree) -> int:
    """The number of numbers in the tree."""
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in jax.tree.leaves(specs(tree)))


def _spec(leaf):
    if hasattr(leaf, "dtype"):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return jax.eval_shape(jnp.asarray, leaf)
