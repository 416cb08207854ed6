"""Graphs of peers, as adjacency matrices; peers are in the order of the clients."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from covey.topology.mixing import (
    Matrices,
    Topology,
    Weights,
    check_connected,
    parts_of,
    weights_of,
)

_MOST_DRAWS = 1000


def complete(*, weights: Weights = "metropolis", gossip_steps: int = 1) -> Topology:
    """All peers are neighbours, with weight 1/n: what a server would do.

    Args:
        weights: Weights of neighbours: "metropolis" (default) or "fastest"; see
            `topology.mixing.weights_of`. Both are 1/n here.
        gossip_steps: Exchanges between neighbours per round. Default: 1. More steps bring peers
            closer to the run of a server, and cost as many messages more.

    Returns:
        A topology for `covey.run(engine="peers", topology=...)`.

    Example:
        >>> complete()(4)[0].tolist()[0]
        [0.25, 0.25, 0.25, 0.25]
    """

    def topology(peers: int) -> Matrices:
        return weights_of(~np.eye(peers, dtype=bool), weights)[None]

    return Topology(topology, gossip_steps)


def ring(*, weights: Weights = "metropolis", gossip_steps: int = 1) -> Topology:
    """A ring: each peer hears the one before and the one after.

    Args:
        weights: Weights of neighbours: "metropolis" (default) or "fastest", which needs cvxpy.
        gossip_steps: Exchanges between neighbours per round. Default: 1. More steps bring peers
            closer to the run of a server, and cost as many messages more.

    Returns:
        A topology for `covey.run(engine="peers", topology=...)`.

    Example:
        >>> ring()(5)[0].round(3).tolist()[0]
        [0.333, 0.333, 0.0, 0.0, 0.333]
    """

    def topology(peers: int) -> Matrices:
        index = np.arange(peers)
        return weights_of(
            _of_edges(np.stack([index, (index + 1) % peers], axis=1), peers), weights
        )[None]

    return Topology(topology, gossip_steps)


def grid(*, weights: Weights = "metropolis", gossip_steps: int = 1) -> Topology:
    """A rectangular grid, as near to a square as the number of peers allows.

    A prime number of peers is a line.

    Args:
        weights: Weights of neighbours: "metropolis" (default) or "fastest", which needs cvxpy.
        gossip_steps: Exchanges between neighbours per round. Default: 1. More steps bring peers
            closer to the run of a server, and cost as many messages more.

    Returns:
        A topology for `covey.run(engine="peers", topology=...)`.

    Example:
        >>> (grid()(6)[0] > 0).sum(1).tolist()  # neighbours of each of 2 x 3 peers, and itself
        [3, 4, 3, 3, 4, 3]
    """

    def topology(peers: int) -> Matrices:
        height = max(side for side in range(1, math.isqrt(peers) + 1) if peers % side == 0)
        index = np.arange(peers).reshape(height, -1)
        across = np.stack([index[:, :-1].ravel(), index[:, 1:].ravel()], axis=1)
        down = np.stack([index[:-1].ravel(), index[1:].ravel()], axis=1)
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
    """Random graphs: each pair of peers are neighbours with the same probability.

    A graph is drawn again until all peers are connected.

    Args:
        probability: Probability of each edge, in (0, 1]. Default: 0.5.
        rounds: Graphs to draw; they are used one after the other, then from the first again.
            Default: 1, a network that does not change.
        seed: Seed of the graphs. Default: 0.
        weights: Weights of neighbours: "metropolis" (default) or "fastest", which needs cvxpy.
        gossip_steps: Exchanges between neighbours per round. Default: 1.

    Returns:
        A topology for `covey.run(engine="peers", topology=...)`.

    Example:
        >>> erdos_renyi(probability=0.4, rounds=3)(10).shape
        (3, 10, 10)
    """
    if not 0 < probability <= 1 or rounds < 1:
        raise ValueError(
            "erdos_renyi: probability must be in (0, 1] and rounds at least 1, "
            f"got {probability:g} and {rounds}"
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
    """The graph with the given edges.

    Args:
        edges: Pairs of peers, numbered from 0 in the order of the clients; or the path of a CSV
            file with one pair per row.
        weights: Weights of neighbours: "metropolis" (default) or "fastest", which needs cvxpy.
        gossip_steps: Exchanges between neighbours per round. Default: 1.

    Returns:
        A topology for `covey.run(engine="peers", topology=...)`.

    Raises:
        ValueError: an edge names a peer that is not there, or the graph is not connected.

    Example:
        >>> custom([(0, 1), (1, 2)])(3)[0].round(3).tolist()
        [[0.667, 0.333, 0.0], [0.333, 0.333, 0.333], [0.0, 0.333, 0.667]]
    """
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
                f"custom: edges join two of the peers 0 to {peers - 1}, "
                f"got {tuple(wrong[0].tolist())}"
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
        if parts_of(graph)[0] == 1:
            return graph
    enough = min(1.0, 2 * math.log(max(peers, 2)) / peers)
    raise ValueError(
        f"erdos_renyi: none of {_MOST_DRAWS} graphs of {peers} peers with probability "
        f"{probability:g} was connected; take about {enough:.2g} or more"
    )
