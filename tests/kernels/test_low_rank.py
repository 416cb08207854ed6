"""Gaussians whose precision is known along some axes, against the matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.kernels.low_rank import LowRank, deviations, orthonormal_columns, power_of

SIZE = 6


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def law(rank):
    """A precision and its matrix."""
    axes = orthonormal_columns(jax.random.key(7), SIZE, rank)
    values, level = jnp.linspace(0.5, 9.0, axes.shape[1]), jnp.asarray(4.0)
    matrix = 4.0 * np.eye(SIZE) + axes * (values - 4.0) @ axes.T
    return LowRank(axes, values, level), np.asarray(matrix)


@pytest.mark.parametrize("rank", [0, 2, 20])
def test_powers_are_those_of_the_matrix(rank):
    precision, matrix = law(rank)
    right = jnp.asarray(np.random.default_rng(0).normal(size=(3, SIZE)))
    np.testing.assert_allclose(power_of(precision, 1.0, right), right @ matrix, rtol=1e-10)
    np.testing.assert_allclose(
        power_of(precision, -1.0, right[0]), np.linalg.solve(matrix, right[0]), rtol=1e-10
    )


def test_draws_have_the_covariance():
    """Each entry of the sample covariance of independent draws has variance (c_ii c_jj + c_ij^2) /
    draws.
    """
    (precision, matrix), count = law(3), 20_000
    covariance = np.linalg.inv(matrix)
    drawn = np.asarray(jax.jit(deviations, static_argnums=2)(jax.random.key(0), precision, count))
    error = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / count)
    assert np.all(np.abs(drawn.T @ drawn / count - covariance) < 4.5 * error)
    assert np.abs(covariance - np.diag(np.diag(covariance))).max() > 5 * error.max()
