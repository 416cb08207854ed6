"""A report as one HTML file that opens without a network: text, tables, figures and scripts."""

import json
import math
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from covey.core import atomic_files
from covey.report.content import Content
from covey.report.figures import PALETTE
from covey.report.sections import Plot, Section, Table, sections_of

_HEADINGS = {
    "q05": "5 %",
    "q25": "25 %",
    "q75": "75 %",
    "q95": "95 %",
    "sd": "SD",
    "r_hat": "R-hat",
    "k_hat": "k-hat",
    "ess": "effective draws",
    "ess_bulk": "effective draws",
    "ess_tail": "effective draws in the tails",
    "client": "site",
    "name": "site",
    "nll": "negative log-likelihood",
    "ece": "calibration error",
    "brier": "Brier score",
    "bytes_up": "bytes sent",
    "bytes_down": "bytes received",
    "bytes_up_per_site": "bytes sent per site",
    "clients": "sites",
    "unit": "for a change of",
}


class Cell(NamedTuple):
    """A cell of a table: its text, and the exact value where the column holds numbers."""

    text: str
    value: str | None


def write(content: Content, path: Path) -> None:
    """Write a report; the file is either whole or not there.

    Args:
        content: The content; see `covey.report.from_run` and `covey.report.from_fit`.
        path: The HTML file. Its folder must exist.
    """
    atomic_files.write(path, render(content).encode())


def render(content: Content) -> str:
    """The page of a report.

    Args:
        content: The content.

    Returns:
        HTML with everything inside: styles, scripts, figures, tables, and the tables as CSV in
        `data:` links. It makes no network request.

    Example:
        >>> page = render(Content("Heart disease", sentences=("Four hospitals took part.",)))
        >>> "<h1>Heart disease</h1>" in page, "Four hospitals took part." in page
        (True, True)
    """
    return _rendered(content, sections_of(content))


def write_page(path: Path, title: str, shown: Sequence[go.Figure]) -> None:
    """Write a page of figures in the look of a report.

    Args:
        path: The HTML file.
        title: Title of the page.
        shown: Figures with titles, which become headings.
    """
    sections = []
    for index, figure in enumerate(shown):
        layout: Any = figure.layout
        heading = str(layout.title.text or f"Figure {index + 1}")
        plain = go.Figure(figure).update_layout(title=None)
        sections.append(Section(f"figure-{index + 1}", heading, blocks=(Plot("", plain, heading),)))
    atomic_files.write(path, _rendered(Content(title), sections).encode())


def _rendered(content: Content, sections: Sequence[Section]) -> str:
    tables = [table for section in sections for table in section.tables]
    return _template().render(
        content=content,
        sections=sections,
        tables=tables,
        has_plots=any(section.plots for section in sections),
        plotly=Markup(get_plotlyjs()),  # noqa: S704 (the package's own script)
        palette=Markup(json.dumps(PALETTE)),  # noqa: S704 (colours)
        style=_text("style.css"),
        script=_text("page.js"),
        covey_version=version("covey"),
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: str(_text(name))),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "figure_json": figure_json,
        "heading": heading,
        "cells": cells,
        "csv_link": csv_link,
        "is_number": lambda column: pd.api.types.is_numeric_dtype(column),
    }
    environment.tests["plot"] = lambda block: isinstance(block, Plot)
    return environment.get_template("page.html")


@cache
def _text(name: str) -> Markup:
    content = files("covey.report").joinpath("template", name).read_text("utf-8")
    return Markup(content)  # noqa: S704 (a file of this package)


def figure_json(figure: go.Figure) -> Markup:
    """A figure as JSON that may stand inside of a script element.

    Example:
        >>> figure_json(go.Figure(go.Scatter(name="</script>"))).count("</script>")
        0
    """
    text = str(figure.to_json(validate=False)).replace("<", "\\u003c")
    return Markup(text)  # noqa: S704 (`<` is escaped)


def heading(column: object) -> str:
    """The heading of a column in words.

    Example:
        >>> heading("sd"), heading("log_likelihood")
        ('SD', 'log likelihood')
    """
    name = str(column)
    words = _HEADINGS.get(name, name.replace("_", " "))
    return words.replace(" %", "\u00a0%")


def cells(frame: pd.DataFrame) -> list[list[Cell]]:
    """The rows of a table: four significant digits to read, all digits in the value.

    Example:
        >>> cells(pd.DataFrame({"term": ["age"], "mean": [0.123456]}))[0][1]
        Cell(text='0.1235', value='0.123456')
    """
    columns = [frame[name].tolist() for name in frame.columns]
    return [[_cell(value) for value in row] for row in zip(*columns, strict=True)]


def csv_link(table: Table) -> str:
    """A table as a `data:` link of a CSV file.

    Example:
        >>> csv_link(Table("t", "", pd.DataFrame({"a": [1]})))
        'data:text/csv;charset=utf-8;base64,YQoxCg=='
    """
    text = table.frame.to_csv(index=False, lineterminator="\n")
    return f"data:text/csv;charset=utf-8;base64,{b64encode(text.encode()).decode()}"


def _cell(value: object) -> Cell:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Cell("" if value is None else str(value), None)
    if not math.isfinite(value):
        return Cell("" if math.isnan(value) else str(value), "")
    return Cell(_digits(value), repr(value))


def _digits(value: int | float) -> str:
    """Four significant digits; counts in full."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.3e}"
    return np.format_float_positional(value, precision=4, unique=False, fractional=False, trim="-")
