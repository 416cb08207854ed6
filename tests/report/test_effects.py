"""Effects: figures show what the tables say, sites alone, a new site, words."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from covey.report import effect_figures, figures
from covey.report.alone import estimated_alone
from covey.report.content import SharedEffects
from covey.report.draw_parts import draws_section
from covey.report.posterior_parts import effects_in_words, population, term_of
from covey.report.words import judge_chains, judge_k_hat


@pytest.fixture
def table():
    mean = np.array([0.5, -0.7, 0.0])
    return pd.DataFrame(
        {"term": list("abc"), "mean": mean, "sd": 0.2, "q05": mean - 0.3, "q95": mean + 0.4}
    )


def test_a_forest_of_ratios_is_on_a_logarithmic_axis(table):
    figure = effect_figures.forest(table, ratio=True, axis="odds ratio")
    (points,) = figure.data
    np.testing.assert_allclose(points.x, np.exp(table["mean"]))
    np.testing.assert_allclose(points.x + points.error_x.array, np.exp(table["q95"]))
    np.testing.assert_allclose(points.x - points.error_x.arrayminus, np.exp(table["q05"]))
    assert figure.layout.xaxis.type == "log"
    assert 1 in figure.layout.xaxis.tickvals
    low, high = 10 ** np.array(figure.layout.xaxis.range)
    assert low < np.exp(-1.0)
    assert high > np.exp(0.9)


def test_a_forest_of_coefficients_is_not(table):
    figure = effect_figures.forest(table, ratio=False, axis="coefficient")
    np.testing.assert_array_equal(figure.data[0].x, table["mean"])
    assert figure.layout.xaxis.type is None


def test_shrinkage_joins_the_two_estimates():
    sites = pd.DataFrame(
        {"client": ["x", "y"], "alone": [3.0, np.nan], "together": [1.0, 0.5], "rows": [3, 9]}
    )
    lines, alone, together = effect_figures.shrinkage(sites, reference=0.0, axis="").data
    assert list(together.y) == ["y", "x"]
    np.testing.assert_array_equal(alone.x, [np.nan, 3.0])
    np.testing.assert_array_equal(np.asarray(lines.x)[3:5], [3.0, 1.0])


def test_many_sites_are_shown_in_their_order():
    count = 200
    mean = np.random.default_rng(0).normal(size=count)
    sites = pd.DataFrame(
        {"client": [f"s{i}" for i in range(count)], "mean": mean, "q05": mean - 1, "q95": mean + 1}
    )
    (points,) = effect_figures.caterpillar(sites, reference=None, axis="").data
    assert list(points.y) == list(range(1, count + 1))
    np.testing.assert_array_equal(points.x, np.sort(mean))


def test_a_calibration_figure_has_bins_and_their_rows():
    bins = pd.DataFrame(
        {
            "predicted": [0.2, 0.5, 0.8],
            "observed": [0.1, np.nan, 0.9],
            "q05": [0.0, np.nan, 0.8],
            "q95": [0.3, np.nan, 1.0],
            "count": [5, 0, 7],
        }
    )
    _, points, count = figures.calibration(bins, predicted="p", observed="o").data
    np.testing.assert_array_equal(points.x, [0.2, 0.8])
    np.testing.assert_allclose(np.asarray(points.y) + points.error_y.array, [0.3, 1.0])
    assert list(count.y) == [5, 7]
    assert count.yaxis != points.yaxis


def test_curves_show_measures_first_and_no_bookkeeping():
    metrics = pd.DataFrame(
        {
            "round": [1, 2, 3],
            "clients": 3,
            "bytes_up": [5, 5, 5],
            "bits_up": 40,
            "train_loss": [3.0, 2.0, 1.0],
            "test_accuracy": [np.nan, 0.5, np.nan],
            "seconds": 0.1,
        }
    )
    figure = figures.curves(metrics)
    assert [trace.name for trace in figure.data] == ["train loss", "test accuracy", "bytes up"]
    assert list(figure.data[1].x) == [2]
    assert list(figure.data[2].y) == [5, 10, 15]


def test_every_colour_can_be_seen_on_both_pages():
    """Contrast of at least 3 to 1 with the page, as WCAG 2.1 asks of graphics."""

    def luminance(colour):
        parts = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    def contrast(one, other):
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    assert min(contrast(light, "#ffffff") for light in figures.PALETTE) > 3
    assert min(contrast(dark, "#14181e") for dark in figures.PALETTE.values()) > 3


def test_alone_is_the_maximum_of_the_sites_own_likelihood():
    random = np.random.default_rng(1)
    x = np.column_stack([np.ones(300), random.normal(size=300)])
    offset = random.normal(size=300)
    rate = np.exp(offset + x @ [0.3, -0.5])
    found = estimated_alone("poisson", x, random.poisson(rate).astype(float), offset)
    np.testing.assert_allclose(found, [0.3, -0.5], atol=0.2)
    y = random.normal(offset + x @ [2.0, 1.0])
    exact = np.linalg.lstsq(x, y - offset, rcond=None)[0]
    np.testing.assert_allclose(estimated_alone("gaussian", x, y, offset), exact, rtol=1e-8)


def test_alone_is_not_known_where_outcomes_are_all_the_same():
    assert np.isnan(estimated_alone("bernoulli", np.ones((5, 1)), np.ones(5), np.zeros(5))).all()
    assert np.isnan(estimated_alone("gaussian", np.ones((1, 2)), np.ones(1), np.zeros(1))).all()
    with pytest.raises(ValueError, match="got 'gamma'"):
        estimated_alone("gamma", np.ones((1, 1)), np.ones(1), np.zeros(1))


def test_a_new_site_varies_as_the_population():
    """A Gaussian centre of deviation 0.5 and effects of 1.2: together 1.3."""
    random = np.random.default_rng(2)
    drawn = {
        "Intercept": random.normal(1.0, 0.5, (4, 5000)),
        "sd(Intercept)": np.full((4, 5000), 1.2),
    }
    new = population(["Intercept", "age"], drawn)
    (row,) = new.effects.to_dict("records")
    error = 1.3 / np.sqrt(20000)  # of the draws of the centre, and more
    assert row["mean"] == pytest.approx(1.0, abs=4 * error)
    assert row["sd"] == pytest.approx(1.3, abs=4 * error)
    assert row["q95"] == pytest.approx(1.0 + 1.3 * norm.ppf(0.95), abs=10 * error)
    assert population(["age"], drawn) is None
    unknown = drawn | {"sd(Intercept)": np.full((4, 5000), np.nan)}
    assert population(["Intercept"], unknown) is None


@pytest.mark.parametrize(
    ("parameter", "term"),
    [
        ("weights[sex[T.male]]", "sex[T.male]"),
        ("cor[intercept, age]", "cor(Intercept,age)"),
        ("deviation[age]", "sd(age)"),
        ("phi[3]", "phi[3]"),
    ],
)
def test_terms(parameter, term):
    assert term_of(parameter) == term


def test_effects_in_words(table):
    none = pd.DataFrame()
    words = effects_in_words(SharedEffects(table, none, "odds ratio"))
    assert words.startswith("The odds are clearly higher with a (1.65 times; 90 % interval 1.22 to")
    assert "; clearly lower with b (0.497 times; " in words
    assert words.endswith(" The 90 % interval has 1 in it for c.")
    flat = table.assign(q05=-1.0, q95=1.0)
    words = effects_in_words(SharedEffects(flat, none))
    assert words == "The 90 % interval has 0 in it for a, b and c."


def test_diagnostics_in_words():
    good = pd.DataFrame(
        {"parameter": ["a", "b"], "r_hat": [1.001, np.nan], "ess_bulk": 900.0, "ess_tail": 700.0}
    )
    assert [one.poor for one in judge_chains(good)] == [False, False]
    assert "at least 700 effective draws" in judge_chains(good)[1].sentence
    poor = good.assign(r_hat=1.3, ess_tail=[20.0, 700.0])
    assert [one.poor for one in judge_chains(poor)] == [True, True]
    assert "a has 20" in judge_chains(poor)[1].sentence
    assert [judge_k_hat(k).poor for k in (0.3, 0.69, 0.71, float("nan"))] == [
        False,
        False,
        True,
        True,
    ]


def test_a_constant_parameter_has_no_density():
    drawn = {"a": np.ones((2, 10)), "b": np.random.default_rng(0).normal(size=(2, 10))}
    diagnostics = pd.DataFrame(
        {"parameter": ["a", "b"], "r_hat": np.nan, "ess_bulk": np.nan, "ess_tail": np.nan}
    )
    section = draws_section(drawn, diagnostics, k_hat=0.9)
    assert (section.density["parameter"] == "a").sum() == 1
    assert section.poor
    assert "not reliable" in section.sentences[0]
