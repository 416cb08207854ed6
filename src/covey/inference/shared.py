"""The posterior of what all clients share, from draws that a run has collected: for ArviZ,
summarised, and to predict with.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from covey.core.algorithm import Chains
from covey.core.shard import Axis
from covey.inference.posterior import check_probability
from covey.models.mixed import average_of
from covey.models.predictive import Predictive

if TYPE_CHECKING:
    import xarray

_TOGETHER = 32  # draws that predict side by side


class SharedPosterior(NamedTuple):
    """Draws of parameters that all clients share, one a chain and kept round; see `Run.chains`.

    chains: how draws are described and predicted with.
    collected: () -> all draws, as (draws, chains, ...).
    attributes: what a trace records of its origin.
    axes: labels of the numbers of a draw.
    """

    chains: Chains
    collected: Callable[[], PyTree]
    attributes: dict[str, str | int]
    axes: Mapping[str, Axis]

    def draws(self, *, skip: int = 0, every: int = 1) -> PyTree:
        """Draws as (chains, draws, ...), without the first `skip` and then each `every`-th, as the
        model names them.
        """
        some = self._some(skip, every)
        described = jax.jit(jax.vmap(jax.vmap(self.chains.describe)))(some)
        return jax.tree.map(lambda leaf: np.moveaxis(np.asarray(leaf), 0, 1), described)

    def trace(self, *, skip: int = 0, every: int = 1) -> "xarray.DataTree":
        """Draws as ArviZ's functions and plots take them: a group `posterior` with the dimensions
        chain and draw.
        """
        drawn = self.draws(skip=skip, every=every)
        from covey.inference.trace import as_tree  # ArviZ takes seconds to import

        return as_tree(
            jax.tree.map(lambda leaf: leaf[None], drawn), None, self.attributes, self.axes
        )

    def summary(self, *, probability: float = 0.9, skip: int = 0, every: int = 1) -> pd.DataFrame:
        """Mean, standard deviation, equal-tailed interval, R-hat, effective draws and Monte Carlo
        error: a line a number.

        Warns where chains disagree or are worth few independent draws.
        """
        check_probability(probability)
        from covey.inference.trace import summarise

        return summarise(self.trace(skip=skip, every=every), probability=probability)

    def predict(self, x: PyTree, *, skip: int = 0, every: int = 1) -> Predictive:
        """What all draws together predict for the rows x: labels by their mean probability, numbers
        by mean and variance.
        """
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self._some(skip, every))
        rows = jax.tree.map(jnp.asarray, x)
        size = min(_TOGETHER, len(jax.tree.leaves(flat)[0]))

        def together(draws, rows):
            return average_of(
                jax.lax.map(lambda one: self.chains.predictive(one, rows), draws, batch_size=size)
            )

        return jax.jit(together)(flat, rows)

    def _some(self, skip: int, every: int) -> PyTree:
        if skip < 0 or every < 1:
            raise ValueError(
                f"posterior: skip must be at least 0 and every at least 1, got {skip=} and {every=}"
            )
        collected = self.collected()
        number = len(jax.tree.leaves(collected)[0])
        if skip >= number:
            raise ValueError(
                f"posterior: the run has {number} draws a chain, and skip={skip} leaves none; run more rounds, or give the "
                "method a shorter burn_in"
            )
        return jax.tree.map(lambda leaf: leaf[skip::every], collected)
