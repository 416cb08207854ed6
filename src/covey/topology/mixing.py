"""Mixing matrices of a graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Bool, Float

Weights: TypeAlias = Literal["metropolis", "fastest"]
Matrices: TypeAlias = Float[np.ndarray, "rounds peers peers"]
_LEAST_OWN = 1e-3  # W_ii in "fastest": a peer always keeps a part of its value
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Topology:
    """The neighbours of each peer: a function of the number of peers, giving their mixing matrices.

    Attributes:
        matrices: (number of peers) -> mixing matrices, used one after the other and then from the
            first again.
        gossip_steps: Times that peers exchange their states with their neighbours per round, each
            time with the next matrix. More steps bring peers closer together and cost as many
            times the messages.
    """

    matrices: Callable[[int], Matrices]
    gossip_steps: int = 1

    def __post_init__(self) -> None:
        if self.gossip_steps < 1:
            raise ValueError(f"topology: gossip_steps must be at least 1, got {self.gossip_steps}")

    def __call__(self, peers: int) -> Matrices:
        """The mixing matrices of a number of peers."""
        return self.matrices(peers)


def weights_of(
    graph: Bool[np.ndarray, "peers peers"], weights: Weights
) -> Float[np.ndarray, "peers peers"]:
    """The mixing matrix of a graph.

        metropolis   W_ij = 1 / (1 + max(degree_i, degree_j)) for neighbours; each peer needs to
                     know its neighbours only
        fastest      the symmetric W >= 0 on the graph with the smallest second singular value,
                     which brings peers together in the fewest rounds

    On the complete graph both are 1/n everywhere.

    Args:
        graph: Adjacency matrix: whether each pair of peers are neighbours.
        weights: "metropolis" or "fastest".

    Returns:
        W, symmetric and doubly stochastic.

    Example:
        >>> weights_of(np.array([[False, True], [True, False]]), "metropolis").tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    if weights == "metropolis":
        return metropolis(graph)
    if weights == "fastest":
        return fastest(graph)
    raise ValueError(f'topology: weights must be "metropolis" or "fastest", got {weights!r}')


def metropolis(graph: Bool[np.ndarray, "peers peers"]) -> Float[np.ndarray, "peers peers"]:
    """Metropolis-Hastings weights: W_ij = 1 / (1 + max(degree_i, degree_j)) for neighbours.

    Args:
        graph: Adjacency matrix: whether each pair of peers are neighbours.

    Returns:
        W, symmetric and doubly stochastic.

    Example:
        >>> metropolis(np.array([[False, True], [True, False]])).tolist()
        [[0.5, 0.5], [0.5, 0.5]]
    """
    degree = graph.sum(1)
    mixing = np.where(graph, 1 / (1 + np.maximum(degree[:, None], degree)), 0.0)
    return mixing + np.diag(1 - mixing.sum(1))


def fastest(graph: Bool[np.ndarray, "peers peers"]) -> Float[np.ndarray, "peers peers"]:
    """The weights that mix fastest, by semidefinite programming.

    W minimises the second singular value over the symmetric W >= 0 on the graph.

    Args:
        graph: Adjacency matrix: whether each pair of peers are neighbours.

    Returns:
        W, symmetric and doubly stochastic, with W_ii of at least 0.001.

    Raises:
        ValueError: cvxpy, of the extra `topology`, is not installed; or no solution was found.

    Example:
        >>> fastest(np.array([[False, True], [True, False]])).round(3)  # doctest: +SKIP
        array([[0.5, 0.5],
               [0.5, 0.5]])

    Reference: Boyd, Diaconis and Xiao (2004), Fastest mixing Markov chain on a graph.
    """
    try:
        cp: Any = import_module("cvxpy")
    except ImportError as error:
        raise ValueError(
            "topology: weights='fastest' needs cvxpy: pip install 'covey[topology]', "
            "or use weights='metropolis'"
        ) from error
    peers = len(graph)
    mixing = cp.Variable((peers, peers), symmetric=True)
    absent = ~graph & ~np.eye(peers, dtype=bool)
    rules = [cp.sum(mixing, axis=1) == 1, mixing >= 0, cp.diag(mixing) >= _LEAST_OWN]
    if absent.any():
        rules.append(mixing[absent] == 0)
    problem = cp.Problem(
        cp.Minimize(cp.norm(mixing - np.full((peers, peers), 1 / peers), 2)), rules
    )
    problem.solve()
    if mixing.value is None:
        raise ValueError(
            f"topology: no fastest weights were found for this graph ({problem.status}); "
            "use weights='metropolis'"
        )
    found = np.where(absent, 0.0, np.maximum((mixing.value + mixing.value.T) / 2, 0.0))
    np.fill_diagonal(found, 0.0)  # the solver's error goes to the diagonal
    return found + np.diag(1 - found.sum(1))


