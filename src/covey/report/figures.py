"""Figures of a report, with Plotly. Colours are those of a light page; the page maps them to its
dark ones.
"""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

# Colours on a light page and the same on a dark one; each has a contrast of at least 3 to 1.
PALETTE = {
    "#5b6570": "#a7b0bb",
    "#1f5fa8": "#7fb3ee",
    "#b4531a": "#f0a36b",
    "#2f7d4a": "#7cc98a",
    "#7a4fa3": "#bd9be0",
    "#80690a": "#d9bd4e",
}
COLOURS = tuple(PALETTE)
GREY, BLUE, ORANGE = COLOURS[:3]
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
    "accepted",
    "settled",
    "waiting",
    "slowest_actor",
    "slowest_seconds",
)
_SIZES = ("bits", "bytes")  # shown as running totals
LABELLED = 60  # sites; with more, a plot shows their order and not their names


def styled(figure: go.Figure, *, title: str = "", height: int = 400) -> go.Figure:
    """The common look: no background, room for labels, the legend above.

    Args:
        figure: The figure to change.
        title: Its title. Default: none; in a report the heading stands above it.
        height: Height in pixels. Default: 400.

    Returns:
        The same figure.

    Example:
        >>> styled(go.Figure(), height=300).layout.height
        300
    """
    figure.update_layout(
        template="none",
        height=height,
        font={"family": "system-ui, sans-serif", "size": 13},
        colorway=COLOURS,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 12, "r": 16, "t": 64 if title else 36, "b": 44},
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        hoverlabel={"namelength": -1},
    )
    if title:
        figure.update_layout(title={"text": title, "x": 0.02})
    figure.update_xaxes(automargin=True, zeroline=False)
    figure.update_yaxes(automargin=True, zeroline=False)
    return figure


def calibration(bins: pd.DataFrame, *, predicted: str, observed: str) -> go.Figure:
    """Predictions against outcomes by bin, with intervals, and below how many rows a bin has.

    Args:
        bins: Columns predicted, observed, q05, q95 and count; bins without rows are left out.
        predicted: Title of the horizontal axis.
        observed: Title of the vertical axis.

    Returns:
        The figure; on the diagonal predictions and outcomes agree.
    """
    filled = bins[bins["count"] > 0]
    figure = make_subplots(
        rows=2, shared_xaxes=True, row_heights=[0.76, 0.24], vertical_spacing=0.05
    )
    ends = np.asarray(filled[["predicted", "observed", "q05", "q95"]], float)
    low, high = float(np.nanmin(ends)), float(np.nanmax(ends))
    error = {
        "array": filled["q95"] - filled["observed"],
        "arrayminus": filled["observed"] - filled["q05"],
        "thickness": 2,
        "width": 0,
    }
    agree = go.Scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        name="perfect agreement",
        line={"color": GREY, "dash": "dash"},
    )
    points = go.Scatter(
        x=filled["predicted"],
        y=filled["observed"],
        error_y=error,
        mode="markers",
        name="bins of rows, with 90 % intervals",
        marker={"size": 9, "color": BLUE},
    )
    count = go.Bar(
        x=filled["predicted"],
        y=filled["count"],
        width=[(high - low) / 60] * len(filled),
        marker_color=GREY,
        showlegend=False,
        name="rows",
    )
    for trace, row in ((agree, 1), (points, 1), (count, 2)):
        figure.add_trace(trace, row=row, col=1)
    figure.update_xaxes(title_text=predicted, row=2)
    figure.update_yaxes(title_text=observed, row=1)
    figure.update_yaxes(title_text="rows", row=2)
    return styled(figure, height=500)


def residuals(bins: pd.DataFrame) -> go.Figure:
    """Residuals by bins of the prediction: the mean, and bands that hold half and 90 % of them.

    Args:
        bins: Columns predicted, mean, q05, q25, q75, q95 and count.

    Returns:
        The figure; a good model's mean stays at 0.
    """
    figure = go.Figure()
    for low, high, name, opacity in (
        ("q05", "q95", "90 % of the rows", 0.14),
        ("q25", "q75", "half of the rows", 0.28),
    ):
        colour = f"rgba(31,95,168,{opacity})"
        edge = {"width": 0}
        figure.add_trace(
            go.Scatter(
                x=bins["predicted"], y=bins[low], line=edge, showlegend=False, hoverinfo="skip"
            )
        )
        figure.add_trace(
            go.Scatter(
                x=bins["predicted"],
                y=bins[high],
                line=edge,
                fill="tonexty",
                fillcolor=colour,
                name=name,
                mode="lines",
                hoverinfo="skip",
            )
        )
    mean = go.Scatter(
        x=bins["predicted"], y=bins["mean"], mode="lines+markers", name="mean", line={"color": BLUE}
    )
    figure.add_trace(mean)
    figure.add_hline(y=0, line={"color": GREY, "dash": "dot", "width": 1.5})
    figure.update_xaxes(title_text="prediction")
    figure.update_yaxes(title_text="observed minus predicted")
    return styled(figure, height=400)


