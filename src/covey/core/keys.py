"""Random keys: each is a function of (run seed, stream, round, client id) and of nothing else.

A key is never split by a client's position in a batch and never stored in state, so a round gives
the same values on every engine, for every chunk size, and after a resume.
"""

import hmac
import secrets
from enum import IntEnum
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

Integer: TypeAlias = int | Int[Array, ""]

_IMPLEMENTATION = "threefry2x32"  # with `rbg`, a draw would depend on the batch it is part of


class Stream(IntEnum):
    """The use of a key. The values are part of the format of a run: append, never renumber."""

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
    """The key of a run.

    Args:
        seed: Whole number from 0 to 2^64 - 1. Different seeds give different keys, in single and
            in double precision.

    Returns:
        A threefry key; for seeds below 2^32 that of `jax.random.key`.

    Raises:
        ValueError: the seed is outside of that range, or JAX is set to draws that depend on the
            length of their array.

    Example:
        >>> jax.random.key_data(root_key(7)).tolist()
        [0, 7]
    """
    if not jax.threefry_partitionable.value:
        raise ValueError(
            "JAX's option jax_threefry_partitionable is off: draws would depend on the length of "
            "their array, and results on how clients are grouped; leave it on"
        )
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise ValueError(f"seed must be a whole number from 0 to 2^64 - 1, got {seed}")
    return _key_of_words(np.array(divmod(int(seed), 2**32), np.uint32))


def secret_key() -> Key[Array, ""]:
    """A key from this machine's entropy, which nobody who knows the run's seed can derive.

    For noise that a deployed client must keep to itself: noise from a key that the server knows
    can be subtracted. The key of an answer is `message_key` of the broadcast: with one key for
    every broadcast of a round, the difference of two answers would show the data without any noise.

    Returns:
        A threefry key.

    Example:
        >>> bool(jnp.all(jax.random.key_data(secret_key()) == jax.random.key_data(secret_key())))
        False
    """
    return _key_of_words(np.frombuffer(secrets.token_bytes(8), np.uint32))


def message_key(secret: Key[Array, ""], *message: bytes) -> Key[Array, ""]:
    """The key of one answer: a keyed hash of everything that the answer depends on.

    Two different broadcasts get keys that have nothing to do with each other, whatever rounds and
    epochs they claim to be of, and even at a site whose store was put back to an earlier time. So
    the same noise is never sent with two broadcasts. The same message gets the same key.

    Args:
        secret: Key that only the site knows, from `secret_key`.
        message: The message that is answered, and the state that it is answered from.

    Returns:
        A threefry key: 8 bytes of the HMAC-SHA-256 of the message.

    Example:
        >>> secret = root_key(7)
        >>> one, other = message_key(secret, b"round 1"), message_key(secret, b"round 2")
        >>> bool(jnp.any(jax.random.key_data(one) != jax.random.key_data(other)))
        True
    """
    code = hmac.new(np.asarray(jax.random.key_data(secret)).tobytes(), digestmod="sha256")
    for part in message:
        code.update(len(part).to_bytes(8, "little"))
        code.update(part)
    return _key_of_words(np.frombuffer(code.digest()[:8], np.uint32))


def key_for(
    root: Key[Array, ""], stream: Stream, round_: Integer, client_id: Integer | None = None
) -> Key[Array, ""]:
    """The key of a stream in a round, for one client where an id is given.

    Args:
        root: Key of the run, from `root_key`.
        stream: The use of the key.
        round_: Round, counted from 0.
        client_id: Stable integer of the client; None for what the server draws.

    Returns:
        fold_in(fold_in(fold_in(root, stream), round), client_id).

    Example:
        >>> key = key_for(root_key(0), Stream.CLIENT, 3, 12)
        >>> bool(jnp.any(jax.random.key_data(key) != jax.random.key_data(root_key(0))))
        True
    """
    key = jax.random.fold_in(jax.random.fold_in(root, int(stream)), round_)
    return key if client_id is None else jax.random.fold_in(key, client_id)


def without_replacement(key: Key[Array, ""], population: Integer, size: int) -> Int[Array, " size"]:
    """Different integers below `population`, every set as likely as any other.

    Floyd's sampling (Bentley and Floyd 1987) costs `size` draws, however large the population: for
    j = n - size .. n - 1 draw r in 0 .. j and take r, or j where r is already taken.

    Args:
        key: Random key, used once.
        population: Number of integers to choose from (n).
        size: Number of integers to choose.

    Returns:
        The chosen integers; 0 to size - 1 where the population is smaller than that.

    Example:
        >>> sorted(without_replacement(jax.random.key(0), 3, 3).tolist())
        [0, 1, 2]
    """
    last = jnp.maximum(population - size, 0) + jnp.arange(size)
    draws = jax.random.randint(key, (size,), 0, last + 1)

    def body(step, chosen):
        taken = jnp.any(chosen == draws[step])
        return chosen.at[step].set(jnp.where(taken, last[step], draws[step]))

    return jax.lax.fori_loop(0, size, body, jnp.full(size, -1))


def _key_of_words(words: np.ndarray) -> Key[Array, ""]:
    return jax.random.wrap_key_data(jax.device_put(words), impl=_IMPLEMENTATION)
