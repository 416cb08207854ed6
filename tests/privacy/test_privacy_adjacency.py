"""Adjacency: one row is replaced by another or by nothing; the number of rows is not hidden."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import models
from covey.algorithms.fald import fald
from covey.core.algorithm import Empty, Plan
from covey.core.cohort import full
from covey.core.shard import Rows, Spec, whole

CLIP, ROWS = 0.8, 20
SPEC = Spec(
    Rows(jax.ShapeDtypeStruct((2,), np.float32), jax.ShapeDtypeStruct((), np.float32)), None, 2, 80
)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 2)).astype(np.float32) * 10
Y = RANDOM.normal(size=ROWS).astype(np.float32)


def method(**changes):
    options = {"step_size": 1e-3, "local_steps": 1, "chains": 1, "keep": 1, "clip": CLIP}
    return fald(models.linear(), **(options | changes))


def upload(some, x, y):
    """What a client sends, by one and the same draw of noise."""
    down = some.broadcast(some.init(jax.random.key(0), SPEC))
    data = whole(Rows(jnp.asarray(x), jnp.asarray(y)))
    return jax.jit(lambda key: some.client(key, down, Empty(), data))(jax.random.key(5))


def change_of_sum(one, other) -> float:
    """How far the sum of clipped gradients moved, in units of C; the step multiplies it."""
    step = 1e-3 * 80 / ROWS
    apart = jax.tree.map(jnp.subtract, one.up, other.up)
    return math.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(apart))) / step / CLIP


def mechanism(**changes):
    counts = np.array([20, 60])
    return method(**changes).privacy(Plan(counts, full()(counts)))


def test_a_row_that_becomes_nothing_moves_the_sum_by_c_and_another_row_by_up_to_twice_that():
    some, third = method(sampling="poisson"), np.arange(ROWS) == 3
    here = upload(some, X, Y)
    gone = upload(some, np.where(third[:, None], np.nan, X).astype(np.float32), Y)  # counts as zero
    others = [upload(some, X, np.where(third, y, Y).astype(np.float32)) for y in (1e4, -1e4)]
    assert change_of_sum(here, gone) == pytest.approx(1, rel=1e-3)
    assert max(change_of_sum(here, other) for other in others) == pytest.approx(2, rel=1e-3)
    assert float(gone.weight) == float(here.weight)


def test_how_many_rows_a_client_has_is_not_hidden():
    """So adding or removing a row is outside of what is accounted: n_c travels exactly."""
    some = method(sampling="poisson")
    assert float(upload(some, X[1:], Y[1:]).weight) != float(upload(some, X, Y).weight)


@pytest.mark.parametrize(
    ("sampling", "adjacency", "sensitivity"),
    [("fixed", "replace-one", 2 * CLIP), ("poisson", "zero-out", CLIP)],
)
def test_noise_is_in_units_of_the_sensitivity_of_its_adjacency(sampling, adjacency, sensitivity):
    some = mechanism(sampling=sampling, batch_size=10)
    assert (some.adjacency, some.sensitivity) == (adjacency, sensitivity)
    deviation = math.sqrt(2 * 1e-3 / 0.25)  # of the noise of the client with p_c = 1/4
    gain = 1e-3 * 80 / 10  # what a step makes of the sum
    assert some.noises[0] == pytest.approx(deviation / (gain * sensitivity))


def test_replacing_a_row_is_zeroing_one_and_filling_another():
    """Without sampling, noise that hides one of the two hides the other at half the size."""
    zero = mechanism(sampling="poisson")
    one = mechanism()
    assert replace(one, clip=CLIP / 2).noises[0] == zero.noises[0]