def mixed_by(
    matrices: np.ndarray | Sequence[Any], *, name: str = "topology", gossip_steps: int = 1
) -> Topology:
    """The topology of given mixing matrices.

    Args:
        matrices: One mixing matrix, or several that are used one after the other, then from the
            first again; symmetric, rows that add up to 1, no negative weight, a positive diagonal.
        name: Prefix of error messages. Default: "topology".
        gossip_steps: Exchanges between neighbours per round. Default: 1.

    Returns:
        A topology for `covey.run(engine="peers", topology=...)`.

    Raises:
        ValueError: a matrix is not a mixing matrix, or the graphs together are not connected.

    Example:
        >>> mixed_by([[0.75, 0.25], [0.25, 0.75]])(2).shape
        (1, 2, 2)
    """
    found = np.asarray(matrices, np.float64)
    found = found[None] if found.ndim == 2 else found
    if found.ndim != 3 or found.shape[1] != found.shape[2] or not found.size:
        raise ValueError(
            f"{name}: a mixing matrix is square, and several are stacked; "
            f"got the shape {np.shape(matrices)}"
        )
    for round_, mixing in enumerate(found):
        _check(mixing, name if len(found) == 1 else f"{name}, matrix {round_}")
    check_connected(np.any(found > 0, axis=0), name)

    def topology(peers: int) -> Matrices:
        if peers != found.shape[1]:
            raise ValueError(
                f"{name}: the mixing matrix is of {found.shape[1]} peers, "
                f"the data have {peers} clients"
            )
        return found

    return Topology(topology, gossip_steps)


def check_connected(graph: Bool[np.ndarray, "peers peers"], name: str) -> None:
    """Raise a ValueError where some peers never hear of others; it names them."""
    parts, part_of = parts_of(graph)
    if parts > 1:
        listed = "; ".join(_some(np.flatnonzero(part_of == part)) for part in range(min(parts, 4)))
        more = f"; and {parts - 4} more" if parts > 4 else ""
        raise ValueError(
            f"{name}: the graph is in {parts} parts that never hear of each other: "
            f"{listed}{more}; add edges"
        )


def parts_of(graph: Bool[np.ndarray, "peers peers"]) -> tuple[int, np.ndarray]:
    """The count of connected components of a graph, and the component of each peer."""
    # Imported where it is needed: a tenth of a second, and most runs have no graph.
    from scipy.sparse.csgraph import connected_components

    return connected_components(graph, directed=False)


def contraction(matrices: Matrices) -> float:
    """The factor by which the distance to consensus shrinks per round.

    The second singular value of the product of all matrices, as a geometric mean over rounds.

    Args:
        matrices: Mixing matrices, rounds x peers x peers.

    Returns:
        The factor, from 0 (consensus after a round) to 1 (never).

    Example:
        >>> from covey.topology import ring
        >>> round(contraction(ring()(10)), 3)  # (1 + 2 cos(2 pi / 10)) / 3
        0.873
    """
    peers = matrices.shape[1]
    product = np.linalg.multi_dot([np.eye(peers), *matrices[::-1]]) - 1 / peers
    return float(np.linalg.norm(product, 2) ** (1 / len(matrices)))


def _check(mixing: np.ndarray, name: str) -> None:
    if not np.all(np.isfinite(mixing)) or np.any(mixing < 0):
        worst = int(np.argmax(np.max(np.where(np.isfinite(mixing), -mixing, np.inf), axis=1)))
        raise ValueError(f"{name}: weights must be finite and at least 0; row {worst} is not")
    off = np.abs(mixing.sum(1) - 1)
    if off.max() > _TOLERANCE:
        worst = int(off.argmax())
        raise ValueError(
            f"{name}: rows must add up to 1 (doubly stochastic); "
            f"row {worst} adds up to {mixing[worst].sum():g}"
        )
    uneven = np.abs(mixing - mixing.T).max(1)
    if uneven.max() > _TOLERANCE:
        worst = int(uneven.argmax())
        raise ValueError(
            f"{name}: the matrix must be symmetric, so that columns add up to 1 also when peers "
            f"are absent; row {worst} is not"
        )
    if np.any(np.diag(mixing) <= 0):
        raise ValueError(
            f"{name}: W_ii must be above 0; that of peer {int(np.argmin(np.diag(mixing)))} is not"
        )


def _some(peers: np.ndarray) -> str:
    listed = ", ".join(map(str, peers[:5]))
    return f"{listed}, ... ({len(peers)} peers)" if len(peers) > 5 else listed
