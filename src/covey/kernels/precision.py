"""Double precision inside a function, whatever precision the run around it has."""

from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


class AsItIs(NamedTuple):
    """An argument of a function in double precision that is not converted, e.g. because only some
    of it is used; see `doubled`.
    """

    value: PyTree


def doubled(tree: PyTree) -> PyTree:
    """Floating-point arrays in double precision; called inside of `in_double`."""
    return _cast(tree, jnp.float64)


def in_double(function: Callable[..., PyTree], *settings: Hashable) -> Callable[..., PyTree]:
    """The function computed in float64: its floating-point arguments become float64, unless they
    are `AsItIs`, and its results get the run's own precision again.

    It can be called inside `jit`, `vmap` and loops. Branches and loops belong inside of it: a
    branch of a `cond` that is called in double precision is transformed outside of it. What is
    summed over clients afterwards is as precise as float32 numbers are, which is enough for sums of
    terms that do not cancel: send differences rather than the two values they are of.

    Tracing takes longer than computing: it is done once for the same function, settings and shapes,
    also by several runs.

    Args:
        function: A function of trees of arrays, e.g. a client's log-likelihood with derivatives.
        settings: First arguments of the function that are not arrays.

    Returns:
        The function of the other arguments.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> lost = jnp.float32(1e8) + 1 - jnp.float32(1e8)
        >>> float(lost), float(in_double(lambda x: x + 1 - x)(jnp.float32(1e8)))
        (0.0, 1.0)
    """

    def in_float64(*arguments: PyTree) -> PyTree:
        outside = jnp.zeros(()).dtype
        with jax.enable_x64(True):
            given = (one if isinstance(one, AsItIs) else doubled(one) for one in arguments)
            found = _traced_once(function, settings)(*given)
            return _cast(found, outside)

    return in_float64


@lru_cache(maxsize=256)
def _traced_once(function: Callable, settings: tuple[Hashable, ...]) -> Callable:
    return jax.jit(partial(function, *settings))


def _cast(tree: PyTree, dtype: jnp.dtype | type) -> PyTree:
    def leaf_as(leaf):
        floating = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf).astype(dtype) if floating else leaf

    return jax.tree.map(leaf_as, tree)
