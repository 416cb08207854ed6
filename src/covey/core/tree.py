"""Arithmetic on pytrees that JAX and Optax do not already have."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree


def where(condition: Bool[Array, ""], if_true: PyTree, if_false: PyTree) -> PyTree:
    """One tree or the other, by a scalar condition.

    Example:
        >>> where(jnp.bool_(True), {"a": jnp.array(1)}, {"a": jnp.array(2)})["a"].tolist()
        1
    """
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)


def take(tree: PyTree, index: Int[Array, "*s"]) -> PyTree:
    """Rows `index` of every leaf.

    An index out of range takes the nearest row, so masked slots may hold any index.

    Example:
        >>> take({"a": jnp.array([10, 20, 30])}, jnp.array([2, 99]))["a"].tolist()
        [30, 30]
    """
    return jax.tree.map(lambda leaf: leaf.at[index].get(mode="clip"), tree)


def put(tree: PyTree, index: Int[Array, " s"], rows: PyTree, mask: Bool[Array, " s"]) -> PyTree:
    """`tree` with `rows` at `index` where `mask` holds; the other rows are dropped.

    Example:
        >>> new, on = jnp.array([7, 8]), jnp.array([True, False])
        >>> put(jnp.zeros(3, int), jnp.array([2, 0]), new, on).tolist()
        [0, 0, 7]
    """

    def put_leaf(leaf, new):
        return leaf.at[jnp.where(mask, index, leaf.shape[0])].set(new, mode="drop")

    return jax.tree.map(put_leaf, tree, rows)


def weighted_sum(weights: Float[Array, " s"], stacked: PyTree) -> PyTree:
    """Weighted sum over the leading axis.

    A row of weight zero counts as nothing even where it is not finite.

    Example:
        >>> weighted_sum(jnp.array([2.0, 0.0]), {"a": jnp.array([3.0, jnp.nan])})["a"].tolist()
        6.0
    """

    def leaf_sum(leaf):
        row_is_on = (weights != 0).reshape((-1,) + (1,) * (leaf.ndim - 1))
        return jnp.tensordot(weights.astype(leaf.dtype), jnp.where(row_is_on, leaf, 0), 1)

    return jax.tree.map(leaf_sum, stacked)


def is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every value in the tree is finite; integers are.

    Example:
        >>> bool(is_finite({"a": jnp.array([1.0, jnp.inf]), "b": jnp.array(3)}))
        False
    """
    finite = [
        jnp.all(jnp.isfinite(leaf))
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    return jnp.all(jnp.stack(finite)) if finite else jnp.bool_(True)


def specs(tree: PyTree) -> PyTree:
    """The shapes and types of a tree's leaves.

    Example:
        >>> specs({"a": np.zeros((2, 3), np.float32)})
        {'a': ShapeDtypeStruct(shape=(2, 3), dtype=float32)}
    """
    return jax.tree.map(_spec, tree)


def bits(tree: PyTree) -> int:
    """Bits that the leaves take as they lie in memory; `wire.size` counts whole messages.

    Example:
        >>> bits({"a": np.zeros((2, 3), np.float32), "b": np.int8(1)})
        200
    """
    leaves: Iterable[jax.ShapeDtypeStruct] = jax.tree.leaves(specs(tree))
    return sum(
        8 * leaf.dtype.itemsize * int(np.prod(leaf.shape, dtype=np.int64)) for leaf in leaves
    )


def size(tree: PyTree) -> int:
    """The number of values in the tree.

    Example:
        >>> size({"a": np.zeros((2, 3)), "b": 1.0})
        7
    """
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in jax.tree.leaves(specs(tree)))


def paths(tree: PyTree) -> list[str]:
    """The path of each leaf: names of fields and keys, with dots between them.

    Example:
        >>> paths({"delta": {"weights": 0.0, "bias": 0.0}, "scale": 1.0})
        ['delta.bias', 'delta.weights', 'scale']
    """
    found = jax.tree.leaves_with_path(tree)
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in found]


def is_below(path: str, name: str) -> bool:
    """Whether the path of a leaf is that of a part of this name, or within it.

    Example:
        >>> is_below("delta.bias", "delta"), is_below("delta.bias", "del")
        (True, False)
    """
    return path == name or path.startswith(f"{name}.")


def _spec(leaf):
    if hasattr(leaf, "dtype"):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return jax.eval_shape(jnp.asarray, leaf)
