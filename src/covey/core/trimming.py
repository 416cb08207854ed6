"""Uploads of which a round uses only the first lines: the others are zero and do not travel.

A method says how many lines of which parts a round uses (`Algorithm.used`). It follows from the
broadcast, which both sides have, so that nothing beside the upload has to be sent.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

from covey.core import tree

# The count of leading entries that a round uses of the arrays in a part, by the part's name.
Used: TypeAlias = Mapping[str, int | Int[Array | np.ndarray, ""]]
WHOLE: Used = MappingProxyType({})  # everything is in use


def unsent_bytes(up: PyTree, used: Used) -> int | Int[Array, ""]:
    """Bytes of an upload that do not travel; `up` may be its shapes.

    Example:
        >>> unsent_bytes({"sums": np.zeros((5, 2), np.float32), "loss": np.float32(0)}, {"sums": 3})
        16
    """
    lengths = _lengths(up, used)
    return sum(
        (leaf.shape[0] - length) * (tree.bits(leaf) // (8 * leaf.shape[0]))
        for leaf, length in zip(jax.tree.leaves(tree.specs(up)), lengths, strict=True)
        if length is not None
    )


def trimmed(up: PyTree, used: Used) -> PyTree:
    """The upload as it travels; its shapes, where `up` has shapes only.

    Example:
        >>> trimmed({"sums": np.array([1.0, 2.0, 0.0])}, {"sums": 2})
        {'sums': array([1., 2.])}
    """
    lengths = _lengths(up, used)
    leaves = [
        leaf if length is None else _cut(leaf, int(length))
        for leaf, length in zip(jax.tree.leaves(up), lengths, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(up), leaves)


def filled(sent: PyTree, like: PyTree) -> PyTree:
    """The upload that was trimmed: zeros up to the shapes of `like`.

    Example:
        >>> filled({"sums": np.array([1.0, 2.0])}, {"sums": np.zeros(3)})
        {'sums': array([1., 2., 0.])}
    """

    def fill(leaf, whole):
        if leaf.shape == whole.shape:
            return leaf
        missing = np.zeros((whole.shape[0] - leaf.shape[0], *whole.shape[1:]), leaf.dtype)
        return np.concatenate([leaf, missing])

    return jax.tree.map(fill, sent, like)


def _lengths(up: PyTree, used: Used) -> list[int | Int[Array | np.ndarray, ""] | None]:
    """The entries in use of each array; None where all of them are."""

    def length(path: str, leaf):
        named = [count for name, count in used.items() if tree.is_below(path, name)]
        return named[0] if named and leaf.shape[0] else None

    pairs = zip(tree.paths(up), jax.tree.leaves(tree.specs(up)), strict=True)
    return [length(path, leaf) for path, leaf in pairs]


def _cut(leaf, length: int):
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct((length, *leaf.shape[1:]), leaf.dtype)
    return leaf[:length]
