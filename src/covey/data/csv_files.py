"""CSV files, checked before pandas reads them: pandas renames, fills and shifts in silence."""

import bz2
import csv
import gzip
import io
import lzma
import re
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas

_OPEN = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_PACKED = (".zip", ".tar", ".tgz", ".zst", ".7z")
_SEPARATORS = (",", ";", "\t")
_BY_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")  # 1,5 as many countries write it
_BY_POINT = re.compile(r"\s*[+-]?\d+\.\d+\s*")


def read(path: Path, *, as_text: Collection[str] | None = ()) -> "pandas.DataFrame":
    """Read a CSV file, and refuse one that cannot be read in one way only.

    The file must be UTF-8 text with a header of different names and as many fields in every line
    as in the header. Fields are separated by commas; or by semicolons or tabs, and then 1,5 is a
    number, if no number has a decimal point. Blank lines are skipped. Files that end in .gz, .bz2
    or .xz are unpacked.

    Args:
        path: The file.
        as_text: Columns to keep exactly as they are written, so that "01" is not the number 1 and
            "NA" is not a gap; here an empty field is the empty text. None keeps all columns so.

    Returns:
        The data frame; there are no rows where the file has nothing below the header.

    Example:
        >>> from covey.datasets.sources import bundled
        >>> read(bundled("eight_schools.csv"))["y"].tolist()
        [28, 8, -3, 7, -1, 1, 18, 12]
    """
    import pandas  # here: half a second that a run on arrays need not pay

    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.suffix in _PACKED:
        raise ValueError(f"{path} is an archive; unpack it and give the CSV file")
    form = _check(path)
    as_it_is = partial(pandas.read_csv, path, sep=form.separator, dtype=str, keep_default_na=False)
    if as_text is None:
        frame = as_it_is()
        return frame.map(_with_point) if form.decimal == "," else frame
    frame = pandas.read_csv(path, sep=form.separator, decimal=form.decimal)
    text = [column for column in as_text if column in form.header]
    if text:
        frame[text] = as_it_is(usecols=text)[text]
    return frame


def _with_point(field: str) -> str:
    return field.replace(",", ".") if _BY_COMMA.fullmatch(field) else field


def line_of(path: Path, row: int) -> int:
    """The line of a file in which a row of the table starts.

    Args:
        path: The file.
        row: Index of the row in the table, from 0; -1 is the header.

    Returns:
        The line, from 1 as editors count.

    Example:
        >>> from covey.datasets.sources import bundled
        >>> line_of(bundled("eight_schools.csv"), 0)
        2
    """
    for index, (line, _) in enumerate(_records(path), start=-1):
        if index == row:
            return line
    raise ValueError(f"{path} has no row {row}; it was changed while it was read")


class _Form(NamedTuple):
    """The form of a file."""

    header: list[str]
    separator: str
    decimal: str


def _check(path: Path) -> _Form:
    """The form of a file in which every line has a field for every column."""
    header: list[str] = []
    by_comma, by_point = 0, 0  # the first lines with such numbers
    separator = ","
    try:
        separator = _separator_of(path)
        for line, fields in _records(path):
            if not header:
                header = fields
                _check_header(path, line, header)
            elif len(fields) != len(header):
                raise ValueError(
                    f"{path}, line {line}: {len(fields)} fields, but the header has {len(header)};"
                    f" correct the line (a text with {_called(separator)} in it needs quotes)"
                )
            elif separator != ",":
                by_comma = by_comma or line * any(map(_BY_COMMA.fullmatch, fields))
                by_point = by_point or line * any(map(_BY_POINT.fullmatch, fields))
    except UnicodeDecodeError as error:
        raise ValueError(_not_utf8(path)) from error
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from error
    if not header:
        raise ValueError(f"{path} is empty; a CSV file starts with a line of column names")
    if by_comma and by_point:
        raise ValueError(
            f"{path} has numbers with a decimal comma (line {by_comma}) and with a decimal point "
            f"(line {by_point}); write all in one way"
        )
    return _Form(header, separator, "," if by_comma else ".")


def _called(separator: str) -> str:
    return {",": "a comma", ";": "a semicolon", "\t": "a tab"}[separator]


def _check_header(path: Path, line: int, header: list[str]) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ValueError(
            f"{path}, line {line}: two columns have the name {twice[0]!r}; rename one in the file"
        )


def _separator_of(path: Path) -> str:
    """The separator that gives the header most fields; commas where several do."""
    with _opened(path) as file:
        header = next((line for line in file if line.strip()), "")
    return max(_SEPARATORS, key=lambda one: len(next(csv.reader([header], delimiter=one), ())))


def _opened(path: Path) -> io.TextIOWrapper:
    open_file: Any = _OPEN.get(path.suffix, Path.open)
    return open_file(path, "rt", encoding="utf-8-sig", newline="")


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line in which each record starts, and its fields; blank lines are left out."""
    separator = _separator_of(path)
    with _opened(path) as file:
        reader, line = csv.reader(file, delimiter=separator), 1
        for fields in reader:
            if len(fields) > 1 or (fields and fields[0].strip()):
                yield line, fields
            line = reader.line_num + 1


def _not_utf8(path: Path) -> str:
    with _OPEN.get(path.suffix, Path.open)(path, "rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            return f"{path} is UTF-16 text; save it as UTF-8 (in Excel, as 'CSV UTF-8')"
        file.seek(0)
        for at, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                near = line[max(0, error.start - 10) : error.start + 10].decode("latin-1").strip()
                return (
                    f"{path}, line {at}: the text is not UTF-8 near {near!r} (read as Latin-1);"
                    f" save the file as UTF-8, or read it with pandas.read_csv({path.name!r},"
                    " encoding='latin-1') and pass the data frame"
                )
    return f"{path} is not UTF-8 text; save it as UTF-8"
