"""Figures that compare methods or data sets, for the demo and for a notebook."""

import numpy as np
import plotly.graph_objects as go

from covey.report.figures import COLOURS, styled


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
