import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.core.keys import Stream, key_for, root_key, without_replacement


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


def test_the_values_of_streams_stay_as_they_are():
    """They are part of the format of a run: another order would change every result."""
    names = "INIT COHORT FAULT FIRST CLIENT UPLINK SERVER ADAPT EVALUATE PREDICT DRAWS"
    assert [stream.name for stream in sorted(Stream)] == names.split()
    assert [int(stream) for stream in sorted(Stream)] == list(range(11))


def test_draws_that_depend_on_their_array_are_refused():
    with jax.threefry_partitionable(False), pytest.raises(ValueError, match="leave it on"):
        root_key(0)


def test_seeds_of_64_bits_have_keys_of_their_own_in_either_precision():
    """Below 2^32 the keys are those of jax.random.key; JAX drops the upper bits of others."""
    seeds = [0, 1, 7, 2**31 + 5, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    keys = [np.asarray(jax.random.key_data(root_key(seed))) for seed in seeds]
    assert len(np.unique(np.stack(keys), axis=0)) == len(seeds)
    for seed, key in zip(seeds[:5], keys, strict=False):
        np.testing.assert_array_equal(key, jax.random.key_data(jax.random.key(seed)))
    with jax.enable_x64(True):
        for seed, key in zip(seeds, keys, strict=True):
            np.testing.assert_array_equal(key, jax.random.key_data(root_key(seed)))


@pytest.mark.parametrize("seed", [-1, 2**64, 10**30])
def test_a_seed_outside_of_64_bits_is_refused(seed):
    with pytest.raises(ValueError, match=rf"seed must be .* from 0 to 2\^64 - 1, got {seed}$"):
        root_key(seed)


def test_every_set_is_as_likely_as_any_other():
    """3 of 6: twenty sets, 8,000 draws; Pearson's statistic has 19 degrees of freedom, and 43.8 is
    its 0.999 quantile.
    """
    draw = jax.jit(jax.vmap(lambda key: without_replacement(key, jnp.int32(6), 3)))
    drawn = np.sort(np.asarray(draw(jax.random.split(root_key(0), 8000))), axis=1)
    assert np.all(np.diff(drawn, axis=1) > 0)
    _, counts = np.unique(drawn @ [1, 10, 100], return_counts=True)
    assert len(counts) == 20
    assert np.sum((counts - 400) ** 2 / 400) < 43.8
    fewer = jax.jit(lambda key: without_replacement(key, jnp.int32(2), 3))(root_key(0))
    np.testing.assert_array_equal(np.sort(fewer), [0, 1, 2])
