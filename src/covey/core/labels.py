"""Names of single values: `weights[age]`, `cor[0, 1]`."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

import jax
import numpy as np
from jaxtyping import Array, PyTree

from covey.core.shard import Axis


def labels(name: str, axes: Sequence[Iterable[object]]) -> list[str]:
    """Names of the values of an array, given the labels along its axes.

    Args:
        name: The array's name.
        axes: The labels along each axis; none for a scalar.

    Returns:
        One name per value, in the order of the flattened array.

    Example:
        >>> labels("slopes", [("age", "dose")]), labels("noise", [])
        (['slopes[age]', 'slopes[dose]'], ['noise'])
    """
    return [name + (f"[{', '.join(map(str, at))}]" if at else "") for at in product(*axes)]


def value_names(
    values: Mapping[str, Array | np.ndarray], axes: Mapping[str, Axis]
) -> tuple[str, ...]:
    """A name for each value of some named arrays.

    Args:
        values: The arrays.
        axes: Labels along the first axis, by the name of the array. Other axes, and arrays of
            another length, are numbered from 0.

    Returns:
        One name per value, array by array.

    Example:
        >>> values = {"noise": np.ones(()), "weights": np.ones(2)}
        >>> value_names(values, {"weights": Axis("column", ("age", "dose"))})
        ('noise', 'weights[age]', 'weights[dose]')
    """
    names: list[str] = []
    for name, value in values.items():
        along: list[Iterable[object]] = [range(size) for size in value.shape]
        if name in axes and value.shape and len(axes[name].labels) == value.shape[0]:
            along[0] = axes[name].labels
        names += labels(name, along)
    return tuple(names)


def flat_names(parameters: PyTree) -> list[str]:
    """A name for each value of a tree of parameters, as `ravel_pytree` orders them.

    Args:
        parameters: The tree.

    Returns:
        The path of the array in the tree and the index in it, e.g. `weight[2]`.

    Example:
        >>> flat_names({"bias": np.zeros(()), "weight": np.zeros(2)})
        ['bias', 'weight[0]', 'weight[1]']
    """
    names: list[str] = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "parameter"
        names += labels(name, [range(size) for size in np.shape(leaf)])
    return names
