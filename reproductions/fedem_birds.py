"""FedMissEM on counts of birds by volunteers: the error of held-out cells, and national trends.

Dieuleveut et al. (2021), section 4 and figure 2, impute counts of eBird, which are not public, and
show national trends with a LOESS curve, without an error. Here observers are clients of three
public surveys, and errors are those of held-out cells:

    green woodpecker   267 Swiss quadrats x 14 years, 437 observers, the most birds of a year's
                       visits
    pacific wren       393 North American routes x 57 years, 683 observers; the file has no counts
                       of zero
    swiss birds        266 quadrats x 158 species in 2014, 191 observers; no years, so no trend

Of each observer's cells 20 % are held out and 20 % choose rank and ridge; then all are fitted to
both other parts. FedMissEM has negative binomial cells, with the dispersion estimated by moments,
and effects of sites and columns. Beside it, on the pooled cells and with choices by the same
validation cells:

    mean          of all counts
    effects       Poisson regression on site and column, by iterative proportional fitting: the
                  maximum of the likelihood
    soft-impute   of log(1 + count) less its mean, by singular values (Mazumder, Hastie and
                  Tibshirani 2010), times the factor that gives back the sum of the fitted counts

Scores are the mean Poisson deviance and the root mean square error of a held-out count. A site that
was never seen, or only without birds, would be predicted as zero and have no finite deviance:
baselines predict at least half a bird in all its visits. Splits are numbered from 1: on split 0 it
was settled how a fit is made (effects, their ridge, the family, the share of validation cells, the
second fit), with its test cells in sight.

Poisson cells are not robust enough for the birds of 2014: an exponential of what little is known of
a site and a species gives rates of 100 to 560 where 0 to 180 birds were seen, and a few such cells
decide the deviance. Large counts weigh less in a negative binomial. A descent along the ridges
alone ends in a worse optimum; fits therefore start cold more than once.

Trends are of fits to all cells with the rank and ridge of the last split; bands are 90 % intervals
over observers, by leaving out groups of them.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from covey.data.federated import FederatedData, Split
from covey.datasets.birds import WOODPECKER_YEARS, WREN_YEARS
from covey.datasets.loaders import load
from covey.estimators.imputer import FederatedImputer
from reproductions.result import Claim, Report, Row, Scale, row, with_changes

SURVEYS: dict[str, range | None] = {
    "green_woodpecker": WOODPECKER_YEARS,
    "pacific_wren": WREN_YEARS,
    "swiss_birds": None,
}
FAMILY = "negative_binomial"
BASELINES = ("mean", "effects", "soft-impute")
THRESHOLDS = (64.0, 32.0, 16.0, 8.0, 4.0, 2.0, 1.0)
SPAN = 0.5


class Cells(NamedTuple):
    """Observations: sites, columns and counts."""

    site: np.ndarray
    column: np.ndarray
    count: np.ndarray


class Score(NamedTuple):
    """Mean deviance and root mean square error of held-out counts."""

    deviance: float
    error: float


class Size(NamedTuple):
    """Size of a run. rank: None tries all."""

    surveys: tuple[str, ...]
    seeds: int
    replicas: int
    rank: int | None


SIZES: dict[Scale, Size] = {
    "quick": Size(("green_woodpecker",), seeds=1, replicas=50, rank=2),
    "full": Size(tuple(SURVEYS), seeds=3, replicas=200, rank=None),
}


def run(scale: Scale, report: Report) -> tuple[list[Row], list[Claim], go.Figure]:
    """Scores of held-out cells by survey, and trends."""
    size = with_changes(SIZES[scale])
    rows, claims, trends = [], [], {}
    for name in size.surveys:
        data, found = load(name), list[dict[str, Score]]()
        rank, ridge = 0, 1.0
        for seed in range(1, 1 + size.seeds):
            report(f"{name}: split {seed} of {size.seeds}")
            imputer, all_scores = scores(
                data.split(validation=0.2, test=0.2, seed=seed), size.rank, seed
            )
            rank, ridge = imputer.rank_, imputer.ridge_
            rows += [
                Row(f"rank, {name}, split {seed}", None, rank, None, 1),
                Row(f"ridge, {name}, split {seed}", None, ridge, None, 1),
            ]
            found.append(all_scores)
        for method in ("FedMissEM", *BASELINES):
            for measure in Score._fields:
                values = np.array([getattr(one[method], measure) for one in found])
                rows.append(row(f"{measure} of a held-out count, {name}, {method}", values))
        for baseline in BASELINES:
            value = float(
                np.mean([one["FedMissEM"].deviance / one[baseline].deviance for one in found])
            )
            claims.append(
                Claim(
                    f"deviance of FedMissEM over that of {baseline}, {name}", value, 1.0, value < 1
                )
            )
        years = SURVEYS[name]
        if years is not None:
            report(f"{name}: the trend, {size.replicas} replicas")
            whole = FederatedImputer(
                rank, ridge=ridge, seed=0, family=FAMILY, replicas=size.replicas
            ).fit(data)
            trends[name] = whole.trend(0.9, span=SPAN).assign(
                year=list(years), observed=_observed(data, len(years))
            )
            last, first = trends[name].iloc[-1], trends[name].iloc[0]
            rows.append(
                Row(
                    f"{name}, smooth trend, {years[-1]} over {years[0]}",
                    None,
                    last.smooth / first.smooth,
                    None,
                    1,
                )
            )
    return rows, claims, figure(rows, trends)


def scores(
    data: FederatedData, rank: int | None, seed: int
) -> tuple[FederatedImputer, dict[str, Score]]:
    """FedMissEM and the baselines on one split, and the fit."""
    train, validation, test = (cells_of(data, split) for split in ("train", "validation", "test"))
    both = Cells(*(np.concatenate(pair) for pair in zip(train, validation, strict=True)))
    shape = int(data.rows.x[:, 0].max()) + 1, int(data.rows.x[:, 1].max()) + 1
    imputer = FederatedImputer(
        "auto" if rank is None else rank, seed=seed, family=FAMILY, shape=shape
    ).fit(data)
    threshold = min(
        THRESHOLDS, key=lambda each: score(validation, soft_impute(train, shape, each)).deviance
    )
    predicted = {
        "FedMissEM": imputer.transform(),
        "mean": np.full(shape, both.count.mean()),
        "effects": effects(both, shape),
        "soft-impute": soft_impute(both, shape, threshold),
    }
    return imputer, {method: score(test, matrix) for method, matrix in predicted.items()}


def cells_of(data: FederatedData, split: Split) -> Cells:
    """All observations of a split."""
    x, y = data.rows_in(split)
    return Cells(x[:, 0], x[:, 1], y.astype(float))


def score(cells: Cells, predicted: np.ndarray) -> Score:
    """Mean deviance 2 (y log(y / mu) - y + mu), and the root mean square error."""
    mean, y = predicted[cells.site, cells.column], cells.count
    deviance = 2 * (y * np.log(np.where(y > 0, y, 1) / mean) - y + mean)
    return Score(float(deviance.mean()), float(np.sqrt(np.mean((y - mean) ** 2))))


def effects(cells: Cells, shape: tuple[int, int]) -> np.ndarray:
    """The Poisson rates a_j b_l of greatest likelihood: rows and columns scaled in turn to the
    observed sums.
    """
    rows, columns = np.ones(shape[0]), np.ones(shape[1])
    for _ in range(500):
        rows = _scaled(cells.site, cells.count, columns[cells.column], shape[0])
        columns = _scaled(cells.column, cells.count, rows[cells.site], shape[1])
    return np.maximum(np.outer(rows, columns), _least(cells, shape))


def _scaled(line: np.ndarray, count: np.ndarray, expected: np.ndarray, lines: int) -> np.ndarray:
    """Counts over expectations, line by line; a line without observations gets the mean of the
    others.
    """
    found = np.bincount(line, count, lines) / np.maximum(np.bincount(line, expected, lines), 1e-12)
    seen = np.bincount(line, minlength=lines) > 0
    return np.where(seen, found, found[seen].mean())


def soft_impute(cells: Cells, shape: tuple[int, int], threshold: float) -> np.ndarray:
    """Of log(1 + count): singular values lowered by the threshold, gaps filled, and again."""
    centre = np.log1p(cells.count).mean()
    target, seen, theta = np.zeros(shape), np.zeros(shape, bool), np.zeros(shape)
    target[cells.site, cells.column], seen[cells.site, cells.column] = (
        np.log1p(cells.count) - centre,
        True,
    )
    for _ in range(300):
        left, values, right = np.linalg.svd(np.where(seen, target, theta), full_matrices=False)
        before, theta = theta, left * np.maximum(values - threshold, 0) @ right
        if np.abs(theta - before).max() < 1e-3:
            break
    counts = np.maximum(np.expm1(theta + centre), 0.0)
    return np.maximum(
        counts * cells.count.sum() / counts[cells.site, cells.column].sum(), _least(cells, shape)
    )


def _least(cells: Cells, shape: tuple[int, int]) -> np.ndarray:
    """Half a bird in all visits of a site."""
    return 0.5 / np.maximum(np.bincount(cells.site, minlength=shape[0]), 1)[:, None]


def _observed(data: FederatedData, years: int) -> np.ndarray:
    return np.bincount(np.asarray(data.rows.x)[:, 1], minlength=years)


def figure(rows: list[Row], trends: dict[str, pd.DataFrame]) -> go.Figure:
    """Deviances of held-out cells, and the trends with their curves and bands."""
    chart = make_subplots(
        rows=1 + len(trends), cols=1, subplot_titles=["deviance of held-out counts", *trends]
    )
    bars = [one for one in rows if one.quantity.startswith("deviance")]
    labels = [one.quantity.removeprefix("deviance of a held-out count, ") for one in bars]
    errors = {"type": "data", "array": [one.sd or 0.0 for one in bars]}
    chart.add_trace(
        go.Bar(x=labels, y=[one.ours for one in bars], error_y=errors, showlegend=False),
        row=1,
        col=1,
    )
    chart.update_yaxes(type="log", row=1, col=1)
    for index, table in enumerate(trends.values(), start=2):
        year, first = table["year"], index == 2
        band = {"x": [*year, *year[::-1]], "y": [*table["smooth_high"], *table["smooth_low"][::-1]]}
        chart.add_trace(
            go.Scatter(
                **band,
                fill="toself",
                mode="lines",
                line_width=0,
                name="90 % over observers",
                showlegend=first,
            ),
            row=index,
            col=1,
        )
        chart.add_trace(
            go.Scatter(x=year, y=table["smooth"], mode="lines", name="LOESS", showlegend=first),
            row=index,
            col=1,
        )
        chart.add_trace(
            go.Scatter(
                x=year,
                y=table["total"],
                mode="markers",
                name="sum of estimated counts",
                showlegend=first,
            ),
            row=index,
            col=1,
        )
    chart.update_layout(
        title="Counts of birds by volunteers",
        template="plotly_white",
        height=350 * (1 + len(trends)),
    )
    return chart
