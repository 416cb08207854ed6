"""Parts of an upload that no lossy channel may touch: counts, scales, whatever others divide by."""

from collections.abc import Sequence

import jax

from covey.channel.masked import masked
from covey.core.algorithm import Message
from covey.core.channel import Channel


def keep_exact(names: Sequence[str], channel: Channel) -> Channel:
    """The channel for all of an upload but the parts that are named, which travel as they are.

    Args:
        names: Names of fields of the upload, or of fields within one, e.g. "precision.weight".
        channel: A channel for the rest.

    Returns:
        The channel itself where nothing is named.
    """
    if not names:
        return channel

    def for_rest(up: Message) -> Channel:
        return masked(_others(names, up), channel)

    anything = masked("any", channel)  # a payload tells by itself which part is which
    omega = channel.omega
    return Channel(
        init=lambda up: for_rest(up).init(up),
        encode=lambda key, state, up: for_rest(up).encode(key, state, up),
        decode=anything.decode,
        bits=anything.bits,
        omega=None if omega is None else lambda up: (for_rest(up).omega or omega)(up),
    )


def _others(names: Sequence[str], up: Message) -> list[str]:
    paths = [
        jax.tree_util.keystr(path, simple=True, separator=".")
        for path, _ in jax.tree.leaves_with_path(up)
    ]
    below = {name: [p for p in paths if p == name or p.startswith(f"{name}.")] for name in names}
    for name, found in below.items():
        if not found:
            raise ValueError(f"the upload has no part {name!r} to keep exact; it has {paths}")
    exact = {path for found in below.values() for path in found}
    return [path for path in paths if path not in exact]
