"""Coverage of exact Gaussian posteriors, and of posteriors that are wrong on purpose."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from covey.inference import (
    interval_coverage,
    mixture_interval,
    predictive_interval,
    rank_check,
    ranks,
)
from covey.models import Categorical, Normal, Poisson

CLIENTS, DRAWS = 4000, 99


def posterior(*, narrow: float = 1.0, shift: float = 0.0, seed: int = 0):
    """Clients with effects z ~ N((1, -2), diag(4, 0.25)), rows z + N(0, 1) of unequal number, and
    draws from their posterior.
    """
    rng = np.random.default_rng(seed)
    mean, variance = np.array([1.0, -2.0]), np.array([4.0, 0.25])
    truth = mean + np.sqrt(variance) * rng.normal(size=(CLIENTS, 2))
    rows = rng.integers(1, 12, size=(CLIENTS, 1))
    observed = truth + rng.normal(size=(CLIENTS, 2)) / np.sqrt(rows)
    precision = 1 / variance + rows
    centre = (mean / variance + rows * observed) / precision
    scale = narrow / np.sqrt(precision)
    noise = rng.normal(size=(CLIENTS, DRAWS, 2))
    return centre[:, None] + scale[:, None] * (noise + shift), truth


@pytest.fixture(scope="module")
def exact():
    return posterior()


def test_intervals_of_an_exact_posterior_cover_as_they_say(exact):
    table = interval_coverage(*exact, levels=(0.5, 0.9, 0.98))
    assert len(table) == 6
    np.testing.assert_allclose(
        table["standard_error"], np.sqrt(table["level"] * (1 - table["level"]) / CLIENTS)
    )
    assert np.all(np.abs(table["coverage"] - table["level"]) < 4 * table["standard_error"])


def test_few_draws_cover_as_they_say_too():
    """Nineteen draws make an interval of 90 %; by interpolation of the usual kind it would cover 81
    %.
    """
    draws, truth = posterior(seed=1)
    found = interval_coverage(draws[:, :19], truth, levels=(0.9,))
    assert np.all(np.abs(found["coverage"] - 0.9) < 4 * found["standard_error"])
    with pytest.raises(
        ValueError, match=r"19 draws make intervals of levels above 0 and up to 0\.9, got 0\.95"
    ):
        interval_coverage(draws[:, :19], truth, levels=(0.95,))


def test_too_narrow_a_posterior_covers_less_by_what_theory_says():
    found = interval_coverage(*posterior(narrow=0.7), levels=(0.9,))
    expected = 2 * scipy.stats.norm.cdf(0.7 * scipy.stats.norm.ppf(0.95)) - 1  # 0.750
    assert np.all(
        np.abs(found["coverage"] - expected)
        < 0.01 + 4 * np.sqrt(expected * (1 - expected) / CLIENTS)
    )


def test_ranks_of_an_exact_posterior_are_uniform(exact):
    rank = ranks(*exact)
    assert rank[0, 1] == sum(exact[0][0, :, 1] < exact[1][0, 1])
    found = rank_check(rank, draws=DRAWS)
    assert np.all(found.p_value > 0.001)
    assert found.counts.sum(1).tolist() == [CLIENTS, CLIENTS]
    _, p_value = scipy.stats.chisquare(
        found.counts, axis=1
    )  # 100 ranks in 20 bins: all expected alike
    np.testing.assert_allclose(found.p_value, p_value)


def test_the_statistic_follows_its_law_with_unequal_bins():
    """Uniform ranks, bins that do not divide them: the mean statistic is the number of bins less
    one.
    """
    rank = np.random.default_rng(0).integers(0, 11, size=(500, 400))
    found = rank_check(rank, draws=10, bins=4)
    assert abs(found.statistic.mean() - 3) < 4 * np.sqrt(2 * 3 / 400)
    assert scipy.stats.kstest(found.p_value, "uniform").pvalue > 0.001


@pytest.mark.parametrize("wrong", [{"narrow": 0.8}, {"narrow": 1.25}, {"shift": 0.3}])
def test_wrong_posteriors_are_flagged(wrong):
    found = rank_check(ranks(*posterior(**wrong)), draws=DRAWS)
    assert np.all(found.p_value < 1e-6)
    outer = found.counts[:, [0, -1]].sum(1) / CLIENTS
    if "narrow" in wrong:
        assert np.all((outer > 0.1) == (wrong["narrow"] < 1))
    else:
        assert np.all(
            found.counts[:, 0] > 1.5 * found.counts[:, -1]
        )  # draws too high: few of them lie below


@pytest.mark.parametrize(
    ("rank", "options", "told"),
    [
        (np.array([[11]]), {"draws": 10}, "0 to 10, got 11 to 11"),
        (np.zeros((30, 1), int), {"draws": 10, "bins": 12}, "2 to 11 bins, got 12"),
        (np.zeros((30, 1), int), {"draws": 99}, "30 clients put 1.5 into a bin"),
    ],
)
def test_checks_that_cannot_be_made_are_refused(rank, options, told):
    with pytest.raises(ValueError, match=told):
        rank_check(rank, **options)


def test_intervals_of_predictions():
    mean, scale = np.array([0.0, 3.0]), np.array([1.0, 0.5])
    found = predictive_interval(Normal(jnp.asarray(mean), jnp.asarray(scale)), 0.8)
    np.testing.assert_allclose(found, scipy.stats.norm(mean, scale).interval(0.8), rtol=1e-6)
    rate = np.array([1e-3, 0.2, 1.0, 5.0, 40.0, 1e4])
    log_rate = jnp.log(jnp.asarray(rate, jnp.float32))
    lower, upper = predictive_interval(Poisson(log_rate), 0.9)
    law = scipy.stats.poisson(np.exp(np.asarray(log_rate, float)))
    np.testing.assert_array_equal((lower, upper), law.interval(0.9))
    assert np.all(law.cdf(upper) - law.cdf(lower - 1) >= 0.9)
    # Where the distribution function meets the tail, the inverse is a rounding error above the
    # count.
    meets = float(2 * scipy.stats.poisson(1).cdf(2) - 1)
    assert predictive_interval(Poisson(jnp.zeros(1)), meets)[1] == 2
    for predictive, probability, told in (
        (Categorical(jnp.zeros((1, 1))), 0.9, "not of Categorical"),
        (Poisson(log_rate), 1.0, "between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=told):
            predictive_interval(predictive, probability)


def test_the_interval_of_a_mixture_is_that_of_its_draws():
    mean, scale = (
        jnp.array([[0.0, 1.0], [4.0, 1.0], [5.0, 1.0]]),
        jnp.array([[1.0, 2.0], [0.5, 2.0], [0.5, 2.0]]),
    )
    lower, upper = mixture_interval(mean, scale, 0.9)
    for row, tail in ((lower, 0.05), (upper, 0.95)):
        np.testing.assert_allclose(scipy.stats.norm.cdf(row, mean, scale).mean(0), tail, atol=1e-9)
    np.testing.assert_allclose(
        [lower[1], upper[1]], scipy.stats.norm(1, 2).interval(0.9), rtol=1e-5
    )  # members alike
    whole = Normal(mean.mean(0), jnp.sqrt((scale**2).mean(0) + mean.var(0)))
    assert (
        predictive_interval(whole, 0.9)[1][0] > upper[0] + 0.5
    )  # two modes: the normal's interval is too wide above
