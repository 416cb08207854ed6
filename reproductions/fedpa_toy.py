"""FedPA, FedAvg and minibatch SGD on two clients with quadratic losses in the plane.

Al-Shedivat et al. (2021), figure 1. The paper's two quadratics are not given; ours are regressions
y = w x + b on 50 rows each, whose losses are long in different directions. FedAvg makes 10 or 100
local steps, FedPA takes 10 or 100 samples of 10 steps each with rho = 1, and the paper's delta. Its
minibatches are independent draws: with shuffled passes over the rows averaged iterates hardly vary,
and FedPA is then little else than FedAvg (see `kernels.iasg`). Each method takes the server's step
size of the grid whose last rounds have the least loss, in runs apart from those that are reported,
which differ in their starts and minibatches. Bands are bootstrapped.
"""

from typing import NamedTuple, cast

import jax.numpy as jnp
import numpy as np
import optax
import plotly.graph_objects as go

from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedpa import fedpa
from covey.algorithms.mb_sgd import mb_sgd
from covey.core.algorithm import Algorithm
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.models import linear
from reproductions.fedavg_drift import Quadratic, fixed_point, quadratic
from reproductions.result import Claim, Report, Row, Scale, row, with_changes

COLOURS = {
    "MB-SGD": "#7f7f7f",
    "FedAvg-10": "#8ab8e0",
    "FedAvg-100": "#1f6fb2",
    "FedPA-10": "#f0b48a",
    "FedPA-100": "#d1733b",
}
GRIDS = {"MB-SGD": (0.01, 0.03, 0.1), "FedAvg": (0.1, 0.3, 1.0), "FedPA": (0.003, 0.01, 0.03)}
LAST = 0.25  # the share of the rounds that counts as the end
# Rounds between runs on one engine: random numbers follow from the index of a round.
APART = 10**6


class Size(NamedTuple):
    """How large a run is; points of a curve are `every` rounds apart."""

    seeds: int
    rounds: int
    every: int


SIZES: dict[Scale, Size] = {
    "quick": Size(seeds=5, rounds=200, every=10),
    "full": Size(seeds=20, rounds=1000, every=10),
}


def run(scale: Scale, report: Report) -> tuple[list[Row], list[Claim], go.Figure]:
    """Distance to the optimum against rounds."""
    size, data = with_changes(SIZES[scale]), clients()
    local = [quadratic(data, client) for client in range(data.clients)]
    optimum = fixed_point(local)
    paths, chosen = {}, {}
    for name, method in methods().items():
        report(f"{name}: the server's step, then {size.seeds} runs")
        grid = GRIDS[name.split("-")[0] if name != "MB-SGD" else name]
        engine = Simulation(method, data, seed=0)
        trials = {rate: loss(local, walked(engine, rate, 0, size)) for rate in grid}
        chosen[name] = min(trials, key=lambda rate: trials[rate])
        found = [walked(engine, chosen[name], seed, size) for seed in range(1, size.seeds + 1)]
        paths[name] = np.linalg.norm(np.stack(found) - optimum, axis=-1)
    late = max(1, int(LAST * size.rounds / size.every))
    ends = {name: found[:, -late:].mean(1) for name, found in paths.items()}
    rows = [
        row(f"distance to the optimum at the end, {name}", values) for name, values in ends.items()
    ]
    rows += [
        Row(f"step of the server, {name}", None, rate, None, 1) for name, rate in chosen.items()
    ]
    drift = float(ends["FedAvg-100"].mean() / ends["FedAvg-10"].mean())
    kept = float(ends["FedPA-100"].mean() / ends["FedPA-10"].mean())
    closer = float(ends["FedAvg-100"].mean() / ends["FedPA-100"].mean())
    # Runs end where their noise leads them: "does not rise" allows for twice the standard error of
    # the ratio.
    spreads = (ends[name].std(ddof=1) / ends[name].mean() for name in ("FedPA-10", "FedPA-100"))
    bound = 1 + 2 * float(np.hypot(*spreads)) / size.seeds**0.5
    claims = [
        Claim("distance of FedAvg, 100 local steps over 10", drift, 1.0, drift > 1),
        Claim("distance of FedPA, 100 samples over 10", kept, bound, kept < bound),
        Claim("distance of FedAvg-100 over FedPA-100", closer, 4.0, closer >= 4),
    ]
    return rows, claims, figure(paths, size)


