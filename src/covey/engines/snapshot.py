"""The state of an engine in a checkpoint."""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from covey.core.algorithm import State


class Snapshot(NamedTuple):
    """Round, server state, the clients' nodes, and which of them have taken part. Leaves are
    arrays, or their shapes.
    """

    round: Any
    server: State
    nodes: PyTree
    seen: Any


def snapshot_like(server: State, nodes: PyTree, clients: int) -> Snapshot:
    """The shapes of a snapshot."""
    seen = jax.ShapeDtypeStruct((clients,), np.bool_)
    return Snapshot(jax.ShapeDtypeStruct((), np.int64), server, nodes, seen)


def stacked_like(like: PyTree, clients: int) -> PyTree:
    """The shapes of one client's tree as those of all clients' trees, stacked."""
    return jax.tree.map(lambda spec: jax.ShapeDtypeStruct((clients, *spec.shape), spec.dtype), like)
