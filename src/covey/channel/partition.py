"""Different channels for different parts of an upload."""

import jax
from jaxtyping import PyTree

from covey.core.channel import Channel


def partition(channels: PyTree) -> Channel:
    """Different channels for different parts of an upload.

    As Optax's `partition` has different transformations for different parameters; here the channels
    are in a prefix tree of the upload instead of under labels.

    Args:
        channels: Prefix tree of the upload with a channel at each leaf, which covers the part of
            the upload below it. FedAvg uploads `Up(delta, weight)`, so `Up(bfloat16(), identity())`
            rounds the change and keeps the weight exact.

    Returns:
        A channel for `covey.run(channel=...)`. Its omega is the largest of the parts'; None where
        one part is biased.

    Example:
        >>> from covey.channel import bfloat16, identity
        >>> channel = partition({"delta": bfloat16(), "weight": identity()})
        >>> up = {"delta": jax.numpy.ones(3), "weight": jax.numpy.array(7.0)}
        >>> payload, _ = channel.encode(jax.random.key(0), channel.init(up), up)
        >>> channel.bits(payload)  # 3 values of 16 bits, one of 32
        80
    """
    parts, structure = jax.tree.flatten(channels, is_leaf=_is_channel)
    if not parts or not all(_is_channel(part) for part in parts):
        raise ValueError(
            "partition: every leaf of the prefix tree must be a channel, "
            "e.g. partition(Up(bfloat16(), identity()))"
        )

    def cut(tree: PyTree) -> list[PyTree]:
        try:
            return structure.flatten_up_to(tree)
        except ValueError as error:
            raise ValueError(
                "partition: the upload does not have the parts that channels were given for: "
                f"{error}"
            ) from error

    def init(up):
        return tuple(channel.init(part) for channel, part in zip(parts, cut(up), strict=True))

    def encode(key, state, up):
        keys = [jax.random.fold_in(key, index) for index in range(len(parts))]
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
