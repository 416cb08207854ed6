"""Langevin kernels, one transition at a time; their chains are tested with the methods that run
them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.core.algorithm import Empty
from covey.core.shard import Shard
from covey.kernels import sgld, ula
from covey.kernels.kernel import Target, chain

STEP = 0.01


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("batch_size", [None, 4], ids=["ula", "sgld"])
def test_a_transition_is_a_step_up_the_gradient_and_noise(batch_size):
    """From one point, many times; whatever the capacity of the shard. A chain without noise
    fails.
    """
    kernel = ula() if batch_size is None else sgld(batch_size=batch_size)
    x = np.random.default_rng(0).normal(2.0, 1.0, 7)
    point, count = jnp.array(0.4), 20_000
    gradient, rows_gradient = float(np.sum(x - 0.4) - 0.4), x - 0.4

    def moved(capacity, keys):
        data = Shard(jnp.concatenate([x, jnp.full(5, 99.0)]), jnp.int32(0), jnp.int32(7), capacity)
        posterior = Target(lambda z: -0.5 * z**2, lambda z, rows: -0.5 * (rows - z) ** 2, data)
        return (
            np.asarray(
                jax.jit(jax.vmap(lambda key: kernel.step(key, posterior, point, Empty(), STEP)[0]))(
                    keys
                )
            )
            - 0.4
        )

    keys = jax.random.split(jax.random.key(2), count)
    ends = moved(7, keys)
    np.testing.assert_allclose(moved(12, keys), ends, rtol=1e-12)
    # The variance of a gradient of 4 of the 7 rows, drawn without replacement; of all rows there is
    # none.
    minibatch = 0.0 if batch_size is None else 7**2 * rows_gradient.var(ddof=1) / 4 * (1 - 4 / 7)
    variance = 2 * STEP + STEP**2 * minibatch
    assert abs(ends.mean() - STEP * gradient) < 4 * np.sqrt(variance / count)
    assert abs(ends.var() / variance - 1) < 4 * np.sqrt(2 / count)


def test_a_chain_keeps_its_last_states():
    data = Shard(jnp.ones(3), jnp.int32(0), jnp.int32(3), 3)
    posterior = Target(lambda z: -0.5 * z**2, lambda z, rows: -0.5 * (rows - z) ** 2, data)
    every = chain(
        jax.random.key(0),
        ula(),
        posterior,
        jnp.zeros(()),
        Empty(),
        step_size=STEP,
        burn_in=0,
        draws=7,
    ).draws
    some = chain(
        jax.random.key(0),
        ula(),
        posterior,
        jnp.zeros(()),
        Empty(),
        step_size=STEP,
        burn_in=4,
        draws=3,
    ).draws
    np.testing.assert_array_equal(some, every[4:])
    assert len(np.unique(every)) == 7


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        sgld(batch_size=0)
