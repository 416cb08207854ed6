"""Natural compression: powers of two."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt

from covey.channel.packing import pack, unpack
from covey.channel.vector import by_vector
from covey.core.channel import Channel

_WORDS = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}


def natural() -> Channel:
    """Values rounded at random to powers of two: 9 bits of a float32; unbiased.

    A value is sign 2^e (1 + f) with f in [0, 1); it becomes sign 2^(e+1) with probability f and
    sign 2^e otherwise: unbiased, and f (1 - f) / (1 + f)^2 <= 1/8 = omega.

    The fraction f lies in the lower bits of the value, so adding as many random bits and cutting
    them off rounds up with exactly that probability. A value below the smallest normal one becomes
    that or zero. One in the topmost octave may become infinite.

    A message holds sign and exponent of each value: 9 bits of a float32, 12 of a float64.

    Returns:
        A channel for `covey.run(channel=...)`.

    Example:
        >>> channel, up = natural(), jnp.array([3.0, -4.0, 0.5])
        >>> payload, _ = channel.encode(jax.random.key(0), channel.init(up), up)
        >>> channel.bits(payload)  # 27 bits in 4 bytes
        32
        >>> channel.decode(payload).tolist()  # the first is 2 or 4
        [4.0, -4.0, 0.5]

    Reference: Horvath et al. (2019), Natural compression for distributed deep learning.
    """

    def encode(key, state, vector):
        kind = jnp.finfo(vector.dtype)
        return pack(_powers(key, vector).astype(jnp.uint32), 1 + kind.nexp), state

    def decode(code, layout):
        kind = jnp.finfo(layout.dtype)
        upper = unpack(code, 1 + kind.nexp, layout.size).astype(_WORDS[kind.dtype.itemsize])
        return jax.lax.bitcast_convert_type(upper << kind.nmant, layout.dtype)

    return by_vector(encode, decode, omega=lambda d: 1 / 8)


def _powers(key: jax.Array, vector: Float[Array, " d"]) -> UInt[Array, " d"]:
    """Sign and exponent of the power that each value is rounded to."""
    kind = jnp.finfo(vector.dtype)
    word = jax.lax.bitcast_convert_type(vector, _WORDS[kind.dtype.itemsize])
    noise = jax.random.bits(key, vector.shape, word.dtype) >> (kind.bits - kind.nmant)
    # A carry into the bits of a NaN would make another value of it.
    noise = jnp.where(jnp.isfinite(vector), noise, 0)
    return (word + noise) >> kind.nmant
