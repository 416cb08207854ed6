"""The problems' posteriors are those of the package's own models: at a posterior, the mean score
vanishes (Stein's identity).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import SIZES, gaussian_mean, linear_gaussian, logistic

from covey import models
from covey.models.linear import Linear


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def scores(model, data, draws, prior_precision):
    """Gradient of the log posterior at each draw of (w, b), summed over clients."""
    rows = jax.tree.map(jnp.asarray, data.rows)

    def log_posterior(theta):
        likelihood = model.log_likelihood(Linear(theta[:-1], theta[-1]), rows).sum()
        return likelihood - prior_precision / 2 * jnp.sum(theta**2)

    return np.asarray(jax.vmap(jax.grad(log_posterior))(jnp.asarray(draws)))


@pytest.mark.slow
def test_linear_gaussian():
    problem = linear_gaussian()
    model = models.linear(scale=problem.noise)
    at_mean = scores(model, problem.data, problem.posterior.mean[None], problem.prior_precision)
    np.testing.assert_allclose(at_mean, 0, atol=1e-3)
    # The score is linear: its slope is minus the posterior precision.
    shifted = scores(
        model, problem.data, problem.posterior.mean + np.eye(4), problem.prior_precision
    )
    np.testing.assert_allclose(
        shifted - at_mean, -np.linalg.inv(problem.posterior.covariance), rtol=1e-4, atol=1e-3
    )
    assert tuple(problem.data.counts("train")) == SIZES
    centre = np.mean([local.mean for local in problem.local], 0)
    assert (
        np.linalg.norm(centre - problem.least_squares) > 0.05
    )  # heterogeneous: averaging local fits is not the answer


def test_gaussian_mean():
    problem = gaussian_mean()
    grid = np.linspace(-5, 10, 20_001)
    values = problem.data.rows.y.astype(np.float64)
    log_density = -0.5 * (grid - problem.prior.mean[0]) ** 2 / problem.prior.covariance[0, 0]
    log_density += np.array(
        [-0.5 * np.sum((values - theta) ** 2) / problem.scale**2 for theta in grid]
    )
    weights = np.exp(log_density - log_density.max())
    weights /= weights.sum()
    mean = weights @ grid
    np.testing.assert_allclose(mean, problem.posterior.mean[0], rtol=1e-6)
    np.testing.assert_allclose(
        weights @ (grid - mean) ** 2, problem.posterior.covariance[0, 0], rtol=1e-4
    )


def test_logistic_draws_are_of_this_posterior():
    problem = logistic()
    each = scores(models.logistic(), problem.data, problem.draws, problem.prior_scale**-2)
    error = each.std(0) / np.sqrt(np.minimum(problem.effective, len(each)))
    assert np.all(np.abs(each.mean(0)) < 4 * error)
    # Stein's second identity: the score is correlated with the draw by minus one, with nothing
    # else.
    product = (each[:, :, None] * (problem.draws - problem.draws.mean(0))[:, None, :]).mean(0)
    spread = (each.std(0)[:, None] * problem.draws.std(0)[None]) / np.sqrt(problem.effective.min())
    assert np.all(np.abs(product + np.eye(4)) < 5 * spread)
