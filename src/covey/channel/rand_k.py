"""Rand-k: some values, chosen at random."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from covey.channel.vector import by_vector, poisoned
from covey.core.channel import Channel


class Chosen(NamedTuple):
    """The payload: the seed that the positions are drawn from, and the values there, scaled."""

    seed: UInt32[Array, "*clients 2"]
    values: Float[Array, "*clients k"]


def rand_k(*, k: int) -> Channel:
    """`k` values of the upload, chosen at random and scaled by d/k; unbiased.

    The upload is one vector x of d values.

        C(x) = (d / k) sum over i in S of x_i e_i,    S uniform among the sets of k positions,

    which is unbiased, with E||C(x) - x||^2 = (d / k - 1) ||x||^2 exactly: omega = d / k - 1.

    A message holds the k values and a seed of 64 bits that both sides draw the positions from. The
    seed is drawn for this purpose: the client's key does not travel.

    Args:
        k: Values that travel, from 1 to the size of the upload. Smaller means fewer bits and more
            variance.

    Returns:
        A channel for `covey.run(channel=...)`.

    Example:
        >>> channel, up = rand_k(k=2), jnp.array([1.0, 2.0, 3.0, 4.0])
        >>> payload, _ = channel.encode(jax.random.key(0), channel.init(up), up)
        >>> channel.bits(payload), channel.omega(up)
        (128, 1.0)
        >>> channel.decode(payload).tolist()
        [2.0, 0.0, 6.0, 0.0]
    """
    check_k("rand_k", k)

    def encode(key, state, vector):
        d = len(vector)
        check_k("rand_k", k, d)
        seed = jax.random.bits(key, (2,), jnp.uint32)
        return Chosen(seed, poisoned(vector[_positions(seed, d, k)] * (d / k), vector)), state

    def decode(code, layout):
        positions = _positions(code.seed, layout.size, k)
        return jnp.zeros(layout.size, layout.dtype).at[positions].set(code.values)

    def omega(d: int) -> float:
        check_k("rand_k", k, d)
        return d / k - 1

    return by_vector(encode, decode, omega=omega)


def check_k(name: str, k: int, d: int | None = None) -> None:
    """Raise a ValueError for a k that is not from 1 to d."""
    if k < 1:
        raise ValueError(f"{name}: k must be at least 1, got {k}")
    if d is not None and k > d:
        raise ValueError(
            f"{name}: k = {k} values cannot be chosen of the {d} that the upload has; "
            f"choose k up to {d}"
        )


def _positions(seed: UInt32[Array, " 2"], d: int, k: int) -> Int[Array, " k"]:
    return jax.random.permutation(jax.random.wrap_key_data(seed, impl="threefry2x32"), d)[:k]
