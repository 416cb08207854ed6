"""Figures of runs, with Plotly, in one look."""

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

COLOURS = ("#7f7f7f", "#1f6fb2", "#d1733b", "#3a8f5c", "#8a5fa8", "#b8a038")
# Columns of the metrics that count things rather than measure how well the run does.
BOOKKEEPING = ("round", "clients", "lost", "late", "diverged", "diverged_id", "seconds", "local_steps")


def styled(figure: go.Figure, *, title: str, height: int) -> go.Figure:
    """The common look."""
    figure.update_layout(
        title={"text": title, "x": 0.02},
        template="plotly_white",
        height=height,
        font={"family": "system-ui, sans-serif", "size": 13},
        colorway=COLOURS,
        margin={"l": 60, "r": 30, "t": 80, "b": 110},
        legend={"orientation": "h", "y": -0.28, "yanchor": "top", "x": 0.5, "xanchor": "center"},
    )
    return figure


def grouped_bars(tables: dict[str, pd.DataFrame], *, title: str, notes: dict[str, str]) -> go.Figure:
    """A panel a measure: `tables[measure]` has a row a client and a column a method. `notes` say which way is better."""
    figure = make_subplots(cols=len(tables), subplot_titles=[f"{name} ({notes[name]})" for name in tables])
    for panel, table in enumerate(tables.values(), 1):
        for place, method in enumerate(table.columns):
            bars = go.Bar(
                x=list(table.index),
                y=table[method],
                name=str(method),
                legendgroup=str(method),
                showlegend=panel == 1,
                marker_color=COLOURS[place % len(COLOURS)],
            )
            figure.add_trace(bars, row=1, col=panel)
    return styled(figure, title=title, height=420)


def curves(metrics: pd.DataFrame, *, title: str) -> go.Figure:
    """Every measure against rounds, a panel each."""
    names = [name for name in metrics.dropna(axis="columns", how="all").columns if name not in BOOKKEEPING]
    figure = make_subplots(cols=2, rows=-(-len(names) // 2), subplot_titles=[name.replace("_", " ") for name in names])
    for place, name in enumerate(names):
        known = metrics[["round", name]].dropna()
        values = known[name].cumsum() if name.startswith("bits") else known[name]
        line = go.Scatter(x=known["round"], y=values, mode="lines", showlegend=False, line={"color": COLOURS[1], "width": 2})
        figure.add_trace(line, row=place // 2 + 1, col=place % 2 + 1)
    figure.update_xaxes(title_text="round")
    return styled(figure, title=title, height=120 + 260 * -(-len(names) // 2))


def spread(clients: pd.DataFrame, measure: str, *, title: str) -> go.Figure:
    """How a measure spreads over clients, from the worst served to the best, with their rows beside it."""
    ordered = clients.dropna(subset=[measure]).sort_values(measure, kind="stable")
    figure = go.Figure(
        go.Bar(
            x=list(range(1, len(ordered) + 1)),
            y=ordered[measure],
            marker_color=COLOURS[1],
            customdata=ordered[["name", "train_rows"]],
            hovertemplate=f"%{{customdata[0]}}<br>{measure} %{{y:.4g}}<br>%{{customdata[1]}} training rows<extra></extra>",
        )
    )
    figure.update_xaxes(title_text="clients, ordered")
    figure.update_yaxes(title_text=measure)
    return styled(figure, title=title, height=360)
