"""The results of a sweep: a table of settings, the chosen one, and a figure."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from covey.config.checking import value_of
from covey.config.options import unknown
from covey.report.figures import COLOURS, ORANGE, styled
from covey.sweeps.grid import SPLIT, Axis, Trial
from covey.sweeps.trial import Outcome

LARGER = ("accuracy",)  # measures of which more is better; of all others, less is
DEFAULT = "nll"
_LEAST_POINTS = 3  # of an axis whose ends are told apart from its middle
_LOG_RANGE = 10  # an axis whose values differ by this factor is drawn in logarithms


class Choice(NamedTuple):
    """The results of a sweep.

    Attributes:
        table: One row per setting: its values, seeds, diverged runs, the mean of every measure, the
            standard error of the measure it is chosen by, and whether it is the chosen one.
        settings: "table.key" and value of the chosen setting.
        by: The measure.
        at_the_end: Keys whose chosen value is the smallest or largest of its axis.
    """

    table: pd.DataFrame
    settings: tuple[tuple[str, str], ...]
    by: str
    at_the_end: tuple[str, ...]


def choose(
    axes: Sequence[Axis], outcomes: Mapping[Trial, Outcome], by: str | None = None
) -> Choice:
    """The setting with the best mean over seeds on validation rows.

    Settings of which a seed diverged are in the table and are not chosen.

    Args:
        axes: The settings that vary.
        outcomes: The outcome of each run.
        by: The measure to choose by. Default: nll, the mean negative log-likelihood of a row.

    Returns:
        The table and the choice.

    Raises:
        ValueError: There is no such measure, or every setting diverged.
    """
    measure = _measure(outcomes, by)
    by_setting: dict[tuple, list[Outcome]] = {}
    for trial, outcome in outcomes.items():
        by_setting.setdefault(trial.settings, []).append(outcome)
    table = pd.DataFrame([_row(key, found, measure) for key, found in by_setting.items()])
    whole = np.asarray(table["diverged"]) == 0
    if not whole.any():
        first = next(one.diverged for one in outcomes.values() if one.diverged)
        raise ValueError(
            f"every setting diverged for at least one seed (e.g. {first}): try smaller step sizes"
        )
    scores = np.where(whole, np.asarray(table[measure], float), math.nan)
    best = int(np.nanargmax(scores) if measure in LARGER else np.nanargmin(scores))
    table["chosen"] = np.arange(len(table)) == best
    settings = list(by_setting)[best]
    return Choice(table, settings, measure, _at_the_end(axes, dict(settings)))


def figure_of(axes: Sequence[Axis], outcomes: Mapping[Trial, Outcome], choice: Choice) -> go.Figure:
    """The measure against the first setting that varies, a line for each combination of the others.

    Args:
        axes: The settings that vary.
        outcomes: The outcome of each run.
        choice: The result of `choose`.

    Returns:
        The figure: lines through the means, a dot per seed, the chosen setting marked.
    """
    varying = [axis for axis in axes if len(axis.values) > 1]
    along = varying[0] if varying else None
    figure = go.Figure()
    lines: dict[str, dict[str, list[float]]] = {}
    for trial, outcome in outcomes.items():
        value = outcome.measures.get(choice.by)
        if value is not None and outcome.diverged is None:
            given = dict(trial.settings)
            others = [f"{_last(axis.key)} {given[axis.key]}" for axis in varying[1:]]
            points = lines.setdefault(", ".join(others) or "mean over seeds", {})
            points.setdefault(given[along.key] if along else "study", []).append(value)
    for index, (name, points) in enumerate(lines.items()):
        colour = COLOURS[1:][index % (len(COLOURS) - 1)]
        _draw(figure, name, points, colour)
    best = choice.table[choice.table["chosen"]].iloc[0]
    at = dict(choice.settings)[along.key] if along else "study"
    ring = {"size": 16, "symbol": "circle-open", "color": ORANGE, "line": {"width": 3}}
    figure.add_scatter(
        x=[_numeric(at)], y=[best[choice.by]], mode="markers", marker=ring, name="chosen"
    )
    _label(figure, along, choice.by)
    return styled(figure, title=f"{choice.by} of {SPLIT} rows", height=460)


def _measure(outcomes: Mapping[Trial, Outcome], by: str | None) -> str:
    known = dict.fromkeys(name for one in outcomes.values() for name in one.measures)
    wanted = DEFAULT if by is None else by
    if known and wanted not in known:
        raise ValueError(unknown("--by", wanted, known, "measure"))
    return wanted


def _row(
    settings: tuple[tuple[str, str], ...], found: Sequence[Outcome], by: str
) -> dict[str, object]:
    good = [one for one in found if one.diverged is None]
    names = dict.fromkeys(name for one in good for name in one.measures)

    def values(name: str) -> np.ndarray:
        return np.array([one.measures[name] for one in good], float)

    spread = values(by).std(ddof=1) / math.sqrt(len(good)) if len(good) > 1 else math.nan
    row: dict[str, object] = {key: _numeric(value) for key, value in settings}
    row |= {"seeds": len(found), "diverged": len(found) - len(good)}
    row |= {by: values(by).mean() if good else math.nan, f"{by}_se": spread}
    return row | {name: values(name).mean() for name in names if name != by}


def _at_the_end(axes: Sequence[Axis], chosen: Mapping[str, str]) -> tuple[str, ...]:
    keys = []
    for axis in axes:
        values = [_numeric(value) for value in axis.values]
        numeric = [value for value in values if isinstance(value, float)]
        if len(numeric) == len(values) >= _LEAST_POINTS:
            mine = _numeric(chosen[axis.key])
            keys += [axis.key] if mine in (min(numeric), max(numeric)) else []
    return tuple(keys)


def _draw(figure: go.Figure, name: str, points: Mapping[str, Sequence[float]], colour: str) -> None:
    ordered = sorted(points.items(), key=lambda one: _order(one[0]))
    figure.add_scatter(
        x=[_numeric(key) for key, _ in ordered],
        y=[float(np.mean(values)) for _, values in ordered],
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 2},
    )
    figure.add_scatter(
        x=[_numeric(key) for key, values in ordered for _ in values],
        y=[value for _, values in ordered for value in values],
        mode="markers",
        marker={"color": colour, "size": 5, "opacity": 0.5},
        showlegend=False,
    )


def _label(figure: go.Figure, along: Axis | None, by: str) -> None:
    values = [_numeric(value) for value in along.values] if along else ["study"]
    only = [value for value in values if isinstance(value, float)]
    wide = len(only) == len(values) and min(only) > 0 and max(only) / min(only) >= _LOG_RANGE
    kind = "log" if wide else ("linear" if len(only) == len(values) else "category")
    figure.update_xaxes(title_text=along.key if along else "", type=kind)
    figure.update_yaxes(title_text=by)


def _numeric(text: str) -> float | str:
    """A value as a float where it is numeric, else its text."""
    value = value_of(f"value={text}")[1]
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain else text.strip("\"'")


def _order(text: str) -> tuple[bool, float, str]:
    value = _numeric(text)
    return (False, value, "") if isinstance(value, float) else (True, 0.0, str(value))


def _last(key: str) -> str:
    return key.rpartition(".")[2]
