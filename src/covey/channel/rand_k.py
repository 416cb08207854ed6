"""Rand-k: k numbers of the vector, chosen at random, scaled up so that the vector is met on
average.

    C(x) = (d / k) sum over i in S of x_i e_i,    S uniform among the sets of k of the d places,

which is unbiased, with E||C(x) - x||^2 = (d / k - 1) ||x||^2 exactly: omega = d / k - 1.

On the wire: the numbers as they are, and a seed of 64 bits that both sides draw the places from.
The seed is drawn for the
purpose: the client's own key does not travel.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from covey.channel.vector import by_vector, poisoned
from covey.core.node import Channel


class Chosen(NamedTuple):
    """The seed of the places, and the numbers there, scaled."""

    seed: UInt32[Array, "*clients 2"]
    values: Float[Array, "*clients k"]


def rand_k(*, k: int) -> Channel:
    """`k` numbers of the upload, chosen at random and scaled by d/k; unbiased."""
    check_k("rand_k", k)

    def encode(key, state, vector):
        d = len(vector)
        check_k("rand_k", k, d)
        seed = jax.random.bits(key, (2,), jnp.uint32)
        return Chosen(seed, poisoned(vector[_places(seed, d, k)] * (d / k), vector)), state

    def decode(code, layout):
        places = _places(code.seed, layout.size, k)
        return jnp.zeros(layout.size, layout.dtype).at[places].set(code.values)

    def omega(d: int) -> float:
        check_k("rand_k", k, d)
        return d / k - 1

    return by_vector(encode, decode, omega=omega)


def check_k(name: str, k: int, d: int | None = None) -> None:
    """A ValueError for a k that is not from 1 to d."""
    if k < 1:
        raise ValueError(f"{name}: k must be at least 1, got {k}")
    if d is not None and k > d:
        raise ValueError(
            f"{name}: k = {k} numbers cannot be chosen of the {d} that the upload has; choose k up to {d}"
        )


def _places(seed: UInt32[Array, " 2"], d: int, k: int) -> Int[Array, " k"]:
    return jax.random.permutation(jax.random.wrap_key_data(seed, impl="threefry2x32"), d)[:k]
