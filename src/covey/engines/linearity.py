"""Whether a method's server step is linear in the sum of the uploads, found by trying it."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from covey.core.algorithm import Aggregate, State
from covey.core.keys import Stream, key_for
from covey.core.node import first_node, node_round
from covey.core.shard import Shard
from covey.engines.round import received
from covey.engines.setup import Setup

_REACH = 5.0  # how far beyond the uploads of two clients the step is tried
_LATER = 2**20 + 1  # rounds; odd, for methods that alternate
_TOLERANCE = 1e-3  # of the change that a step makes
_ROUNDING = 64  # units in the last place of a state


def need_linear(setup: Setup, storage: Shard) -> None:
    """A ValueError for a method whose server step is not linear in the sum of the uploads.

    With u and v the uploads of the two clients with the most rows, the steps at 0, u and v say
    where a linear step would be at any a u + b v. The step is tried at some such points, at the
    first round and at a late one. It may differ by a thousandth of the change that it makes; how
    large the state is counts for no more than rounding. Counters must not depend on uploads.

    Args:
        setup: The method and what it runs with; its channel must change nothing.
        storage: Training rows of all clients.
    """
    counts = np.asarray(storage.count)
    if len(counts) < 2:
        return  # a single peer has nobody to mix with
    largest = np.argsort(-counts, kind="stable")[:2].tolist()
    server = setup.first_server()
    late = jax.tree.map(lambda leaf: leaf + _LATER if _is_counter(leaf) else leaf, server)
    steps = jax.jit(lambda server, storage: _steps(setup, server, storage, largest))
    for start in (server, late):
        for (path, start_leaf), leaf in zip(
            jax.tree_util.tree_leaves_with_path(start),
            jax.tree.leaves(steps(start, storage)),
            strict=True,
        ):
            if leaf.size and not _is_linear(np.asarray(start_leaf), np.asarray(leaf)):
                raise ValueError(
                    f"{setup.algorithm.name} cannot run between peers: its server's step is not "
                    f"linear in the sum of the uploads ({jax.tree_util.keystr(path)}), so that "
                    "mixing with neighbours would not follow it; give the server a linear "
                    "optimiser such as SGD, or use engine='simulate'"
                )


_TRIED: Float[np.ndarray, "points 2"] = np.array(
    [[0, 0], [1, 0], [0, 1], [1 + _REACH, -_REACH], [-_REACH, 1 + _REACH], [_REACH, _REACH]]
)


def _steps(setup: Setup, server: State, storage: Shard, clients: list[int]) -> PyTree:
    """The server's state after its step at each point (a, b) of `_TRIED`, stacked."""
    algorithm, channel, root = setup.algorithm, setup.channel, setup.root
    down = algorithm.broadcast(server)
    total = jnp.asarray(len(storage.count), float)

    def upload(client):
        shard = Shard(storage.rows, storage.start[client], storage.count[client], storage.capacity)
        node = first_node(algorithm, channel, root, client, down, shard)
        sent, *_ = node_round(algorithm, channel, root, 0, client, down, node, shard)
        return received(channel, sent)[0]

    def step(at):
        summed = jax.tree.map(lambda u, v: total * (at[0] * u + at[1] * v), *uploads)
        key = key_for(root, Stream.SERVER, 0)
        return algorithm.server(key, server, Aggregate(summed, summed, total, total))[0]

    uploads = [jax.tree.map(_usable, upload(client)) for client in clients]
    return jax.vmap(step)(jnp.asarray(_TRIED, float))


def _usable(values: Array) -> Array:
    """Ones in place of values that are not finite: that client is reported when the run begins."""
    return jnp.where(jnp.isfinite(values), values, 1.0)


def _is_linear(start: np.ndarray, steps: np.ndarray) -> bool:
    """Whether the steps of one array agree with those at 0, u and v."""
    if not _is_float(start):
        return bool(np.all(steps == steps[0]))
    values = steps.astype(np.float64)
    rounding = _ROUNDING * float(jnp.finfo(start.dtype).eps) * np.max(np.abs([start, values[0]]))
    moves = values - values[0]
    linear = np.tensordot(_TRIED, moves[1:3], 1)
    change = max(np.max(np.abs(moves)), np.max(np.abs(linear)))
    return bool(np.max(np.abs(moves - linear)) <= _TOLERANCE * change + rounding)


def _is_float(leaf: Array | np.ndarray) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _is_counter(leaf: Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.integer)
