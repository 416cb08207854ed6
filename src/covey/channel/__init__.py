"""Channels that uploads pass through: codecs, and their composition over the parts of an upload.

A codec's payload is what travels, packed to the bit, and a simulation uses what decodes from it.
`Channel.omega` bounds the variance of the unbiased ones: E||C(x) - x||^2 <= omega ||x||^2.
"""

from collections.abc import Callable

from covey.channel.bfloat16 import bfloat16
from covey.channel.block import block_quantisation
from covey.channel.clipping import clipping
from covey.channel.dithering import dithering
from covey.channel.identity import identity
from covey.channel.masked import masked
from covey.channel.natural import natural
from covey.channel.partition import partition
from covey.channel.rand_k import rand_k
from covey.channel.top_k import top_k
from covey.core.channel import Channel

__all__ = [
    "CHANNELS",
    "Channel",
    "bfloat16",
    "block_quantisation",
    "clipping",
    "dithering",
    "identity",
    "masked",
    "natural",
    "partition",
    "rand_k",
    "top_k",
]

CHANNELS: dict[str, Callable[..., Channel]] = {
    "identity": identity,
    "bfloat16": bfloat16,
    "dithering": dithering,
    "block_quantisation": block_quantisation,
    "rand_k": rand_k,
    "natural": natural,
    "top_k": top_k,
    "clipping": clipping,
}
"""The catalogue: factories by name. The first line of a factory's docstring is its description."""
