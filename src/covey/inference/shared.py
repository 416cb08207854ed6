"""The posterior of the shared parameters: chains that a run has walked, or a law to draw from.

Both take the same arguments: `count` draws per chain, and a number of `chains`. A law draws any
number; the draws of chains are those that the run has kept.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Key, PyTree

from covey.core.algorithm import Approximation, Chains
from covey.data.conversion import NewRows
from covey.inference.drawing import (
    SHARED_ROUNDS,
    Origin,
    check_count,
    check_probability,
    summary_of,
    trace_of,
)
from covey.models.predictive import Predictive, mixture_of

if TYPE_CHECKING:
    import xarray

_BATCH = 32  # draws that predict side by side


class SharedChains(NamedTuple):
    """Draws of the shared parameters that a run has collected, one per chain and kept round.

    Attributes:
        chains: Functions that describe draws and predict with them.
        collected: () -> all draws, as (draws, chains, ...).
        origin: Attributes and labels of a trace.
        rows_from: (new rows, standardised) -> features as the model was trained on.
    """

    chains: Chains
    collected: Callable[[], PyTree]
    origin: Origin
    rows_from: Callable[..., PyTree]

    def __repr__(self) -> str:
        return "posterior of the shared parameters, from chains"

    def draws(
        self,
        count: int | None = None,
        *,
        chains: int | None = None,
        skip: int = 0,
        every: int = 1,
    ) -> PyTree:
        """Draws that the run has kept, as (chains, draws, ...), in the terms of the model.

        Args:
            count: Draws per chain, evenly spaced among those kept. Default: all of them.
            chains: Number of chains, the first ones. Default: all chains of the method.
            skip: Draws at the beginning of each chain to leave out.
            every: Thinning: keep each `every`-th of the others.

        Raises:
            ValueError: The run has kept fewer draws or chains than were asked for.
        """
        some = self._some(count, chains, skip, every)
        described = jax.jit(jax.vmap(jax.vmap(self.chains.describe)))(some)
        return jax.tree.map(lambda leaf: np.moveaxis(np.asarray(leaf), 0, 1), described)

    def trace(
        self,
        count: int | None = None,
        *,
        chains: int | None = None,
        skip: int = 0,
        every: int = 1,
    ) -> "xarray.DataTree":
        """Draws as ArviZ takes them: a group `posterior` with the dimensions chain and draw.

        The arguments are those of `draws`.
        """
        origin = self.origin._replace(attributes=self.origin.attributes | SHARED_ROUNDS)
        return trace_of(self.draws(count, chains=chains, skip=skip, every=every), origin)

    def summary(
        self,
        *,
        probability: float = 0.9,
        count: int | None = None,
        chains: int | None = None,
        skip: int = 0,
        every: int = 1,
    ) -> pd.DataFrame:
        """Mean, standard deviation, equal-tailed credible interval and diagnostics per parameter.

        The chains have gone through the same rounds. Where only some clients took part they share
        the noise of the cohorts, which the effective sample sizes and the Monte Carlo standard
        error take into account (`covey.inference.shared_noise`); R-hat does not see it. Warns where
        chains disagree or are worth few independent draws, and where a diagnostic is NaN because
        there is one chain or there are too few draws.

        Args:
            probability: Probability of the credible intervals.
            count: Draws per chain; see `draws` for this and the others.
            chains: Number of chains, the first ones.
            skip: Draws at the beginning of each chain to leave out.
            every: Thinning: keep each `every`-th of the others.
        """
        check_probability(probability)
        drawn = self.trace(count, chains=chains, skip=skip, every=every)
        return summary_of(drawn, probability)

    def predict(
        self,
        x: NewRows,
        *,
        count: int | None = None,
        skip: int = 0,
        every: int = 1,
        standardised: bool = False,
    ) -> Predictive:
        """The predictive distribution of new rows, averaged over draws.

        Args:
            x: New rows on their original scale, as `Run.predict` takes them.
            count: Draws to average over, evenly spaced among those of all chains. Default: all.
            skip: Draws at the beginning of each chain to leave out.
            every: Thinning: keep each `every`-th of the others.
            standardised: The rows are scaled already.
        """
        some = self._some(None, None, skip, every)
        flat = jax.tree.map(  # chain after chain, so that evenly spaced draws are of all chains
            lambda leaf: np.moveaxis(leaf, 0, 1).reshape(-1, *leaf.shape[2:]), some
        )
        if count is not None:
            kept = len(jax.tree.leaves(flat)[0])
            flat = jax.tree.map(lambda leaf: leaf[_spaced(count, kept, "of all chains")], flat)
        rows = jax.tree.map(jnp.asarray, self.rows_from(x, standardised=standardised))
        size = min(_BATCH, len(jax.tree.leaves(flat)[0]))

        def average(draws, rows):
            return mixture_of(
                jax.lax.map(lambda z: self.chains.predictive(z, rows), draws, batch_size=size)
            )

        return jax.jit(average)(flat, rows)

    def _some(self, count: int | None, chains: int | None, skip: int, every: int) -> PyTree:
        """Draws as (draws, chains, ...)."""
        check_count(skip, "skip", least=0)
        check_count(every, "every")
        collected = self.collected()
        kept, run = jax.tree.leaves(collected)[0].shape[:2]
        if skip >= kept:
            raise ValueError(
                f"there are {_draws(kept)} per chain so far, and {skip} were to be skipped: run "
                "more rounds, or burn in for fewer"
            )
        left = np.arange(kept)[skip::every]
        if count is not None:
            left = left[_spaced(count, len(left), "per chain")]
        if chains is not None:
            check_count(chains, "chains")
            if chains > run:
                raise ValueError(
                    f"this run has walked {run} {'chain' if run == 1 else 'chains'}, and {chains} "
                    f"were asked for: ask for at most {run}, or give the method chains={chains} "
                    "and run it again"
                )
        return jax.tree.map(lambda leaf: leaf[left][:, :chains], collected)


class SharedApproximation(NamedTuple):
    """A law of the shared parameters, e.g. a Gaussian at the mode, and independent draws from it.

    Attributes:
        approximation: Functions that draw from the law.
        law: The fitted law.
        key: Random key of the draws.
        origin: Attributes and labels of a trace.
        rows_from: (new rows, standardised) -> features as the model was trained on.
    """

    approximation: Approximation
    law: Any
    key: Key[Array, ""]
    origin: Origin
    rows_from: Callable[..., PyTree]

    def __repr__(self) -> str:
        return "posterior of the shared parameters, from an approximate law"

    def draws(self, count: int = 1000, *, chains: int = 4) -> PyTree:
        """Independent draws as (chains, count, ...), in the terms of the model; every call returns
        the same.

        Args:
            count: Draws per chain.
            chains: Independent chains.
        """
        check_count(count, "count")
        check_count(chains, "chains")
        drawn = self.approximation.draw(self.key, self.law, chains * count)
        return jax.tree.map(
            lambda leaf: np.asarray(leaf).reshape(chains, count, *leaf.shape[1:]), drawn
        )

    def trace(self, count: int = 1000, *, chains: int = 4) -> "xarray.DataTree":
        """Draws as ArviZ takes them: a group `posterior` with the dimensions chain and draw.

        The arguments are those of `draws`.
        """
        return trace_of(self.draws(count, chains=chains), self.origin)

    def summary(
        self, *, probability: float = 0.9, count: int = 1000, chains: int = 4
    ) -> pd.DataFrame:
        """Mean, standard deviation, equal-tailed credible interval and diagnostics per parameter.

        Draws are independent: R-hat and effective draws show whether there are enough of them, but
        not the distance of the law from the posterior.

        Args:
            probability: Probability of the credible intervals.
            count: Draws per chain.
            chains: Independent chains.
        """
        check_probability(probability)
        return summary_of(self.trace(count, chains=chains), probability)

    def predict(self, x: NewRows, *, count: int = 100, standardised: bool = False) -> Predictive:
        """The predictive distribution of new rows, averaged over draws.

        Args:
            x: New rows on their original scale, as `Run.predict` takes them.
            count: Draws to average over.
            standardised: The rows are scaled already.
        """
        check_count(count, "count")
        if self.approximation.predictive is None:
            raise ValueError("draws of this law predict nothing; see run.predict")
        rows = jax.tree.map(jnp.asarray, self.rows_from(x, standardised=standardised))
        return self.approximation.predictive(self.key, self.law, rows, count)


def _draws(count: int) -> str:
    return f"{count} draw{'s' * (count != 1)}"


def _spaced(count: int, kept: int, where: str) -> np.ndarray:
    """Indices of `count` evenly spaced draws, with the newest."""
    check_count(count, "count")
    if count > kept:
        raise ValueError(
            f"there are {_draws(kept)} {where}, and {count} were asked for: chains are not drawn "
            f"from again; ask for at most {kept}, or run more rounds (run.advance)"
        )
    return np.arange(1, count + 1) * kept // count - 1
