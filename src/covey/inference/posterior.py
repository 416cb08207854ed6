"""The posterior of a run: of the shared parameters, and of each client's own.

Every posterior has `draws()`, `trace()` (the tree that ArviZ's functions and plots take) and
`summary()`, a table with credible intervals and diagnostics.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Key, PyTree

from covey.core.algorithm import (
    Algorithm,
    Approximation,
    Chains,
    no_posterior,
)
from covey.core.shard import Axis
from covey.data.federated import FederatedData
from covey.data.roster import Roster
from covey.models.predictive import Predictive, mixture_of

if TYPE_CHECKING:
    import xarray

Client: TypeAlias = str | int | np.integer  # a client's name or its id
_BATCH = 32  # draws that predict side by side
# An attribute of traces: the chains are not independent where only some clients take part.
SHARED_ROUNDS = {"chains": "through the same rounds"}


class Origin(NamedTuple):
    """What a trace records of where it came from, and labels along the arrays of its draws."""

    attributes: dict[str, str | int]
    axes: Mapping[str, Axis]


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
    def shared(self) -> "SharedChains | SharedApproximation":
        """The posterior of the shared parameters.

        Raises:
            ValueError: The method has none; the message says what it has instead.
        """
        shared = self._method.posterior.shared
        if isinstance(shared, Chains) and self._collected is not None:
            self._checked()
            return SharedChains(shared, self._collected, self._origin)
        if isinstance(shared, Approximation):
            return SharedApproximation(shared, self._fitted(), self._key, self._origin)
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
        alone: One client, whose draws have no axis of clients.
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
        """Posterior draws; asked again, the same.

        Args:
            count: Draws per chain.
            chains: Independent chains.

        Returns:
            Arrays (chains, count, ...) for one client, (clients, chains, count, ...) for several.
        """
        _check_count(count, "count")
        _check_count(chains, "chains")
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
        return _summary(self.trace(count, chains=chains), probability)


class SharedChains(NamedTuple):
    """Draws of the shared parameters that a run has collected, one per chain and kept round.

    Attributes:
        chains: How draws are described and predicted with.
        collected: () -> all draws, as (draws, chains, ...).
        origin: Attributes and labels of a trace.
    """

    chains: Chains
    collected: Callable[[], PyTree]
    origin: Origin

    def __repr__(self) -> str:
        return "posterior of the shared parameters, from chains"

    def draws(self, *, skip: int = 0, every: int = 1) -> PyTree:
        """Draws as (chains, draws, ...), in the terms of the model.

        Args:
            skip: Draws at the beginning of each chain to leave out.
            every: Thinning: keep each `every`-th of the others.
        """
        described = jax.jit(jax.vmap(jax.vmap(self.chains.describe)))(self._some(skip, every))
        return jax.tree.map(lambda leaf: np.moveaxis(np.asarray(leaf), 0, 1), described)

    def trace(self, *, skip: int = 0, every: int = 1) -> "xarray.DataTree":
        """Draws as ArviZ takes them: a group `posterior` with the dimensions chain and draw."""
        origin = self.origin._replace(attributes=self.origin.attributes | SHARED_ROUNDS)
        return _trace(self.draws(skip=skip, every=every), origin)

    def summary(self, *, probability: float = 0.9, skip: int = 0, every: int = 1) -> pd.DataFrame:
        """Mean, standard deviation, equal-tailed credible interval and diagnostics per parameter.

        The chains have gone through the same rounds. Where only some clients took part they share
        the noise of the cohorts, which the effective sample sizes and the Monte Carlo standard
        error take into account (`covey.inference.shared_noise`); R-hat does not see it. Warns where
        chains disagree or are worth few independent draws.
        """
        return _summary(self.trace(skip=skip, every=every), probability)

    def predict(self, x: PyTree, *, skip: int = 0, every: int = 1) -> Predictive:
        """The predictive distribution of the rows x, averaged over all draws."""
        some = self._some(skip, every)
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), some)
        rows = jax.tree.map(jnp.asarray, x)
        size = min(_BATCH, len(jax.tree.leaves(flat)[0]))

        def average(draws, rows):
            return mixture_of(
                jax.lax.map(lambda z: self.chains.predictive(z, rows), draws, batch_size=size)
            )

        return jax.jit(average)(flat, rows)

    def _some(self, skip: int, every: int) -> PyTree:
        if skip < 0 or every < 1:
            raise ValueError(
                f"posterior: skip must be at least 0 and every at least 1, got {skip=} and {every=}"
            )
        collected = self.collected()
        count = len(jax.tree.leaves(collected)[0])
        if skip >= count:
            raise ValueError(
                f"there are {count} draws per chain so far, and {skip} were to be skipped: run "
                "more rounds, or burn in for fewer"
            )
        return jax.tree.map(lambda leaf: leaf[skip::every], collected)


class SharedApproximation(NamedTuple):
    """A law of the shared parameters, e.g. a Gaussian at the mode, and independent draws from it.

    Attributes:
        approximation: How the law is drawn from.
        law: The fitted law.
        key: Where draws come from.
        origin: Attributes and labels of a trace.
    """

    approximation: Approximation
    law: Any
    key: Key[Array, ""]
    origin: Origin

    def __repr__(self) -> str:
        return "posterior of the shared parameters, from an approximate law"

    def draws(self, count: int = 1000, *, chains: int = 4) -> PyTree:
        """Independent draws as (chains, count, ...), in the terms of the model; asked again, the
        same.
        """
        _check_count(count, "count")
        _check_count(chains, "chains")
        drawn = self.approximation.draw(self.key, self.law, chains * count)
        return jax.tree.map(
            lambda leaf: np.asarray(leaf).reshape(chains, count, *leaf.shape[1:]), drawn
        )

    def trace(self, count: int = 1000, *, chains: int = 4) -> "xarray.DataTree":
        """Draws as ArviZ takes them: a group `posterior` with the dimensions chain and draw."""
        return _trace(self.draws(count, chains=chains), self.origin)

    def summary(
        self, *, probability: float = 0.9, count: int = 1000, chains: int = 4
    ) -> pd.DataFrame:
        """Mean, standard deviation and equal-tailed credible interval per parameter."""
        return _summary(self.trace(count, chains=chains), probability)

    def predict(self, x: PyTree, *, count: int = 100) -> Predictive:
        """The predictive distribution of the rows x, averaged over `count` draws."""
        _check_count(count, "count")
        if self.approximation.predictive is None:
            raise ValueError("draws of this law predict nothing; see run.predict")
        rows = jax.tree.map(jnp.asarray, x)
        return self.approximation.predictive(self.key, self.law, rows, count)


def check_probability(probability: float) -> None:
    """An error for what is not strictly between 0 and 1."""
    if not 0 < probability < 1:
        raise ValueError(f"probability must be between 0 and 1, e.g. 0.9, got {probability:g}")


def _trace(drawn: PyTree, origin: Origin) -> "xarray.DataTree":
    from covey.inference.trace import as_tree  # ArviZ takes seconds to import

    one = jax.tree.map(lambda leaf: leaf[None], drawn)
    return as_tree(one, None, origin.attributes, origin.axes)


def _summary(tree: "xarray.DataTree", probability: float) -> pd.DataFrame:
    from covey.inference.trace import summarise

    return summarise(tree, probability=probability)


def _check_count(count: int, name: str) -> None:
    if count < 1:
        raise ValueError(f"posterior: {name} must be at least 1, got {count}")
