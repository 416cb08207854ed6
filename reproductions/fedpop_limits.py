"""The two ends of FedPop: effects that hardly differ, and effects that nothing holds together.

Kotelevskii et al. (2022), section 4: as the deviation sigma of the effects goes to zero FedPop
becomes FedAvg on the shared parameters and the mean effect, and as it goes to infinity FedRep. Both
are shown as paths of the server's parameters over rounds, on regressions with shared features:

    sigma -> 0     mixed linear regression, and FedAvg with one full-gradient step per round. A
                   weight and its mean effect add up, and both move, so FedAvg has twice the step.
                   The gradient is the non-centred one.
    sigma -> inf   a linear map with little noise, and FedRep with heads trained to their optimum.
                   FedRep holds the heads fixed where FedPop averages over their posterior, which is
                   as narrow as the noise is small.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import optax
import plotly.graph_objects as go
from jaxtyping import Array

from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedpop import fedpop
from covey.algorithms.fedrep import fedrep
from covey.core.algorithm import Algorithm, State
from covey.data.federated import FederatedData
from covey.datasets.synthetic import shared_features
from covey.engines.simulate import Simulation
from covey.kernels import ornstein_uhlenbeck
from covey.models import fixed, gaussian, linear, linear_map, mixed_linear
from reproductions.result import Claim, Report, Row, Scale, row, with_changes

SIGMAS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
STEP, NOISE = 0.1, 0.01


class Size(NamedTuple):
    """How large a run is."""

    seeds: int
    clients: int
    rounds: int


SIZES: dict[Scale, Size] = {
    "quick": Size(seeds=1, clients=30, rounds=20),
    "full": Size(seeds=5, clients=100, rounds=50),
}


def run(scale: Scale, report: Report) -> tuple[list[Row], list[Claim], go.Figure]:
    """How far FedPop's path is from FedAvg's and from FedRep's, for each sigma."""
    size = with_changes(SIZES[scale])
    far: dict[str, np.ndarray] = {
        "FedAvg": np.empty((size.seeds, len(SIGMAS))),
        "FedRep": np.empty((size.seeds, len(SIGMAS))),
    }
    for seed in range(size.seeds):
        data, truth = shared_features(seed, size.clients, 6, few=8, many=12)
        start = np.linalg.qr(
            truth.phi + 0.5 * np.random.default_rng(seed).normal(size=truth.phi.shape)
        )[0]
        one = path(
            single(),
            data,
            size.rounds,
            lambda state: _joined(state.parameters.weight, state.parameters.bias),
        )
        other = path(
            heads(start), data, size.rounds, lambda state: np.asarray(state.shared.parameters)
        )
        for place, sigma in enumerate(SIGMAS):
            report(f"seed {seed + 1} of {size.seeds}, sigma {sigma:g}")
            far["FedAvg"][seed, place] = distance(
                path(towards_single(sigma, data), data, size.rounds, _typical), one
            )
            personal = path(
                towards_heads(sigma, start, data),
                data,
                size.rounds,
                lambda state: np.asarray(state.theta.phi),
            )
            far["FedRep"][seed, place] = distance(personal, other)
    rows = [
        row(f"distance of FedPop's path to {name}'s, sigma {sigma:g}", values)
        for name, table in far.items()
        for sigma, values in zip(SIGMAS, table.T, strict=True)
    ]
    ends = {
        "FedAvg": float(far["FedAvg"][:, 0].mean()),
        "FedRep": float(far["FedRep"][:, -1].mean()),
    }
    bounds = {"FedAvg": 0.01, "FedRep": 0.02}
    claims = [
        Claim(f"relative distance to {name} at its end", value, bounds[name], value < bounds[name])
        for name, value in ends.items()
    ]
    return rows, claims, figure(far)


def single() -> Algorithm:
    """One model for all clients."""
    return fedavg(linear(), client_optimizer=optax.sgd(2 * STEP), batch_size=None, steps=1)


def towards_single(sigma: float, data: FederatedData) -> Algorithm:
    """FedPop with effects of deviation sigma, with the step of `single`."""
    rows = int(data.counts("train").sum())
    law = gaussian(covariance="isotropic", initial_scale=sigma, scale_bounds=(sigma, sigma))
    ascent = optax.sgd(STEP / rows)
    return fedpop(
        mixed_linear(scale=1.0, slopes="all"),
        step_size=1.0,
        draws=20,
        kernel=ornstein_uhlenbeck(),
        effects=law,
        centred=False,
        phi_optimizer=ascent,
        beta_optimizer=ascent,
    )


def heads(start: np.ndarray) -> Algorithm:
    """Shared features, and for each client the head that fits its rows best."""
    return fedrep(
        linear_map(effects=start.shape[1], start=start),
        head_optimizer=optax.sgd(0.3),
        body_optimizer=optax.sgd(STEP),
        batch_size=None,
        head_steps=400,
        body_steps=1,
        weighting="rows",
    )


def towards_heads(sigma: float, start: np.ndarray, data: FederatedData) -> Algorithm:
    """FedPop with effects of deviation sigma around zero and little noise, with the step of
    `heads`.
    """
    rows = int(data.counts("train").sum())
    model = linear_map(effects=start.shape[1], scale=NOISE, start=start)
    ascent = optax.sgd(STEP * NOISE**2 / rows)
    return fedpop(
        model,
        step_size=5.0,
        draws=5,
        kernel=ornstein_uhlenbeck(),
        effects=fixed(scale=sigma),
        phi_optimizer=ascent,
    )


def path(
    method: Algorithm, data: FederatedData, rounds: int, of: Callable[[State], np.ndarray]
) -> np.ndarray:
    """The server's parameters before the first round and after each."""
    engine = Simulation(method, data, seed=0)
    state = engine.start()
    points = [of(state.server)]
    for _ in range(rounds):
        state, _ = engine.advance(state, 1)
        points.append(of(state.server))
    return np.array(points, np.float64)


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference of two paths, in units of how far the second one goes."""
    return float(np.abs(one - other).max() / np.abs(other - other[0]).max())


def figure(far: dict[str, np.ndarray]) -> go.Figure:
    """Distance against sigma."""
    chart = go.Figure()
    for (name, table), colour in zip(far.items(), ("#7f7f7f", "#d1733b"), strict=True):
        chart.add_trace(
            go.Scatter(
                x=SIGMAS, y=table.mean(0), name=f"to {name}", line={"color": colour, "width": 2}
            )
        )
    chart.update_layout(title="FedPop's path beside those of its limits", template="plotly_white")
    chart.update_xaxes(type="log", title="deviation of the effects")
    chart.update_yaxes(type="log", title="relative distance")
    return chart


def _typical(state: State) -> np.ndarray:
    phi, mean = state.theta.phi, state.theta.beta.mean
    return _joined(phi.weight + mean[1:], phi.bias + mean[0])


def _joined(weight: Array, bias: Array) -> np.ndarray:
    return np.append(np.asarray(weight), np.asarray(bias))
