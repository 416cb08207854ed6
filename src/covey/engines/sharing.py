"""Compiled programs that runs share: a run whose method, channel and shapes are those of an earlier
one compiles nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import jax

_MOST = 64  # programs that are kept; of larger models, each takes some megabytes
_kept: OrderedDict[Hashable, Any] = OrderedDict()


def shared(build: Callable[..., Any], *parts: Any) -> Any:
    """`build(*parts)`, made once for the same function and equal parts; the newest are kept.

    Functions are equal where they are the same object: runs share programs when they are given the
    same method, or methods that factories made of equal settings and remember. Parts that cannot be
    compared make their own program.

    Args:
        build: (parts) -> a compiled function. It must not hold on to data.
        parts: The parts that it depends on: trees of functions, shapes and settings.

    Returns:
        The compiled function.

    Example:
        >>> import jax.numpy as jnp
        >>> shared(jax.jit, jnp.sin) is shared(jax.jit, jnp.sin)
        True
    """
    leaves, structure = jax.tree.flatten(parts)
    key = (build, structure, tuple(leaves), jax.config.read("jax_enable_x64"))
    try:
        found = _kept.pop(key, None)
    except TypeError:  # an array, say, among the settings
        return build(*parts)
    _kept[key] = found = build(*parts) if found is None else found
    while len(_kept) > _MOST:
        _kept.popitem(last=False)
    return found


def forget() -> None:
    """Forget all programs, e.g. in a process that has made many and needs their memory."""
    _kept.clear()
