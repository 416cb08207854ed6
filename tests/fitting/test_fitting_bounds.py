"""Estimates at the bounds of what they may be, where errors and draws have no meaning: deviations
of 0, effects that are perfectly correlated, counts without overdispersion.
"""

import warnings

import numpy as np
import pandas as pd
import pytest

import covey
from covey.algorithms.marginal.fit import boundary
from covey.algorithms.marginal.parameters import Coordinates
from covey.fitting.cautions import in_words_of_the_formula
from covey.fitting.terms import Terms

NAMES = ("intercept", "weights[dose]", "sd[intercept]", "sd[dose]", "cor[intercept, dose]")
FULL = Coordinates("full", positive=False)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    ("relative", "expected"),
    [
        ((1.0, 1e-4), (("sd[dose]",), ())),
        ((1.0, 0.5), ((), ("sd[dose]",))),
    ],
)
def test_what_is_small_does_not_depend_on_units(unit, relative, expected):
    """The dose's own part is 0: its deviation is 0, or follows the intercept's."""
    units = np.array([0.2, 0.2 * unit])
    own = np.array([False, False, True])  # entries of the root, by rows
    found = {"sd": units * relative}
    assert boundary(FULL, units, own, found, NAMES) == expected


def test_parameters_of_a_method_have_the_names_of_the_terms():
    parts = Terms(True, ("dose",), ("Intercept",), False, "ward", "sigma").parts
    for before, after in (
        ("marginal: group_deviation is estimated as 0", "sd(ward:Intercept) is estimated as 0"),
        ("marginal: the data do not determine intercept, noise: two deviations, of noise and",
         "The data do not determine Intercept, sigma: two deviations, of noise and"),
    ):  # fmt: skip
        assert in_words_of_the_formula(before, parts) == after


def balanced(outcome, sites=5, wards=3, rows=8, seed=0):
    """Tables whose outcome is made from a dose and a site's own level, and noise that has the mean
    0 in each ward.
    """
    random, found = np.random.default_rng(seed), {}
    for index in range(sites):
        ward = np.repeat(list("abc")[:wards], rows)
        noise = random.normal(size=(wards, rows))
        noise = (noise - noise.mean(1, keepdims=True)).ravel()
        table = pd.DataFrame({"ward": ward, "dose": random.normal(size=len(ward))})
        found[f"site{index}"] = table.assign(out=outcome(table, random.normal(), noise, random))
    return found


@pytest.mark.slow
def test_wards_that_do_not_differ_have_predictions():
    """The deviation of wards is 0, and its logarithm anything: predictions were NaN."""
    tables = balanced(lambda t, own, noise, _: own + t.dose + noise)
    with pytest.warns(UserWarning, match=r"sd\(ward:Intercept\) is estimated as 0"):
        fit = covey.fit("out ~ dose + (1 | site/ward)", tables, estimate="ml", progress=False)
    table = fit.summary()
    assert table["mean"]["sd(ward:Intercept)"] < 1e-3
    assert table.loc["sd(ward:Intercept)", ["sd", "q05", "q95"]].isna().all()
    new = pd.DataFrame({"dose": [0.0, 1.0], "ward": ["a", "unknown"]})
    for client in ("site1", None):
        found = fit.predict(new, client=client)
        assert np.isfinite(found.to_numpy()).all()
        width = found["q95"] - found["q05"]
        assert (width < (5 if client else 10) * table["mean"]["sigma"]).all()
    assert (fit.group_effects()["mean"].abs() < 1e-3).all()


@pytest.mark.slow
def test_effects_that_are_perfectly_correlated_are_told():
    tables = balanced(lambda t, own, noise, _: own + (1 + own) * t.dose + 0.5 * noise)
    with pytest.warns(UserWarning, match=r"sd\(dose\) .* perfectly correlated .* \|\| site"):
        fit = covey.fit("out ~ dose + (1 + dose | site)", tables, estimate="ml", progress=False)
    cor = fit.summary().loc["cor(Intercept,dose)"]
    assert cor["mean"] > 0.9999
    assert cor[["sd", "q05", "q95"]].isna().all()


@pytest.mark.slow
def test_counts_without_overdispersion_have_an_infinite_shape():
    tables = balanced(lambda t, _, __, random: random.binomial(8, 0.2 + 0.1 * (t.dose > 0)))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        fit = covey.fit(
            "out ~ dose + (1 | site)",
            tables,
            family="negative_binomial",
            estimate="ml",
            progress=False,
        )
    assert any("shape is estimated as infinite" in str(one.message) for one in told)
    assert fit.summary().loc["shape", ["sd", "q05", "q95"]].isna().all()
    assert np.isfinite(fit.predict(tables["site0"], client="site0").to_numpy()).all()
