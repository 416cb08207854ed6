"""Block-p-quantisation: each block of the vector keeps its norm, and of each number whether it is
plus it, minus it, or zero.

Mishchenko et al. (2019), "Distributed learning with compressed gradient differences" (DIANA),
definition 2; the compressor of the FedEM paper, appendix B. For each block x of q numbers,

    C(x)_i = ||x||_p sign(x_i) B_i,    B_i Bernoulli(|x_i| / ||x||_p),

which is unbiased, with E||C(x) - x||^2 = ||x||_1 ||x||_p - ||x||^2 <= omega ||x||^2 and

    omega = sqrt(q) - 1 for p = 2,    (sqrt(q) - 1) / 2 for p = inf,    q - 1 for p = 1;   q is that of the largest block.

On the wire: a norm for each block, and five numbers of three values in one byte (3^5 = 243): 1.6
bits a number.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from covey.channel.vector import Norm, by_vector, check_norm, fractions, length
from covey.core.node import Channel


class Quantised(NamedTuple):
    """The norm of each block; zero, plus or minus for each number, five in a byte."""

    norms: Float[Array, "*clients blocks"]
    codes: UInt8[Array, "*clients bytes"]


def block_quantisation(*, block: int, norm: Norm = 2) -> Channel:
    """Of each number zero, plus or minus the norm of its block of `block` numbers; unbiased."""
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
        norms = jnp.where(
            jnp.all(code.codes < 3**5), code.norms, jnp.nan
        )  # no encoder sends another byte
        norms = jnp.repeat(norms, block)[: layout.size]
        # Zero times the norm, not zero: the numbers of a block whose norm is not finite are none.
        return norms * jnp.array([0, 1, -1], norms.dtype)[digits]

    def omega(d: int) -> float:
        q = min(block, d)
        return {1: q - 1.0, 2: math.sqrt(q) - 1, "inf": (math.sqrt(q) - 1) / 2}[norm]

    return by_vector(encode, decode, omega=omega)


_PLACES = (1, 3, 9, 27, 81)


def _five_in_a_byte(digits: Array) -> UInt8[Array, " bytes"]:
    fives = jnp.pad(digits, (0, -len(digits) % 5)).reshape(-1, 5)
    return (fives @ jnp.array(_PLACES, fives.dtype)).astype(jnp.uint8)


def _from_bytes(packed: UInt8[Array, " bytes"], number: int) -> Array:
    return (packed[:, None] // jnp.array(_PLACES, jnp.uint8) % 3).ravel()[:number]
