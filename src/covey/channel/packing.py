"""Small integers as a string of bits, inside jit; the last byte is filled up with zeros."""

import jax.numpy as jnp
from jaxtyping import Array, UInt, UInt8


def width_of(largest: int) -> int:
    """Bits that every integer from 0 to `largest` fits into; at least one.

    Example:
        >>> [width_of(largest) for largest in (0, 1, 7, 8)]
        [1, 1, 3, 4]
    """
    return max(largest.bit_length(), 1)


def pack(values: UInt[Array, " d"], width: int) -> UInt8[Array, " bytes"]:
    """The lowest `width` bits of each integer, end to end, the lowest bit first.

    Example:
        >>> pack(jnp.array([1, 2, 3], jnp.uint32), 4).tolist()  # 0x21, 0x03
        [33, 3]
    """
    shifts = jnp.arange(width, dtype=values.dtype)
    bits = (values[:, None] >> shifts) & 1
    return jnp.packbits(bits.astype(jnp.uint8).ravel(), bitorder="little")


def unpack(packed: UInt8[Array, " bytes"], width: int, count: int) -> UInt[Array, " d"]:
    """The first `count` integers of a string that `pack` made.

    Example:
        >>> unpack(jnp.array([33, 3], jnp.uint8), 4, 3).tolist()
        [1, 2, 3]
    """
    bits = jnp.unpackbits(packed, count=count * width, bitorder="little").reshape(count, width)
    return jnp.sum(
        bits.astype(jnp.uint32) << jnp.arange(width, dtype=jnp.uint32), axis=1, dtype=jnp.uint32
    )
