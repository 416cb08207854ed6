"""FedAvg's fixed point and its local steps, on federated least squares.

Al-Shedivat et al. (2021), "Federated learning via posterior averaging", section 2 and figure 1: with more local steps FedAvg
gets close to the optimum sooner, and stays farther away from it. On least squares both the optimum and the point where
FedAvg with K full-gradient steps stands still are known in closed form,

    theta* = (sum_i n_i H_i)^-1 sum_i n_i H_i mu_i,
    theta_K = (sum_i n_i A_i)^-1 sum_i n_i A_i mu_i,   A_i = I - (I - step H_i)^K,

so the run is compared with theory as well as with the figure. H_i = X_i'X_i / n_i, and mu_i is client i's own least squares.
"""

from typing import NamedTuple

import numpy as np
import optax
import plotly.graph_objects as go

from covey.algorithms.fedavg import fedavg
from covey.data.federated import FederatedData
from covey.data.synthetic import least_squares
from covey.experiment.reproduce.frame import Claim, Report, Row, Scale
from covey.experiment.run import run as run_method
from covey.models import linear

STEPS = (1, 10, 100)
STEP_SIZE = 0.02


class Size(NamedTuple):
    """How large a run is."""

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
    """Distance to the optimum against rounds for 1, 10 and 100 local steps."""
    size = SIZES[scale]
    paths: dict[int, list[np.ndarray]] = {steps: [] for steps in STEPS}
    theory: dict[int, list[float]] = {steps: [] for steps in STEPS}
    errors = []
    for seed in range(size.seeds):
        data, _ = least_squares(seed, clients=size.clients, rows=size.rows, dimensions=size.dimensions, heterogeneity=1.0)
        optimum = fixed_point(data, None)
        for steps in STEPS:
            report(f"seed {seed + 1} of {size.seeds}, {steps} local steps")
            ends = trajectory(data, steps, size)
            still = fixed_point(data, steps)
            paths[steps].append(np.linalg.norm(ends - optimum, axis=1))
            theory[steps].append(float(np.linalg.norm(still - optimum)))
            errors.append(float(np.linalg.norm(ends[-1] - still) / np.linalg.norm(optimum)))
    last = {steps: np.array([path[-1] for path in paths[steps]]) for steps in STEPS}
    early = {steps: np.array([path[1] for path in paths[steps]]) for steps in STEPS}
    rows = [_row(f"distance to the optimum at the end, {steps} local steps", last[steps]) for steps in STEPS]
    rows += [_row(f"the same in theory, {steps} local steps", np.array(theory[steps])) for steps in STEPS]
    rows += [_row(f"distance after {size.every} rounds, {steps} local steps", early[steps]) for steps in STEPS]
    claims = [
        _above("final distance, 100 steps over 10", float(last[100].mean() / last[10].mean())),
        _above(f"distance after {size.every} rounds, 1 step over 10", float(early[1].mean() / early[10].mean())),
        Claim("largest relative distance of the end from the fixed point in theory", max(errors), 1e-2, max(errors) < 1e-2),
    ]
    return rows, claims, figure(paths, theory, size)


def trajectory(data: FederatedData, steps: int, size: Size) -> np.ndarray:
    """The parameters after every few rounds."""
    method = fedavg(linear(), client_optimizer=optax.sgd(STEP_SIZE), batch_size=None, steps=steps)
    done = run_method(method, data, rounds=1, seed=0, progress=False)
    points = [_parameters(done)]
    for _ in range(size.rounds // size.every):
        points.append(_parameters(done.go_on(size.every)))
    return np.stack(points)


def fixed_point(data: FederatedData, steps: int | None) -> np.ndarray:
    """Where FedAvg with `steps` local steps stands still; None gives the optimum."""
    total, moment = 0.0, 0.0
    for start, count in zip(data.starts("train"), data.counts("train"), strict=True):
        x = data.rows.x[start : start + count].astype(np.float64)
        design = np.column_stack([x, np.ones(count)])
        hessian = design.T @ design / count
        mean = np.linalg.lstsq(design, data.rows.y[start : start + count].astype(np.float64), rcond=None)[0]
        identity = np.eye(len(hessian))
        pull = hessian if steps is None else identity - np.linalg.matrix_power(identity - STEP_SIZE * hessian, steps)
        total, moment = total + count * pull, moment + count * pull @ mean
    return np.linalg.solve(total, moment)


def figure(paths: dict[int, list[np.ndarray]], theory: dict[int, list[float]], size: Size) -> go.Figure:
    """Distance against rounds; the dotted lines are where theory says it ends."""
    chart = go.Figure()
    rounds = 1 + size.every * np.arange(len(paths[1][0]))
    for steps, colour in zip(STEPS, ("#7f7f7f", "#1f6fb2", "#d1733b"), strict=True):
        mean = np.mean(paths[steps], 0)
        chart.add_trace(go.Scatter(x=rounds, y=mean, name=f"{steps} local steps", line={"color": colour, "width": 2}))
        if steps > 1:
            chart.add_hline(y=float(np.mean(theory[steps])), line={"color": colour, "dash": "dot"})
    chart.update_layout(
        title="FedAvg on federated least squares: distance to the optimum", template="plotly_white", xaxis_title="round"
    )
    chart.update_yaxes(type="log")
    return chart


def _parameters(done) -> np.ndarray:
    parameters = done.state.parameters
    return np.append(np.asarray(parameters.weight, np.float64), np.asarray(parameters.bias, np.float64))


def _row(quantity: str, values: np.ndarray) -> Row:
    return Row(quantity, None, float(values.mean()), float(values.std(ddof=1)), len(values))


def _above(claim: str, value: float, bound: float = 1.0) -> Claim:
    return Claim(claim, value, bound, value > bound)
