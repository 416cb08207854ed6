"""Figures of FedPop's experiments on images."""

from typing import TYPE_CHECKING, cast

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from covey.inference.calibration import reliability as reliability_of
from covey.runs.evaluation import Evaluation
from reproductions.fedpop_image_settings import COLOURS, Problem
from reproductions.result import spread

if TYPE_CHECKING:
    from covey.core.metrics import Calibration


def bars(scores: dict[Problem, dict[str, np.ndarray]]) -> go.Figure:
    """Accuracy by method, a group of bars per cell."""
    chart = go.Figure()
    for name in next(iter(scores.values())):
        values = [of[name] for of in scores.values()]
        bars = {"type": "data", "array": [spread(v) or 0.0 for v in values]}
        means, labels = [float(v.mean()) for v in values], [cell.label for cell in scores]
        chart.add_trace(
            go.Bar(x=labels, y=means, error_y=bars, name=name, marker_color=COLOURS[name])
        )
    chart.update_layout(
        title="Mean test accuracy over clients", template="plotly_white", barmode="group"
    )
    return chart


def reliability(found: dict[Problem, dict[str, list[Evaluation]]]) -> go.Figure:
    """Accuracy against confidence, all clients of the first seed; on the diagonal a model is as
    sure as it should be.
    """
    chart = make_subplots(cols=len(found), subplot_titles=[cell.label for cell in found])
    for column, of in enumerate(found.values(), start=1):
        for name, seeds in of.items():
            lines = reliability_of(cast("Calibration", seeds[0].metrics["ece"])).dropna()
            trace = go.Scatter(
                x=lines["confidence"], y=lines["accuracy"], name=name, line={"color": COLOURS[name]}
            )
            chart.add_trace(trace.update(showlegend=column == 1), row=1, col=column)
        chart.add_shape(
            type="line",
            x0=0,
            y0=0,
            x1=1,
            y1=1,
            line={"dash": "dot", "color": "#7f7f7f"},
            row=1,
            col=column,
        )
    chart.update_layout(title="Reliability", template="plotly_white")
    chart.update_xaxes(title="confidence")
    return chart


def histograms(curves: dict[Problem, list[dict[str, np.ndarray]]]) -> go.Figure:
    """The share of a client's images by predictive entropy, a curve per client."""
    chart = make_subplots(cols=len(curves), subplot_titles=[cell.label for cell in curves])
    colours = ("#1f6fb2", "#d1733b", "#4f9d69")
    edges = np.linspace(0, np.log(10), 24)
    for column, (cell, clients) in enumerate(curves.items(), start=1):
        for kind, colour in zip(clients[0], colours, strict=False):
            for index, client in enumerate(clients[:10]):
                share = np.histogram(client[kind], edges)[0] / len(client[kind])
                name = cell.images if kind == "own" else kind
                curve = go.Scatter(
                    x=edges[1:],
                    y=share,
                    name=name,
                    legendgroup=name,
                    opacity=0.5,
                    line={"color": colour},
                )
                chart.add_trace(curve.update(showlegend=index == 0), row=1, col=column)
    chart.update_layout(
        title="Predictive entropy of FedSOUL, a curve per client", template="plotly_white"
    )
    chart.update_xaxes(title="nats")
    return chart
