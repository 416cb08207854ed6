"""Where every random number comes from.

A key is a function of (run seed, stream, round, client id) and of nothing else. It is never split
by a client's place in a batch and never stored in state, so a round gives the same numbers on every
engine, for every chunk size, and after a resume.
"""

import secrets
from enum import IntEnum
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

Integer: TypeAlias = int | Int[Array, ""]


class Stream(IntEnum):
    """What a key is for. The numbers are part of the format of a run: append, never renumber."""

    INIT = 0
    COHORT = 1
    FAULT = 2
    FIRST = 3  # a client's state at its first round
    CLIENT = 4
    UPLINK = 5
    SERVER = 6
    ADAPT = 7
    EVALUATE = 8
    PREDICT = 9
    DRAWS = 10


def root_key(seed: int) -> Key[Array, ""]:
    """The key of a run. Threefry, named: with `rbg` a batched draw depends on the batch, and
    engines would disagree.
    """
    if not jax.threefry_partitionable.value:
        raise ValueError(
            "JAX's option jax_threefry_partitionable is off: draws would depend on the length of their array, and so results on "
            "how clients are grouped; leave it on"
        )
    return jax.random.key(seed, impl="threefry2x32")


def secret_key() -> Key[Array, ""]:
    """A key from this machine's entropy, which nobody who knows the run's seed can derive.

    For what a deployed client must keep to itself: noise whose key the server knows, the server can
    subtract. It is drawn anew at each start and never stored: with a stored one, two different
    broadcasts of the same round would be answered with the same noise, and their difference without
    any.
    """
    return jax.random.wrap_key_data(
        jnp.asarray(np.frombuffer(secrets.token_bytes(8), np.uint32)), impl="threefry2x32"
    )


def key_for(
    root: Key[Array, ""], stream: Stream, round_: Integer, client_id: Integer | None = None
) -> Key[Array, ""]:
    """The key of a stream in a round, for one client where `client_id` is given."""
    key = jax.random.fold_in(jax.random.fold_in(root, int(stream)), round_)
    return key if client_id is None else jax.random.fold_in(key, client_id)


def without_replacement(key: Key[Array, ""], population: Integer, size: int) -> Int[Array, " size"]:
    """`size` different numbers below `population`, every set as likely as any other; where there
    are fewer, 0 to size - 1.

    Floyd's sampling (Bentley and Floyd 1987) touches `size` numbers, however many there are: for j
    = n - size .. n - 1 draw r in 0 .. j and take r, or j where r is taken.
    """
    last = jnp.maximum(population - size, 0) + jnp.arange(size)
    draws = jax.random.randint(key, (size,), 0, last + 1)

    def body(step, chosen):
        taken = jnp.any(chosen == draws[step])
        return chosen.at[step].set(jnp.where(taken, last[step], draws[step]))

    return jax.lax.fori_loop(0, size, body, jnp.full(size, -1))