def clients() -> FederatedData:
    """Two clients with 50 rows, that differ in where their x lie and in their lines."""
    rng = np.random.default_rng(0)
    rows = {}
    for name, centre, spread, slope, height in (
        ("one", 0.8, 1.2, 2.0, -1.0),
        ("other", -1.5, 0.7, -1.0, 1.5),
    ):
        x = centre + spread * rng.normal(size=(50, 1))
        y = slope * x[:, 0] + height + 2.0 * rng.normal(size=50)
        rows[name] = (x.astype(np.float32), y.astype(np.float32))
    return FederatedData.from_clients(rows)


def methods() -> dict[str, Algorithm]:
    """All of them with minibatches of ten rows. The server's step is part of its state, so that one
    program serves every step.
    """
    server = cast("optax.GradientTransformation", optax.inject_hyperparams(optax.sgd)(1.0))
    made = {"MB-SGD": mb_sgd(linear(), server_optimizer=server, batch_size=10)}
    shared = {"client_optimizer": optax.sgd(0.1), "server_optimizer": server, "batch_size": 10}
    for steps in (10, 100):
        made[f"FedAvg-{steps}"] = fedavg(linear(), steps=steps, **shared)
    for samples in (10, 100):
        made[f"FedPA-{samples}"] = fedpa(
            linear(),
            samples=samples,
            rho=1.0,
            steps_per_sample=10,
            minibatches="independent",
            normalised=False,
            **shared,
        )
    return made


def walked(engine: Simulation, rate: float, seed: int, size: Size) -> np.ndarray:
    """The parameters after every few rounds, from a random start."""
    start = np.random.default_rng([1, seed]).normal(scale=3.0, size=2).astype(np.float32)
    state = engine.start()
    server = state.server._replace(
        parameters=state.server.parameters._replace(
            weight=jnp.asarray(start[:1]), bias=jnp.asarray(start[1])
        ),
        optimizer=state.server.optimizer._replace(hyperparams={"learning_rate": jnp.float32(rate)}),
    )
    state, points = state._replace(server=server, round=seed * APART), []
    for _ in range(size.rounds // size.every):
        state, _ = engine.advance(state, size.every)
        points.append(
            [float(state.server.parameters.weight[0]), float(state.server.parameters.bias)]
        )
    return np.array(points)


def loss(local: list[Quadratic], points: np.ndarray) -> float:
    """The mean loss of all rows in the last rounds, up to a constant."""
    late = points[-max(1, int(LAST * len(points))) :]
    terms = [
        np.einsum("ti,ij,tj->t", late - one.mean, one.hessian, late - one.mean) for one in local
    ]
    return float(np.mean(terms))


def band(values: np.ndarray, *, draws: int = 2000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The bootstrapped 95 % band of the mean over the leading axis."""
    chosen = np.random.default_rng(seed).integers(len(values), size=(draws, len(values)))
    lower, upper = np.quantile(values[chosen].mean(1), [0.025, 0.975], axis=0)
    return lower, upper


def figure(paths: dict[str, np.ndarray], size: Size) -> go.Figure:
    """Mean distances with their bands."""
    chart = go.Figure()
    rounds = size.every * np.arange(1, size.rounds // size.every + 1)
    for name, found in paths.items():
        lower, upper = band(found)
        outline = {
            "x": [*rounds, *rounds[::-1]],
            "y": [*upper, *lower[::-1]],
            "fill": "toself",
            "opacity": 0.3,
        }
        chart.add_trace(
            go.Scatter(
                **outline,
                line={"width": 0},
                fillcolor=COLOURS[name],
                showlegend=False,
                hoverinfo="skip",
            )
        )
        chart.add_trace(
            go.Scatter(
                x=rounds, y=found.mean(0), name=name, line={"color": COLOURS[name], "width": 2}
            )
        )
    chart.update_layout(
        title="Two quadratic losses: distance to the optimum",
        template="plotly_white",
        xaxis_title="round",
    )
    chart.update_yaxes(type="log")
    return chart
