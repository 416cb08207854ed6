"""CSV files, checked before pandas reads them: pandas renames, fills and shifts in silence."""

import bz2
import csv
import gzip
import lzma
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas

_OPEN = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_PACKED = (".zip", ".tar", ".tgz", ".zst", ".7z")
_SEPARATORS = {";": "';'", "\t": "'\\t'"}


def read(path: Path, *, as_text: Collection[str] | None = ()) -> "pandas.DataFrame":
    """Read a CSV file, and refuse one that cannot be read in one way only.

    The file must be UTF-8 text with a header of different names and as many fields in every line
    as in the header. Blank lines are skipped. Files that end in .gz, .bz2 or .xz are unpacked.

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
    header = _check(path)
    if as_text is None:
        return pandas.read_csv(path, dtype=str, keep_default_na=False)
    frame = pandas.read_csv(path)
    text = [column for column in as_text if column in header]
    if text:
        frame[text] = pandas.read_csv(path, usecols=text, dtype=str, keep_default_na=False)[text]
    return frame


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


def _check(path: Path) -> list[str]:
    """The header of a file in which every line has a field for every column."""
    header: list[str] = []
    try:
        for line, fields in _records(path):
            if not header:
                header = fields
                _check_header(path, line, header)
            elif len(fields) != len(header):
                raise ValueError(
                    f"{path}, line {line}: {len(fields)} fields, but the header has {len(header)};"
                    " correct the line (a text with a comma in it needs quotes)"
                )
    except UnicodeDecodeError as error:
        raise ValueError(_not_utf8(path)) from error
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from error
    if not header:
        raise ValueError(f"{path} is empty; a CSV file starts with a line of column names")
    return header


def _check_header(path: Path, line: int, header: list[str]) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise ValueError(
            f"{path}, line {line}: two columns have the name {twice[0]!r}; rename one in the file"
        )
    for separator, written in _SEPARATORS.items():
        if len(header) == 1 and separator in header[0]:
            raise ValueError(
                f"{path} is separated by {written} and not by commas; read it with"
                f" pandas.read_csv({path.name!r}, sep={written}) and pass the data frame"
            )


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line in which each record starts, and its fields; blank lines are left out."""
    open_file = _OPEN.get(path.suffix, Path.open)
    with open_file(path, "rt", encoding="utf-8-sig", newline="") as file:
        reader, line = csv.reader(file), 1
        for fields in reader:
            if len(fields) > 1 or (fields and fields[0].strip()):
                yield line, fields
            line = reader.line_num + 1


def _not_utf8(path: Path) -> str:
    with _OPEN.get(path.suffix, Path.open)(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                near = line[max(0, error.start - 10) : error.start + 10].decode("latin-1").strip()
                return (
                    f"{path}, line {number}: the text is not UTF-8 near {near!r} (read as Latin-1);"
                    f" save the file as UTF-8, or read it with pandas.read_csv({path.name!r},"
                    " encoding='latin-1') and pass the data frame"
                )
    return f"{path} is not UTF-8 text; save it as UTF-8"
