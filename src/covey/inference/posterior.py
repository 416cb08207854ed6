"""The posterior of a run: of the shared parameters, and of each client's own.

Every posterior has `draws()`, `trace()` (the tree that ArviZ's functions and plots take) and
`summary()`, a table with credible intervals and diagnostics.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import numpy as np
import pandas as pd
from jaxtyping import Array, Key, PyTree

from covey.core.algorithm import Algorithm, Approximation, Chains, no_posterior
from covey.data.federated import FederatedData
from covey.data.roster import Roster
from covey.inference.drawing import Origin, check_count, check_probability, summary_of
from covey.inference.shared import SharedApproximation, SharedChains

if TYPE_CHECKING:
    import xarray

Client: TypeAlias = str | int | np.integer  # a client's name or its id


class RunPosterior:
    """The posteriors of a run at its current round; see `Run.posterior`.

    Attributes:
        shared: The posterior of the shared parameters.
        clients: The posteriors of all clients' own parameters.
    """

    def __init__(
        self,
        method: Algorithm,
        data: FederatedData | Roster,
        origin: Origin,
        *,
        draw_clients: Callable[..., PyTree],
        collected: Callable[[], PyTree] | None,
        fitted: Callable[[], Any],
        checked: Callable[[], None],
        key: Key[Array, ""],
    ):
        self._method, self._data, self._origin = method, data, origin
        self._draw_clients, self._collected, self._fitted = draw_clients, collected, fitted
        self._key, self._checked = key, checked

    def __repr__(self) -> str:
        posterior = self._method.posterior
        shared = ["shared"] if posterior.shared is not None else []
        return f"posterior({', '.join(shared + ['clients'] * (posterior.client is not None))})"

    @cached_property
    def shared(self) -> SharedChains | SharedApproximation:
        """The posterior of the shared parameters.

        Raises:
            ValueError: The method has none; the message says what it has instead.
        """
        shared = self._method.posterior.shared
        if isinstance(shared, Chains) and self._collected is not None:
            self._checked()
            return SharedChains(shared, self._collected, self._origin, self._data.rows_from)
        if isinstance(shared, Approximation):
            if shared.caution:  # for the caller of `shared`, which is a cached property
                warnings.warn(f"{self._method.name}: {shared.caution}", stacklevel=3)
            law, rows_from = self._fitted(), self._data.rows_from
            return SharedApproximation(shared, law, self._key, self._origin, rows_from)
        raise ValueError(no_posterior(self._method, "shared"))

    def client(self, client: Client, *, data: FederatedData | None = None) -> "ClientPosterior":
        """The posterior of one client's own parameters.

        Args:
            client: The client's name or id.
            data: Other data, for an unseen client: its posterior given its training rows.

        Raises:
            ValueError: The method has none; the message says what it has instead.
        """
        return self.select([client], data=data)._replace(alone=True)

    @property
    def clients(self) -> "ClientPosterior":
        """The posteriors of all clients' own parameters."""
        return self.select()

    def select(
        self, clients: Sequence[Client] | None = None, *, data: FederatedData | None = None
    ) -> "ClientPosterior":
        """The posteriors of some clients' own parameters.

        Args:
            clients: Names or ids; None selects all.
            data: Other data, for unseen clients.
        """
        if self._method.posterior.client is None:
            raise ValueError(no_posterior(self._method, "client"))
        here = self._data.replaced_by(data)
        wanted = range(here.clients) if clients is None else map(here.position_of, clients)
        positions = np.array(list(wanted), int)
        if not len(positions):
            raise ValueError("no clients were named; leave clients= out for all of them")
        names = [here.name_of(int(at)) for at in positions]
        return ClientPosterior(self._draw_clients, positions, names, data, self._origin)


class ClientPosterior(NamedTuple):
    """The posterior of the parameters of one client, or of several.

    Attributes:
        draw: (positions, count, data or None, chains) -> draws as (clients, chains, count, ...).
        positions: Positions of the clients in the data.
        names: Their names.
        data: Other data than the run's, for unseen clients.
        origin: Attributes and labels of a trace.
        alone: Whether it is of one client; its draws then have no axis of clients.
    """

    draw: Callable[..., PyTree]
    positions: np.ndarray
    names: list[str]
    data: FederatedData | None
    origin: Origin
    alone: bool = False

    def __repr__(self) -> str:
        return f"posterior of {', '.join(self.names[:5])}{', ...' if len(self.names) > 5 else ''}"

    def draws(self, count: int = 1000, *, chains: int = 4) -> PyTree:
        """Posterior draws; every call returns the same.

        Args:
            count: Draws per chain.
            chains: Independent chains.

        Returns:
            Arrays (chains, count, ...) for one client, (clients, chains, count, ...) for several.
        """
        check_count(count, "count")
        check_count(chains, "chains")
        drawn = self.draw(self.positions, count, self.data, tuple(range(chains)))
        return jax.tree.map(lambda leaf: leaf[0], drawn) if self.alone else drawn

    def trace(self, count: int = 1000, *, chains: int = 4) -> "xarray.DataTree":
        """Draws as ArviZ takes them: a group `posterior` with the dimensions chain and draw.

        Several clients become the dimension `client`. The arguments are those of `draws`.
        """
        drawn = self._replace(alone=False).draws(count, chains=chains)
        from covey.inference.trace import as_tree  # ArviZ takes seconds to import

        attributes = self.origin.attributes | ({"client": self.names[0]} if self.alone else {})
        return as_tree(drawn, None if self.alone else self.names, attributes, self.origin.axes)

    def summary(
        self, *, probability: float = 0.9, count: int = 1000, chains: int = 4
    ) -> pd.DataFrame:
        """Mean, standard deviation, equal-tailed credible interval and diagnostics per parameter.

        Warns where chains disagree or are worth few independent draws.

        Args:
            probability: Probability of the credible intervals.
            count: Draws per chain.
            chains: Independent chains.
        """
        check_probability(probability)
        return summary_of(self.trace(count, chains=chains), probability)
