"""Evaluation and prediction of clients, in chunks of similar size.

A client that has taken part is evaluated with the state it kept, which the method may first bring
up to date (`Algorithm.refresh`); one that has not, and every client of a method that adapts before
evaluation, first makes a state from the newest broadcast and its own training rows.
"""

from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from covey.core.algorithm import (
    Algorithm,
    Message,
    State,
    averaged_over,
    evaluate,
    no_posterior,
)
from covey.core.keys import Stream, key_for
from covey.core.metrics import Metric
from covey.core.node import Node
from covey.core.shard import Shard
from covey.data.federated import Split
from covey.engines.programs import measuring_part
from covey.engines.round import bucket_size, each
from covey.engines.rows import DeviceRows, HostRows, shard_of
from covey.engines.sharing import shared


class Evaluator:
    """The compiled functions of evaluation."""

    def __init__(self, algorithm: Algorithm, root: Key[Array, ""], chunk: int):
        self.algorithm = algorithm
        self.root = root
        self.chunk = chunk
        self._adapted = shared(_adapt_of, algorithm.adapt)
        refresh, draw = algorithm.refresh, algorithm.posterior.client
        self._refreshed = None if refresh is None else shared(_refresh_of, refresh)
        self._measured = shared(_measure_of, measuring_part(algorithm))
        self._predicted = shared(jax.jit, algorithm.predict)
        self._drawn = None if draw is None else shared(_draw_of, draw)
        self._over: dict[int, Evaluator] = {}

    def over(self, draws: int | None) -> "Evaluator":
        """The evaluator whose predictions average over `draws` draws; None: as many as usual."""
        if draws is None:
            return self
        averaged = averaged_over(self.algorithm, draws)
        if draws not in self._over:
            self._over[draws] = Evaluator(averaged, self.root, self.chunk)
        return self._over[draws]

    def measures(
        self,
        rows: DeviceRows | HostRows,
        t: int,
        down: Message,
        take: Callable[[np.ndarray], Node],
        seen: np.ndarray,
        split: Split,
    ) -> dict[str, Metric]:
        """Metrics on one split of every client's rows, stacked in the order of the data; counts are
        zero where no client has rows of the split.
        """
        everyone = np.arange(rows.data.clients)
        chunks = self._chunks(rows, t, down, take, seen, split, everyone, self.chunk)
        return _in_order(
            (indices, self._measured(self.root, t, down, *chunk)) for indices, *chunk in chunks
        )

    def predict(
        self,
        rows: DeviceRows | HostRows,
        t: int,
        down: Message,
        node: Node | None,
        client: int,
        x: PyTree,
    ) -> PyTree:
        """The predictive distribution of one client for new rows. `node`: its node, stacked; None
        if it never took part.
        """
        key = key_for(self.root, Stream.PREDICT, t, int(rows.data.ids[client]))
        return self._predicted(
            key, down, self._state(rows, t, down, node, client), jax.tree.map(jnp.asarray, x)
        )

    def draws(
        self,
        rows: DeviceRows | HostRows,
        t: int,
        down: Message,
        take: Callable[[np.ndarray], Node],
        seen: np.ndarray,
        clients: np.ndarray,
        count: int,
        chains: Sequence[int],
    ) -> PyTree:
        """Posterior draws of the clients at some positions, as (clients, chains, count, ...)."""
        drawn, named = self._drawn, jnp.asarray(chains, jnp.int32)
        if drawn is None:
            raise ValueError(no_posterior(self.algorithm, "client"))
        chunks = self._chunks(
            rows, t, down, take, seen, "train", clients, min(self.chunk, len(clients))
        )
        return _in_order(
            (indices, drawn(self.root, t, down, *chunk, named, count=count))
            for indices, *chunk in chunks
        )

    def _chunks(
        self,
        rows: DeviceRows | HostRows,
        t: int,
        down: Message,
        take: Callable[[np.ndarray], Node],
        seen: np.ndarray,
        split: Split,
        clients: np.ndarray,
        width: int,
    ) -> Iterator[tuple[np.ndarray, np.ndarray, State, Shard]]:
        """`width` clients at a time, of similar size: indices in `clients`, ids, states, rows of
        the split.
        """
        counts = rows.ranges(split)[1][clients]
        keep_state = seen[clients] & (not self.algorithm.hooks.adapt_before_evaluation)
        for kept in (True, False):
            group = np.flatnonzero(keep_state == kept)
            group = group[np.argsort(-counts[group], kind="stable")]
            for at in range(
                0, len(group), width
            ):  # the last chunk is filled up with its last client
                some = group[at : at + width]
                padded = clients[np.pad(some, (0, width - len(some)), mode="edge")]
                kept_state = take(padded).state if kept else None
                state = self._newest(rows, t, down, padded, kept_state)
                ids = rows.data.ids[padded].astype(np.int32)
                yield (
                    some,
                    ids,
                    state,
                    shard_of(rows.view(padded, split), bucket_size(int(counts[some[0]]))),
                )

    def _state(
        self, rows: DeviceRows | HostRows, t: int, down: Message, node: Node | None, client: int
    ) -> State:
        """The state that one client predicts with."""
        adapts = self.algorithm.hooks.adapt_before_evaluation
        kept = None if node is None or adapts else node.state
        state = self._newest(rows, t, down, np.array([client]), kept)
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], state)

    def _newest(
        self,
        rows: DeviceRows | HostRows,
        t: int,
        down: Message,
        positions: np.ndarray,
        kept: State | None,
    ) -> State:
        """The states of some clients under the newest broadcast: refreshed, or adapted if None."""
        refreshed = self._refreshed
        if kept is not None and refreshed is None:
            return kept
        view = rows.view(positions, "train")
        ids = rows.data.ids[positions].astype(np.int32)
        data = shard_of(view, bucket_size(int(max(view.counts, default=1))))
        if kept is None or refreshed is None:
            return self._adapted(self.root, t, down, ids, data)
        return refreshed(self.root, t, down, ids, kept, data)


