"""Clipping: no row moves the sum by more than it may, and where the bound is large nothing is
changed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import models
from covey.core.shard import Batch, Rows, Spec
from covey.privacy import clipped_sum

MODEL = models.logistic()


def problem(rows: int = 12) -> tuple[dict, Batch]:
    random = np.random.default_rng(3)
    x = random.normal(size=(rows, 3)) * np.geomspace(0.01, 30, rows)[:, None]
    y = random.integers(0, 2, rows)
    spec = jax.eval_shape(lambda: Rows(jnp.zeros(3), jnp.int32(0)))
    theta = MODEL.init(jax.random.key(1), Spec(spec, 2))
    theta = jax.tree.map(lambda leaf: leaf + 0.3, theta)
    return theta, Batch(Rows(jnp.asarray(x, jnp.float32), jnp.asarray(y)), jnp.ones(rows, bool))


def norm_of(tree: dict) -> float:
    return float(jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(tree))))


def by_hand(theta, batch, clip):
    """Row by row, in plain numpy."""
    total = jax.tree.map(lambda leaf: np.zeros(leaf.shape), theta)
    gradient_of = jax.jit(jax.grad(lambda at, one: -MODEL.log_likelihood(at, one)[0]))
    for index in range(len(batch.mask)):
        gradient = gradient_of(
            theta, jax.tree.map(lambda leaf, at=index: leaf[at : at + 1], batch.rows)
        )
        length = np.sqrt(
            sum(float(np.sum(np.asarray(leaf, float) ** 2)) for leaf in jax.tree.leaves(gradient))
        )
        scale = min(1.0, clip / length)
        total = jax.tree.map(
            lambda so_far, leaf, scale=scale: so_far + scale * np.asarray(leaf, float),
            total,
            gradient,
        )
    return total


def close(ours, theirs, tolerance=1e-5):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


TOTAL = jax.jit(clipped_sum(MODEL.log_likelihood, clip=0.7))


def test_sum_is_that_of_rows_clipped_one_by_one():
    theta, batch = problem()
    expected = by_hand(theta, batch, 0.7)
    close(TOTAL(theta, batch), expected)
    close(
        jax.jit(clipped_sum(MODEL.log_likelihood, clip=0.7, rows_at_once=5))(theta, batch), expected
    )


def test_a_large_bound_changes_nothing():
    theta, batch = problem()
    plain = jax.jit(jax.grad(lambda at: -jnp.sum(MODEL.log_likelihood(at, batch.rows))))(theta)
    close(jax.jit(clipped_sum(MODEL.log_likelihood, clip=1e6))(theta, batch), plain)


def test_no_row_moves_the_sum_by_more_than_the_bound():
    theta, batch = problem()
    norms = [
        norm_of(TOTAL(theta, Batch(batch.rows, jnp.arange(12) == index))) for index in range(12)
    ]
    assert max(norms) <= 0.7 * (1 + 1e-5)
    assert max(norms) > 0.69  # some rows are at the bound, or nothing was tested
    assert min(norms) < 0.1


def test_padding_counts_as_nothing_whatever_it_holds():
    theta, batch = problem()
    spoilt = batch.rows._replace(x=batch.rows.x.at[4:].set(jnp.nan))
    few = jax.tree.map(lambda leaf: leaf[:4], batch)
    close(TOTAL(theta, Batch(spoilt, jnp.arange(12) < 4)), by_hand(theta, few, 0.7))


@pytest.mark.parametrize("value", [jnp.inf, jnp.nan])
def test_a_row_that_is_not_finite_counts_as_nothing(value):
    theta, batch = problem()
    spoilt = Batch(batch.rows._replace(x=batch.rows.x.at[5].set(value)), batch.mask)
    without = Batch(batch.rows, jnp.arange(12) != 5)
    close(TOTAL(theta, spoilt), TOTAL(theta, without))


def linear(theta, rows):
    """A row's gradient is the row."""
    return -jnp.sum(rows * theta, -1)


CLIPPED_ROW = jax.jit(
    lambda row: clipped_sum(linear, clip=0.3)(jnp.zeros(4), Batch(row[None], jnp.ones(1, bool)))
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(-1e9, 1e9, width=32), min_size=4, max_size=4))
def test_norm_of_any_row_is_bounded(row):
    clipped = np.asarray(CLIPPED_ROW(jnp.asarray(row, jnp.float32)))
    length = np.linalg.norm(np.asarray(row, np.float64))
    assert np.linalg.norm(clipped) <= 0.3 * (1 + 1e-5)
    np.testing.assert_allclose(
        clipped, np.asarray(row) * min(1.0, 0.3 / max(length, 1e-300)), rtol=1e-4, atol=1e-15
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [({"clip": 0.0}, "must be above 0"), ({"clip": 1.0, "rows_at_once": 0}, "at least 1")],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        clipped_sum(linear, **options)
