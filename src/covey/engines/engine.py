"""What a run needs of an engine. `engines.simulate.Simulation` and `engines.loop.Loop` both offer
it.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Array, Key, PyTree

from covey.core.algorithm import Message
from covey.core.metrics import Metric
from covey.data.federated import FederatedData, Split

# an engine's own state, with .round and .server; only the engine that made it goes on from it
Position: TypeAlias = Any


@runtime_checkable
class Engine(Protocol):
    """A method on data, advanced round by round."""

    root: Key[Array, ""]

    def start(self) -> Position:
        """Before the first round."""
        ...

    def advance(
        self, state: Position, number: int
    ) -> tuple[Position, list[dict[str, float | int]]]:
        """Some rounds, and the numbers of each."""
        ...

    def broadcast(self, state: Position) -> Message:
        """What clients would evaluate and predict with now."""
        ...

    def evaluate(
        self, state: Position, split: Split = ..., data: FederatedData | None = None
    ) -> dict[str, Metric]:
        """Metrics stacked over clients; other data are of clients never seen."""
        ...

    def predict(
        self, state: Position, client: int, x: PyTree, data: FederatedData | None = None
    ) -> PyTree:
        """The predictive distribution of the client at a position."""
        ...

    def draws(
        self,
        state: Position,
        clients: np.ndarray,
        number: int,
        data: FederatedData | None = None,
        chains: Sequence[int] = (0,),
    ) -> PyTree:
        """Posterior draws of the clients at some positions, as (clients, chains, number, ...)."""
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
        """The newest snapshot is safely on disk."""
        ...
