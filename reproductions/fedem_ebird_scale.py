"""FedMissEM at the size of the paper's eBird data: time, memory and error.

Dieuleveut et al. (2021), section 4: 9,721 French sites x 525 months, 5,980 observations of Buzzards
and 12,185 of Mallards with ten servers, Gaussian cells, rank 2, minibatches of 100, 150 epochs.
Those data are not public and the paper gives no error of the fit. The data here are synthetic: each
site has a level, times a slow trend and a season, with noise of variance 1; popular sites and later
months are visited more often, no cell twice. The matrix has 5.1 million cells, of which one in 420
to 850 is observed.

    as in the paper   theta = U V', the curvature of all cells, minibatches of 100, 150 epochs; a
                      ridge of 1, as without one a site with one observation has no unique optimum
    imputer           `FederatedImputer` of rank 2: the mean, effects, and the ridge chosen by a
                      fifth of the cells

The first is here for its cost. It is worse than the mean of all values: four sites in five have at
most one observation, and a model without a mean draws what it does not know to zero. Peak memory is
that of the process.
"""

import resource
import sys
from time import perf_counter
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import plotly.graph_objects as go

from covey.algorithms.fedmissem import fedmissem
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.estimators.imputer import FederatedImputer
from covey.models import matrix_completion
from reproductions.result import Claim, Report, Row, Scale, with_changes

CLIENTS, BATCH, HELD_OUT = 10, 100, 2000
SECONDS, GIGABYTES = 600.0, 4.0


class Size(NamedTuple):
    """Size of a run."""

    sites: int
    months: int
    observations: tuple[int, ...]
    epochs: int


SIZES: dict[Scale, Size] = {
    "quick": Size(2000, 120, (3000,), 50),
    "full": Size(9721, 525, (5980, 12185), 150),
}


class Made(NamedTuple):
    """Data, held-out cells with their values, and the expectation of the sum over sites by
    month.
    """

    data: FederatedData
    cells: np.ndarray
    values: np.ndarray
    trend: np.ndarray


class Fit(NamedTuple):
    """Seconds, root mean square error of held-out values, and the sum over sites by month."""

    seconds: float
    error: float
    trend: np.ndarray


def run(scale: Scale, report: Report) -> tuple[list[Row], list[Claim], go.Figure]:
    """Both fits for each count of observations."""
    size = with_changes(SIZES[scale])
    rows, claims, chart = [], [], go.Figure()
    start = perf_counter()
    for count in size.observations:
        made = make(size, count, seed=count)
        mean = np.asarray(made.data.rows.y).mean()
        error = float(np.sqrt(np.mean((made.values - mean) ** 2)))
        rows.append(
            Row(f"error of a held-out value, mean, {count} observations", None, error, None, 1)
        )
        for name in ("as in the paper", "imputer"):
            report(f"{count} observations, {name}")
            fit = fitted(made, size, name)
            rows.append(Row(f"seconds, {name}, {count} observations", None, fit.seconds, None, 1))
            rows.append(
                Row(
                    f"error of a held-out value, {name}, {count} observations",
                    None,
                    fit.error,
                    None,
                    1,
                )
            )
            chart.add_trace(go.Scatter(y=fit.trend, name=f"{name}, {count} observations"))
            if name == "imputer":
                claims.append(
                    Claim(
                        f"error of held-out values over that of the mean, {count}",
                        fit.error / error,
                        1.0,
                        fit.error < error,
                    )
                )
        chart.add_trace(
            go.Scatter(y=made.trend, name=f"truth, {count} observations", line_dash="dot")
        )
    seconds, memory = perf_counter() - start, peak()
    rows.append(Row("peak memory in GB", None, memory, None, 1))
    claims.append(Claim("seconds in all", seconds, SECONDS, seconds < SECONDS))
    claims.append(Claim("peak memory in GB", memory, GIGABYTES, memory < GIGABYTES))
    chart.update_layout(
        title="Sum over sites by month", template="plotly_white", xaxis_title="month"
    )
    return rows, claims, chart


def make(size: Size, count: int, seed: int) -> Made:
    """Observations of a matrix of rank 2."""
    rng = np.random.default_rng(seed)
    month = np.arange(size.months)
    patterns = np.stack([1.5 + month / size.months, np.sin(2 * np.pi * month / 12)])
    level = np.exp(0.5 * rng.normal(size=size.sites))
    sites = np.stack([level, level * (0.6 + 0.3 * rng.normal(size=size.sites))], axis=1)
    popular, later = 1 / (10 + rng.permutation(size.sites)), 1.0 + month
    many = 2 * (count + HELD_OUT)
    drawn = np.stack(
        [
            rng.choice(size.sites, many, p=popular / popular.sum()),
            rng.choice(size.months, many, p=later / later.sum()),
        ],
        axis=1,
    )
    _, first = np.unique(drawn, axis=0, return_index=True)
    cells = drawn[np.sort(first)[: count + HELD_OUT]]
    values = np.sum(sites[cells[:, 0]] * patterns.T[cells[:, 1]], axis=1) + rng.normal(
        size=len(cells)
    )
    data = FederatedData.from_arrays(cells[:count], values[:count], rng.integers(0, CLIENTS, count))
    return Made(data, cells[count:], values[count:], sites.sum(0) @ patterns)


def fitted(made: Made, size: Size, name: str) -> Fit:
    """A fit, timed with its compilation."""
    begin = perf_counter()
    matrix = (
        as_in_the_paper(made.data, size) if name == "as in the paper" else imputed(made.data, size)
    )
    error = np.sqrt(np.mean((matrix[tuple(made.cells.T)] - made.values) ** 2))
    return Fit(perf_counter() - begin, float(error), matrix.sum(axis=0))


def as_in_the_paper(data: FederatedData, size: Size) -> np.ndarray:
    """Minibatches; each cell is observed at most once, so one completion is enough."""
    model = matrix_completion(rows=size.sites, columns=size.months, rank=2, ridge=1.0)
    engine = Simulation(fedmissem(model, completions=1, batch_size=BATCH), data, seed=0)
    batches = -(-int(data.counts("train").mean()) // BATCH)
    state, _ = engine.advance(engine.start(), size.epochs * batches)
    return np.asarray(model.mean(state.server.factors, jnp.arange(size.sites)))


def imputed(data: FederatedData, size: Size) -> np.ndarray:
    """With the mean and effects; the ridge by validation cells."""
    imputer = FederatedImputer(2, seed=0, shape=(size.sites, size.months), rounds=size.epochs)
    return imputer.fit(data.split(validation=0.2, test=0.0, seed=0)).transform()


def peak() -> float:
    """The most memory that this process has had, in GB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (1 if sys.platform == "darwin" else 1 / 1024) / 1024**3
