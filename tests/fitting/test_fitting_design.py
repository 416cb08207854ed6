"""A design from what sites say equals that of the pooled table."""

import json

import numpy as np
import pandas as pd
import pytest
from formulaic import model_matrix

import covey
from covey.fitting import combine, describe, parse
from covey.fitting.cautions import warn_of
from covey.fitting.design import Design
from covey.fitting.tables import Table

RANDOM = np.random.default_rng(4)
SITES = {
    name: pd.DataFrame(
        {
            "y": RANDOM.normal(size=20),
            "age": RANDOM.normal(60, 10, size=20).round(1),
            "chol": RANDOM.lognormal(5, 0.2, size=20),
            "sex": RANDOM.choice(["male", "female"], size=20),
            "cp": RANDOM.choice([1.0, 2.0, 4.0] if name == "a" else [1.0, 2.0, 3.0], size=20),
            "ward": RANDOM.choice(["x", "y"], size=20),
            "died": RANDOM.integers(0, 3, size=20),
            "n": RANDOM.integers(3, 9, size=20),
        }
    )
    for name in "abc"
}
POOLED = pd.concat(SITES.values(), ignore_index=True)


def tables_of(frames):
    return {name: Table(name, frame.reset_index(drop=True)) for name, frame in frames.items()}


def design_of(formula, frames=SITES, **options):
    tables, parsed = tables_of(frames), parse(formula)
    given = {k: v for k, v in options.items() if k != "family"}
    described = [describe(table, parsed, **given) for table in tables.values()]
    return combine(described, parsed, **options), tables


@pytest.mark.parametrize(
    "terms",
    [
        "age + sex",
        "sex*scale(age)",
        "C(cp) + center(log(chol))",
        "C(cp, Treatment(2)):sex",
        "0 + sex + I(age**2)",
        "scale(chol - age) + sqrt(age)",
        "C(cp, Sum) + age:chol",
        "bs(age, knots=[55, 65], lower_bound=20, upper_bound=110)",
        "C(age > 60)",
        "1",
    ],
)
def test_columns_are_those_of_the_pooled_table(terms):
    design, tables = design_of(f"y ~ {terms} + (1 | site)")
    found = np.concatenate([design.rows_of(table).x for table in tables.values()])
    whole = POOLED.assign(cp=POOLED.cp.astype(int))
    exact = model_matrix(terms, whole, context={"sqrt": np.sqrt})
    assert design.intercept == ("Intercept" in exact.columns)
    exact = exact.drop(columns="Intercept", errors="ignore")
    assert list(design.columns) == list(exact.columns)
    np.testing.assert_allclose(found, exact.to_numpy(float), rtol=1e-10, atol=1e-10)


def test_order_of_columns_and_other_columns_do_not_matter():
    frames = {name: frame[frame.columns[::-1]] for name, frame in SITES.items()}
    frames["b"] = frames["b"].assign(id=[None] * 20, date="01.02.2020")
    one, tables = design_of("y ~ sex + scale(age) + (1 | site)")
    other, turned = design_of("y ~ sex + scale(age) + (1 | site)", frames)
    assert one == other
    for name in SITES:
        np.testing.assert_array_equal(one.rows_of(tables[name]).x, other.rows_of(turned[name]).x)


def test_a_description_and_a_design_are_json():
    design, tables = design_of("y ~ sex + C(cp) + scale(age) + (1 + age || site)")
    text = json.dumps(design.to_json())
    again = Design.from_json(json.loads(text))
    assert again == design
    np.testing.assert_array_equal(again.rows_of(tables["a"]).x, design.rows_of(tables["a"]).x)
    json.dumps(describe(tables["a"], parse("y ~ sex + C(cp) + (1 | site)"))._asdict())


def test_random_parts():
    design, _ = design_of("y ~ age + (1 + age | site)")
    assert (design.effects, design.correlated, design.random_only) == (
        ("Intercept", "age"),
        True,
        (),
    )
    design, tables = design_of("y ~ 1 + (0 + sex || site)")
    assert design.effects == ("sex[female]", "sex[male]")
    assert (design.random_only, design.correlated) == (("sex[female]", "sex[male]"), False)
    assert design.rows_of(tables["a"]).x.sum() == 20
    design, _ = design_of("y ~ age + (1 | site) + (0 + age | site)")
    assert (design.effects, design.correlated) == (("Intercept", "age"), False)


