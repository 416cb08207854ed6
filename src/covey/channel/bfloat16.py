"""Half precision with stochastic rounding."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from covey.core.algorithm import no_state
from covey.core.channel import Channel


def bfloat16() -> Channel:
    """Values in half precision, 16 bits each, rounded at random; unbiased.

    A float32 keeps its upper 16 bits (bfloat16). The lower 16 are the fraction of the way to the
    next bfloat16, so adding 16 uniform random bits before they are cut off rounds up with exactly
    that probability: E[C(x)] = x, and the relative error of a value is below 2^-7. Its variance is
    that step squared times p (1 - p) <= 1/4: omega = 2^-16. Arrays that are not float32 travel as
    they are.

    Returns:
        A channel for `covey.run(channel=...)`.

    Example:
        >>> channel = bfloat16()
        >>> payload, _ = channel.encode(jax.random.key(0), (), jnp.array([1.0, 3.14159]))
        >>> channel.bits(payload)
        32
        >>> [round(value, 4) for value in channel.decode(payload).tolist()]  # 3.1406 or 3.1562
        [1.0, 3.1406]
    """

    def encode(key, state, up):
        leaves, structure = jax.tree.flatten(up)
        sent = [_round(jax.random.fold_in(key, index), leaf) for index, leaf in enumerate(leaves)]
        return jax.tree.unflatten(structure, sent), state

    def decode(payload):
        return jax.tree.map(
            lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf, payload
        )

    return Channel(init=no_state, encode=encode, decode=decode, omega=lambda up: 2.0**-16)


def _round(key: Key[Array, ""], values: Array) -> Array:
    if values.dtype != jnp.float32:
        return values
    return _stochastic_bfloat16(key, values)


def _stochastic_bfloat16(key: Key[Array, ""], values: Float[Array, "*s"]) -> Float[Array, "*s"]:
    word = jax.lax.bitcast_convert_type(values, jnp.uint32)
    noise = jax.random.bits(key, values.shape, jnp.uint16).astype(jnp.uint32)
    upper = ((word + noise) >> 16).astype(jnp.uint16)
    rounded = jax.lax.bitcast_convert_type(upper, jnp.bfloat16)
    # A carry into the bits of a NaN or an infinity would make another value of it.
    return jnp.where(jnp.isfinite(values), rounded, values.astype(jnp.bfloat16))
