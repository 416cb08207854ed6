"""From tables with named columns to arrays. Errors name the table and the column."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np
from jaxtyping import Float64

if TYPE_CHECKING:
    import pandas

# Quoted, with its module: type checkers and the run-time check of the tests find it without an
# import of pandas here.
Table: TypeAlias = Union["pandas.DataFrame", str, Path]
XY: TypeAlias = tuple[Float64[np.ndarray, "rows features"], Float64[np.ndarray, " rows"]]


def read(table: Table, label: str) -> tuple["pandas.DataFrame", str]:
    """The table, and what errors call it: its file, or `label` where it is already in memory."""
    import pandas  # here: half a second that a run on arrays need not pay

    if isinstance(table, str | Path):
        path = Path(table)
        if not path.is_file():
            raise ValueError(f"table {label!r}: there is no file {path}")
        return pandas.read_csv(path), str(path)
    return table, label


def many(
    tables: Mapping[str, Table], *, outcome: str, features: Sequence[str] | None
) -> tuple[Sequence[str], dict[str, XY]]:
    """The feature columns, and features and outcome of each client's own table.

    Without `features`, all tables must have the same columns.
    """
    if not tables:
        raise ValueError("no tables were given; pass {name of client: table or path of a CSV file}")
    out: dict[str, XY] = {}
    columns, first = features or (), ""
    for name, table in tables.items():
        frame, label = read(table, name)
        if features is None and not out:
            columns, first = [str(column) for column in frame.columns if column != outcome], label
        if features is None:
            _check_same_columns(
                columns,
                [str(column) for column in frame.columns if column != outcome],
                first,
                label,
            )
        out[name] = arrays(frame, label, outcome=outcome, features=columns)
    return columns, out


def arrays(frame: "pandas.DataFrame", label: str, *, outcome: str, features: Sequence[str]) -> XY:
    """Feature columns side by side, and the outcome."""
    if not features:
        raise ValueError(f"{label} has no feature columns besides the outcome {outcome!r}")
    if outcome in features:
        raise ValueError(f"the outcome {outcome!r} is also in `features`; take it out")
    x = np.stack([numbers(frame, column, label) for column in features], axis=1)
    return x, numbers(frame, outcome, label)


def numbers(frame: "pandas.DataFrame", column: str, label: str) -> Float64[np.ndarray, " rows"]:
    """A column as numbers, NaN where it is empty."""
    import pandas
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    _check_column(frame, column, label)
    values = pandas.Series(frame[column])
    if not (is_numeric_dtype(values) or is_bool_dtype(values)):
        text = pandas.Series(values.astype(str).where(values.notna()))
        values = pandas.Series(pandas.to_numeric(text, errors="coerce"))
        wrong = text.to_numpy()[(values.isna() & text.notna()).to_numpy(bool)]
        if len(wrong):
            raise ValueError(
                f"column {column!r} of {label} has {len(wrong)} cells that are not numbers, such as {str(wrong[0])!r};"
                " encode them as numbers, leave them empty where unknown, or leave the column out with `features`"
            )
    return values.to_numpy(np.float64, na_value=np.nan)


def owners(frame: "pandas.DataFrame", column: str, label: str) -> np.ndarray:
    """The column that says whose a row is."""
    import pandas

    _check_column(frame, column, label)
    values = pandas.Series(frame[column])
    if values.isna().any():
        raise ValueError(
            f"column {column!r} of {label} has {values.isna().sum()} empty cells; every row needs a client"
        )
    return values.to_numpy()


def _check_column(frame: "pandas.DataFrame", column: str, label: str) -> None:
    if column not in frame.columns:
        known = ", ".join(str(name) for name in frame.columns)
        raise ValueError(f"{label} has no column {column!r}; its columns are: {known}")


def _check_same_columns(
    expected: Sequence[str], found: Sequence[str], first: str, label: str
) -> None:
    lacking, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if lacking or extra:
        raise ValueError(
            f"{label} and {first} have different columns (only in {first}: {lacking}; only in {label}: {extra});"
            " name the columns to use with `features`"
        )
