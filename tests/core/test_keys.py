import itertools

import jax
import numpy as np
import pytest

from covey.core.keys import Stream, key_for, root_key


def test_every_use_has_its_own_key():
    root = root_key(3)
    keys = [
        jax.random.key_data(key_for(root, stream, t, client))
        for stream, t, client in itertools.product(Stream, range(4), [None, 0, 1, 2**31 - 1])
    ]
    assert len(np.unique(np.stack(keys), axis=0)) == len(keys)


def test_keys_are_the_same_traced_or_not():
    root = root_key(3)
    plain = key_for(root, Stream.CLIENT, 5, 7)
    traced = jax.jit(lambda t, client: key_for(root, Stream.CLIENT, t, client))(5, 7)
    np.testing.assert_array_equal(jax.random.key_data(plain), jax.random.key_data(traced))


def test_the_numbers_of_streams_stay_as_they_are():
    """They are part of the format of a run: another order would change every result."""
    names = "INIT COHORT FAULT FIRST CLIENT UPLINK SERVER ADAPT EVALUATE PREDICT DRAWS"
    assert [stream.name for stream in sorted(Stream)] == names.split()
    assert [int(stream) for stream in sorted(Stream)] == list(range(11))


def test_draws_that_depend_on_their_array_are_refused():
    with jax.threefry_partitionable(False), pytest.raises(ValueError, match="leave it on"):
        root_key(0)
