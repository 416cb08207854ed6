"""Tables that would be fitted wrongly are refused, and those that look wrong are warned of: site,
column and value are named.
"""

import re
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from tests.fitting.test_fitting_prediction import DESIGN

import covey
from covey.fitting.cautions import collected, warn_of
from covey.fitting.comparison import compare
from covey.fitting.description import describe
from covey.fitting.design import Rows
from covey.fitting.formula import parse
from covey.fitting.sentences import missing_values
from covey.fitting.tables import Table
from covey.runs import launch

FORMULA = "bp ~ age + sex + (1 | site)"
SITES = ("bern", "chur", "zug", "basel")


class ReachedError(Exception):
    """The rounds would begin."""


@pytest.fixture(autouse=True)
def no_rounds(monkeypatch):
    def stop(*_, **__):
        raise ReachedError

    monkeypatch.setattr(launch, "run", stop)


def tables(**columns):
    """Four clinics; `columns` are those of zug in their place."""
    found = {}
    for seed, site in enumerate(SITES):
        random = np.random.default_rng(seed)
        age = random.integers(40, 80, 40)
        found[site] = pd.DataFrame(
            {
                "age": age,
                "sex": random.choice(["female", "male"], 40),
                "chol": random.normal(220, 30, 40).round(),
                "cp": random.permutation(np.resize([1, 2, 3, 4], 40)),
                "w": random.uniform(0.5, 2, 40),
                "date": pd.date_range("2020-01-01", periods=40).strftime("%Y-%m-%d"),
                "id": [f"{site}{row}" for row in range(40)],
                "bp": (120 + 0.5 * age + random.normal(0, 8, 40)).round(1),
                "trials": random.integers(1, 9, 40),
                "falls": random.poisson(1.5, 40),
                "y": random.permutation(np.resize([0, 1], 40)),
            }
        )
    for name, change in columns.items():
        found["zug"][name] = change(found["zug"]) if callable(change) else change
    return found


def everywhere(**columns):
    return {site: table.assign(**columns) for site, table in tables().items()}


