"""Block-p-quantisation, the compressor of DIANA and of the FedEM paper."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from covey.channel.vector import Norm, by_vector, check_norm, fractions, length
from covey.core.channel import Channel

_POWERS = (1, 3, 9, 27, 81)


class Quantised(NamedTuple):
    """The payload: the norm of each block; zero, plus or minus for each value, five per byte."""

    norms: Float[Array, "*clients blocks"]
    codes: UInt8[Array, "*clients bytes"]


def block_quantisation(*, block: int, norm: Norm = 2) -> Channel:
    """Each value becomes zero, plus or minus the norm of its block; unbiased.

    The upload is one vector, cut into blocks of q values. For each block x,

        C(x)_i = ||x||_p sign(x_i) B_i,    B_i Bernoulli(|x_i| / ||x||_p),

    which is unbiased, with E||C(x) - x||^2 = ||x||_1 ||x||_p - ||x||^2 <= omega ||x||^2 and

        omega = sqrt(q) - 1 for p = 2,  (sqrt(q) - 1) / 2 for p = inf,  q - 1 for p = 1.

    A message holds one norm per block, and five values in a byte (3^5 = 243): 1.6 bits per value.

    Args:
        block: Values per block (q_l in the paper). Smaller blocks are more accurate and cost one
            norm each.
        norm: Norm of a block: 1, 2 or "inf" (p in the paper). Default: 2. "inf" is more accurate.

    Returns:
        A channel for `covey.run(channel=...)`.

    Example:
        >>> channel = block_quantisation(block=4, norm="inf")
        >>> up = jnp.array([1.0, -2.0, 0.0, 2.0, 5.0])
        >>> payload, _ = channel.encode(jax.random.key(0), channel.init(up), up)
        >>> channel.bits(payload)  # two norms and a byte
        72
        >>> channel.decode(payload).tolist()  # the first is 0 or 2
        [0.0, -2.0, 0.0, 2.0, 5.0]

    Reference: Mishchenko et al. (2019), Distributed learning with compressed gradient differences,
    definition 2; Dieuleveut et al. (2021), appendix B.
    """
    if block < 1:
        raise ValueError(f"block_quantisation: block must be at least 1, got {block}")
    check_norm("block_quantisation", norm)

    def encode(key, state, vector):
        blocks = jnp.pad(vector, (0, -len(vector) % block)).reshape(-1, block)
        norms = length(blocks, norm)
        on = jax.random.uniform(key, blocks.shape, blocks.dtype) < fractions(blocks, norms)
        digits = jnp.where(on, jnp.where(blocks < 0, 2, 1), 0).ravel()[: len(vector)]
        return Quantised(norms, _five_in_a_byte(digits)), state

    def decode(code, layout):
        digits = _from_bytes(code.codes, layout.size)
        valid = jnp.all(code.codes < 3**5)  # no encoder sends another byte
        norms = jnp.repeat(jnp.where(valid, code.norms, jnp.nan), block)[: layout.size]
        # Zero times the norm, not zero: no value of a block is finite where its norm is not.
        return norms * jnp.array([0, 1, -1], norms.dtype)[digits]

    def omega(d: int) -> float:
        q = min(block, d)
        return {1: q - 1.0, 2: math.sqrt(q) - 1, "inf": (math.sqrt(q) - 1) / 2}[norm]

    return by_vector(encode, decode, omega=omega)


def _five_in_a_byte(digits: Array) -> UInt8[Array, " bytes"]:
    fives = jnp.pad(digits, (0, -len(digits) % 5)).reshape(-1, 5)
    return (fives @ jnp.array(_POWERS, fives.dtype)).astype(jnp.uint8)


def _from_bytes(packed: UInt8[Array, " bytes"], count: int) -> Array:
    return (packed[:, None] // jnp.array(_POWERS, jnp.uint8) % 3).ravel()[:count]
