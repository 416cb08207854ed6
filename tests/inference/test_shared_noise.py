"""Effective draws of chains that share noise, against autocorrelations that are known."""

import numpy as np

from covey.inference.shared_noise import effective

CHAINS, DRAWS, VALUES, PHI = 6, 2000, 30, 0.6


def autoregression(rng, *shape):
    """x_t = phi x_{t-1} + noise, of variance one, along the second axis."""
    x = rng.normal(size=(shape[0], DRAWS, *shape[1:]))
    for t in range(1, DRAWS):
        x[:, t] = PHI * x[:, t - 1] + np.sqrt(1 - PHI**2) * x[:, t]
    return x


def test_the_error_of_the_mean_has_what_chains_share():
    """Half of the variance is shared: that part of the mean's variance does not fall with the
    number of chains. Thirty parameters, each known to some 10 %.
    """
    rng = np.random.default_rng(0)
    shared, own = autoregression(rng, 1, VALUES), autoregression(rng, CHAINS, VALUES)
    found = effective((shared + own) / np.sqrt(2))
    variance = (1 + PHI) / (1 - PHI) / DRAWS * (1 + 1 / CHAINS) / 2
    np.testing.assert_allclose(np.mean(found.mcse**2), variance, rtol=0.1)
    np.testing.assert_allclose(np.mean(found.bulk), 1 / variance, rtol=0.1)
    assert np.all(found.tail > found.bulk / 2)  # tails are less correlated, and known less well
    assert np.mean(np.abs((shared + own).mean((0, 1)) / np.sqrt(2)) < 2 * found.mcse) > 0.8


def test_chains_without_anything_in_common_are_left_to_the_usual_estimates():
    """Beyond three standard errors comes once in a thousand times, a little more as the variance of
    a series is skewed.
    """
    own = autoregression(np.random.default_rng(1), CHAINS, VALUES)
    found = effective(own)
    assert all(np.mean(np.isnan(column)) >= 0.9 for column in found)
    one = effective(own[:1])
    assert np.all(np.isnan(one.mcse))
    constant = effective(np.ones((CHAINS, 10, 2)))
    assert np.all(np.isnan(constant.bulk))
