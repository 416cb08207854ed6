"""Graphs of peers, as who is whose neighbour; peers are counted in the order of the clients."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool
from scipy.sparse.csgraph import connected_components

from covey.topology.mixing import Matrices, Topology, Weights, check_connected, weights_of

_MOST_DRAWS = 1000


def complete(*, weights: Weights = "metropolis", gossip_steps: int = 1) -> Topology:
    """Everyone hears everyone, with weight 1/n: what a server would do."""

    def topology(peers: int) -> Matrices:
        return weights_of(~np.eye(peers, dtype=bool), weights)[None]

    return Topology(topology, gossip_steps)


def ring(*, weights: Weights = "metropolis", gossip_steps: int = 1) -> Topology:
    """Each peer hears the one before and the one after."""

    def topology(peers: int) -> Matrices:
        place = np.arange(peers)
        return weights_of(
            _of_edges(np.stack([place, (place + 1) % peers], axis=1), peers), weights
        )[None]

    return Topology(topology, gossip_steps)


def grid(*, weights: Weights = "metropolis", gossip_steps: int = 1) -> Topology:
    """Peers on a rectangle as near to a square as their number allows; a prime number of them is a
    line.
    """

    def topology(peers: int) -> Matrices:
        height = max(side for side in range(1, math.isqrt(peers) + 1) if peers % side == 0)
        place = np.arange(peers).reshape(height, -1)
        across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
        down = np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)
        return weights_of(_of_edges(np.concatenate([across, down]), peers), weights)[None]

    return Topology(topology, gossip_steps)


def erdos_renyi(
    *,
    probability: float = 0.5,
    rounds: int = 1,
    seed: int = 0,
    weights: Weights = "metropolis",
    gossip_steps: int = 1,
) -> Topology:
    """Each pair of peers are neighbours with this probability; drawn again until all are connected.

    `rounds` graphs are drawn and used one after the other, then from the first again: a network
    that changes.
    """
    if not 0 < probability <= 1 or rounds < 1:
        raise ValueError(
            f"erdos_renyi: probability must be in (0, 1] and rounds at least 1, got {probability:g} and {rounds}"
        )

    def topology(peers: int) -> Matrices:
        rng = np.random.default_rng(seed)
        return np.stack(
            [weights_of(_connected(rng, peers, probability), weights) for _ in range(rounds)]
        )

    return Topology(topology, gossip_steps)


def custom(
    edges: Sequence[tuple[int, int]] | np.ndarray | Path | str,
    *,
    weights: Weights = "metropolis",
    gossip_steps: int = 1,
) -> Topology:
    """The graph with these edges: pairs of peers, or a CSV file with a pair a line."""
    if isinstance(edges, Path | str):
        try:
            pairs = np.loadtxt(edges, delimiter=",", ndmin=2, dtype=np.int64)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"custom: {edges} is not a table of pairs of peers separated by commas: {error}"
            ) from error
    else:
        pairs = np.asarray(edges, np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(f"custom: edges are pairs of peers, got the shape {pairs.shape}")

    def topology(peers: int) -> Matrices:
        wrong = pairs[(pairs < 0).any(1) | (pairs >= peers).any(1) | (pairs[:, 0] == pairs[:, 1])]
        if len(wrong):
            raise ValueError(
                f"custom: edges join two of the peers 0 to {peers - 1}, got {tuple(wrong[0].tolist())}"
            )
        graph = _of_edges(pairs, peers)
        check_connected(graph, "custom")
        return weights_of(graph, weights)[None]

    return Topology(topology, gossip_steps)


def _of_edges(pairs: np.ndarray, peers: int) -> Bool[np.ndarray, "peers peers"]:
    graph = np.zeros((peers, peers), bool)
    graph[pairs[:, 0], pairs[:, 1]] = graph[pairs[:, 1], pairs[:, 0]] = True
    np.fill_diagonal(graph, False)  # a ring of one
    return graph


def _connected(
    rng: np.random.Generator, peers: int, probability: float
) -> Bool[np.ndarray, "peers peers"]:
    for _ in range(_MOST_DRAWS):
        upper = np.triu(rng.random((peers, peers)) < probability, 1)
        graph = upper | upper.T
        if connected_components(graph, directed=False)[0] == 1:
            return graph
    enough = min(1.0, 2 * math.log(max(peers, 2)) / peers)
    raise ValueError(
        f"erdos_renyi: none of {_MOST_DRAWS} graphs of {peers} peers with probability {probability:g} was connected; "
        f"take about {enough:.2g} or more"
    )
