"""A channel for some parts of an upload."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
from jaxtyping import PyTree

from covey.core import tree
from covey.core.algorithm import Message
from covey.core.channel import Channel


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("coded", "rest"),
    meta_fields=("structure", "chosen"),
)
@dataclass(frozen=True)
class Divided:
    """The payload: the chosen leaves as coded, the others as they are.

    Which leaf is which is static: both sides know it, and it does not travel.
    """

    coded: PyTree
    rest: list[Any]
    structure: Any = field(metadata={"static": True})
    chosen: tuple[bool, ...] = field(metadata={"static": True})


def masked(part: str | Sequence[str], channel: Channel) -> Channel:
    """A channel for the named parts of an upload; the other parts travel as they are.

    As Optax's `masked` is for some parameters. FedPop uploads `Population(phi, beta)` and FedAvg
    `Up(delta, weight)`, so `masked("phi", ...)` and `masked("delta", ...)` compress what is large.

    Args:
        part: Name of a field of the upload, or of a field within it ("phi.weight"); or several
            names. The parts pass through the channel together, as one vector.
        channel: Channel for these parts.

    Returns:
        A channel for `covey.run(channel=...)`.

    Example:
        >>> from covey.channel import bfloat16
        >>> channel = masked("delta", bfloat16())
        >>> up = {"delta": jax.numpy.ones(3), "weight": jax.numpy.array(7.0)}
        >>> payload, _ = channel.encode(jax.random.key(0), channel.init(up), up)
        >>> channel.bits(payload)  # 3 values of 16 bits, one of 32
        80
    """
    check_parts(part, channel)
    names = (part,) if isinstance(part, str) else tuple(part)

    def init(up):
        return channel.init(_divided(names, up)[0])

    def encode(key, state, up):
        inside, outside, chosen = _divided(names, up)
        coded, state = channel.encode(key, state, inside)
        return Divided(coded, outside, jax.tree.structure(up), chosen), state

    def decode(payload):
        inside, outside = iter(channel.decode(payload.coded)), iter(payload.rest)
        return jax.tree.unflatten(
            payload.structure, [next(inside if here else outside) for here in payload.chosen]
        )

    def bits(payload):
        return channel.bits(payload.coded) + tree.bits(payload.rest)

    omega = channel.omega
    bound = None if omega is None else lambda up: omega(_divided(names, up)[0])
    return Channel(init, encode, decode, bits, bound)


def check_parts(part: object, channel: object) -> None:
    """Raise a ValueError where these are not names of parts and a channel."""
    if isinstance(part, Channel) or not isinstance(channel, Channel):
        raise ValueError(
            "masked: give the names of parts first and the channel second, "
            'e.g. masked("delta", dithering(levels=7))'
        )
    if not part:
        raise ValueError("masked: name at least one part of the upload")


def _divided(names: Sequence[str], up: Message) -> tuple[list[Any], list[Any], tuple[bool, ...]]:
    """The leaves below the names, the other leaves, and which are which."""
    paths, leaves = tree.paths(up), jax.tree.leaves(up)
    for name in names:
        if not any(tree.is_below(path, name) for path in paths):
            known = ", ".join(filter(None, paths)) or "none: it is a single array"
            raise ValueError(f"masked: the upload has no part {name!r}; its parts are {known}")
    chosen = tuple(any(tree.is_below(path, name) for name in names) for path in paths)
    inside = [leaf for leaf, here in zip(leaves, chosen, strict=True) if here]
    outside = [leaf for leaf, here in zip(leaves, chosen, strict=True) if not here]
    return inside, outside, chosen
