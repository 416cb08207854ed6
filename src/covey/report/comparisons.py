"""Figures that compare methods or data sets, for the demo and for a notebook."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from covey.report.figures import COLOURS, styled


def grouped_bars(
    tables: dict[str, pd.DataFrame], *, title: str, notes: dict[str, str]
) -> go.Figure:
    """A panel a measure: `tables[measure]` has a row a client and a column a method. `notes` say
    which way is better.
    """
    figure = make_subplots(
        cols=len(tables), subplot_titles=[f"{name} ({notes[name]})" for name in tables]
    )
    for panel, table in enumerate(tables.values(), 1):
        for index, method in enumerate(table.columns):
            bars = go.Bar(
                x=list(table.index),
                y=table[method],
                name=str(method),
                legendgroup=str(method),
                showlegend=panel == 1,
                marker_color=COLOURS[index % len(COLOURS)],
            )
            figure.add_trace(bars, row=1, col=panel)
    return styled(figure, title=title, height=420)


def intervals(tables: dict[str, pd.DataFrame], *, title: str) -> go.Figure:
    """A panel a table: estimates as points, their intervals as lines. Tables have the columns
    estimate, low and high.
    """
    figure = make_subplots(cols=len(tables), subplot_titles=list(tables), horizontal_spacing=0.25)
    for panel, table in enumerate(tables.values(), 1):
        error = {
            "array": table["high"] - table["estimate"],
            "arrayminus": table["estimate"] - table["low"],
            "thickness": 2,
        }
        points = go.Scatter(
            x=table["estimate"],
            y=[str(name) for name in table.index],
            error_x=error,
            mode="markers",
            marker={"size": 9, "color": COLOURS[1]},
            showlegend=False,
        )
        figure.add_trace(points, row=1, col=panel)
    figure.add_vline(x=0, line={"color": "#bbbbbb", "dash": "dot"})
    figure.update_yaxes(autorange="reversed")
    return styled(figure, title=title, height=480)


def entropies(inside: np.ndarray, outside: np.ndarray, *, title: str) -> go.Figure:
    """Histograms of the entropies of examples in and out of distribution, in the same bins."""
    edges = np.histogram_bin_edges(np.concatenate([inside, outside]), bins=40)
    figure = go.Figure()
    for name, values, colour in (
        ("usual rows", inside, COLOURS[1]),
        ("out of distribution", outside, COLOURS[2]),
    ):
        share = np.histogram(values, edges)[0] / len(values)
        middle, width = (edges[:-1] + edges[1:]) / 2, np.diff(edges)
        figure.add_trace(
            go.Bar(x=middle, y=share, width=width, name=name, marker_color=colour, opacity=0.6)
        )
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(title_text="predictive entropy")
    figure.update_yaxes(title_text="share of rows")
    return styled(figure, title=title, height=400)