def _adapt_of(adapt: Callable[..., State]):
    """The compiled adaptation of a chunk of clients; likewise below."""

    def chunk(root, t, down, ids, data):
        def one(client_id, start, count):
            key = key_for(root, Stream.ADAPT, t, client_id)
            return adapt(key, down, Shard(data.rows, start, count, data.capacity))

        return each(one, ids, data.start, data.count)

    return jax.jit(chunk)


def _refresh_of(refresh: Callable[..., State]):
    def chunk(root, t, down, ids, state, data):
        def one(client_id, state, start, count):
            key = key_for(root, Stream.ADAPT, t, client_id)
            return refresh(key, down, state, Shard(data.rows, start, count, data.capacity))

        return each(one, ids, state, data.start, data.count)

    return jax.jit(chunk)


def _measure_of(algorithm: Algorithm):
    def chunk(root, t, down, ids, state, data):
        def one(client_id, state, start, count):
            key = key_for(root, Stream.EVALUATE, t, client_id)
            shard = Shard(data.rows, start, count, data.capacity)
            return evaluate(algorithm, key, down, state, shard)

        return each(one, ids, state, data.start, data.count)

    return jax.jit(chunk)


def _draw_of(draw: Callable[..., PyTree]):
    def chunk(root, t, down, ids, state, data, chains, *, count):
        def one(client_id, state, start, rows):
            key = key_for(root, Stream.DRAWS, t, client_id)
            shard = Shard(data.rows, start, rows, data.capacity)

            def walk(chain):
                return draw(jax.random.fold_in(key, chain), down, state, shard, count)

            return each(walk, chains)

        return each(one, ids, state, data.start, data.count)

    return jax.jit(chunk, static_argnames="count")


def _in_order(pieces: Iterator[tuple[np.ndarray, PyTree]]) -> PyTree:
    """Results of chunks in the order of the clients, without those that only fill a chunk."""
    order, values = zip(*pieces, strict=True)
    back = np.argsort(np.concatenate(order))

    def joined(*leaves):
        return np.concatenate(
            [leaf[: len(indices)] for indices, leaf in zip(order, leaves, strict=True)]
        )[back]

    return jax.tree.map(joined, *jax.device_get(values))
