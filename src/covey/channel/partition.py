"""Different channels for different parts of an upload."""

import jax
from jaxtyping import PyTree

from covey.core.node import Channel


def partition(channels: PyTree) -> Channel:
    """A channel from a prefix tree of channels: each covers the part of the upload below its place.

    FedAvg uploads `Up(delta, weight)`, so `partition(Up(bfloat16(), identity()))` rounds the change
    and keeps the weight exact.
    """
    parts, structure = jax.tree.flatten(channels, is_leaf=_is_channel)
    if not parts or not all(_is_channel(part) for part in parts):
        raise ValueError(
            "partition: every leaf of the prefix tree must be a channel, e.g. partition(Up(bfloat16(), identity()))"
        )

    def cut(tree: PyTree) -> list[PyTree]:
        try:
            return structure.flatten_up_to(tree)
        except ValueError as error:
            raise ValueError(
                f"partition: the upload does not have the parts that channels were given for: {error}"
            ) from error

    def init(up):
        return tuple(channel.init(part) for channel, part in zip(parts, cut(up), strict=True))

    def encode(key, state, up):
        keys = [jax.random.fold_in(key, place) for place in range(len(parts))]
        coded = [
            channel.encode(key, memory, part)
            for channel, key, memory, part in zip(parts, keys, state, cut(up), strict=True)
        ]
        return tuple(payload for payload, _ in coded), tuple(memory for _, memory in coded)

    def decode(payload):
        sent = [channel.decode(part) for channel, part in zip(parts, payload, strict=True)]
        return jax.tree.unflatten(structure, sent)

    def bits(payload):
        return sum(channel.bits(part) for channel, part in zip(parts, payload, strict=True))

    def omega(up):
        bounds = [
            channel.omega(part)
            for channel, part in zip(parts, cut(up), strict=True)
            if channel.omega is not None
        ]
        return max(bounds)

    return Channel(
        init, encode, decode, bits, None if any(part.omega is None for part in parts) else omega
    )


def _is_channel(value: object) -> bool:
    return isinstance(value, Channel)