REFUSED = {
    "a weight of 0": (
        FORMULA,
        tables(w=lambda zug: zug.w.where(zug.index != 3, 0.0)),
        {"weights": "w"},
        "'zug', row 3: the weight 'w' must be above 0",
    ),
    "weights that are not there": (
        FORMULA,
        tables(),
        {"weights": "www"},
        "weights= names 'www', which no table has",
    ),
    "more successes than trials": (
        "p(trials, falls) ~ age + (1 | site)",
        tables(),
        {},
        "with no more successes than trials",
    ),
    "negative failures": (
        "cbind(trials, f) ~ age + (1 | site)",
        everywhere(f=-1),
        {},
        r"cbind\(...\) takes counts",
    ),
    "a date": ("bp ~ date + (1 | site)", tables(), {}, r"'date' is a date \('2020-01-01', ...\)"),
    "an id": ("bp ~ id + (1 | site)", tables(), {}, "160 levels .* in 160 rows: it names rows"),
    "nothing known": (
        FORMULA,
        everywhere(age=np.nan),
        {},
        "no site has a row .* missing is 'age' in 160 of 160",
    ),
    "nothing to impute by": (
        FORMULA,
        everywhere(age=np.nan),
        {"missing": "impute"},
        "'age' is missing in every row of every site",
    ),
    "other codes of the outcome": (
        "y ~ age + (1 | site)",
        tables(y=lambda zug: zug.y + 1),
        {},
        "values 0 and 1 at bern and 1 and 2 at zug; code it in the same way",
    ),
    "capital letters of the outcome": (
        "sex ~ age + (1 | site)",
        tables(sex=lambda zug: zug.sex.str.upper()),
        {},
        "the outcome 'sex' is 'FEMALE', 'MALE', 'female', 'male': write it in the same way",
    ),
    "a region of several sites": (
        "bp ~ age + (1 | region)",
        {
            site: one.assign(region="north" if site in ("bern", "chur") else site)
            for site, one in tables().items()
        },
        {},
        "sites 'bern' and 'chur' belong to the same region",
    ),
    "a column with the name of a parameter": (
        "bp ~ sigma + (1 | site)",
        everywhere(sigma=1.0),
        {},
        "'sigma' has the name of a parameter",
    ),
    "a power of R": ("bp ~ I(age^2) + (1 | site)", tables(), {}, r"a power is written \*\*"),
    "a factor of R": (
        "bp ~ as.factor(cp) + (1 | site)",
        tables(),
        {},
        r"'as.factor\(cp\)' is not well formed.*a factor is C\(x\)",
    ),
    "a word of Python": ("bp ~ scale(class) + (1 | site)", tables(), {}, "stands in backticks"),
    "the outcome as its predictor": (
        "bp ~ bp + age + (1 | site)",
        tables(),
        {},
        "'bp' is the outcome and a predictor of it",
    ),
    "a constant": ("bp ~ age + c + (1 | site)", everywhere(c=2.0), {}, "'c' is 2 in all rows"),
    "no success": (
        "p(none, trials) ~ age + (1 | site)",
        everywhere(none=0),
        {},
        r"the outcome p\(none, trials\) has no successes at any site",
    ),
    "no failure": (
        "cbind(trials, none) ~ age + (1 | site)",
        everywhere(none=0),
        {},
        r"the outcome cbind\(trials, none\) has no failures at any site",
    ),
    "a coefficient per row": (
        "bp ~ age + chol + w + trials + falls + (1 | site)",
        {site: table.head(2) for site, table in tables().items() if site != "zug"},
        {},
        "has 6 coefficients, and all sites together have 6 complete rows: more rows",
    ),
    "a coefficient per row, without priors": (
        "y ~ age + chol + w + trials + falls + (1 | site)",
        {site: table.iloc[[0]] for site, table in tables().items()},
        {"estimate": "ml"},
        "has 6 coefficients.* 4 .*or use estimate='posterior'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_fitted_is_refused(case):
    formula, data, options, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        covey.fit(formula, data, progress=False, **options)


WARNED = {
    "units": (
        "bp ~ age + chol + (1 | site)",
        tables(chol=lambda zug: zug.chol / 38.67),
        r"'chol' is about 0.027 times as large at site 'zug' \(mean 5.7\d?\) as elsewhere",
    ),
    "units of a scaled column": (
        "bp ~ age + scale(chol) + (1 | site)",
        tables(chol=lambda zug: zug.chol * 1000),
        "'chol' is about 1e\\+03 times as large at site 'zug'",
    ),
    "a code for missing values": (
        FORMULA,
        tables(age=lambda zug: zug.age.where(zug.index > 3, -9)),
        "'age' is -9 in 4 rows of site 'zug', far from all other values",
    ),
    "a level of one site": (
        "bp ~ C(cp) + (1 | site)",
        tables(cp=lambda zug: zug.cp - 1),
        re.escape("only site 'zug' has the level 0 of 'C(cp)'"),
    ),
    "words that differ between sites": (
        FORMULA,
        tables(sex=lambda zug: zug.sex.map({"female": "f", "male": "m"})),
        "'sex' has the levels 'female', 'male' at site 'bern' and 'f', 'm' at site 'zug'",
    ),
    "codes that differ between sites": (
        "bp ~ y + (1 | site)",
        tables(y=lambda zug: zug.y + 1),
        "'y' is 0 or 1 at site 'bern' and 1 or 2 at site 'zug'",
    ),
    "orders of levels that contradict each other": (
        "bp ~ grade + (1 | site)",
        {
            site: one.assign(
                grade=pd.Categorical(
                    np.resize(["low", "high"], 40),
                    ["high", "low"] if site == "zug" else ["low", "high"],
                )
            )
            for site, one in tables().items()
        },
        "'grade' has the order 'low', 'high' at site 'bern' and 'high', 'low' at site 'zug'",
    ),
    "a slope of years": (
        "bp ~ year + (1 + year | site)",
        everywhere(year=lambda site: 1990.0 + site.age / 4),
        r"'year' is far from 0 \(mean 20\d\d, sd \d.*slope differs between sites",
    ),
    "a square of years": (
        "bp ~ year + I(year**2) + (1 | site)",
        everywhere(year=lambda site: 1990.0 + site.age / 4),
        r"'year' is far from 0.*it is a part of 'I\(year \*\* 2\)'.*Write center\(year\)",
    ),
    "the same rows twice": (
        FORMULA,
        tables() | {"zug2": tables()["zug"]},
        "sites 'zug' and 'zug2' have exactly the same rows",
    ),
}


@pytest.mark.parametrize("case", WARNED)
def test_what_looks_wrong_is_warned_of(case):
    formula, data, message = WARNED[case]
    with pytest.warns(UserWarning, match=message) as heard, pytest.raises(ReachedError):
        covey.fit(formula, data, progress=False)
    assert len(heard) == 1


def test_good_tables_are_fitted_without_a_warning():
    some = tables()
    some["chur"]["age"] -= 25  # a children's clinic is not a matter of units
    with pytest.raises(ReachedError):
        covey.fit("bp ~ age + chol + C(cp) + sex + (1 | site)", some, progress=False)


def test_a_folder_that_holds_something_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"is not empty: it holds notes\.txt; choose"):
        covey.fit(FORMULA, tables(), out=tmp_path, progress=False)


def made_up(formula, outcomes, family="gaussian", weights=None):
    """What a comparison looks at before it compares."""
    facts = {"rows": 80, "parameters": 3, "log_likelihood": -1.0, "aic": 8.0, "bic": 9.0}
    design = SimpleNamespace(formula=parse(formula), weights=weights)
    return SimpleNamespace(
        method="marginal",
        estimate="ml",
        formula=formula,
        family=family,
        design=design,
        found=SimpleNamespace(diagnostics=facts),
        stored={"outcomes": outcomes},
    )


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (made_up("log(bp) ~ age", {"zug": "a"}), r"these have bp and log\(bp\)"),
        (made_up("bp ~ age", {"zug": "a"}, "poisson"), "'gaussian' and 'poisson' cannot be"),
        (made_up("bp ~ age", {"zug": "a"}, weights="w"), "weights=None and 'w'"),
        (made_up("bp ~ age", {"zug": "b"}), "those of site 'zug' differ"),
        (made_up("bp ~ age", {"zug": "a", "bern": "c"}), "those of site 'bern' differ"),
    ],
)
def test_fits_of_other_outcomes_are_not_compared(other, message):
    with pytest.raises(ValueError, match=message):
        compare(made_up("bp ~ sex", {"zug": "a"}), other)


