"""D-FedEM: mixtures learned between peers, without a server.

Marfoq et al. (2021), section 3.3, algorithm 2 and appendix J: FedEM beside D-FedEM on four graphs,
on the data of `mixture_synthetic`. Clients count equally, as in the paper's algorithm. Every peer
predicts with its own components, and the distance to consensus is that of the peers' components to
their mean, relative to the norm of the mean. A tenth of the peers is absent in a round, except on
the complete graph. The ring mixes slowly: its second eigenvalue is 1 - O(1/n^2), and peers far
apart hardly know of each other after so few rounds. A grid of a hundred peers loses 2 % of the
differences per round and stays six points of accuracy behind a server; with four gossip steps per
round, at four times the messages, about one.
"""

from typing import NamedTuple

import numpy as np
import optax
import plotly.graph_objects as go

from covey.algorithms.mixture import mixture
from covey.core.algorithm import Algorithm
from covey.core.cohort import bernoulli
from covey.models import logistic
from covey.runs.launch import run as run_method
from covey.topology import Topology, complete, contraction, erdos_renyi, grid, ring
from reproductions.mixture_synthetic import (
    BATCH,
    COLOURS,
    SETTINGS,
    Reproduced,
    Score,
    oracle,
    problem,
    score,
    seeds_of,
)
from reproductions.mixture_synthetic import SIZES as WHOLE
from reproductions.result import Claim, Report, Scale, row, with_changes

GRAPHS: dict[str, Topology] = {
    "complete": complete(),
    "Erdos-Renyi, half of the pairs": erdos_renyi(probability=0.5),
    "grid": grid(),
    "grid, four gossip steps": grid(gossip_steps=4),
    "ring": ring(),
}
NEAR = ("Erdos-Renyi, half of the pairs", "grid", "grid, four gossip steps")
POINTS = 3.0  # of accuracy that peers on the graphs `NEAR` may stay behind a server


class Size(NamedTuple):
    """How large a run is."""

    seeds: int
    clients: int
    dimensions: int
    rounds: int


SIZES: dict[Scale, Size] = {"quick": Size(1, 36, 30, 60), "full": Size(3, 100, 100, 200)}


def run(scale: Scale, report: Report) -> Reproduced:
    """Accuracy with a server and between peers on four graphs, and the distance to consensus."""
    size = with_changes(SIZES[scale])
    whole = WHOLE[scale]._replace(
        seeds=size.seeds, clients=size.clients, dimensions=size.dimensions
    )
    found: dict[str, list[Score]] = {name: [] for name in ("oracle", "server", *GRAPHS)}
    distances: dict[str, list[np.ndarray]] = {name: [] for name in GRAPHS}
    for index, seed in enumerate(seeds_of(whole), start=1):
        data, truth = problem(whole, seed)
        found["oracle"].append(oracle(data, truth))
        report(f"with a server, seed {index} of {size.seeds}")
        server = run_method(method(), data, rounds=size.rounds, seed=seed, progress=False)
        found["server"].append(score(server.evaluate()))
        for name, graph in GRAPHS.items():
            report(f"{name}, seed {index} of {size.seeds}")
            absent = bernoulli(1.0 if name == "complete" else 0.9)
            peers = run_method(
                method(),
                data,
                rounds=size.rounds,
                seed=seed,
                engine="peers",
                topology=graph,
                cohort=absent,
                progress=False,
            )
            found[name].append(score(peers.evaluate()))
            distances[name].append(
                peers.metrics["consensus"].to_numpy()
                / np.linalg.norm(peers.state.parameters.weight)
            )
    rows = []
    for name, scores in found.items():
        rows.append(row(f"accuracy, {name}", np.array([one.mean for one in scores])))
        rows.append(
            row(f"bottom decile of the accuracy, {name}", np.array([one.decile for one in scores]))
        )
    for name, paths in distances.items():
        rows.append(
            row(f"distance to consensus at the end, {name}", np.array([path[-1] for path in paths]))
        )
        rows.append(
            row(f"contraction per round, {name}", np.array([per_round(GRAPHS[name], size.clients)]))
        )
    gaps = {name: found_mean(found["server"]) - found_mean(found[name]) for name in GRAPHS}
    claims = [
        Claim(
            "accuracy of a server over the complete graph, in points",
            gaps["complete"],
            0.5,
            abs(gaps["complete"]) <= 0.5,
        ),
        *(
            Claim(
                f"accuracy of a server over peers, {name}, in points",
                gaps[name],
                POINTS,
                gaps[name] <= POINTS,
            )
            for name in NEAR
        ),
    ]
    return rows, claims, figure(distances)


def method() -> Algorithm:
    """FedEM for three components, clients counting equally; between peers it is D-FedEM."""
    rate = SETTINGS["FedEM"][0]
    return mixture(
        logistic(), client_optimizer=optax.sgd(rate), batch_size=BATCH, weighting="equal"
    )


def per_round(graph: Topology, clients: int) -> float:
    """The factor by which gossip shrinks the distance to consensus in a round, if all are there."""
    return contraction(graph(clients)) ** graph.gossip_steps


def found_mean(scores: list[Score]) -> float:
    """The mean accuracy over seeds."""
    return float(np.mean([one.mean for one in scores]))


def figure(distances: dict[str, list[np.ndarray]]) -> go.Figure:
    """The distance to consensus by round, the first seed."""
    chart = go.Figure()
    for (name, paths), colour in zip(distances.items(), COLOURS, strict=False):
        rounds = np.arange(1, len(paths[0]) + 1)
        chart.add_trace(
            go.Scatter(x=rounds, y=np.maximum(paths[0], 1e-8), name=name, line_color=colour)
        )
    chart.update_layout(title="Distance of peers to consensus, relative", template="plotly_white")
    chart.update_xaxes(title="rounds")
    chart.update_yaxes(type="log")
    return chart
