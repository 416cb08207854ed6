"""The protocol of an engine, and the base of engines that hold the rows of all clients."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
import numpy as np
from jaxtyping import PyTree

from covey.core.algorithm import Message, State, published
from covey.core.metrics import Metric
from covey.core.node import Node
from covey.data.federated import FederatedData, Split
from covey.engines.evaluation import Evaluator
from covey.engines.record import Line, as_lines
from covey.engines.round import BLOCK
from covey.engines.rows import DeviceRows, HostRows, need_rows, rows_of
from covey.engines.setup import Setup

# An engine's state, with .round and .server; only the engine that made it advances it.
Position: TypeAlias = Any


@runtime_checkable
class Engine(Protocol):
    """A method on data, advanced round by round."""

    setup: Setup

    def start(self) -> Position:
        """The state before the first round."""
        ...

    def advance(self, state: Position, count: int) -> tuple[Position, list[dict[str, float | int]]]:
        """Run `count` rounds; the new state, and the metrics of each round."""
        ...

    def broadcast(self, state: Position) -> Message:
        """The state that clients would evaluate and predict with now."""
        ...

    def evaluate(
        self,
        state: Position,
        split: Split = ...,
        data: FederatedData | None = None,
        *,
        down: Message | None = None,
        draws: int | None = None,
    ) -> dict[str, Metric]:
        """Metrics stacked over clients; clients of other data are unseen ones.

        Here and below, `down` replaces `broadcast(state)`, and `draws` is the count of draws that a
        prediction averages over; None is the method's own.
        """
        ...

    def predict(
        self,
        state: Position,
        client: int,
        x: PyTree,
        data: FederatedData | None = None,
        *,
        down: Message | None = None,
        draws: int | None = None,
    ) -> PyTree:
        """The predictive distribution of the client at a position."""
        ...

    def draws(
        self,
        state: Position,
        clients: np.ndarray,
        count: int,
        data: FederatedData | None = None,
        chains: Sequence[int] = (0,),
        *,
        down: Message | None = None,
    ) -> PyTree:
        """Posterior draws of the clients at some positions, as (clients, chains, count, ...)."""
        ...

    def seen(self, state: Position) -> np.ndarray:
        """Which clients have taken part so far."""
        ...

    def snapshot(self, state: Position) -> PyTree:
        """The state as arrays."""
        ...

    def snapshot_like(self) -> PyTree:
        """The shapes of a snapshot."""
        ...

    def restore(self, snapshot: Any) -> Position:
        """The state that a snapshot was made of."""
        ...

    def checkpointed(self) -> None:
        """To be called once the newest snapshot is safely on disk."""
        ...


class EngineState(NamedTuple):
    """The state of a run on an engine that keeps the rows of all clients.

    Attributes:
        round: Rounds so far.
        server: The server's state; between peers, the mean of theirs.
        nodes: The clients' nodes, stacked; None where the engine holds them on the host and updates
            them itself.
        seen: Which clients have taken part.
    """

    round: int
    server: State
    nodes: Node | None
    seen: np.ndarray | jax.Array


class Vectorised:
    """Rounds, evaluation, predictions and draws of an engine that keeps the rows of all clients."""

    setup: Setup
    data: FederatedData
    rows: DeviceRows | HostRows
    evaluator: Evaluator

    def advance(self, state: EngineState, count: int) -> tuple[EngineState, list[Line]]:
        """Run `count` rounds; the new state, and one row of metrics per round."""
        lines: list[Line] = []
        while count > 0:
            first = state.round
            state, record = self._block_of(state, min(count, BLOCK))
            done = state.round - first
            lines += self._lines(first, done, jax.device_get(record), lines)
            count -= done
        return state, lines

    def _block_of(self, state: EngineState, count: int) -> tuple[EngineState, Any]:
        """Run `count` rounds, at most `BLOCK`; the new state, and their records, stacked."""
        raise NotImplementedError

    def _lines(self, first: int, count: int, record: Any, before: Sequence[Line]) -> list[Line]:
        """The metrics of the `count` rounds after round `first`."""
        return as_lines(first, count, record, self.setup.sizes, before)

    def _take(self, state: Position, positions: np.ndarray) -> Node:
        """The nodes of the clients at some positions, stacked."""
        raise NotImplementedError

    def _down(self, state: Position) -> Message:
        """The state that the evaluator's algorithm predicts with."""
        return self.broadcast(state)

    def broadcast(self, state: Position) -> Message:
        """The state that clients would evaluate and predict with now."""
        return published(self.setup.algorithm, state.server)

    def evaluate(
        self,
        state: Position,
        split: Split = "validation",
        data: FederatedData | None = None,
        *,
        down: Message | None = None,
        draws: int | None = None,
    ) -> dict[str, Metric]:
        """Metrics of every client on one split of its rows, stacked; of unseen clients in other
        data.
        """
        rows, seen = self._known(state, data)
        need_rows(rows.data, split)
        take = self._taker(state)
        sent = self._down(state) if down is None else down
        return self.evaluator.over(draws).measures(rows, state.round, sent, take, seen, split)

    def predict(
        self,
        state: Position,
        client: int,
        x: PyTree,
        data: FederatedData | None = None,
        *,
        down: Message | None = None,
        draws: int | None = None,
    ) -> PyTree:
        """The predictive distribution of the client at position `client` for new rows `x`."""
        rows, seen = self._known(state, data)
        node = self._take(state, np.array([client])) if seen[client] else None
        sent = self._down(state) if down is None else down
        return self.evaluator.over(draws).predict(rows, state.round, sent, node, client, x)

    def draws(
        self,
        state: Position,
        clients: np.ndarray,
        count: int,
        data: FederatedData | None = None,
        chains: Sequence[int] = (0,),
        *,
        down: Message | None = None,
    ) -> PyTree:
        """Posterior draws of the clients at some positions, as (clients, chains, count, ...)."""
        rows, seen = self._known(state, data)
        take, sent = self._taker(state), self._down(state) if down is None else down
        return self.evaluator.draws(rows, state.round, sent, take, seen, clients, count, chains)

    def seen(self, state: Position) -> np.ndarray:
        """Which clients have taken part so far."""
        return np.asarray(state.seen)

    def checkpointed(self) -> None:
        """To be called once the newest snapshot is safely on disk."""

    def _taker(self, state: Position):
        return lambda positions: self._take(state, positions)

    def _known(
        self, state: Position, data: FederatedData | None
    ) -> tuple[DeviceRows | HostRows, np.ndarray]:
        """The rows at hand, and which clients have taken part; in other data, none."""
        if data is None:
            return self.rows, np.asarray(state.seen)
        return rows_of(data), np.zeros(data.clients, bool)
