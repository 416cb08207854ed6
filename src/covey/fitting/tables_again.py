"""The tables of a fit that was loaded: read again, and checked to be those that were fitted."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from covey.fitting.design import Design
from covey.fitting.expressions import is_name, names_of
from covey.fitting.formula import Formula
from covey.fitting.tables import Table, TableSource, read_table, read_tables

if TYPE_CHECKING:
    from covey.data.federated import FederatedData
    from covey.fitting.result import Fit


def outcome_name(formula: Formula) -> str | None:
    """The column of the outcome, where it is a single one.

    Args:
        formula: The formula.
    """
    left = formula.outcome.expressions[0]
    return names_of(left)[0] if formula.outcome.kind == "plain" and is_name(left) else None


def tables_again(
    fit: "Fit", data: "Mapping[str, TableSource] | TableSource | FederatedData"
) -> dict[str, Table]:
    """The tables of a fit's sites, checked against what the fit remembers of their rows.

    Args:
        fit: A fit that was loaded.
        data: The tables, as `covey.fit` takes them.

    Returns:
        The tables of the sites of the fit, those of added sites from where they were read.

    Raises:
        ValueError: A site is missing, or its rows are not those that were fitted.
    """
    formula, design = fit.design.formula, fit.design
    read = read_tables(data, client=design.client, outcome=outcome_name(formula))
    trained = [name for name in fit.clients if name not in fit.added]
    lacking = [name for name in trained if name not in read]
    if lacking:
        raise ValueError(
            f"the fit has the site {lacking[0]!r}, and the data have no table of it; tables are "
            f"of {', '.join(read)}"
        )
    others = [name for name in read if name not in fit.clients]
    if others:
        warnings.warn(
            f"the fit does not know the site{'s' * (len(others) > 1)} {', '.join(others)}, which "
            "the data have: left out; add_client adds a site",
            stacklevel=3,
        )
    found = {name: read[name] for name in fit.clients if name in read}
    for name, at in fit.stored.get("added_paths", {}).items():
        if name not in found and Path(at).is_file():
            found[name] = read_table(at, name)
    _check(design, found, fit.stored.get("digests", {}))
    return found


def _check(design: Design, tables: Mapping[str, Table], digests: Mapping[str, str]) -> None:
    for name, table in tables.items():
        if name in digests and design.rows_of(table).digest != digests[name]:
            raise ValueError(
                f"{table.title}: the rows of {name!r} are not those that were fitted; fit again, "
                "or give the tables of the fit"
            )
