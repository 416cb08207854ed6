"""Compiled programs that runs share: a run whose method, channel and shapes are those of an earlier
one compiles nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax

from covey.core.algorithm import Algorithm, no_state
from covey.core.channel import Channel
from covey.core.cohort import Sampler
from covey.core.faults import Faults
from covey.engines.setup import Setup, Shapes

_MOST = 64  # programs that are kept; of larger models, each takes some megabytes
_NONE: Any = no_state
_NOTHING = Algorithm("", _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE)
_kept: OrderedDict[Hashable, Any] = OrderedDict()


class RoundParts(NamedTuple):
    """What the rounds of a run are compiled from: neither keys nor data, which are arguments.

    Attributes:
        algorithm: The method, as far as its rounds go.
        channel: What uploads pass through.
        sampler: Who takes part in a round.
        faults: Probabilities of lost, late and repeated messages.
        shapes: Shapes of states and messages.
    """

    algorithm: Algorithm
    channel: Channel
    sampler: Sampler
    faults: Faults
    shapes: Shapes


def round_parts(setup: Setup) -> RoundParts:
    """The parts of a setup that rounds are compiled from."""
    rounds = _rounds_of(setup.algorithm)
    return RoundParts(rounds, setup.channel, setup.sampler, setup.faults, setup.shapes)


def chunk_parts(method: Algorithm, channel: Channel, shapes: Shapes) -> RoundParts:
    """The parts that the round of a chunk is compiled from, whatever the cohort and the faults."""
    return RoundParts(_rounds_of(method), channel, Sampler(0, _NONE), Faults(), shapes)


def _rounds_of(method: Algorithm) -> Algorithm:
    return _NOTHING._replace(
        broadcast=method.broadcast,
        server=method.server,
        init_client=method.init_client,
        client=method.client,
        commit=method.commit,
    )


def measuring_part(method: Algorithm) -> Algorithm:
    """The part of a method that measures of its predictions are compiled from."""
    return _NOTHING._replace(predict=method.predict, evaluate=method.evaluate)


def shared(build: Callable[..., Any], *parts: Any) -> Any:
    """`build(*parts)`, made once for the same function and equal parts; the newest are kept.

    Functions are equal where they are the same object: runs share programs when they are given the
    same method, or methods that factories made of equal settings and remember. Parts that cannot be
    compared make a program of their own.

    Args:
        build: (parts) -> a compiled function. It must not hold on to data.
        parts: What it depends on: trees of functions, shapes and settings.

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
