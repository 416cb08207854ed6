"""Gaussians with a precision of low rank, against the matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.kernels.low_rank import columns, deviations, from_image

SIZE, LEVEL = 8, 5.0


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def lost(directions):
    """L of a few directions, below LEVEL I."""
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(SIZE, directions)))[0]
    return axes * np.linspace(1.0, 4.0, directions) @ axes.T


def law_of(matrix, rank):
    omega = columns(jnp.uint32(7), SIZE, rank)
    return from_image(jnp.asarray(LEVEL), jnp.asarray(matrix) @ omega, omega)


def precision(law):
    return float(law.level) * (np.eye(SIZE) - law.axes * law.shrunk @ law.axes.T)


@pytest.mark.parametrize(("directions", "rank"), [(3, 3), (3, 5), (8, 8), (2, 20)])
def test_exact_where_the_rank_is_enough(directions, rank):
    np.testing.assert_allclose(
        precision(law_of(lost(directions), rank)),
        LEVEL * np.eye(SIZE) - lost(directions),
        atol=1e-10,
    )


def test_fewer_columns_never_make_a_direction_less_known():
    missed = np.linalg.eigvalsh(precision(law_of(lost(6), 3)) - (LEVEL * np.eye(SIZE) - lost(6)))
    assert missed.min() > -1e-10
    assert missed.max() > 0.1


def test_draws_have_the_covariance():
    """Each entry of the sample covariance of independent draws has variance (c_ii c_jj + c_ij^2) /
    draws.
    """
    law, number = law_of(lost(3), 3), 20_000
    covariance = np.linalg.inv(LEVEL * np.eye(SIZE) - lost(3))
    drawn = np.asarray(jax.jit(deviations, static_argnums=2)(jax.random.key(0), law, number))
    error = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / number)
    assert np.all(np.abs(drawn.T @ drawn / number - covariance) < 4.5 * error)
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() > 5 * error.max()


def test_an_unknown_precision_gives_no_draws():
    omega = columns(jnp.uint32(7), SIZE, 2)
    law = from_image(jnp.zeros(()), jnp.zeros((SIZE, 2)), omega)
    assert np.all(np.isnan(deviations(jax.random.key(0), law, 3)))
    assert np.all(np.isfinite(law.axes))