def test_groups_inside_sites():
    for formula in ("y ~ (1 | site/ward)", "y ~ (1 | site) + (1 | site:ward)"):
        design, tables = design_of(formula)
        assert (design.group, design.effects) == ("ward", ("Intercept",))
        rows = design.rows_of(tables["a"])
        codes = rows.x[:, design.features.index("(groups)")]
        assert (codes == (SITES["a"].ward == "y")).all()
    design, _ = design_of("y ~ age + (1 | ward)")
    assert (design.group, design.effects, design.client) == ("ward", (), None)
    constant = {name: frame.assign(site=name) for name, frame in SITES.items()}
    design, _ = design_of("y ~ age + (1 | site)", constant)
    assert (design.client, design.group) == ("site", None)


def test_offsets_weights_and_totals():
    design, tables = design_of("y ~ age + offset(log(n)) + (1 | site)", weights="chol")
    assert design.features == ("age", "(offset)", "(weights)")
    x = design.rows_of(tables["a"]).x
    np.testing.assert_allclose(x[:, 1], np.log(SITES["a"].n))
    np.testing.assert_allclose(x[:, 2], SITES["a"].chol)
    for left in ("cbind(died, n - died)", "p(died, n)"):
        design, tables = design_of(f"{left} ~ age + (1 | site)")
        rows = design.rows_of(tables["a"])
        assert design.family == "binomial"
        np.testing.assert_array_equal(rows.y, SITES["a"].died)
        np.testing.assert_array_equal(rows.x[:, 1], SITES["a"].n)


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        (["no", "yes"], ("no", "yes")),
        ([0, 1], (0.0, 1.0)),
        ([2, 1], (1.0, 2.0)),
        ([True, False], ("False", "True")),
        (pd.Categorical(["well", "ill"], categories=["well", "ill"]), ("well", "ill")),
    ],
)
def test_outcomes_with_two_values(values, levels):
    frame = pd.DataFrame({"ill": values, "x": [0.5, 1.5]})
    design, tables = design_of("ill ~ x + (1 | site)", {"a": frame, "b": frame})
    assert (design.family, design.outcome_levels) == ("bernoulli", levels)
    expected = [str(value) == str(levels[1]) or value == levels[1] for value in values]
    assert design.rows_of(tables["a"]).y.tolist() == [float(one) for one in expected]


def gaps():
    frame = pd.DataFrame(
        {"y": [1.0, 2, 3, 4], "x": [1.0, None, 3, 8], "sex": ["f", "m", None, "m"]}
    )
    return {"a": frame, "b": frame.assign(x=[2.0, 2, 2, 2], sex=["f", "m", "m", "m"])}


def test_rows_with_missing_values_are_dropped_and_counted():
    design, tables = design_of("y ~ x + sex + (1 | site)", gaps())
    assert design.dropped == {"a": 2, "b": 0}
    assert design.rows_of(tables["a"]).kept.tolist() == [0, 3]


def test_missing_values_are_filled_in_by_the_mean_of_all_sites():
    design, tables = design_of("y ~ x + sex + (1 | site)", gaps(), missing="impute")
    assert design.fills == {"x": 20 / 7, "sex": "m"}
    rows = design.rows_of(tables["a"])
    np.testing.assert_allclose(rows.x[:, 0], [1, 20 / 7, 3, 8])
    assert rows.x[:, 1].tolist() == [0, 1, 1, 1]
    assert design.filled == {"a": 2, "b": 0}


def test_indicators_mark_what_was_filled_in():
    design, tables = design_of("y ~ x + sex + (1 | site)", gaps(), missing="indicator")
    assert design.columns == ("x", "sex[T.m]", "missing(x)", "missing(sex)")
    assert design.rows_of(tables["a"]).x[:, 2:].tolist() == [[0, 0], [1, 0], [0, 1], [0, 0]]


def broken(site, **columns):
    return SITES | {site: SITES[site].assign(**columns)}


