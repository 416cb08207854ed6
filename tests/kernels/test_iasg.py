"""Averaged iterates against averaging, step by step, what plain descent gives."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from covey.core.shard import Shard
from covey.kernels.descent import descend_steps, mean_gradient
from covey.kernels.iasg import Averaging, burnt_in, next_sample, steps_of

ROWS = 7
X = np.random.default_rng(0).normal(size=(ROWS + 3, 2)).astype(np.float32)
OPTIMIZER = optax.sgd(0.2, momentum=0.5)
GRADIENT = mean_gradient(lambda z, rows: -jnp.sum((rows - z) ** 2, -1))
START = jnp.array([5.0, -3.0])
KEY = jax.random.key(1)


def shard(count=ROWS, capacity=ROWS):
    return Shard(jnp.asarray(X), jnp.int32(0), jnp.int32(count), capacity)


def samples(data, plan, count):
    local = (KEY, data, GRADIENT, OPTIMIZER, plan)

    def one(walk, _):
        mean, walk = next_sample(*local, walk)
        return walk, mean

    return jax.lax.scan(one, burnt_in(*local, START), length=count)


@pytest.mark.parametrize(
    ("batch_size", "burn_in", "steps"), [(3, 2, 4), (3, 0, None), (None, 1, 2)]
)
def test_a_sample_is_the_mean_of_the_iterates(batch_size, burn_in, steps):
    """With seven rows in batches of three a pass is three steps, and samples begin and end within
    passes.
    """
    each = steps or 3
    plan = Averaging(batch_size, burn_in, steps)
    walk, found = jax.jit(lambda data: samples(data, plan, 2))(shard())
    last = burn_in + 2 * each
    descent = jax.jit(
        lambda steps: descend_steps(KEY, shard(), GRADIENT, OPTIMIZER, batch_size, steps, START)
    )
    descents = [descent(jnp.int32(step)) for step in range(burn_in + 1, last + 1)]
    points = np.stack([end.parameters for end in descents]).reshape(2, each, 2)
    np.testing.assert_allclose(found, points.mean(1), rtol=1e-5)
    np.testing.assert_allclose(walk.path.loss / last, descents[-1].loss, rtol=1e-5)
    assert int(walk.done) == last == int(steps_of(shard(), plan, 2)[1])


def test_samples_do_not_see_the_capacity_and_no_rows_are_no_steps():
    plan = Averaging(3, 2, 4)
    run = jax.jit(lambda data: samples(data, plan, 2)[1])
    np.testing.assert_array_equal(run(shard()), run(shard(capacity=10)))
    np.testing.assert_array_equal(run(shard(count=0)), np.tile(START, (2, 1)))


def test_independent_minibatches():
    """Rows with replacement, eight at a time of seven: neither the capacity nor a neighbour's rows
    are seen. Their means over passes vary once the path is at rest, as a posterior of seven rows
    does; those of shuffled passes hardly do.
    """
    plan = Averaging(8, 0, 2, "independent")
    run = jax.jit(lambda data: samples(data, plan, 2)[1])
    np.testing.assert_array_equal(run(shard()), run(shard(capacity=10)))
    np.testing.assert_array_equal(run(shard(count=0)), np.tile(START, (2, 1)))
    spreads = []
    for minibatches in ("shuffled", "independent"):
        plan = Averaging(1, 100, None, minibatches)
        found = jax.jit(lambda data, plan=plan: samples(data, plan, 300)[1])(shard())
        # Means of seven independent rows about the mean of all: within four standard errors (they
        # are correlated, so twice that).
        assert np.all(
            np.abs(np.mean(found, 0) - X[:ROWS].mean(0)) < 8 * np.std(found, 0) / np.sqrt(300)
        )
        spreads.append(np.var(found, 0))
    assert np.all(spreads[1] > 3 * spreads[0])


def test_long_means_of_independent_minibatches_have_the_covariance_of_the_theory():
    """H^-1 C H^-1 / (K m): here C = 4 var x and H = 2, so var x / K. Ends of the means take off 1 %
    with K = 200, and a variance of 400 samples is known to 7 %.
    """
    plan = Averaging(1, 100, 200, "independent")
    found = jax.jit(lambda data: samples(data, plan, 400)[1])(shard())
    ratio = np.var(found, 0, ddof=1) / (X[:ROWS].var(0) / 200)
    assert np.all(np.abs(ratio - 1) < 3.5 * np.sqrt(2 / 400))
