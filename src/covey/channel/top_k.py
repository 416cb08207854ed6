"""Top-k with error feedback: the largest values travel, the rest is added to the next upload."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from covey.channel.packing import pack, unpack, width_of
from covey.channel.rand_k import check_k
from covey.channel.vector import by_vector
from covey.core.channel import Channel


class Largest(NamedTuple):
    """The payload: the values, and their positions, packed."""

    values: Float[Array, "*clients k"]
    positions: UInt8[Array, "*clients bytes"]


class Memory(NamedTuple):
    """The channel's state: what has not been sent yet."""

    error: Float[Array, "*clients d"]


def top_k(*, k: int) -> Channel:
    """The `k` largest values of the upload; the rest is kept for the next one; biased.

    The upload is one vector x of d values. With the client's memory e, zero at first,

        v = x + e,    C = the k largest |v_i| of v, zero elsewhere,    e = v - C.

    Biased, so there is no omega. Nothing is lost for good: what is sent adds up to what was meant,
    except for the memory. The memory moves with the client's state, so a lost upload leaves it as
    it was.

    A message holds the k values, and their positions in ceil(log2 d) bits each.

    Args:
        k: Values that travel, from 1 to the size of the upload.

    Returns:
        A channel for `covey.run(channel=...)`.

    Example:
        >>> channel, up = top_k(k=1), jnp.array([3.0, -4.0, 0.5])
        >>> payload, memory = channel.encode(jax.random.key(0), channel.init(up), up)
        >>> channel.decode(payload).tolist(), memory.error.tolist()
        ([0.0, -4.0, 0.0], [3.0, 0.0, 0.5])

    Reference: Stich, Cordonnier and Jaggi (2018), Sparsified SGD with memory; Seide et al. (2014),
    1-bit stochastic gradient descent.
    """
    check_k("top_k", k)

    def init(layout):
        return Memory(jnp.zeros(layout.size, layout.dtype))

    def encode(key, memory, vector):
        d = len(vector)
        check_k("top_k", k, d)
        wanted = vector + memory.error
        _, positions = jax.lax.top_k(jnp.abs(wanted), k)
        values = wanted[positions]  # NaN counts as the largest: it is sent
        code = Largest(values, pack(positions.astype(jnp.uint32), width_of(d - 1)))
        return code, Memory(wanted.at[positions].add(-values))

    def decode(code, layout):
        positions = unpack(code.positions, width_of(layout.size - 1), k)
        valid = jnp.all(positions < layout.size)  # no encoder sends another position
        values = jnp.where(valid, code.values, jnp.nan)
        return jnp.zeros(layout.size, layout.dtype).at[positions].set(values, mode="clip")

    return by_vector(encode, decode, init=init, omega=None)