@pytest.mark.parametrize(
    ("formula", "frames", "why"),
    [
        ("y ~ cohl + (1 | s)", SITES, "names 'cohl', which no table has; did you mean 'chol'"),
        (
            "y ~ chol + (1 | s)",
            SITES | {"b": SITES["b"].drop(columns="chol")},
            r"table of 'b' lacks the column 'chol', which other sites have",
        ),
        (
            "y ~ sex + (1 | s)",
            broken("b", sex=1.0),
            "column 'sex' has words at a, c .'female', 'male'. and numbers at b",
        ),
        (
            "y ~ sex + (1 | s)",
            broken("c", sex=["Male", "female"] * 10),
            "'sex' has the level 'Male' at c and 'male' at a",
        ),
        ("y ~ log(sex) + (1 | s)", SITES, "'sex' is text, and stands in an expression"),
        ("y ~ age + (1 | s)", {"a": SITES["a"]}, "needs at least two sites"),
        (
            "y ~ k + (1 | s)",
            {name: frame.assign(k="u") for name, frame in SITES.items()},
            "the factor 'k' has one level, 'u'",
        ),
        (
            "y ~ scale(k) + (1 | s)",
            {name: frame.assign(k=3.0) for name, frame in SITES.items()},
            "do not vary over all sites",
        ),
        ("sex ~ age + (1 | s)", broken("b", sex="other"), "is text .*'female', 'male', 'other'"),
        (
            "k ~ age + (1 | s)",
            {name: frame.assign(k=1) for name, frame in SITES.items()},
            "there is nothing to learn",
        ),
        ("y ~ age + (1 | s) + (1 || s)", SITES, "Intercept varies in two bar terms"),
        ("y ~ (age + sex | s) + (0 + chol | s)", SITES, "each may have one effect"),
        ("y ~ (age | s/ward)", SITES, "groups inside a site have a random intercept only"),
        ("y ~ (1 | s) + (1 | t)", SITES, "the sites are called 's' already"),
    ],
)
def test_tables_that_do_not_fit(formula, frames, why):
    with pytest.raises(ValueError, match=why):
        design_of(formula, frames)


@pytest.mark.parametrize(
    ("formula", "family", "why"),
    [
        ("y ~ age + (1 | s)", "poison", "did you mean 'poisson'"),
        ("y ~ age + (1 | s)", "poisson", "needs counts"),
        ("y ~ age + (1 | s)", "bernoulli", "two values"),
        ("died ~ age + (1 | s)", "binomial", r"cbind\(died, failures\)"),
        ("p(died, n) ~ age + (1 | s)", "poisson", "of the binomial family"),
    ],
)
def test_families_that_do_not_fit(formula, family, why):
    with pytest.raises(ValueError, match=why):
        design_of(formula, family=family)


def test_warnings_name_the_site():
    frames = broken("b", y=2.0)
    parsed = parse("y ~ age + (1 | s)")
    with pytest.warns(UserWarning, match="is 2.0 in all 20 rows of site 'b'"):
        warn_of([describe(table, parsed) for table in tables_of(frames).values()], parsed)
    empty = SITES | {"c": SITES["c"][:0]}
    with pytest.warns(UserWarning, match="site 'c' has no rows"):
        warn_of([describe(table, parsed) for table in tables_of(empty).values()], parsed)


def test_new_levels_and_infinite_values_name_the_row():
    design, _ = design_of("y ~ sex + log(age) + (1 | s)")
    new = Table("new", pd.DataFrame({"sex": ["male", "other"], "age": [50.0, 60.0]}))
    with pytest.raises(ValueError, match="'sex' has the level 'other', which no site had"):
        design.rows_of(new, with_outcome=False)
    rows = design.rows_of(new, with_outcome=False, new_levels="reference")
    assert rows.x[:, 0].tolist() == [1.0, 0.0]
    odd = Table("new", pd.DataFrame({"sex": ["male", "male"], "age": [50.0, 0.0]}))
    with pytest.raises(ValueError, match=r"row 1: log\(age\) is not finite"):
        design.rows_of(odd, with_outcome=False)
    with pytest.raises(ValueError, match="lacks the columns 'sex', 'age'"):
        design.rows_of(Table("new", pd.DataFrame({"x": [1]})), with_outcome=False)


@pytest.mark.parametrize(
    ("formula", "weights", "message"),
    [
        ("y ~ x + (1 | s)", "w", "weights= names 'w', which is text"),
        ("log(w) ~ x + (1 | s)", None, r"'w' is text, and the outcome log\(w\) needs numbers"),
        ("p(w, x) ~ z + (1 | s)", None, r"the outcome p\(w, x\) needs numbers"),
    ],
)
def test_words_where_numbers_are_needed_are_refused(formula, weights, message):
    frame = pd.DataFrame({"y": [1.5, 2, 3], "x": [1, 2, 3], "z": [1, 2, 4], "w": ["a", "b", "a"]})
    with pytest.raises(ValueError, match=message):
        covey.fit(formula, {"a": frame, "b": frame + frame}, weights=weights)


@pytest.mark.parametrize(
    ("family", "message"),
    [("logistic", "did you mean 'bernoulli'"), ("gamma", "got 'gamma'$")],
)
def test_a_family_by_another_name_is_hinted_at(family, message):
    frame = pd.DataFrame({"y": [1.5, 2], "x": [1, 2]})
    with pytest.raises(ValueError, match=message):
        covey.fit("y ~ x + (1 | s)", {"a": frame, "b": frame}, family=family)
