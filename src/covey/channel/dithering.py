"""Random dithering (QSGD)."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from covey.channel.packing import pack, unpack, width_of
from covey.channel.vector import Norm, by_vector, check_norm, fractions, length
from covey.core.channel import Channel

MOST_LEVELS = 2**16


class Dithered(NamedTuple):
    """The payload: the norm, and sign and level of each value, packed."""

    norm: Float[Array, "*clients"]
    codes: UInt8[Array, "*clients bytes"]


def dithering(*, levels: int, norm: Norm = 2) -> Channel:
    """Values rounded at random to levels of their vector's norm (QSGD); unbiased.

    The upload is one vector x of d values. With s levels between 0 and its norm,

        C(x)_i = ||x||_r sign(x_i) l_i / s,
        l_i    = floor(s |x_i| / ||x||_r + U_i),    U_i uniform in [0, 1),

    so that E[C(x)] = x. The variance of a value is (||x||_r / s)^2 p (1 - p), p the fractional
    part, and p (1 - p) is at most 1/4 and at most s |x_i| / ||x||_r. With ||x||_1 <= sqrt(d) ||x||,
    this gives E||C(x) - x||^2 <= omega ||x||^2 with

        omega = min(d / 4 s^2, sqrt(d) / s)             for r = 2,
                min(d / 4 s^2, (1 + sqrt(d)) / 2 s)     for r = inf,
                min(d^2 / 4 s^2, d / s)                 for r = 1.

    A message holds the norm, then a sign bit and the level of each value.

    Args:
        levels: Levels above zero (s in the paper), from 1 to 65536. 7 levels are 4 bits per value,
            1 level is 2, 127 are 8.
        norm: Norm of the vector: 1, 2 or "inf" (r above). Default: 2, as in the paper; "inf" is
            more accurate.

    Returns:
        A channel for `covey.run(channel=...)`.

    Example:
        >>> channel = dithering(levels=7)
        >>> up = jnp.array([3.0, -4.0, 0.0])
        >>> payload, _ = channel.encode(jax.random.key(0), channel.init(up), up)
        >>> channel.bits(payload)  # 3 values of 4 bits in 2 bytes, and the norm
        48
        >>> [round(7 / 5 * value) for value in channel.decode(payload).tolist()]  # 4.2 and -5.6
        [5, -6, 0]

    Reference: Alistarh et al. (2017), QSGD: communication-efficient SGD via gradient quantization
    and encoding, section 3.1.
    """
    if not 1 <= levels <= MOST_LEVELS:
        raise ValueError(f"dithering: levels must be from 1 to {MOST_LEVELS}, got {levels}")
    check_norm("dithering", norm)
    width = 1 + width_of(levels)

    def encode(key, state, vector):
        whole = length(vector, norm)
        dither = jax.random.uniform(key, vector.shape, vector.dtype)
        # A fraction may round to just above one, and NaN is no integer: neither may leave the
        # levels.
        level = jnp.clip(
            jnp.nan_to_num(jnp.floor(levels * fractions(vector, whole) + dither)), 0, levels
        ).astype(jnp.uint32)
        sign = jnp.signbit(vector).astype(jnp.uint32)
        return Dithered(whole, pack(2 * level + sign, width)), state

    def decode(code, layout):
        signed = unpack(code.codes, width, layout.size)
        level = (signed >> 1).astype(layout.dtype)
        level = jnp.where(level <= levels, level, jnp.nan)  # no encoder sends such a level
        return jnp.where(signed & 1, -code.norm, code.norm) * (level / levels)

    def omega(d: int) -> float:
        if norm == 1:
            return min((d / (2 * levels)) ** 2, d / levels)
        return min(
            d / (4 * levels**2),
            math.sqrt(d) / levels if norm == 2 else (1 + math.sqrt(d)) / (2 * levels),
        )

    return by_vector(encode, decode, omega=omega)