def posteriors(density: pd.DataFrame, trace: pd.DataFrame) -> go.Figure:
    """One row per parameter: its posterior density, and its draws in their order.

    Args:
        density: Columns parameter, value and density.
        trace: Columns parameter, chain, draw and value.

    Returns:
        The figure, with a colour per chain.
    """
    names = list(dict.fromkeys(density["parameter"]))
    titles = [title for name in names for title in (name, "")]  # over both panels: names are long
    figure = make_subplots(
        rows=len(names),
        cols=2,
        subplot_titles=titles,
        vertical_spacing=0.45 / max(len(names), 1),
        horizontal_spacing=0.12,
    )
    for row, name in enumerate(names, 1):
        curve = density[density["parameter"] == name]
        filled = go.Scatter(
            x=np.asarray(curve["value"], np.float32),
            y=np.asarray(curve["density"], np.float32),
            mode="lines",
            line={"color": BLUE},
            fill="tozeroy",
            fillcolor="rgba(31,95,168,0.14)",
        )
        figure.add_trace(filled, row=row, col=1)
        draws = trace[trace["parameter"] == name]
        for index, (_, chain) in enumerate(draws.groupby("chain", sort=True)):
            line = go.Scatter(
                x=np.asarray(chain["draw"], np.int32),
                y=np.asarray(chain["value"], np.float32),
                mode="lines",
                line={"color": COLOURS[1:][index % 5], "width": 0.8},
            )
            figure.add_trace(line, row=row, col=2)
    figure.update_traces(showlegend=False, hoverinfo="skip")
    figure.update_yaxes(showticklabels=False, col=1)
    figure.update_xaxes(title_text="value", row=len(names), col=1)
    figure.update_xaxes(title_text="draw", row=len(names), col=2)
    figure.update_annotations(font_size=12, x=0, xanchor="left")
    return styled(figure, height=80 + 135 * len(names))


def curves(metrics: pd.DataFrame) -> go.Figure:
    """Every measure against rounds, one panel each, bytes and bits as running totals.

    Args:
        metrics: One row per round, with a column `round`.

    Returns:
        The figure; columns that only count clients or seconds are left out.
    """
    names = measures_of(metrics)
    rows = -(-len(names) // 2)
    figure = make_subplots(
        cols=2,
        rows=rows,
        subplot_titles=[name.replace("_", " ") for name in names],
        vertical_spacing=0.35 / max(rows, 1),
        horizontal_spacing=0.14,
    )
    for index, name in enumerate(names):
        known = metrics[["round", name]].dropna()
        line = go.Scatter(
            x=known["round"],
            y=known[name].cumsum() if name.startswith(_SIZES) else known[name],
            mode="lines" if len(known) > 20 else "lines+markers",
            name=name.replace("_", " "),
            showlegend=False,
            line={"color": BLUE, "width": 2},
        )
        figure.add_trace(line, row=index // 2 + 1, col=index % 2 + 1)
    figure.update_xaxes(title_text="round", row=rows)
    figure.update_annotations(font_size=12)
    return styled(figure, height=80 + 190 * rows)


def measures_of(metrics: pd.DataFrame) -> list[str]:
    """The columns of a run's metrics that measure something, sizes of messages last.

    Columns that are known in no round are left out, and bits where bytes say the same.
    """
    known = metrics.dropna(axis="columns", how="all").columns
    hidden = (*BOOKKEEPING, *(("bits_up", "bits_down") if "bytes_up" in known else ()))
    names = [name for name in known if name not in hidden]
    return sorted(names, key=lambda name: name.startswith(_SIZES))


def spread(clients: pd.DataFrame, measure: str) -> go.Figure:
    """A measure of each site, from the lowest at the bottom to the highest.

    Args:
        clients: One row per site: name, train_rows, and the measure.
        measure: The column to show.

    Returns:
        The figure.
    """
    ordered = clients.dropna(subset=[measure]).sort_values(measure, kind="stable")
    many = len(ordered) > LABELLED
    labels = list(range(1, len(ordered) + 1)) if many else list(ordered["name"])
    points = go.Scatter(
        x=ordered[measure],
        y=labels,
        mode="markers",
        marker={"size": 10, "color": BLUE},
        customdata=ordered[["name", "train_rows"]],
        hovertemplate=(
            f"%{{customdata[0]}}<br>{measure} %{{x:.4g}}<br>%{{customdata[1]}} training "
            "rows<extra></extra>"
        ),
    )
    figure = go.Figure(points)
    figure.update_xaxes(title_text=measure)
    if many:
        figure.update_yaxes(title_text="sites, sorted")
    else:
        figure.update_yaxes(type="category", categoryorder="array", categoryarray=labels)
    return styled(figure, height=640 if many else 110 + 28 * max(len(ordered), 3))


def epsilons(by_round: pd.DataFrame, budget: int | float | None) -> go.Figure:
    """Epsilon after each round by accountant, and the budget.

    Args:
        by_round: Columns round, and one per accountant.
        budget: Largest epsilon allowed; None: no line.

    Returns:
        The figure.
    """
    figure = go.Figure()
    for name, colour in zip(by_round.columns.drop("round"), COLOURS[1:], strict=False):
        line = {"color": colour, "width": 2}
        figure.add_trace(
            go.Scatter(x=by_round["round"], y=by_round[name], mode="lines", name=name, line=line)
        )
    if budget is not None:
        figure.add_hline(y=budget, line={"color": GREY, "dash": "dash"})
    figure.update_xaxes(title_text="round")
    figure.update_yaxes(title_text="epsilon spent", rangemode="tozero")
    return styled(figure, height=340)
