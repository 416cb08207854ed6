"""Figures of effects: of the shared coefficients, and of the sites."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from covey.report.figures import BLUE, GREY, LABELLED, ORANGE, styled

# Ticks of a logarithmic axis in each power of ten, from many to few.
_TICKS = ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,))
_MOST_TICKS = 8


def forest(table: pd.DataFrame, *, ratio: bool, axis: str) -> go.Figure:
    """Coefficients with their intervals, one row each, in the order of the table.

    Args:
        table: Columns term, mean, q05 and q95.
        ratio: Show exponentials on a logarithmic axis, with a line at 1 in place of 0.
        axis: Title of the horizontal axis.

    Returns:
        The figure.

    Example:
        >>> table = pd.DataFrame({"term": ["age"], "mean": [0.0], "q05": [-1.0], "q95": [1.0]})
        >>> float(forest(table, ratio=True, axis="odds ratio").data[0].x[0])
        1.0
    """
    shown: Any = _exponential(table) if ratio else table
    figure = go.Figure(_intervals(shown, list(table["term"]), BLUE))
    figure.add_vline(x=1 if ratio else 0, line={"color": GREY, "dash": "dot", "width": 1.5})
    figure.update_xaxes(title_text=axis)
    if ratio:
        _logarithmic(figure, shown)
    figure.update_yaxes(autorange="reversed", type="category")
    return styled(figure, height=90 + 30 * max(len(table), 3))


def caterpillar(table: pd.DataFrame, *, reference: float | None, axis: str) -> go.Figure:
    """Sites sorted by their estimate, with intervals.

    Args:
        table: Columns client, mean, q05 and q95; `new` is true for a site that took no part.
        reference: Position of a line, e.g. the shared coefficient; None: no line.
        axis: Title of the horizontal axis.

    Returns:
        The figure, with the lowest site at the bottom.

    Example:
        >>> columns = {"client": ["a", "b"], "mean": [2.0, 1.0], "q05": [1.0, 0.0]}
        >>> table = pd.DataFrame(columns | {"q95": [3.0, 2.0]})
        >>> caterpillar(table, reference=0.0, axis="").data[0].customdata.tolist()
        ['b', 'a']
    """
    ordered: Any = table.sort_values("mean", kind="stable")
    new = ordered["new"].to_numpy(bool) if "new" in ordered else np.zeros(len(ordered), bool)
    many = len(ordered) > LABELLED
    labels = np.arange(1, len(ordered) + 1) if many else ordered["client"].to_numpy()
    figure = go.Figure()
    for chosen, colour, name in ((~new, BLUE, "sites"), (new, ORANGE, "a new site")):
        if chosen.any():
            points = _intervals(ordered[chosen], list(labels[chosen]), colour)
            points.update(name=name, customdata=ordered["client"].to_numpy()[chosen])
            points.hovertemplate = "%{customdata}: %{x:.3g}<extra></extra>"
            figure.add_trace(points)
    if reference is not None:
        figure.add_vline(x=reference, line={"color": GREY, "dash": "dot", "width": 1.5})
    figure.update_xaxes(title_text=axis)
    if many:
        figure.update_yaxes(title_text="sites, sorted")
    else:
        figure.update_yaxes(type="category", categoryorder="array", categoryarray=list(labels))
    return styled(figure, height=640 if many else 100 + 28 * max(len(ordered), 3))


def shrinkage(table: pd.DataFrame, *, reference: float | None, axis: str) -> go.Figure:
    """Each site's estimate alone, joined to its estimate together with the others.

    Args:
        table: Columns client, alone and together; sites without `alone` show `together` only.
        reference: The shared value that estimates move towards; None: no line.
        axis: Title of the horizontal axis.

    Returns:
        The figure.
    """
    ordered = table.sort_values("together", kind="stable")
    many = len(ordered) > LABELLED
    labels = list(range(1, len(ordered) + 1)) if many else list(ordered["client"])
    alone, together = ordered["alone"].to_numpy(float), ordered["together"].to_numpy(float)
    gap = np.full(len(ordered), np.nan)
    lines = go.Scatter(
        x=np.stack([alone, together, gap], 1).ravel(),
        y=[label for each in labels for label in (each, each, each)],
        mode="lines",
        line={"color": GREY, "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
    )
    figure = go.Figure(lines)
    for values, name, colour, symbol in (
        (alone, "alone", ORANGE, "circle-open"),
        (together, "together", BLUE, "circle"),
    ):
        figure.add_trace(_points(values, labels, colour, name=name, symbol=symbol))
    if reference is not None:
        figure.add_vline(x=reference, line={"color": GREY, "dash": "dot", "width": 1.5})
    figure.update_xaxes(title_text=axis)
    if not many:
        figure.update_yaxes(type="category", categoryorder="array", categoryarray=labels)
    return styled(figure, height=640 if many else 150 + 28 * max(len(ordered), 3))


def _exponential(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(**{name: np.exp(table[name]) for name in ("mean", "q05", "q95")})


def _intervals(table: Any, labels: Sequence[object], colour: str) -> go.Scatter:
    """Points with horizontal intervals."""
    points = _points(table["mean"], labels, colour, name="", symbol="circle")
    points.error_x = {
        "array": (table["q95"] - table["mean"]).to_numpy(float),
        "arrayminus": (table["mean"] - table["q05"]).to_numpy(float),
        "thickness": 2,
        "width": 0,
    }
    points.hovertemplate = "%{y}: %{x:.3g}<extra></extra>"
    return points


def _points(
    values: pd.Series | np.ndarray, labels: Sequence[object], colour: str, *, name: str, symbol: str
) -> go.Scatter:
    marker: Mapping[str, object] = {"size": 9, "color": colour, "symbol": symbol}
    return go.Scatter(
        x=np.asarray(values, float),
        y=list(labels),
        mode="markers",
        marker=marker,
        name=name,
        showlegend=bool(name),
    )


def _logarithmic(figure: go.Figure, shown: pd.DataFrame) -> None:
    """A logarithmic axis with ticks at round values, as many as fit."""
    ends = shown[["q05", "q95"]].to_numpy(float)
    ends = ends[np.isfinite(ends) & (ends > 0)]
    low, high = (min(ends.min(), 0.8), max(ends.max(), 1.25)) if ends.size else (0.5, 2.0)
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    ticks = powers
    for each in _TICKS:
        found = np.outer(powers, each).ravel()
        ticks = found[(found >= low / 1.1) & (found <= high * 1.1)]
        if len(ticks) <= _MOST_TICKS:
            break
    figure.update_xaxes(
        type="log",
        tickvals=ticks,
        ticktext=[f"{tick:g}" for tick in ticks],
        range=[np.log10(low / 1.15), np.log10(high * 1.15)],
    )
