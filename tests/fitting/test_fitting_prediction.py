"""Means and quantiles from draws, against SciPy."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from covey.fitting.design import Design, Rows
from covey.fitting.prediction import (
    Draws,
    effects_of_a_new_site,
    predicted,
    sites_of,
    warn_of_far_rows,
)
from covey.fitting.tables import Table
from covey.fitting.terms import Terms

DESIGN = Design(
    text="y ~ x + (1 | g)",
    family="gaussian",
    missing="drop",
    weights=None,
    client="g",
    group=None,
    kinds={},
    factors={},
    scaled={},
    fills={},
    indicators=(),
    outcome_levels=None,
    intercept=True,
    columns=("x",),
    random_intercept=True,
    slopes=(),
    correlated=False,
)
X = np.array([[0.0], [2.0]])
WANTED = (0.05, 0.25, 0.75, 0.95)


def draws(scale=None):
    """One value for all draws: the predictive distribution is then that of the family."""
    values = [0.5, 0.3, np.nan, *([] if scale is None else [scale])]
    return Draws(np.tile(values, (3, 1)), np.full((3, 1), 0.2))


ETA = 0.7 + 0.3 * X[:, 0]


@pytest.mark.parametrize(
    ("family", "scale", "exact"),
    [
        ("gaussian", 1.5, lambda: scipy.stats.norm(ETA, 1.5)),
        ("poisson", None, lambda: scipy.stats.poisson(np.exp(ETA))),
        (
            "negative_binomial",
            2.0,
            lambda: scipy.stats.nbinom(2.0, 2.0 / (2.0 + np.exp(ETA))),
        ),
    ],
)
def test_one_draw_is_the_family(family, scale, exact):
    means, quantiles = predicted(replace(DESIGN, family=family), X, draws(scale), WANTED)
    np.testing.assert_allclose(means, exact().mean(), rtol=1e-10)
    for at, probability in enumerate(WANTED):
        np.testing.assert_allclose(quantiles[:, at], exact().ppf(probability), rtol=1e-7)


def test_successes_among_trials():
    design = replace(DESIGN, family="binomial", text="p(y, n) ~ x + (1 | g)")
    x = np.column_stack([X, [10.0, 4.0]])
    means, quantiles = predicted(design, x, draws(), WANTED)
    chance = 1 / (1 + np.exp(-ETA))
    exact = scipy.stats.binom([10, 4], chance)
    np.testing.assert_allclose(means, exact.mean())
    np.testing.assert_array_equal(quantiles, np.column_stack([exact.ppf(p) for p in WANTED]))


def test_two_values_have_an_interval_of_the_probability():
    design = replace(DESIGN, family="bernoulli")
    random = np.random.default_rng(0)
    drawn = Draws(
        np.column_stack([random.normal(size=2000), np.zeros((2000, 2))]), np.zeros((2000, 1))
    )
    means, quantiles = predicted(design, X, drawn, WANTED)
    chance = 1 / (1 + np.exp(-drawn.shared[:, 0]))
    np.testing.assert_allclose(means, chance.mean())
    np.testing.assert_allclose(quantiles[0], np.quantile(chance, WANTED))


def test_several_draws_are_a_mixture():
    shared = np.array([[0.0, 0.0, 1.0, 1.0], [4.0, 0.0, 1.0, 1.0]])
    means, quantiles = predicted(DESIGN, X[:1], Draws(shared, np.zeros((2, 1))), WANTED)
    assert means[0] == 2
    for at, probability in enumerate(WANTED):
        value = quantiles[0, at]
        mixed = (scipy.stats.norm.cdf(value) + scipy.stats.norm.cdf(value - 4)) / 2
        assert abs(mixed - probability) < 1e-6


def test_effects_of_a_new_site_have_the_covariance_of_the_population():
    terms = Terms(True, ("x",), ("Intercept", "x"), True, None, None)
    shared = np.tile([0.0, 0.0, 2.0, 0.5, -0.6], (20000, 1))
    found = effects_of_a_new_site(terms, shared, 0).effects
    exact = np.array([[4.0, -0.6], [-0.6, 0.25]])
    # Entries of a sample covariance: four standard errors.
    error = np.sqrt((exact**2 + np.outer(np.diag(exact), np.diag(exact))) / 20000)
    assert (np.abs(np.cov(found.T) - exact) < 4 * error).all()


def test_rows_of_another_site_than_the_user_names_are_told():
    table = Table("new", pd.DataFrame({"site": ["a", "b", "a", ""]}))
    known, kept = ["a", "b"], np.arange(4)
    with pytest.warns(UserWarning, match="site is b in 1 of the rows, and client='a' says other"):
        of = sites_of(table, "site", kept, known, "a")
    np.testing.assert_array_equal(of["a"], kept)
    agreeing = sites_of(table, "site", np.array([0, 2, 3]), known, "a")
    np.testing.assert_array_equal(agreeing["a"], np.arange(3))


def test_new_rows_in_other_units_are_told():
    design = replace(DESIGN, columns=("x", "late"), scaled={})
    x = np.array([[1.0, 1.0], [30.0, 0.0]])
    rows = Rows(np.pad(x, ((0, 0), (0, len(design.features) - 2))), np.zeros(2), np.array([4, 7]))
    told = r"'x' is 30 in row 7, more than 10 standard deviations .*\(mean 1, sd 2; 1 such row\)"
    with pytest.warns(UserWarning, match=told) as heard:
        warn_of_far_rows(design, rows, (1.0, 0.01), {"x": 2.0, "late": 0.01})
    assert len(heard) == 1  # a rare 1 among 0 is not far
    near = rows._replace(x=rows.x[:1], kept=rows.kept[:1])
    warn_of_far_rows(design, near, (1.0, 0.01), {"x": 2.0, "late": 0.01})
