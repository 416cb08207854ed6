"""Which columns of a table a formula uses, what for, and which rows of it."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from covey.fitting.expressions import Needs, names_of, needs_of
from covey.fitting.formula import Formula
from covey.fitting.tables import Column, Table, column

Missing: TypeAlias = Literal["drop", "impute", "indicator"]
RULES = ("drop", "impute", "indicator")


class Uses(NamedTuple):
    """Columns by what they are used for.

    Attributes:
        predictors: Columns of terms, which can be imputed.
        needed: Columns without which a row cannot be used: outcome, offset, weights, groups.
        factors: Columns that are only used as `C(column)`.
    """

    predictors: tuple[str, ...]
    needed: tuple[str, ...]
    factors: frozenset[str]

    @property
    def every(self) -> tuple[str, ...]:
        """All columns in use."""
        return tuple(dict.fromkeys([*self.predictors, *self.needed]))


def uses_of(
    formula: Formula, needs: Needs, *, weights: str | None, groups: Sequence[str] = ()
) -> Uses:
    """Which columns a fit uses, and for what.

    Args:
        formula: The formula.
        needs: What its right-hand side needs.
        weights: The column of prior weights, if any.
        groups: Columns of groups inside a site.
    """
    offsets = [name for one in formula.offsets for name in names_of(one)]
    outcome = [name for one in formula.outcome.expressions for name in names_of(one)]
    inner = {name for one in needs.factors.values() for name in names_of(one)}
    needed = [*outcome, *offsets, *([weights] if weights else []), *groups]
    return Uses(
        tuple(name for name in needs.columns if name not in offsets),
        tuple(dict.fromkeys(needed)),
        frozenset(inner - {*needs.alone, *needs.inside, *needed}),
    )


def uses_in(
    table: Table, formula: Formula, *, weights: str | None, client: str | None = None
) -> Uses:
    """Which columns a fit uses of a table, groups that vary in it included.

    Args:
        table: The table.
        formula: The formula.
        weights: The column of prior weights, if any.
        client: The name of the site's group in the formula, where it is known.
    """
    inner = [bar.group for bar in formula.bars if group_in(table, bar.group, client) == "varies"]
    return uses_of(formula, needs_of(formula), weights=weights, groups=list(dict.fromkeys(inner)))


def columns_of(table: Table, uses: Uses) -> dict[str, Column]:
    """The columns in use that the table has.

    Args:
        table: The site's table.
        uses: Which columns are used.
    """
    return {
        name: column(table, name, is_factor=name in uses.factors)
        for name in uses.every
        if name in table.frame
    }


def usable(columns: dict[str, Column], uses: Uses, missing: Missing) -> np.ndarray:
    """Which rows a fit uses.

    Args:
        columns: The columns in use.
        uses: Their uses.
        missing: Treatment of missing values.
    """
    names = uses.every if missing == "drop" else uses.needed
    found = [columns[name].missing for name in names if name in columns]
    size = len(next(iter(columns.values())).values) if columns else 0
    return ~np.any(found, axis=0) if found else np.ones(size, bool)


def group_in(table: Table, name: str, client: str | None) -> str:
    """Whether the group of a bar term is "absent" in a table, "constant", or "varies".

    Args:
        table: The table.
        name: The group.
        client: The name of the site's group in the formula, where it is known.
    """
    if name == client or name not in table.frame:
        return "absent"
    values = {str(value) for value in table.frame[name]}
    return "varies" if len(values) > 1 else "constant"
