"""The parts of a formula that could tell a small count: factors, combinations, gaps, outcomes."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from covey.fitting.description import are_numbers, level_values, numbers_of, outcome_column
from covey.fitting.expressions import SCALES, Needs, is_name, names_of, needs_of
from covey.fitting.formula import Formula
from covey.fitting.small_counts import Kept, Part, Rare, kept
from covey.fitting.tables import Column, Table
from covey.fitting.uses import Missing, Uses, columns_of, usable, uses_in

_KNOWN = ("missing", "known")


class Counted(NamedTuple):
    """The rows of a table for a study, and values of its outcome that few of them have.

    Attributes:
        kept: The rows.
        outcomes: Such values of the outcome. They are not left out, which would bias the result.
    """

    kept: Kept
    outcomes: tuple[Rare, ...]


def counted(
    table: Table, formula: Formula, *, missing: Missing, weights: str | None, least: int
) -> Counted:
    """Rows of a table that tell no count below `least` in a study of a formula.

    Args:
        table: The site's table.
        formula: The formula.
        missing: Treatment of rows with missing values.
        weights: The column of prior weights, if any.
        least: Smallest count.
    """
    needs, uses = needs_of(formula), uses_in(table, formula, weights=weights)
    columns = columns_of(table, uses)
    if set(uses.every) - set(columns):  # the study is about to be refused
        return Counted(Kept(np.ones(len(table.frame), bool), ()), ())
    used = usable(columns, uses, missing)
    found = kept(list(_terms(formula, needs, columns, weights, uses, missing)), used, least)
    outcome = list(_outcome(formula, columns))
    rare = kept(outcome, used & found.rows, least).rare
    return Counted(found, rare)


def _terms(
    formula: Formula,
    needs: Needs,
    columns: dict[str, Column],
    weights: str | None,
    uses: Uses,
    missing: Missing,
) -> Iterator[list[Part]]:
    for name in uses.predictors:
        yield [_of_column(name, columns[name])]
        if missing != "drop":
            gaps = columns[name].missing
            yield [Part(f"{name} (missing or not)", 1 - gaps.astype(int), _KNOWN, True)]
    for one in (*formula.offsets, *([f"`{weights}`"] if weights else [])):
        yield list(_of_expression(one, needs, columns))
    for part in (formula.fixed, *(bar.terms for bar in formula.bars)):
        for term in _factors(part):
            yield [one for factor in term for one in _of_expression(factor, needs, columns)]


def _factors(part: str) -> list[list[str]]:
    """Expressions of the factors of each term."""
    import formulaic

    made: Any = formulaic  # its types do not know that a formula is made by calling the class
    return [
        [f"`{one.expr}`" if one.eval_method.value == "lookup" else one.expr for one in term.factors]
        for term in made.Formula(part)
        if all(one.eval_method.value != "literal" for one in term.factors)
    ]


def _of_expression(expression: str, needs: Needs, columns: dict[str, Column]) -> Iterator[Part]:
    """An expression; of one that has no value per row, such as a spline, the columns."""
    if is_name(expression):
        name = names_of(expression)[0]
        yield _of_column(name, columns[name])
    elif expression in needs.factors:
        yield _part(expression, level_values(needs.factors[expression], columns), is_factor=True)
    elif not are_numbers(expression, columns):
        return
    elif expression in needs.scaled:
        yield _part(expression, numbers_of(needs.scaled[expression], columns), is_factor=False)
    elif any(f"{name}(" in expression for name in (*SCALES, "bs")):
        for name in names_of(expression):
            yield _of_column(name, columns[name])
    else:
        yield _part(expression, numbers_of(expression, columns), is_factor=False)


def _outcome(formula: Formula, columns: dict[str, Column]) -> Iterator[list[Part]]:
    expressions = formula.outcome.expressions
    if formula.outcome.kind != "plain" or not (
        is_name(expressions[0]) or are_numbers(expressions[0], columns)
    ):
        return
    yield [_of_column(expressions[0], outcome_column(formula, columns))]


def _of_column(text: str, one: Column) -> Part:
    return _part(text, one.values, is_factor=one.kind == "text")


def _part(text: str, values: Any, *, is_factor: bool) -> Part:
    codes, found = pd.factorize(np.asarray(values, object))
    return Part(text, codes, found.tolist(), is_factor)
