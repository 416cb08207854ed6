"""The fixed point of FedAvg by the number of local steps, on federated least squares.

Al-Shedivat et al. (2021), "Federated learning via posterior averaging", section 2 and figure 1:
with more local steps FedAvg comes close to the optimum sooner, and its fixed point is farther away
from it. On least squares both the optimum and the fixed point of FedAvg with K full-gradient steps
are known in closed form,

    theta* = (sum_i n_i H_i)^-1 sum_i n_i H_i mu_i,
    theta_K = (sum_i n_i A_i)^-1 sum_i n_i A_i mu_i,   A_i = I - (I - step H_i)^K,

so that the run is compared with theory as well as with the figure. H_i = X_i'X_i / n_i, mu_i is the
least-squares estimate of client i, and the step size is half of 1 / max_i lambda_max(H_i).
"""

from typing import NamedTuple

import numpy as np
import optax
import plotly.graph_objects as go

from covey.algorithms.fedavg import fedavg
from covey.data.federated import FederatedData
from covey.datasets.synthetic import least_squares
from covey.models import linear
from covey.runs.launch import run as run_method
from reproductions.result import Claim, Report, Row, Scale, row, with_changes

STEPS = (1, 10, 100)
HETEROGENEITY = 0.5


class Size(NamedTuple):
    """Size of the experiment: data, rounds, and rounds from one measurement to the next."""

    seeds: int
    clients: int
    rows: int
    dimensions: int
    rounds: int
    every: int


SIZES: dict[Scale, Size] = {
    "quick": Size(seeds=3, clients=10, rows=50, dimensions=5, rounds=1000, every=20),
    "full": Size(seeds=5, clients=20, rows=500, dimensions=10, rounds=2000, every=20),
}


def run(scale: Scale, report: Report) -> tuple[list[Row], list[Claim], go.Figure]:
    """Distance to the optimum by round, for 1, 10 and 100 local steps."""
    size = with_changes(SIZES[scale])
    paths: dict[int, list[np.ndarray]] = {steps: [] for steps in STEPS}
    theory: dict[int, list[float]] = {steps: [] for steps in STEPS}
    errors = []
    for seed in range(size.seeds):
        data, _ = least_squares(seed, size.clients, size.rows, size.dimensions, HETEROGENEITY)
        local = [quadratic(data, index) for index in range(data.clients)]
        step_size = 0.5 / max(float(np.linalg.eigvalsh(one.hessian)[-1]) for one in local)
        optimum = fixed_point(local)
        for steps in STEPS:
            report(f"seed {seed + 1} of {size.seeds}, {steps} local steps")
            ends = trajectory(data, steps, step_size, size)
            still = fixed_point(local, steps, step_size)
            paths[steps].append(np.linalg.norm(ends - optimum, axis=1))
            theory[steps].append(float(np.linalg.norm(still - optimum)))
            errors.append(float(np.linalg.norm(ends[-1] - still) / np.linalg.norm(optimum)))
    last = {steps: np.array([path[-1] for path in paths[steps]]) for steps in STEPS}
    early = {steps: np.array([path[0] for path in paths[steps]]) for steps in STEPS}
    rows = [
        row(f"distance to the optimum at the end, {steps} local steps", last[steps])
        for steps in STEPS
    ]
    rows += [
        row(f"the same in theory, {steps} local steps", np.array(theory[steps])) for steps in STEPS
    ]
    rows += [
        row(f"distance after {size.every} rounds, {steps} local steps", early[steps])
        for steps in STEPS
    ]
    claims = [
        _above("final distance, 100 steps over 10", float(last[100].mean() / last[10].mean())),
        _above(
            f"distance after {size.every} rounds, 1 step over 10",
            float(early[1].mean() / early[10].mean()),
        ),
        Claim(
            "largest relative distance of the end from the fixed point in theory",
            max(errors),
            1e-4,
            max(errors) < 1e-4,
        ),
    ]
    return rows, claims, figure(paths, theory, size)


def trajectory(data: FederatedData, steps: int, step_size: float, size: Size) -> np.ndarray:
    """The parameters after every `size.every` rounds."""
    method = fedavg(linear(), client_optimizer=optax.sgd(step_size), batch_size=None, steps=steps)
    done = run_method(method, data, rounds=size.every, seed=0, progress=False)
    points = [_parameters(done)]
    while done.round < size.rounds:
        points.append(_parameters(done.advance(size.every)))
    return np.stack(points)


class Quadratic(NamedTuple):
    """A client's mean loss over its rows, (theta - mean)' hessian (theta - mean) / 2 + constant."""

    hessian: np.ndarray
    mean: np.ndarray
    rows: int


def quadratic(data: FederatedData, index: int) -> Quadratic:
    """The loss of the client at an index."""
    x, y = (leaf.astype(np.float64) for leaf in data.rows_of(index, "train"))
    rows = len(y)
    design = np.column_stack([x, np.ones(rows)])
    return Quadratic(design.T @ design / rows, np.linalg.lstsq(design, y, rcond=None)[0], rows)


def fixed_point(
    local: list[Quadratic], steps: int | None = None, step_size: float = 0.0
) -> np.ndarray:
    """The fixed point of FedAvg with `steps` local steps; the optimum where `steps` is None."""
    total, moment = 0.0, 0.0
    for one in local:
        identity = np.eye(len(one.mean))
        still = np.linalg.matrix_power(identity - step_size * one.hessian, steps or 0)
        pull = one.hessian if steps is None else identity - still
        total, moment = total + one.rows * pull, moment + one.rows * pull @ one.mean
    return np.linalg.solve(total, moment)


def figure(
    paths: dict[int, list[np.ndarray]], theory: dict[int, list[float]], size: Size
) -> go.Figure:
    """Distance by round; dotted lines are the limits in theory."""
    chart = go.Figure()
    rounds = size.every * np.arange(1, len(paths[1][0]) + 1)
    for steps, colour in zip(STEPS, ("#7f7f7f", "#1f6fb2", "#d1733b"), strict=True):
        mean = np.mean(paths[steps], 0)
        chart.add_trace(
            go.Scatter(
                x=rounds, y=mean, name=f"{steps} local steps", line={"color": colour, "width": 2}
            )
        )
        if steps > 1:
            chart.add_hline(y=float(np.mean(theory[steps])), line={"color": colour, "dash": "dot"})
    chart.update_layout(
        title="FedAvg on federated least squares: distance to the optimum",
        template="plotly_white",
        xaxis_title="round",
    )
    chart.update_yaxes(type="log")
    return chart


def _parameters(done) -> np.ndarray:
    parameters = done.state.parameters
    return np.append(
        np.asarray(parameters.weight, np.float64), np.asarray(parameters.bias, np.float64)
    )


def _above(claim: str, value: float, bound: float = 1.0) -> Claim:
    return Claim(claim, value, bound, value > bound)
