"""Pages as tests read them: headings, tables and links, and a check of all numbers."""

from base64 import b64decode
from dataclasses import dataclass, field
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pandas as pd


@dataclass
class Grid:
    """A table as it was read: column names, texts, and the exact values."""

    columns: list[str] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)
    values: list[list[str | None]] = field(default_factory=list)


class Reader(HTMLParser):
    """Headings, tables, links, plots and landmarks of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.headings: list[tuple[int, str]] = []
        self.tables: dict[str, Grid] = {}
        self.links: dict[str, str] = {}
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._into: list[str] | None = None
        self._grid = Grid()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.elements.append((tag, found))
        if tag in ("h1", "h2", "h3", "h4"):
            self._into = []
        elif tag == "table":
            self._grid = self.tables[str(found["id"]).removeprefix("table-")] = Grid()
        elif tag == "tr":
            self._grid.texts.append([])
            self._grid.values.append([])
        elif tag == "th" and found.get("scope") == "col":
            self._grid.columns.append(str(found["data-column"]))
        elif tag in ("td", "th"):
            self._grid.values[-1].append(found.get("data-value"))
            self._into = []
        elif tag == "a" and "download" in found:
            self.links[str(found["download"])] = str(found["href"])

    def handle_endtag(self, tag):
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append((int(tag[1]), "".join(self._into or [])))
            self._into = None
        elif tag in ("td", "th") and self._into is not None:
            self._grid.texts[-1].append("".join(self._into))
            self._into = None
        elif tag == "thead":
            self._grid.texts.clear()
            self._grid.values.clear()

    def handle_data(self, data):
        if self._into is not None:
            self._into.append(data)


def check_tables(read, sections):
    """Every number of every table of the page is that of its frame, shown and exact."""
    tables = [table for section in sections for table in section.tables]
    assert [table.name for table in tables] == list(read.tables)
    assert [f"{table.name}.csv" for table in tables] == list(read.links)
    for table in tables:
        shown, frame = read.tables[table.name], table.frame
        assert shown.columns == [str(name) for name in frame.columns]
        assert len(shown.texts) == len(frame)
        for at, name in enumerate(frame.columns):
            texts = [row[at] for row in shown.texts]
            if not pd.api.types.is_numeric_dtype(frame[name]):
                assert texts == [str(value) for value in frame[name]]
                continue
            exact = frame[name].to_numpy(float)
            values = [row[at] for row in shown.values]
            np.testing.assert_array_equal([float(value or "nan") for value in values], exact)
            rounded = [float(value or "nan") for value in texts]
            np.testing.assert_allclose(rounded, exact, rtol=5.01e-4)
        kind, _, content = read.links[f"{table.name}.csv"].partition(",")
        assert kind == "data:text/csv;charset=utf-8;base64"
        texts = {name: str for name in frame if not pd.api.types.is_numeric_dtype(frame[name])}
        saved = pd.read_csv(BytesIO(b64decode(content)), dtype=texts)
        pd.testing.assert_frame_equal(saved, frame.reset_index(drop=True), check_dtype=False)
