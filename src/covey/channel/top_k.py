"""Top-k with error feedback: the k largest numbers travel, and what did not is added to the next
upload.

Stich, Cordonnier and Jaggi (2018), "Sparsified SGD with memory"; Seide et al. (2014). With the
client's memory e, zero at first,

    v = x + e,    C = the k largest |v_i| of v, zero elsewhere,    e = v - C.

Biased: no omega. Nothing is lost for good: what is sent adds up to what was meant, but for the
memory. The memory moves with the client's state, so an upload that got lost leaves it as it was.

On the wire: the k numbers as they are, and their places at ceil(log2 d) bits each.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8

from covey.channel.packing import pack, unpack, width_of
from covey.channel.rand_k import check_k
from covey.channel.vector import by_vector
from covey.core.node import Channel


class Largest(NamedTuple):
    """The numbers, and their places, packed."""

    values: Float[Array, "*clients k"]
    places: UInt8[Array, "*clients bytes"]


class Memory(NamedTuple):
    """What has not been sent yet."""

    error: Float[Array, "*clients d"]


def top_k(*, k: int) -> Channel:
    """The `k` largest numbers of the upload, the rest remembered for the next one (error feedback);
    biased.
    """
    check_k("top_k", k)

    def init(layout):
        return Memory(jnp.zeros(layout.size, layout.dtype))

    def encode(key, memory, vector):
        d = len(vector)
        check_k("top_k", k, d)
        wanted = vector + memory.error
        _, places = jax.lax.top_k(jnp.abs(wanted), k)
        values = wanted[places]  # NaN counts as the largest: it is sent
        code = Largest(values, pack(places.astype(jnp.uint32), width_of(d - 1)))
        return code, Memory(wanted.at[places].add(-values))

    def decode(code, layout):
        places = unpack(code.places, width_of(layout.size - 1), k)
        values = jnp.where(
            jnp.all(places < layout.size), code.values, jnp.nan
        )  # no encoder sends another place
        return jnp.zeros(layout.size, layout.dtype).at[places].set(values, mode="clip")

    return by_vector(encode, decode, init=init, omega=None)
