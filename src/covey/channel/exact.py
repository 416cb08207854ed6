"""Parts of an upload that no lossy channel may touch: counts, scales, whatever others divide by."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
from jaxtyping import PyTree

from covey.channel.identity import identity
from covey.core import tree
from covey.core.algorithm import Message
from covey.core.channel import Channel


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("coded", "exact"),
    meta_fields=("structure", "is_exact"),
)
@dataclass(frozen=True)
class Payload:
    """The upload as encoded, but for the exact arrays, which travel beside it as they are."""

    coded: PyTree
    exact: list[Any]
    structure: Any = field(metadata={"static": True})
    is_exact: tuple[bool, ...] = field(metadata={"static": True})


def keep_exact(names: Sequence[str], channel: Channel) -> Channel:
    """The channel for all of an upload but the parts that are named, which travel as they are.

    The channel sees the upload with None in place of these parts, so that channels for parts by
    name or by structure still find theirs.

    Args:
        names: Names of fields of the upload, or of fields within one, e.g. "precision.weight".
        channel: A channel for the rest.

    Returns:
        The channel itself where nothing is named, or where it changes nothing.
    """
    if not names or channel is identity():
        return channel

    def encode(key, state, up):
        rest, exact, flags = _divided(names, up)
        coded, state = channel.encode(key, state, rest)
        return Payload(coded, exact, jax.tree.structure(up), flags), state

    def decode(payload):
        coded, exact = iter(jax.tree.leaves(channel.decode(payload.coded))), iter(payload.exact)
        leaves = [next(exact if kept else coded) for kept in payload.is_exact]
        return jax.tree.unflatten(payload.structure, leaves)

    omega = channel.omega
    return Channel(
        init=lambda up: channel.init(_divided(names, up)[0]),
        encode=encode,
        decode=decode,
        bits=lambda payload: channel.bits(payload.coded) + tree.bits(payload.exact),
        omega=None if omega is None else lambda up: omega(_divided(names, up)[0]),
    )


def _divided(names: Sequence[str], up: Message) -> tuple[PyTree, list[Any], tuple[bool, ...]]:
    """The upload without its exact parts, these parts, and which arrays they are."""
    paths, leaves = tree.paths(up), jax.tree.leaves(up)
    for name in names:
        if not any(tree.is_below(path, name) for path in paths):
            known = ", ".join(paths)
            raise ValueError(f"the upload has no part {name!r} to keep exact; it has {known}")
    flags = tuple(any(tree.is_below(path, name) for name in names) for path in paths)
    kept = [None if flag else leaf for leaf, flag in zip(leaves, flags, strict=True)]
    rest = jax.tree.unflatten(jax.tree.structure(up), kept)
    exact = [leaf for leaf, flag in zip(leaves, flags, strict=True) if flag]
    return rest, exact, flags
