"""One self-contained HTML page of a run: what was run, how it went, how each client fares. It opens
without a network.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, cast

import pandas as pd
import plotly.graph_objects as go

from covey.core import atomic_files
from covey.report.figures import curves, reliability, spread

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto;
  padding: 0 1em; color: #222 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
td, th { padding: .25em .8em; text-align: right }
th:first-child, td:first-child { text-align: left }
tr:nth-child(even) { background: #f5f7fa }
pre { background: #f5f7fa; padding: 1em; overflow-x: auto }
.scroll { max-height: 30em; overflow: auto }
"""


def write(run: Any, path: Path, *, settings: str = "") -> None:
    """Write the page of a run (`covey.Run`); `settings` is the text of its configuration."""
    figures = [curves(run.metrics, title="by round")]
    evaluated = [name for name in run.metrics.columns if name.startswith(f"{run.split}_")]
    sections = []
    if evaluated:
        evaluation, clients = run.evaluation, run.clients
        measure = "accuracy" if "accuracy" in clients else "nll"
        figures.append(
            spread(clients, measure, title=f"{measure} of each client, {run.split} rows")
        )
        if "ece" in evaluation.metrics:
            errors = evaluation.calibration_errors
            title = (
                f"calibration, {run.split} rows: error {errors.pooled:.3f} pooled, "
                f"{errors.mean:.3f} in the mean of clients"
            )
            figures.append(reliability(evaluation.reliability(), title=title))
        sections.append(f"<h2>Clients</h2><div class=scroll>{_table(clients)}</div>")
    if settings:
        sections.append(f"<h2>Configuration</h2><pre>{escape(settings)}</pre>")
    title = escape(f"{run.name}: {run.method.name}, {run.data.clients} clients, {run.round} rounds")
    write_page(path, title, figures, sections)


def write_page(
    path: Path, title: str, figures: Sequence[go.Figure], sections: Sequence[str] = ()
) -> None:
    """A page of figures, and sections of HTML below; the title is HTML too."""
    body = "".join(
        _embedded(figure, first=index == 0) for index, figure in enumerate(figures)
    ) + "".join(sections)
    page = (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>"
        f"<style>{_STYLE}</style><h1>{title}</h1>{body}</html>"
    )
    atomic_files.write(path, page.encode())


def _embedded(figure: go.Figure, *, first: bool) -> str:
    return cast("str", figure.to_html(full_html=False, include_plotlyjs=first))


def _table(frame: pd.DataFrame) -> str:
    return frame.to_html(
        index=False, border=0, float_format=lambda value: f"{value:.4g}", na_rep="", max_rows=500
    )
