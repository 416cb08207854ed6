"""Formulas in their parts, and errors that point at the place."""

import numpy as np
import pytest

from covey.fitting.expressions import evaluate, needs_of
from covey.fitting.formula import Bar, parse


def test_the_parts_of_a_formula():
    found = parse("ill ~ age*sex + offset(log(days)) - 1 + (1 + age | site) + (1 | site:ward)")
    assert found.outcome.expressions == ("ill",)
    assert found.fixed.split() == ["age*sex", "-", "1"]
    assert found.offsets == ("log(days)",)
    assert [(bar.terms, bar.group, bar.within) for bar in found.bars] == [
        ("1 + age", "site", None),
        ("1", "ward", "site"),
    ]


def test_a_bar_term_first_and_nothing_else():
    assert parse("y ~ (1 | g)").fixed.strip() == ""
    assert parse("y~(a||g)+x").bars == (Bar("(a||g)", "a", "g", None, False),)


def test_a_slash_is_two_bar_terms():
    outer, inner = parse("y ~ x + (1 | site/ward)").bars
    assert (outer.group, outer.within) == ("site", None)
    assert (inner.group, inner.within) == ("ward", "site")


@pytest.mark.parametrize(
    ("left", "kind", "parts"),
    [
        ("cbind(died, n - died)", "cbind", ("died", "n - died")),
        ("p(died, n)", "p", ("died", "n")),
        ("log(y)", "plain", ("log(y)",)),
        ("p", "plain", ("p",)),
    ],
)
def test_outcomes(left, kind, parts):
    outcome = parse(f"{left} ~ x + (1 | g)").outcome
    assert (outcome.kind, outcome.expressions) == (kind, parts)


@pytest.mark.parametrize(
    ("formula", "why", "column"),
    [
        ("y x", "one ~", 3),
        ("y ~ x ~ z", "one ~", 6),
        ("y ~ x + (1 | g", "is not closed", 8),
        ("y ~ x) + 1", "closes nothing", 5),
        ("y ~ 1 | g", "stands in brackets", 6),
        ("y ~ x*(1 | g)", "joined to the others by +", 9),
        ("y ~ x + (| g)", "what varies", 9),
        ("y ~ x + (1 | g + h)", "to the right of the bar", 12),
        ("y ~ x + (1 | g | h)", "one bar", 15),
        (" ~ x", "the outcome is missing", 0),
        ("y ~ x - (1 | g)", "are added", 8),
        ("y ~ .", "name the columns", 4),
        ("cbind(a) ~ x", "takes two columns", 0),
        ("y ~ a:offset(b)", "joined to the others", 6),
    ],
)
def test_errors_point_at_the_place(formula, why, column):
    with pytest.raises(ValueError, match=why.replace("+", r"\+")) as caught:
        parse(formula)
    shown, mark = str(caught.value).splitlines()[-2:]
    assert shown == f"    {formula}"
    assert mark.index("^") - 4 == column


@pytest.mark.parametrize(
    ("formula", "why"),
    [
        ("y ~ a + * b", "incorrectly used"),
        ("y ~ a b", "Missing operator"),
        ("y ~ poly(x, 2)", r"write the powers: x \+ I\(x\*\*2\)"),
        ("y ~ bs(x, df=4)", "give knots="),
        ("y ~ sqr(x)", r"did you mean sqrt\(\)"),
        ("y ~ scale(center(x))", "cannot be nested"),
        ("y ~ log(C(x))", "stands alone"),
        ("y ~ scale(x, ddof=0)", "takes one expression"),
        ("y ~ C(x, levels=[1])", "levels come from the sites"),
        ("y ~ offset(scale(x))", "an offset is added as it is"),
        ("y ~ np.load(x)", "np.load is not known"),
        ("y ~ __import__('os')", r"__import__\(\) is not known"),
        ("y ~ x.__class__()", "not known"),
        ("y ~ log(x if x else 1)", "cannot stand in a formula"),
    ],
)
def test_terms_that_are_refused(formula, why):
    with pytest.raises(ValueError, match=why) as caught:
        needs_of(parse(formula))
    assert formula in str(caught.value)


def test_what_a_formula_needs():
    formula = (
        "y ~ sex + blood.pressure + scale(log(chol)):age + C(cp, Treatment(2)) + (0 + dose | g)"
    )
    found = needs_of(parse(formula))
    assert found.alone == ("sex", "blood.pressure", "age", "dose")
    assert found.inside == ("chol",)
    assert found.factors == {"C(cp, Treatment(2))": "cp"}
    assert found.scaled == {"scale(log(chol))": "log(chol)"}
    assert found.columns == ("sex", "blood.pressure", "age", "dose", "chol", "cp")


def test_expressions_are_evaluated_row_by_row():
    columns = {"a": np.array([1.0, 4.0]), "b": np.array([2.0, 0.0])}
    assert evaluate("np.sqrt(a) + 2*b", columns).tolist() == [5.0, 2.0]
    assert evaluate("a > 2", columns).tolist() == [False, True]
    assert evaluate("3.5", columns).tolist() == [3.5, 3.5]


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("y ~ x^2 + (1 | g)", r"x\^2 is x alone in a formula; write I\(x\*\*2\)"),
        ("y ~ z + x ** 3", r"write I\(x\*\*3\)"),
        ("y ~ x %in% z", "write x:z"),
        ("y ~ factor(x)", r"factor\(\) is not known in a formula; write C\(x\)"),
        ("y ~ ifelse(x > 0, 1, 0)", r"write where\(x > 0, 1, 0\)"),
        ("y ~ (x > 0)", r"comparisons stand in I\(...\)"),
        ("y ~ blood pressure", "a column whose name has blanks .* stands in backticks"),
        ("y ~ scale(x.y)", r"x\.y: a column inside of a function needs a plain name"),
        ("y ~ x + (1 | the site)", "a name with blanks .* stands in backticks"),
    ],
)
def test_what_users_of_r_write_is_answered_with_what_to_write(formula, message):
    with pytest.raises(ValueError, match=message):
        needs_of(parse(formula))


def test_a_group_may_have_a_name_in_backticks():
    bar = parse("y ~ (x + z)**2 + I(x**2) + (1 | `the site`/`ward no.`)").bars[1]
    assert (bar.group, bar.within) == ("ward no.", "the site")
