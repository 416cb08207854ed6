"""Evaluation and prediction of clients, in chunks of similar size.

A client that has taken part is evaluated with the state it kept; one that has not, and every client of a method that
personalises at evaluation, first makes a state from the newest broadcast and its own training rows.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from covey.core.algorithm import Algorithm, Message, State, no_draws
from covey.core.keys import Stream, key_for
from covey.core.metrics import Metric
from covey.core.node import Node
from covey.core.shard import Shard
from covey.data.federated import Part
from covey.engines.round import each, grid
from covey.engines.rows import DeviceRows, HostRows, need_rows, shard_of


class Evaluation:
    """The compiled functions of evaluation."""

    def __init__(self, algorithm: Algorithm, root: Key[Array, ""], chunk: int):
        self.algorithm = algorithm
        self.root = root
        self.chunk = chunk
        self._adapted = jax.jit(self._adapt_chunk)
        self._measured = jax.jit(self._measure_chunk)
        self._predicted = jax.jit(algorithm.predict)
        self._drawn = None if algorithm.draws is None else jax.jit(algorithm.draws, static_argnums=4)

    def evaluate(
        self,
        rows: DeviceRows | HostRows,
        t: int,
        down: Message,
        take: Callable[[np.ndarray], Node],
        seen: np.ndarray,
        part: Part,
    ) -> dict[str, Metric]:
        """Metrics on one part of every client's rows, stacked in the order of the data."""
        _, counts = rows.ranges(part)
        need_rows(rows.data, part)
        keep_state = seen & (not self.algorithm.personalise_at_evaluation)
        pieces, order = [], []
        for kept in (True, False):
            group = np.flatnonzero(keep_state == kept)
            group = group[np.argsort(-counts[group], kind="stable")]
            for at in range(0, len(group), self.chunk):  # the last chunk is filled up with its last client
                some = group[at : at + self.chunk]
                padded = np.pad(some, (0, self.chunk - len(some)), mode="edge")
                state = take(padded).state if kept else self._adapt(rows, t, down, padded)
                ids = rows.data.ids[padded].astype(np.int32)
                data = shard_of(rows.view(padded, part), grid(int(counts[some[0]])))
                metrics = self._measured(self.root, t, down, ids, state, data)
                pieces.append(jax.tree.map(lambda leaf, some=some: leaf[: len(some)], metrics))
                order.append(some)
        back = np.argsort(np.concatenate(order))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[back], *jax.device_get(pieces))

    def predict(self, rows: DeviceRows | HostRows, t: int, down: Message, node: Node | None, client: int, x: PyTree) -> PyTree:
        """The predictive distribution of one client for new rows. `node`: what it kept, stacked; None if it never took part."""
        key = key_for(self.root, Stream.PREDICT, t, int(rows.data.ids[client]))
        return self._predicted(key, down, self._state(rows, t, down, node, client), jax.tree.map(jnp.asarray, x))

    def draws(
        self, rows: DeviceRows | HostRows, t: int, down: Message, node: Node | None, client: int, number: int, chain: int
    ) -> PyTree:
        """Posterior draws of one client, on the leading axis."""
        if self._drawn is None:
            raise ValueError(no_draws(self.algorithm))
        key = jax.random.fold_in(key_for(self.root, Stream.DRAWS, t, int(rows.data.ids[client])), chain)
        view = rows.view(np.array([client]), "train")
        several = shard_of(view, grid(int(view.counts[0])))
        data = Shard(several.rows, several.start[0], several.count[0], several.capacity)
        return self._drawn(key, down, self._state(rows, t, down, node, client), data, number)

    def _state(self, rows: DeviceRows | HostRows, t: int, down: Message, node: Node | None, client: int) -> State:
        """What one client predicts with."""
        if node is None or self.algorithm.personalise_at_evaluation:
            state = self._adapt(rows, t, down, np.array([client]))
        else:
            state = node.state
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], state)

    def _adapt(self, rows: DeviceRows | HostRows, t: int, down: Message, positions: np.ndarray) -> State:
        view = rows.view(positions, "train")
        ids = rows.data.ids[positions].astype(np.int32)
        return self._adapted(self.root, t, down, ids, shard_of(view, grid(int(max(view.counts, default=1)))))

    def _adapt_chunk(self, root, t, down, ids, data):
        def one(client_id, start, count):
            key = key_for(root, Stream.ADAPT, t, client_id)
            return self.algorithm.adapt(key, down, Shard(data.rows, start, count, data.capacity))

        return each(one, ids, data.start, data.count)

    def _measure_chunk(self, root, t, down, ids, state, data):
        def one(client_id, state, start, count):
            key = key_for(root, Stream.EVALUATE, t, client_id)
            return self.algorithm.evaluate(key, down, state, Shard(data.rows, start, count, data.capacity))

        return each(one, ids, state, data.start, data.count)
