"""Weighted draws against moments on a grid."""

import jax
import jax.numpy as jnp
import numpy as np

from covey.kernels.importance import laplace, prior_draws, weighted_draws


def drawn(log_density, prior_mean, prior_scale, count=4000):
    """Draws of prior times likelihood, the prior a Gaussian."""

    def log_prior(z):
        return jnp.sum(jax.scipy.stats.norm.logpdf(z, prior_mean, prior_scale))

    @jax.jit
    def draws(key):
        near, prior = jax.random.split(key)
        some = prior_mean + prior_scale * jax.random.normal(
            prior, (prior_draws(count), len(prior_mean))
        )
        around = laplace(log_density, prior_mean)
        return weighted_draws(near, log_density, around, some, log_prior, count), around

    return draws(jax.random.key(1))


def test_a_skewed_posterior():
    """Poisson counts with a Gaussian prior: moments by a fine grid; Newton overshoots from zero."""

    def log_density(z):
        return 40 * z[0] - jnp.exp(z[0]) - z[0] ** 2 / 2

    found, around = drawn(log_density, jnp.zeros(1), jnp.ones(1))
    np.testing.assert_allclose(40 - np.exp(around.mode) - around.mode, 0, atol=1e-2)
    np.testing.assert_allclose(around.deviation, 1 / np.sqrt(np.exp(around.mode) + 1), rtol=1e-3)
    grid = np.linspace(0, 6, 20001)
    density = np.exp(40 * grid - np.exp(grid) - grid**2 / 2 - 80)
    exact = np.average(grid, weights=density)
    deviation = np.sqrt(np.average((grid - exact) ** 2, weights=density))
    assert found.effective > 2000
    mean = found.weight @ found.z[:, 0]
    assert abs(mean - exact) < 4 * deviation / np.sqrt(found.effective)


def test_a_second_mode_is_found():
    """Two kinds of clients, and rows that cannot tell them apart: both modes have their weight."""

    def log_density(z):
        each = jax.scipy.stats.norm.logpdf(z[0], jnp.array([-3.0, 3.0]), jnp.array([0.5, 1.0]))
        return jax.nn.logsumexp(each, b=jnp.array([0.3, 0.7]))

    found, _ = drawn(log_density, jnp.array([-1.0]), jnp.array([4.0]))
    assert found.effective > 400
    share = float(found.weight @ (found.z[:, 0] > 0))
    assert abs(share - 0.7) < 4 * np.sqrt(0.21 / found.effective)


def test_a_correlated_posterior():
    covariance = np.array([[2.0, 1.2], [1.2, 1.0]])
    precision = jnp.asarray(np.linalg.inv(covariance))

    def log_density(z):
        return -0.5 * (z - 1.0) @ precision @ (z - 1.0)

    found, around = drawn(log_density, jnp.zeros(2), jnp.full(2, 2.0))
    np.testing.assert_allclose(around.mode, [1.0, 1.0], rtol=1e-4)
    off = np.asarray(found.z) - 1.0
    np.testing.assert_allclose(
        (off.T * found.weight) @ off, covariance, atol=4 * 2 * np.sqrt(2 / found.effective)
    )
