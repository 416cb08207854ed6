"""Small whole numbers as a string of bits, inside jit: `width` bits each, the last byte filled up
with zeros.
"""

import jax.numpy as jnp
from jaxtyping import Array, UInt, UInt8


def width_of(largest: int) -> int:
    """The bits that every number from 0 to `largest` fits into; at least one."""
    return max(largest.bit_length(), 1)


def pack(numbers: UInt[Array, " d"], width: int) -> UInt8[Array, " bytes"]:
    """The lowest `width` bits of each number, end to end."""
    places = jnp.arange(width, dtype=numbers.dtype)
    bits = (numbers[:, None] >> places) & 1
    return jnp.packbits(bits.astype(jnp.uint8).ravel(), bitorder="little")


def unpack(packed: UInt8[Array, " bytes"], width: int, number: int) -> UInt[Array, " d"]:
    """The first `number` numbers of a string that `pack` made."""
    bits = jnp.unpackbits(packed, count=number * width, bitorder="little").reshape(number, width)
    return jnp.sum(
        bits.astype(jnp.uint32) << jnp.arange(width, dtype=jnp.uint32), axis=1, dtype=jnp.uint32
    )
