"""From tables with named columns to arrays. Errors name the file, the line and the value."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, Union

import numpy as np
from jaxtyping import Float64, Shaped

from covey.data import csv_files
from covey.data.division import split_codes
from covey.data.values import cells_text

if TYPE_CHECKING:
    import pandas

# Quoted, with its module: type checkers and the run-time check of the tests find it without an
# import of pandas here.
PathLike: TypeAlias = str | Path
Table: TypeAlias = Union["pandas.DataFrame", str, Path]


class Source(NamedTuple):
    """The source of a table, for messages: its name, and its file if it has one."""

    name: str
    path: Path | None = None

    def row(self, index: int) -> str:
        """The name of a row in messages.

        Args:
            index: Index of the row in the table, from 0.

        Returns:
            Its line in the file, if there is a file, otherwise its index.

        Example:
            >>> Source("bern").row(3)
            'row 3 (from 0)'
        """
        if self.path is None:
            return f"row {index} (from 0)"
        return f"line {csv_files.line_of(self.path, index)}"


class Arrays(NamedTuple):
    """The arrays of a table: features, outcomes and, if there is such a column, splits.

    x: the feature columns side by side.
    y: the outcome.
    splits: "train", "validation" or "test" for each row, or None.
    source: where the table comes from.
    """

    x: Float64[np.ndarray, "rows features"]
    y: Float64[np.ndarray, " rows"]
    splits: Shaped[np.ndarray, " rows"] | None
    source: Source


def read(
    table: Table, name: str, *, as_text: Collection[str] = ()
) -> tuple["pandas.DataFrame", Source]:
    """A table as a data frame, and its source for messages.

    Args:
        table: A data frame, or the path of a CSV file.
        name: Name of a data frame in messages; a file is called by its path.
        as_text: Columns of a file to keep as they are written; see `csv_files.read`.

    Returns:
        The data frame with different column names, and its source.

    Example:
        >>> from covey.datasets.sources import bundled
        >>> frame, source = read(bundled("eight_schools.csv"), "schools")
        >>> len(frame), source.row(0)
        (8, 'line 2')
    """
    if isinstance(table, PathLike):
        return csv_files.read(Path(table), as_text=as_text), Source(str(table), Path(table))
    twice = table.columns[table.columns.duplicated()]
    if len(twice):
        raise ValueError(f"{name}: two columns have the name {twice[0]!r}; rename one")
    return table, Source(name)


def many(
    tables: Mapping[str, Table],
    *,
    outcome: str,
    features: Sequence[str] | None,
    split_column: str | None = None,
    allow_missing: bool = False,
    warn_if_empty: bool = True,
) -> tuple[Sequence[str], dict[str, Arrays]]:
    """The arrays of one table per client.

    Args:
        tables: For each client's name, a data frame or the path of a CSV file.
        outcome: Name of the outcome's column.
        features: Names of the feature columns; None takes all other columns, which must then be
            the same in all tables.
        split_column: Name of the column that says which split a row is in, if there is one.
        allow_missing: Whether features may be missing.
        warn_if_empty: Whether to warn of a file without rows.

    Returns:
        The names of the feature columns, and the arrays of each client.

    Example:
        >>> import pandas
        >>> bern = pandas.DataFrame({"age": [41, 67], "ill": [0, 1]})
        >>> columns, tables = many({"bern": bern}, outcome="ill", features=None)
        >>> columns, tables["bern"].x.tolist()
        (['age'], [[41.0], [67.0]])
    """
    if not tables:
        raise ValueError("no tables were given; pass {name of client: table or path of a CSV file}")
    out: dict[str, Arrays] = {}
    columns, first = features, ""
    for name, table in tables.items():
        frame, source = read(table, name, as_text=() if split_column is None else (split_column,))
        if features is None:
            found = feature_columns(frame, source, without=(outcome, split_column))
            columns, first = (found, source.name) if columns is None else (columns, first)
            _check_same_columns(columns, found, first, source.name)
        assert columns is not None
        out[name] = arrays(
            frame, source, outcome=outcome, features=columns, split_column=split_column
        )
        if not allow_missing:
            refuse_missing(out[name].x, columns, np.full(len(frame), name), source)
        if warn_if_empty and source.path is not None and not len(frame):
            warnings.warn(
                f"client {name!r} has no rows: {source.name} has nothing below its header",
                stacklevel=2,
            )
    return columns or (), out


def arrays(
    frame: "pandas.DataFrame",
    source: Source,
    *,
    outcome: str,
    features: Sequence[str],
    split_column: str | None = None,
) -> Arrays:
    """The columns of a data frame as arrays of numbers.

    Args:
        frame: The data frame.
        source: Its source.
        outcome: Name of the outcome's column, in which no value may be missing.
        features: Names of the feature columns; missing values become NaN.
        split_column: Name of the column that says which split a row is in, if there is one.

    Returns:
        Features, outcomes and splits.

    Example:
        >>> import pandas
        >>> bern = pandas.DataFrame({"age": [41, 67], "ill": [0, 1]})
        >>> arrays(bern, Source("bern"), outcome="ill", features=["age"]).y.tolist()
        [0.0, 1.0]
    """
    special = [outcome] if split_column is None else [outcome, split_column]
    check_columns(frame, [*special, *features], source)
    if not features:
        raise ValueError(f"{source.name} has no feature columns besides the outcome {outcome!r}")
    for column, what in ((outcome, "outcome"), (split_column, "split_column")):
        if column in features:
            raise ValueError(f"the {what} {column!r} is also in `features`; take it out")
    x = np.stack([numbers(frame, column, source) for column in features], axis=1)
    y = numbers(frame, outcome, source)
    gaps = np.flatnonzero(np.isnan(y))
    if gaps.size:
        raise ValueError(
            f"the outcome {outcome!r} of {source.name} is missing in {gaps.size} rows, the first is"
            f" {source.row(int(gaps[0]))}; remove those rows, an outcome cannot be filled in"
        )
    splits = None if split_column is None else _splits(frame, split_column, source)
    return Arrays(x, y, splits, source)


def feature_columns(
    frame: "pandas.DataFrame", source: Source, *, without: Collection[str | None]
) -> list[str]:
    """The feature columns where none were named: all columns but those that are something else.

    Args:
        frame: The data frame.
        source: Its source.
        without: Names of the columns of the outcome, the client and the split.

    Returns:
        The names, in the order of the table.

    Example:
        >>> import pandas
        >>> frame = pandas.DataFrame({"age": [41], "ill": [0]})
        >>> feature_columns(frame, Source("bern"), without=["ill"])
        ['age']
    """
    names = [str(column) for column in frame.columns if column not in without]
    if source.path is not None and any(name.startswith("Unnamed: ") for name in names):
        raise ValueError(
            f"{source.name} has a column without a name, as R and pandas write for row numbers;"
            " write the file without it (row.names=FALSE in R, index=False in pandas), or name"
            " the columns to use with `features`"
        )
    return names


def numbers(frame: "pandas.DataFrame", column: str, source: Source) -> Float64[np.ndarray, " rows"]:
    """A column as numbers.

    Args:
        frame: The data frame.
        column: Name of the column; true and false are 1 and 0.
        source: Source of the data frame.

    Returns:
        The values, NaN where a cell is empty.

    Example:
        >>> import pandas
        >>> numbers(pandas.DataFrame({"age": ["41", None]}), "age", Source("a")).tolist()
        [41.0, nan]
    """
    import pandas
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    check_columns(frame, [column], source)
    values = pandas.Series(frame[column])
    if not (is_numeric_dtype(values) or is_bool_dtype(values)):
        text = pandas.Series(values.astype(str).where(values.notna()))
        values = pandas.Series(pandas.to_numeric(text, errors="coerce"))
        wrong = np.flatnonzero((values.isna() & text.notna()).to_numpy(bool))
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"column {column!r} of {source.name} has {len(wrong)} cells that are not numbers,"
                f" the first is {str(text.iloc[row])!r} in {source.row(row)}; encode them as"
                " numbers, leave them empty where unknown, or leave the column out with `features`"
            )
    return values.to_numpy(np.float64, na_value=np.nan)


def owners(frame: "pandas.DataFrame", column: str, source: Source) -> Shaped[np.ndarray, " rows"]:
    """The column that says which client owns each row.

    Args:
        frame: The data frame.
        column: Name of the column.
        source: Source of the data frame.

    Returns:
        The label of each row's client.

    Example:
        >>> import pandas
        >>> owners(pandas.DataFrame({"site": [7, 3]}), "site", Source("all")).tolist()
        [7, 3]
    """
    import pandas

    check_columns(frame, [column], source)
    values = pandas.Series(frame[column])
    empty = np.flatnonzero((values.isna() | (values.astype(str) == "")).to_numpy(bool))
    if empty.size:
        raise ValueError(
            f"column {column!r} of {source.name} has {empty.size} empty cells, the first in"
            f" {source.row(int(empty[0]))}; every row needs a client"
        )
    return values.to_numpy()


def as_numbers(labels: Shaped[np.ndarray, " labels"]) -> Shaped[np.ndarray, " labels"]:
    """Labels as integers where each is a whole number as one would write it, else as they are.

    Args:
        labels: Labels as text.

    Returns:
        Integers, or the text.

    Example:
        >>> as_numbers(np.array(["1", "20"])).tolist(), as_numbers(np.array(["01", "1"])).tolist()
        ([1, 20], ['01', '1'])
    """
    distinct = np.unique(labels).tolist()
    as_written = all(
        text.isdecimal() and len(text) < 19 and str(int(text)) == text for text in distinct
    )
    return labels.astype(np.int64) if distinct and as_written else labels


def refuse_missing(
    x: Float64[np.ndarray, "rows features"],
    columns: Sequence[str],
    owner: Shaped[np.ndarray, " rows"],
    source: Source,
) -> None:
    """Raise an error that names the missing cells of the first client that has some.

    Args:
        x: The features.
        columns: Their names.
        owner: Which client owns each row.
        source: Source of the table.

    Example:
        >>> x, owner = np.array([[np.nan]]), np.array(["bern"])
        >>> refuse_missing(x, ["age"], owner, Source("a"))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: client 'bern' has 1 missing (NaN) feature cells in a: 1 in column 'age' ...
    """
    missing = np.isnan(x)
    bad = np.flatnonzero(missing.any(1))
    if not bad.size:
        return
    client = owner[bad[0]]
    rows = np.flatnonzero(owner == client)
    cells = cells_text(missing[rows], columns, lambda row: source.row(int(rows[row])))
    raise ValueError(
        f"client {str(client)!r} has {missing[rows].sum()} missing (NaN) feature cells in"
        f" {source.name}: {cells}; fill or remove them, or pass allow_missing=True and fill them"
        " with standardised() ([data] allow_missing = true and standardise = true in a"
        " configuration)"
    )


def check_columns(frame: "pandas.DataFrame", columns: Sequence[str], source: Source) -> None:
    """Check that a data frame has these columns; the error names the nearest that it has.

    Args:
        frame: The data frame.
        columns: Names of the columns that are needed.
        source: Source of the data frame.

    Example:
        >>> import pandas
        >>> check_columns(pandas.DataFrame({"Age": [1]}), ["age"], Source("bern"))
        Traceback (most recent call last):
            ...
        ValueError: bern has no column 'age' (did you mean 'Age'?); its columns are: Age
    """
    known = [str(name) for name in frame.columns]
    missing = [column for column in columns if column not in frame.columns]
    if not missing:
        return
    lowered = {name.strip().lower(): name for name in known}

    def hint(column: str) -> str:
        near = get_close_matches(column.strip().lower(), lowered, n=1)
        return f"{column!r} (did you mean {lowered[near[0]]!r}?)" if near else repr(column)

    raise ValueError(
        f"{source.name} has no column {', '.join(map(hint, missing))}; its columns are:"
        f" {', '.join(known)}"
    )


def _splits(frame: "pandas.DataFrame", column: str, source: Source) -> Shaped[np.ndarray, " rows"]:
    labels = frame[column].to_numpy().astype(str)
    split_codes(labels, lambda row: f"{source.name}, {source.row(row)}, column {column!r}")
    return labels


def _check_same_columns(
    expected: Sequence[str], found: Sequence[str], first: str, label: str
) -> None:
    lacking, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if lacking or extra:
        raise ValueError(
            f"{label} and {first} have different columns (only in {first}: {lacking}; only in"
            f" {label}: {extra}); name the columns to use with `features`"
        )