def test_digests_tell_rows_apart():
    x, y, kept = np.ones((2, 1)), np.array([0.0, 1.0]), np.arange(2)
    one, other = Rows(x, y, kept), Rows(2 * x, y, kept)
    assert one.digest == Rows(x.copy(), y.copy(), kept).digest != other.digest
    assert one.outcome_digest == other.outcome_digest != Rows(x, 1 - y, kept).outcome_digest


def test_groups_inside_of_sites_are_said_to_be_nested():
    table = Table("bern", pd.DataFrame({"bp": [1.0, 2.0], "age": [3.0, 4.0], "ward": ["a", "b"]}))
    alone, inside = (parse(f"bp ~ age + (1 | {group})") for group in ("ward", "site:ward"))
    assert warn_of([describe(table, alone)], alone) == [
        "(1 | ward) is read as groups inside of sites: the same ward at two sites are two groups."
    ]
    assert warn_of([describe(table, inside)], inside) == []


def test_two_files_of_one_site_are_refused(tmp_path):
    for ending in ("csv", "parquet"):
        (tmp_path / f"bern.{ending}").write_text("")
    with pytest.raises(ValueError, match=r"two tables of the site 'bern', bern.csv and bern.parq"):
        covey.fit(FORMULA, tmp_path)


def failing(notes):
    with collected(notes):
        warnings.warn("marginal: weights[age] is odd", stacklevel=1)
        raise RuntimeError("diverged")


def test_warnings_of_a_fit_that_fails_are_said_too():
    notes = []
    with (
        pytest.warns(UserWarning, match="^age is odd"),
        pytest.raises(RuntimeError, match="diverged"),
    ):
        failing(notes)
    assert notes == ["age is odd"]


@pytest.mark.parametrize(
    ("outcome", "family", "told"),
    [
        ([0, 3, 1, 2], None, True),
        ([0, 3, 1, 2], "gaussian", False),
        ([120, 131, 118, 125], None, False),  # amounts that are rounded
        ([0.0, 2.5, 1.0, 3.0], None, False),
        ([0, 1, 1, 0], None, False),
    ],
)
def test_counts_that_are_fitted_as_gaussian_are_told(outcome, family, told):
    parsed = parse("falls ~ age + (1 | site)")
    table = Table("bern", pd.DataFrame({"falls": outcome, "age": [41.0, 50.0, 67.0, 58.0]}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said = warn_of([describe(table, parsed)], parsed, family)
    assert any("family='poisson'" in one for one in said) is told


def test_rows_without_an_outcome_are_counted_where_values_are_filled_in():
    """It was said that no value was missing, and rows were gone."""
    design = replace(DESIGN, missing="impute", rows={"bern": 3}, dropped={"bern": 1})
    said = ["Rows dropped because of missing values of y: bern 1 of 3."]
    assert missing_values(design) == said
    *dropped, filled = missing_values(replace(design, filled={"bern": 2}))
    assert dropped == said
    assert filled.startswith("Missing values filled in")
    assert missing_values(replace(design, dropped={"bern": 0})) == ["No value is missing."]
