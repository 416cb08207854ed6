"""Channels: the path of an upload from a client to the server."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Key, PyTree

from covey.core import tree


class Channel(NamedTuple):
    """The codec of an upload on its way to the server.

    Attributes:
        init: (shapes of an upload) -> channel state, e.g. error feedback; `Empty()`
            for a channel without one.
        encode: (key, channel state, upload) -> (payload, channel state). The payload is sent.
        decode: (payload) -> the upload as the server sees it.
        bits: (payload) -> bits of the payload; needs shapes and types only.
        omega: (shapes of an upload) -> the bound in E||C(x) - x||^2 <= omega ||x||^2; None for a
            biased channel.
    """

    init: Callable[[PyTree], PyTree]
    encode: Callable[[Key[Array, ""], PyTree, PyTree], tuple[PyTree, PyTree]]
    decode: Callable[[PyTree], PyTree]
    bits: Callable[[PyTree], int] = tree.bits
    omega: Callable[[PyTree], float] | None = None
