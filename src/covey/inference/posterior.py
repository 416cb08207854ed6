"""The posterior of a run's clients: draws, the trace that ArviZ works on, and a summary with
credible intervals.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from covey.core.shard import Axis
from covey.data.federated import FederatedData

if TYPE_CHECKING:
    import xarray

Client: TypeAlias = str | int | np.integer  # its name or its id


class Posterior(NamedTuple):
    """What a method that draws knows of each client; see `Run.posterior`.

    data: the clients of the run.
    draw: (positions, number, data or None, chains) -> draws as (clients, chains, number, ...).
    attributes: what a trace records of its origin.
    axes: labels of the numbers of a draw.
    """

    data: FederatedData
    draw: Callable[..., PyTree]
    attributes: dict[str, str | int]
    axes: Mapping[str, Axis]

    def draws(
        self, client: Client, number: int, *, chain: int = 0, data: FederatedData | None = None
    ) -> PyTree:
        """`number` draws for a client (its name or id), on the leading axis; with other data, for a
        client never seen.

        Every `chain` has draws of its own; the same chain asked again gives the same.
        """
        _check_number(number, "number")
        position = self.data.replaced_by(data).position_of(client)
        return jax.tree.map(
            lambda leaf: leaf[0, 0], self.draw(np.array([position]), number, data, (chain,))
        )

    def trace(
        self,
        clients: Client | Sequence[Client] | None = None,
        *,
        draws: int = 1000,
        chains: int = 4,
        data: FederatedData | None = None,
    ) -> "xarray.DataTree":
        """Draws as ArviZ's functions and plots take them: a group `posterior` with the dimensions
        chain and draw.

        clients: one by name or id; several, which become the dimension `client`; None for all.
        draws: of each chain.
        data: other data, for clients never seen.
        """
        _check_number(draws, "draws")
        _check_number(chains, "chains")
        here = self.data.replaced_by(data)
        alone = isinstance(clients, Client)
        wanted = (clients,) if alone else range(here.clients) if clients is None else clients
        positions = np.array(
            [at if clients is None else here.position_of(at) for at in wanted], int
        )
        if not len(positions):
            raise ValueError("no clients were named; leave clients= out for all of them")
        drawn = self.draw(positions, draws, data, tuple(range(chains)))
        from covey.inference.trace import as_tree  # ArviZ takes seconds to import

        names = [here.name_of(int(at)) for at in positions]
        attributes = self.attributes | ({"client": names[0]} if alone else {})
        return as_tree(drawn, None if alone else names, attributes, self.axes)

    def summary(
        self,
        clients: Client | Sequence[Client] | None = None,
        *,
        probability: float = 0.9,
        draws: int = 1000,
        chains: int = 4,
        data: FederatedData | None = None,
    ) -> pd.DataFrame:
        """Mean, standard deviation, equal-tailed credible interval and diagnostics of each client's
        parameters.

        A line a parameter, or a client and parameter where not a single client is asked for. Warns
        where chains disagree or are worth few independent draws. The other arguments are those of
        `trace`.
        """
        check_probability(probability)
        from covey.inference.trace import summarise

        return summarise(
            self.trace(clients, draws=draws, chains=chains, data=data), probability=probability
        )


def labels(name: str, axes: Sequence[Iterable[object]]) -> list[str]:
    """What the numbers of an array are called, given what lies along its axes: `slopes[age]`,
    `slopes[dose]`, ...
    """
    return [name + (f"[{', '.join(map(str, place))}]" if place else "") for place in product(*axes)]


def check_probability(probability: float) -> None:
    """An error for what is not strictly between 0 and 1."""
    if not 0 < probability < 1:
        raise ValueError(f"probability must be between 0 and 1, e.g. 0.9, got {probability:g}")


def _check_number(number: int, name: str) -> None:
    if number < 1:
        raise ValueError(f"posterior: {name} must be at least 1, got {number}")
