"""Tables of sites: reading them, and their columns as numbers or words.

A column that a formula does not name is never used.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from covey.data import csv_files
from covey.data.federated import FederatedData
from covey.fitting.expressions import nearest

TableSource: TypeAlias = str | Path | pd.DataFrame
Site: TypeAlias = str | int  # what a user calls a site
MISSING = ("", "na", "nan", "n/a", "?", "null", "<na>")  # without regard to capital letters
_TABLES = (".csv", ".csv.gz", ".parquet")
_MOSTLY = 0.5  # share of numbers from which on words in a column are mistakes
_TRUTH = {"true": "True", "false": "False"}
_BAD_NAME = re.compile(r"[/\\\x00-\x1f]|^\.|^\s*$")


class Table(NamedTuple):
    """A site's table.

    Attributes:
        name: The site.
        frame: The table as it was read; columns of text are not yet numbers.
        path: The file; None for a data frame.
        index: Rows of the file that belong to the site; None for all of them.
    """

    name: str
    frame: pd.DataFrame
    path: Path | None = None
    index: np.ndarray | None = None

    def row(self, index: int) -> str:
        """The name of a row in messages."""
        index = index if self.index is None else int(self.index[index])
        if self.path is not None and self.path.suffix != ".parquet":
            return f"{self.path}, line {csv_files.line_of(self.path, index)}"
        return f"{self.title}, row {index}"

    @property
    def title(self) -> str:
        """The name of the table in messages."""
        return f"the table of {self.name!r}" if self.path is None else str(self.path)


class Column(NamedTuple):
    """A column as numbers or as words.

    Attributes:
        kind: "number", "text", or "empty" where every cell is missing.
        values: Floats with NaN, or texts with None.
        categories: Levels in their order, of a pandas categorical; None for others.
    """

    kind: Literal["number", "text", "empty"]
    values: np.ndarray
    categories: tuple[str, ...] | None = None

    @property
    def missing(self) -> np.ndarray:
        """Which cells are missing."""
        return pd.isna(self.values)


def read_tables(
    data: "Mapping[str, TableSource] | TableSource | FederatedData",
    *,
    client: str | None = None,
    outcome: str | None = None,
) -> dict[str, Table]:
    """The tables of the sites.

    Args:
        data: For each site's name a data frame or a file; a folder with one CSV or Parquet file per
            site; one table with a column that names the site; or federated data.
        client: The column that names the site, in one table.
        outcome: Name of the outcome of federated data.

    Returns:
        One table per site, in order: as given, or sorted by name.

    Example:
        >>> frame = pd.DataFrame({"site": ["b", "a", "b"], "age": [1, 2, 3]})
        >>> {name: len(one.frame) for name, one in read_tables(frame, client="site").items()}
        {'a': 1, 'b': 2}
    """
    if isinstance(data, FederatedData):
        return _of_federated(data, outcome)
    if isinstance(data, Mapping):
        found = {word(name): read_table(source, word(name)) for name, source in data.items()}
    elif isinstance(data, (str, Path)) and Path(data).is_dir():
        found = _of_folder(Path(data))
    else:
        found = _divided(read_table(data, "the data"), client)
    if not found:
        raise ValueError("no site was given: data= has no table")
    for name in found:
        check_name(name)
    return found


def read_table(source: TableSource, name: str) -> Table:
    """One table.

    Args:
        source: A data frame, or a CSV or Parquet file.
        name: The site.

    Example:
        >>> read_table(pd.DataFrame({"age": [1]}), "bern").frame.shape
        (1, 1)
    """
    if isinstance(source, pd.DataFrame):
        frame, path = source.reset_index(drop=True), None
    elif isinstance(source, (str, Path)):
        path = Path(source)
        if path.is_dir():
            raise ValueError(f"{path} is a folder; a single table is a CSV or Parquet file")
        if path.suffix == ".parquet":
            if not path.is_file():
                raise ValueError(f"there is no file {path}")
            frame = pd.read_parquet(path).reset_index(drop=True)
        else:
            frame = csv_files.read(path, as_text=None)
            frame.columns = [str(column).strip() for column in frame.columns]
    else:
        raise ValueError(
            f"the table of {name!r} must be a data frame, or the path of a CSV or Parquet file, "
            f"got {type(source).__name__}"
        )
    frame.columns = [str(column) for column in frame.columns]
    return Table(name, frame, path)


def check_name(name: str) -> None:
    """An error for a site's name that cannot be a file's.

    Args:
        name: The name.

    Example:
        >>> check_name("../va")
        Traceback (most recent call last):
        ...
        ValueError: a site cannot be called '../va': names become files; leave out ...
    """
    if _BAD_NAME.search(name) or len(name) > 200:
        raise ValueError(
            f"a site cannot be called {name!r}: names become files; leave out / and \\ and a dot "
            "at the beginning, and give at least one and at most 200 characters"
        )


def column(table: Table, name: str, *, is_factor: bool = False) -> Column:
    """A column as numbers or words.

    Text in which at least half of the cells are numbers is a column of numbers, and its words are
    mistakes, unless it is a factor.

    Args:
        table: The table.
        name: The column, which must be there.
        is_factor: Whether the formula makes it a factor, `C(name)`.

    Returns:
        The column.

    Example:
        >>> text = Table("bern", pd.DataFrame({"age": ["41", "?", " 67"], "sex": ["f", "m", "NA"]}))
        >>> column(text, "age").values.tolist(), column(text, "sex").values.tolist()
        ([41.0, nan, 67.0], ['f', 'm', None])
    """
    given = table.frame[name]
    if isinstance(given, pd.DataFrame):
        raise ValueError(f"{table.title} has two columns {name!r}; rename one")
    if isinstance(given.dtype, pd.CategoricalDtype):
        words = [None if pd.isna(value) else word(value) for value in given]
        return Column("text", _objects(words), tuple(map(word, given.cat.categories)))
    if pd.api.types.is_bool_dtype(given.dtype):
        return Column("text", _objects([None if pd.isna(one) else str(bool(one)) for one in given]))
    if pd.api.types.is_numeric_dtype(given.dtype) and given.dtype.kind != "c":
        values = np.asarray(given.astype("Float64").to_numpy(float, na_value=np.nan))
        return Column("number" if len(values) and not np.isnan(values).all() else "empty", values)
    _refuse_times(table, name, given)
    return _from_text(table, name, given, is_factor=is_factor)


def _refuse_times(table: Table, name: str, given: pd.Series) -> None:
    """An error for columns that are neither numbers nor words."""
    what = None
    if pd.api.types.is_datetime64_any_dtype(given.dtype) or isinstance(given.dtype, pd.PeriodDtype):
        what = "a date; make a number of it first, e.g. days since a date"
    elif given.dtype.kind == "m":
        what = "a length of time; make a number of it first, e.g. days: column.dt.days"
    elif given.dtype.kind == "c":
        what = "complex numbers; give their real part, or their size"
    if what is not None:
        raise ValueError(f"{table.title}: {name!r} is {what}")


def _from_text(table: Table, name: str, given: pd.Series, *, is_factor: bool) -> Column:
    words = [_text(value) for value in given]
    parsed: Any = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce")
    numbers = np.asarray(parsed, float)
    there = np.array([word is not None for word in words], bool)
    if not there.any():
        return Column("empty", np.full(len(words), np.nan))
    share = np.isfinite(numbers[there]).mean()
    if share == 1:
        return Column("number", numbers)
    if share >= _MOSTLY and not is_factor:
        first = int(np.argmax(there & ~np.isfinite(numbers)))
        raise ValueError(
            f"{table.row(first)}: {name!r} is a column of numbers, and here it is "
            f"{words[first]!r}; correct it, leave it empty, or write C({name}) for a factor"
        )
    lower = {word.lower() for word in words if word is not None}
    if lower <= set(_TRUTH):
        words = [None if word is None else _TRUTH[word.lower()] for word in words]
    return Column("text", _objects(words))


def _text(value: Any) -> str | None:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    word = str(value).strip()
    return None if word.lower() in MISSING else word


def word(value: Any) -> str:
    """A level, or a site's name, as text: whole numbers without a decimal point.

    Args:
        value: The level or name.

    Example:
        >>> word(3.0), word("3.0")
        ('3', '3.0')
    """
    whole = isinstance(value, (float, np.floating)) and float(value).is_integer()
    return str(int(value)) if whole else str(value)


def _objects(words: Sequence[str | None]) -> np.ndarray:
    found = np.empty(len(words), object)
    found[:] = words
    return found


def _of_folder(folder: Path) -> dict[str, Table]:
    files: dict[str, Path] = {}
    for ending in _TABLES:
        for path in sorted(folder.glob(f"*{ending}")):
            if path.name.startswith("."):
                continue
            name = path.name[: -len(ending)]
            if name in files:
                raise ValueError(
                    f"{folder} has two tables of the site {name!r}, {files[name].name} and "
                    f"{path.name}; keep one"
                )
            files[name] = path
    if not files:
        raise ValueError(
            f"{folder} has no tables: it needs one file per site that ends in {', '.join(_TABLES)}"
        )
    return {name: read_table(files[name], name) for name in sorted(files)}


def sites_in(table: Table, column: str) -> list[str | None]:
    """The site that each row names; None where it names none.

    Args:
        table: The table.
        column: Its column of sites.
    """
    return [
        _text(value) if isinstance(value, str) else _text(word(value))
        for value in table.frame[column]
    ]


def labels_in(table: Table, name: str) -> list[str]:
    """The level of a column in each row, as text; "" where it is missing.

    Args:
        table: The table.
        name: The column.

    Example:
        >>> labels_in(Table("bern", pd.DataFrame({"ward": ["01", "", "2"]})), "ward")
        ['1', '', '2']
    """
    found = column(table, name, is_factor=True)
    return ["" if pd.isna(value) else word(value) for value in found.values]


def _divided(table: Table, client: str | None) -> dict[str, Table]:
    """One table by the column that names the site."""
    if client is None:
        raise ValueError(
            "one table needs a column that names the site: write it as the group of a bar term, "
            "(1 | column), or give client='column'"
        )
    if client not in table.frame:
        raise ValueError(
            f"{table.title} has no column {client!r} that names the site"
            + nearest(client, list(table.frame.columns))
        )
    words = sites_in(table, client)
    if None in words:
        raise ValueError(f"{table.row(words.index(None))}: {client!r} is missing; name the site")
    owner = np.array(words, str)
    rest: Any = table.frame.drop(columns=client)
    return {
        str(name): Table(
            str(name),
            rest[owner == name].reset_index(drop=True),
            table.path,
            np.flatnonzero(owner == name),
        )
        for name in np.unique(owner)
    }


def _of_federated(data: FederatedData, outcome: str | None) -> dict[str, Table]:
    if data.scaling is not None:
        raise ValueError(
            "these data are standardised; give those on their original scale, and write scale(x) "
            "in the formula where that is wanted"
        )
    if data.features is None or outcome is None:
        raise ValueError(
            "federated data need names of columns (features=) and an outcome that is a single name"
        )
    x, y = (np.asarray(part) for part in data.rows)
    found = {}
    for position, (start, end, *_) in enumerate(data.bounds):
        frame = pd.DataFrame(x[start:end], columns=list(data.features))
        found[data.name_of(position)] = Table(
            data.name_of(position), frame.assign(**{outcome: y[start:end]})
        )
    return found
