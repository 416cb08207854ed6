"""Graphs of peers without a server, and the weights with which neighbours mix.

A topology is a function of the number of peers. It gives mixing matrices W, one per round, used
one after the other and then from the first again: a peer's new value is sum_j W_ij x_j over itself
and its neighbours. W is symmetric and doubly stochastic, so the mean over peers is kept, and
W_ii > 0. The graphs of all rounds together must be connected.
"""

from collections.abc import Callable

from covey.topology.graphs import complete, custom, erdos_renyi, grid, ring
from covey.topology.mixing import Topology, contraction, mixed_by

__all__ = [
    "TOPOLOGIES",
    "Topology",
    "complete",
    "contraction",
    "custom",
    "erdos_renyi",
    "grid",
    "mixed_by",
    "ring",
]

TOPOLOGIES: dict[str, Callable[..., Topology]] = {
    "complete": complete,
    "ring": ring,
    "grid": grid,
    "erdos_renyi": erdos_renyi,
}
"""Graphs by name, for configurations; the others need edges or matrices."""
