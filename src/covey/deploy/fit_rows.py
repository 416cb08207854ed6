"""A formula at a site: what the site says of its table, and the rows that it makes of the design.

Small counts. A level that fewer than `min_count` rows of a site have is not named by this site.
Where another site names it, the rows with it are part of this site's sums (`rare_levels = "use"`)
or are left out (`"drop"`). Where no site names it, they are left out. The site's audit log says how
many.
"""

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from covey.deploy.fit_design import design_of
from covey.deploy.plain_values import checked
from covey.deploy.policy import check_rows
from covey.deploy.site_file import SiteFile
from covey.deploy.site_table import mistakes_kept
from covey.deploy.study import Study
from covey.fitting.description import (
    Description,
    columns_of,
    describe,
    level_values,
    outcome_column,
    usable,
)
from covey.fitting.design import Design, Rows
from covey.fitting.priors import Statistics
from covey.fitting.tables import Table


def described(site: SiteFile, study: Study, table: Table) -> dict[str, Any]:
    """What the site says of its table, as plain values.

    Args:
        site: What the owner allows.
        study: The study.
        table: The site's table.

    Raises:
        DeclinedError: The table cannot be used, or has too few rows.
    """
    exact, found = (_said(study, table, least) for least in (0, site.limits.min_count))
    if not exact.absent:
        check_rows(site, exact.complete)
    return found._replace(place=f"the table of {site.name!r}")._asdict()


def own_design(site: SiteFile, study: Study, table: Table, content: Any) -> Design:
    """The design that a server has sent, where it fits what the site has said of its table.

    Args:
        site: What the owner allows.
        study: The study.
        table: The site's table.
        content: The design as plain values.

    Raises:
        DeclinedError: It does not; see `fit_design.design_of`.
    """
    return design_of(study, content, _said(study, table, site.limits.min_count))


def _said(study: Study, table: Table, least: int) -> Description:
    fit, formula = study.tables["fit"], study.formula
    assert formula is not None
    with mistakes_kept(table, [*study.outcome, *study.predictors]):
        return describe(
            table, formula, missing=fit["missing"], weights=fit.get("weights"), least=least
        )


def description_of(content: Any) -> Description:
    """The description that a site has sent.

    Args:
        content: Plain values.

    Raises:
        ValueError: They are no description.
    """
    return checked(Description, content)


class FitRows(NamedTuple):
    """The rows of a site for a formula.

    Attributes:
        rows: The rows.
        table: The table that they are of, without the rows that were left out.
        left_out: Rows with a level that is not in the design, or that is rare here.
    """

    rows: Rows
    table: Table
    left_out: int


def made(site: SiteFile, design: Design, table: Table) -> FitRows:
    """The rows of the site's table.

    Args:
        site: What the owner allows.
        design: The design of all sites.
        table: The site's table.

    Raises:
        DeclinedError: They cannot be made, or are too few.
    """
    limits = site.limits
    with mistakes_kept(table, design.uses.every):
        kept = _kept(design, table, limits.min_count if limits.rare_levels == "drop" else 0)
        frame = table.frame[kept].reset_index(drop=True)
        index = np.flatnonzero(kept) if table.index is None else table.index[kept]
        rest = table._replace(frame=frame, index=index)
        rows = design.rows_of(rest)
    check_rows(site, len(rows.y))
    return FitRows(rows, rest, int(np.sum(~kept)))


def _kept(design: Design, table: Table, least: int) -> np.ndarray:
    """Rows whose levels are all in the design and, with `least`, not rare among usable rows."""
    columns = columns_of(table, design.uses)
    used = usable(columns, design.uses, design.missing)
    kept = np.ones(len(table.frame), bool)
    known: list[tuple[list[Any], set[Any]]] = [
        (level_values(design.needs.factors.get(name, name), columns), set(levels))
        for name, levels in design.factors.items()
    ]
    if design.outcome_levels is not None:
        outcome = outcome_column(design.formula, columns)
        values = [
            None if gap else v for v, gap in zip(outcome.values, outcome.missing, strict=True)
        ]
        known.append((values, set(design.outcome_levels)))
    for values, levels in known:
        counts = Counter(value for value, use in zip(values, used, strict=True) if use)
        kept &= [value is None or (value in levels and counts[value] >= least) for value in values]
    return kept


def statistics_of(content: Any) -> Statistics:
    """The sums that a site has sent, which priors are scaled by.

    Args:
        content: Plain values.

    Raises:
        ValueError: They are no such sums.
    """
    return checked(Statistics, content)
