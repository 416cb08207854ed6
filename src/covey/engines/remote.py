"""Evaluation, predictions and draws of clients that live in blocks elsewhere, which are asked."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from covey.core.algorithm import Message
from covey.core.metrics import Metric
from covey.data.federated import FederatedData, Split
from covey.engines.crew import Crew
from covey.engines.engine import EngineState, Vectorised
from covey.engines.rows import need_rows


class Remote(Vectorised):
    """The functions of `Vectorised` for clients in the blocks of a crew."""

    crew: Crew
    blocks: int

    def _ask(
        self, state: EngineState, name: str, asked: Mapping[int, tuple], sent: PyTree = None
    ) -> dict[int, Any]:
        """Call blocks that are in a state."""
        raise NotImplementedError

    def evaluate(
        self,
        state: EngineState,
        split: Split = "validation",
        data: FederatedData | None = None,
        *,
        down: Message | None = None,
        draws: int | None = None,
    ) -> dict[str, Metric]:
        """Metrics of every client on one split of its rows, stacked; of unseen clients in other
        data.
        """
        if data is not None:
            return super().evaluate(state, split, data, down=down, draws=draws)
        need_rows(self.data, split)
        asked = dict.fromkeys(range(self.blocks), (state.round, split, draws))
        found = self._ask(state, "measures", asked, self._told(state, down))
        return jax.tree.map(lambda *parts: np.concatenate(parts), *found.values())

    def predict(
        self,
        state: EngineState,
        client: int,
        x: PyTree,
        data: FederatedData | None = None,
        *,
        down: Message | None = None,
        draws: int | None = None,
    ) -> PyTree:
        """The predictive distribution of the client at position `client` for new rows `x`."""
        if data is not None:
            return super().predict(state, client, x, data, down=down, draws=draws)
        block, local = self._place(client)
        asked = {block: (state.round, local, jax.tree.map(np.asarray, x), draws)}
        found = self._ask(state, "predict", asked, self._told(state, down))[block]
        return jax.tree.map(jnp.asarray, found)

    def draws(
        self,
        state: EngineState,
        clients: np.ndarray,
        count: int,
        data: FederatedData | None = None,
        chains: Sequence[int] = (0,),
        *,
        down: Message | None = None,
    ) -> PyTree:
        """Posterior draws of the clients at some positions, as (clients, chains, count, ...)."""
        if data is not None:
            return super().draws(state, clients, count, data, chains, down=down)
        owner = np.searchsorted(self.crew.edges, clients, side="right") - 1
        asked = {
            int(block): (
                state.round,
                clients[owner == block] - self.crew.edges[block],
                count,
                tuple(chains),
            )
            for block in np.unique(owner)
        }
        found = self._ask(state, "draws", asked, self._told(state, down))
        order = np.concatenate([np.flatnonzero(owner == block) for block in found])
        back = np.argsort(order)
        return jax.tree.map(lambda *parts: np.concatenate(parts)[back], *found.values())

    def _place(self, client: int) -> tuple[int, int]:
        """The block of the client at a position, and its position there."""
        block = int(np.searchsorted(self.crew.edges, client, side="right")) - 1
        return block, client - int(self.crew.edges[block])

    def _told(self, state: EngineState, down: Message | None) -> Message:
        return jax.device_get(self._down(state) if down is None else down)
