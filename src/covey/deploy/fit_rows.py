"""A formula at a site: the site's description of its table, and its rows by the design.

Small counts. With `rare_levels = "drop"`, rows are left out before anything is counted, so that no
count below `min_count` can be read (`fitting/small_counts.py` has the rules). The study learns for
which columns rows are left out, and the site's audit log their count. With "use", all rows are
used, and names of rare levels leave.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from covey.deploy.fit_design import design_of
from covey.deploy.policy import check_rows
from covey.deploy.refusal import DeclinedError
from covey.deploy.site_file import SiteFile
from covey.deploy.site_table import mistakes_kept
from covey.deploy.study import Study
from covey.fitting.counted import counted
from covey.fitting.description import Description, describe
from covey.fitting.design import Design, Rows
from covey.fitting.formula import Formula
from covey.fitting.small_counts import Rare
from covey.fitting.tables import Table
from covey.fitting.uses import Missing

_NAMED = 8  # values that a sentence of the log lists


def described(site: SiteFile, study: Study, table: Table) -> dict[str, Any]:
    """The site's description of its table, as plain values.

    Args:
        site: The site's file, with the permissions of its owner.
        study: The study.
        table: The site's table.

    Raises:
        DeclinedError: The table cannot be used, or has too few rows.
    """
    found, rare = _said(site, study, table)
    if not found.absent:
        check_rows(site, found.complete, why=left_out(rare))
    for name, levels in found.levels.items():
        if len(levels) > found.complete / 2:
            raise DeclinedError(
                "table",
                f"{name!r} of {site.name} names rows, as an id does: it has a level for every "
                "other row; leave it out",
            )
    return found._replace(place=f"the table of {site.name!r}")._asdict()


def own_design(site: SiteFile, study: Study, table: Table, content: Any) -> Design:
    """The design that a server has sent, where it fits the site's description of its table.

    Args:
        site: The site's file, with the permissions of its owner.
        study: The study.
        table: The site's table.
        content: The design as plain values.

    Raises:
        DeclinedError: It does not; see `fit_design.design_of`.
    """
    return design_of(study, content, _said(site, study, table)[0])


def _said(site: SiteFile, study: Study, table: Table) -> tuple[Description, tuple[Rare, ...]]:
    fit, formula, limits = study.tables["fit"], study.formula, site.limits
    assert formula is not None
    options = {"missing": fit["missing"], "weights": fit.get("weights")}
    apart = limits.min_count if limits.rare_levels == "drop" else 0
    with mistakes_kept(table, [*study.outcome, *study.predictors]):
        rest, rare = _rest(site, formula, table, **options)
        found = describe(rest, formula, **options, least=limits.min_count, apart=apart)
    return found._replace(withheld=tuple(dict.fromkeys(one.text for one in rare))), rare


def left_out(rare: Sequence[Rare]) -> str:
    """The count of rows left out, with their values, for the owner; empty where none are.

    Args:
        rare: The values that few rows have.
    """
    if not rare:
        return ""
    count = sum(one.rows for one in rare)
    each = [f"{one.text} is {one.value} ({one.rows})" for one in rare[:_NAMED]]
    more = [f"{len(rare) - _NAMED} more"] if len(rare) > _NAMED else []
    return (
        f"{count} row{'s are' if count != 1 else ' is'} left out, because too few have the same "
        f"value and limits.rare_levels is 'drop': {'; '.join(each + more)}"
    )


class FitRows(NamedTuple):
    """The rows of a site for a formula.

    Attributes:
        rows: The rows.
        table: The table that they are of, without the rows that were left out.
        rare: The values of the rows that were left out.
    """

    rows: Rows
    table: Table
    rare: tuple[Rare, ...]


def made(site: SiteFile, design: Design, table: Table) -> FitRows:
    """The rows of the site's table.

    Args:
        site: The site's file, with the permissions of its owner.
        design: The design of all sites.
        table: The site's table.

    Raises:
        DeclinedError: They cannot be made, or are too few.
    """
    options: Any = {"missing": design.missing, "weights": design.weights}
    with mistakes_kept(table, design.uses.every):
        rest, rare = _rest(site, design.formula, table, **options)
        rows = design.rows_of(rest)
    check_rows(site, len(rows.y))
    return FitRows(rows, rest, rare)


def _rest(
    site: SiteFile, formula: Formula, table: Table, *, missing: Missing, weights: str | None
) -> tuple[Table, tuple[Rare, ...]]:
    """The table without the rows that the owner keeps out of the study, and their values."""
    if site.limits.rare_levels == "use":
        return table, ()
    options = {"missing": missing, "weights": weights, "least": site.limits.min_count}
    found = counted(table, formula, **options)
    rows, rare = found.kept
    index = np.flatnonzero(rows) if table.index is None else table.index[rows]
    rest = table._replace(frame=table.frame[rows].reset_index(drop=True), index=index)
    if found.outcomes and int(rows.sum()) >= site.limits.min_rows:
        said = ", ".join(
            f"{one.text} is {one.value} in {one.rows} row{'s' * (one.rows != 1)}"
            for one in found.outcomes
        )
        raise DeclinedError(
            "rows",
            f"{site.name} does not take part: too few of its rows have one value of the outcome",
            f"{said}; fewer than limits.min_count = {site.limits.min_count} are not shown, and "
            "rows are not chosen by their outcome, which would bias the result. To take part, set "
            "limits.rare_levels = 'use': these counts can then be read from your sums",
        )
    return rest, rare
