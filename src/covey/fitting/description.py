"""A site's description of its table, before anything is fitted: counts, levels and moments."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from covey.fitting.expressions import evaluate, is_name, names_of, nearest, needs_of
from covey.fitting.formula import Formula
from covey.fitting.small_counts import summed, told
from covey.fitting.tables import Column, Table
from covey.fitting.uses import Missing, Uses, columns_of, group_in, usable, uses_in

Level: TypeAlias = str | float | int | bool
_MISSING_CODES = (-9, -99, -999, -9999, 99, 999, 9999, 99999)
_FEW_VALUES = 5
_MOST_VALUES = 3  # of an outcome of words, where small counts are not told: three are too many


class Moments(NamedTuple):
    """Count, mean and sum of squared deviations, which can be added up over sites."""

    count: float
    mean: float
    squares: float

    @classmethod
    def of(cls, values: np.ndarray) -> "Moments":
        """Those of the values that are not missing.

        Args:
            values: Numbers, NaN where one is missing.
        """
        known = values[~np.isnan(values)]
        if not len(known):
            return cls(0.0, 0.0, 0.0)
        mean = float(known.mean())
        return cls(float(len(known)), mean, float(np.sum((known - mean) ** 2)))

    def __add__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, other: "Moments"
    ) -> "Moments":
        count = self.count + other.count
        if not count:
            return self
        off = other.mean - self.mean
        return Moments(
            count,
            self.mean + off * other.count / count,
            self.squares + other.squares + off**2 * self.count * other.count / count,
        )

    @property
    def sd(self) -> float:
        """The standard deviation, with n - 1 as R has it."""
        return float(np.sqrt(self.squares / max(self.count - 1, 1)))


class Description(NamedTuple):
    """A site's description of its table. Plain values only, so that it can be sent as JSON.

    Attributes:
        site: The site.
        place: Name of its table in messages.
        rows: Rows of the table.
        absent: Columns that the formula needs and the table lacks, with a hint at a similar name.
        kinds: For each column in use, "number", "text" or "empty".
        missing: For each column in use, how many cells are missing.
        levels: For each factor, its levels in the rows that a fit uses, with their counts; counts
            are 0 where they are not needed.
        categories: Levels in their order of pandas categoricals.
        moments: For each expression that is scaled, and for columns that are imputed, count, mean
            and sum of squared deviations.
        outcome: Of the outcome: its kind, its values where there are up to two, whether all are
            counts, and whether some are 0.
        groups: For each group of a bar term, "absent", "constant" or "varies".
        complete: Rows that a fit uses.
        codes: For each numeric predictor with a number such as 999 or -9 that is far from all
            others, this number and how often it stands there.
        withheld: Values for which the site leaves rows out, because too few rows have them.
        labels: For each group of a bar term that is constant in the table, a digest of its value:
            it tells whether other sites have the same.
    """

    site: str
    place: str
    rows: int
    absent: dict[str, str]
    kinds: dict[str, str]
    missing: dict[str, int]
    levels: dict[str, tuple[tuple[Level, int], ...]]
    categories: dict[str, tuple[str, ...]]
    moments: dict[str, Moments]
    outcome: dict[str, Any]
    groups: dict[str, str]
    complete: int
    codes: dict[str, tuple[float, int]] = {}  # noqa: RUF012 (never changed)
    withheld: tuple[str, ...] = ()
    labels: dict[str, str] = {}  # noqa: RUF012 (never changed)


def describe(
    table: Table,
    formula: Formula,
    *,
    missing: Missing = "drop",
    weights: str | None = None,
    client: str | None = None,
    least: int = 0,
    apart: int = 0,
) -> Description:
    """A site's description of its table.

    With `least`, counts of missing cells and of dropped rows are rounded down to multiples of it.
    Every level is named and every row counted: a site that keeps small counts to itself leaves
    rows out first, see `counted`.

    Args:
        table: The site's table.
        formula: The formula.
        missing: Treatment of rows with missing values; counts of levels are sent only where
            missing values are filled in.
        weights: The column of prior weights, if any.
        client: The name of the site's group in the formula, where it is known.
        least: Smallest count that may be told. Default: 0, all are.
        apart: Fewest rows by which two sums may differ, see `small_counts.summed`. Default: 0, all
            known values are summed.

    Returns:
        The description.

    Example:
        >>> import pandas as pd
        >>> from covey.fitting.formula import parse
        >>> rows = pd.DataFrame({"ill": ["yes", "no"], "age": [41, 67], "sex": ["f", None]})
        >>> found = describe(Table("bern", rows), parse("ill ~ scale(age) + sex + (1 | site)"))
        >>> found.levels, found.missing["sex"], found.complete, found.outcome["values"]
        ({'sex': (('f', 0),)}, 1, 1, ['yes'])
    """
    needs = needs_of(formula)
    groups = {bar.group: group_in(table, bar.group, client) for bar in formula.bars}
    uses = uses_in(table, formula, weights=weights, client=client)
    known = {name: nearest(name, list(table.frame.columns)) for name in uses.every}
    absent = {name: hint for name, hint in known.items() if name not in table.frame}
    columns = columns_of(table, uses)
    text = [name for name in needs.alone if name in columns and columns[name].kind == "text"]
    factors = dict.fromkeys(text) | needs.factors
    fills, used = missing != "drop", usable(columns, uses, missing)
    counts = {
        name: _counts(name if inner is None else inner, columns, used)
        for name, inner in factors.items()
        if not set(names_of(name if inner is None else inner)) - set(columns)
    }
    levels = {name: _levels(found, counted=fills) for name, found in counts.items()}
    values = {
        name: numbers_of(inner, columns)
        for name, inner in needs.scaled.items()
        if are_numbers(inner, columns)
    }
    if fills:
        values |= {
            name: columns[name].values
            for name in uses.predictors
            if name in columns and columns[name].kind == "number"
        }
    size = len(table.frame)
    complete = int(used.sum()) if columns else size
    dropped = told(size - complete, least)
    return Description(
        site=table.name,
        place=table.title,
        rows=complete + dropped,
        absent=absent,
        kinds={name: one.kind for name, one in columns.items()},
        missing={name: told(int(one.missing.sum()), least) for name, one in columns.items()},
        levels=levels,
        categories={
            name: _named(one.categories, [level for level, _ in levels.get(name, ())], least)
            for name, one in columns.items()
            if one.categories is not None
        },
        moments={
            name: one for name, one in _moments(values, used, apart).items() if one.count >= least
        },
        outcome={} if absent else _outcome(formula, columns, used, least),
        groups=groups,
        complete=complete,
        codes=_codes(columns, uses, least),
        labels={
            name: hashlib.sha256(str(table.frame[name].iloc[0]).encode()).hexdigest()[:16]
            for name, found in groups.items()
            if found == "constant" and size
        },
    )


def _moments(values: dict[str, np.ndarray], used: np.ndarray, apart: int) -> dict[str, Moments]:
    found, before = {}, []
    for name, one in values.items():
        rows = summed(~np.isnan(one), used, before, apart)
        found[name] = Moments.of(one[rows])
        before.append(rows)
    return found


def _named(order: Sequence[str], named: Sequence[Any], least: int) -> tuple[str, ...]:
    """Categories in their order; with `least`, those that are named."""
    return tuple(one for one in order if not least or one in named)


def _codes(columns: dict[str, Column], uses: Uses, least: int) -> dict[str, tuple[float, int]]:
    """Numbers that look like codes of missing values: they differ from the range of all others by
    more than its width. Codes of fewer than `least` rows are not told.
    """
    found = {}
    for name in uses.predictors:
        if name not in columns or columns[name].kind != "number" or name in uses.factors:
            continue
        values = columns[name].values
        values = values[np.isfinite(values)]
        for code in _MISSING_CODES:
            others = values[values != code]
            if len(others) == len(values) or len(others) < _FEW_VALUES:
                continue
            low, high, times = others.min(), others.max(), len(values) - len(others)
            if times >= least and not low - (high - low) <= code <= high + (high - low):
                found[name] = float(code), told(times, least)
    return found


def numbers_of(expression: str, columns: dict[str, Column]) -> np.ndarray:
    """An expression of numeric columns as floats.

    Args:
        expression: The expression.
        columns: The columns.
    """
    values = {
        name: columns[name].values for name in names_of(expression) if columns[name].kind != "text"
    }
    if not values:
        size = len(next(iter(columns.values())).values)
        return np.asarray(np.broadcast_to(evaluate(expression, {"": np.zeros(size)}), size), float)
    return np.asarray(evaluate(expression, values), float)


def are_numbers(expression: str, columns: dict[str, Column]) -> bool:
    """Whether an expression is of columns of numbers alone.

    Args:
        expression: The expression.
        columns: The columns.
    """
    return all(name in columns and columns[name].kind != "text" for name in names_of(expression))


def _counts(expression: str, columns: dict[str, Column], used: np.ndarray) -> Counter[Level]:
    values = level_values(expression, columns)
    return Counter(
        value for value, use in zip(values, used, strict=True) if use and value is not None
    )


def _levels(counts: Counter[Level], *, counted: bool) -> tuple[tuple[Level, int], ...]:
    ordered: list[Any] = sorted(counts)
    return tuple((level, counts[level] if counted else 0) for level in ordered)


def level_values(expression: str, columns: dict[str, Column]) -> list[Level | None]:
    """The level of each row, None where it is missing; whole numbers as integers.

    Args:
        expression: A column, or what stands inside of C().
        columns: The columns.
    """
    if is_name(expression):
        one = columns[names_of(expression)[0]]
        values = one.values
        if one.kind == "text":
            return list(values)
    else:
        values = np.asarray(evaluate(expression, {name: columns[name].values for name in columns}))
        if values.dtype == bool:
            return [bool(value) for value in values]
    whole = bool(np.all(np.isnan(values) | (values == np.floor(values))))
    return [
        None if np.isnan(value) else int(value) if whole else float(value)
        for value in values.tolist()
    ]


def outcome_column(formula: Formula, columns: dict[str, Column]) -> Column:
    """The outcome of a formula with one expression on the left.

    Args:
        formula: The formula.
        columns: The columns.
    """
    expression = formula.outcome.expressions[0]
    if is_name(expression):
        return columns[names_of(expression)[0]]
    return Column("number", numbers_of(expression, columns))


def _outcome(
    formula: Formula, columns: dict[str, Column], used: np.ndarray, least: int
) -> dict[str, Any]:
    if formula.outcome.kind != "plain":
        return {"kind": "counts", "values": None, "whole": True, "categories": None}
    expression = formula.outcome.expressions[0]
    if not is_name(expression) and not are_numbers(expression, columns):
        return {"kind": "text", "values": None, "whole": False, "categories": None}
    found = outcome_column(formula, columns)
    values = found.values[used]
    values = values[~found.missing[used]]
    counts = Counter(values.tolist())
    distinct = sorted(counts)
    if least and len(distinct) > 2:  # no two values: an error of the study, which names a few
        distinct = [one for one in distinct if counts[one] >= least][:_MOST_VALUES]
    numeric = found.kind != "text"
    order = found.categories
    return {
        "kind": found.kind,
        "values": distinct if len(counts) <= 2 or not numeric else None,
        "zeros": numeric and counts[0.0] >= max(least, 1),
        "whole": numeric and bool(np.all((values >= 0) & (values == np.floor(values)))),
        "categories": None if order is None else _named(order, distinct, least),
    }
