"""Figures of runs, with Plotly, in one look."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

COLOURS = ("#7f7f7f", "#1f6fb2", "#d1733b", "#3a8f5c", "#8a5fa8", "#b8a038")
# Columns of the metrics that count things rather than measure how well the run does.
BOOKKEEPING = (
    "round",
    "clients",
    "lost",
    "late",
    "diverged",
    "diverged_id",
    "seconds",
    "local_steps",
)


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


def curves(metrics: pd.DataFrame, *, title: str) -> go.Figure:
    """Every measure against rounds, a panel each."""
    names = [
        name
        for name in metrics.dropna(axis="columns", how="all").columns
        if name not in BOOKKEEPING
    ]
    figure = make_subplots(
        cols=2, rows=-(-len(names) // 2), subplot_titles=[name.replace("_", " ") for name in names]
    )
    for index, name in enumerate(names):
        known = metrics[["round", name]].dropna()
        values = known[name].cumsum() if name.startswith("bits") else known[name]
        line = go.Scatter(
            x=known["round"],
            y=values,
            mode="lines",
            showlegend=False,
            line={"color": COLOURS[1], "width": 2},
        )
        figure.add_trace(line, row=index // 2 + 1, col=index % 2 + 1)
    figure.update_xaxes(title_text="round")
    return styled(figure, title=title, height=120 + 260 * -(-len(names) // 2))


def spread(clients: pd.DataFrame, measure: str, *, title: str) -> go.Figure:
    """How a measure spreads over clients, from the worst served to the best, with their rows beside
    it.
    """
    ordered = clients.dropna(subset=[measure]).sort_values(measure, kind="stable")
    figure = go.Figure(
        go.Bar(
            x=list(range(1, len(ordered) + 1)),
            y=ordered[measure],
            marker_color=COLOURS[1],
            customdata=ordered[["name", "train_rows"]],
            hovertemplate=(
                f"%{{customdata[0]}}<br>{measure} %{{y:.4g}}<br>%{{customdata[1]}} training "
                "rows<extra></extra>"
            ),
        )
    )
    figure.update_xaxes(title_text="clients, ordered")
    figure.update_yaxes(title_text=measure)
    return styled(figure, title=title, height=360)


def reliability(table: pd.DataFrame, *, title: str) -> go.Figure:
    """Accuracy by bins of confidence, the gap to the confidence, and below how many rows a bin has.

    table: of `Evaluation.reliability`.
    """
    filled = table[table["count"] > 0]
    middle, width = (filled["lower"] + filled["upper"]) / 2, filled["upper"] - filled["lower"]
    figure = make_subplots(
        rows=2, shared_xaxes=True, row_heights=[0.72, 0.28], vertical_spacing=0.06
    )
    accuracy = go.Bar(
        x=middle, y=filled["accuracy"], width=width, name="accuracy", marker_color=COLOURS[1]
    )
    gap = go.Bar(
        x=middle,
        y=filled["confidence"] - filled["accuracy"],
        base=filled["accuracy"],
        width=width,
        name="gap to the confidence",
        marker={"color": "rgba(209, 115, 59, 0.35)", "line": {"color": COLOURS[2], "width": 1}},
    )
    right = go.Scatter(
        x=[0, 1],
        y=[0, 1],
        mode="lines",
        name="as sure as right",
        line={"color": COLOURS[0], "dash": "dash"},
    )
    count = go.Bar(
        x=middle, y=filled["count"], width=width, showlegend=False, marker_color=COLOURS[0]
    )
    for trace, row in ((accuracy, 1), (gap, 1), (right, 1), (count, 2)):
        figure.add_trace(trace, row=row, col=1)
    figure.update_layout(barmode="overlay")
    figure.update_xaxes(range=[0, 1])
    figure.update_xaxes(title_text="confidence in the predicted label", row=2)
    figure.update_yaxes(title_text="accuracy", range=[0, 1], row=1)
    figure.update_yaxes(title_text="rows", row=2)
    return styled(figure, title=title, height=520)


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
