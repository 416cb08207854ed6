"""The cells of a matrix that nobody saw, from those that observers saw: counts by site and month,
ratings, presence.
"""

from dataclasses import KW_ONLY, dataclass
from dataclasses import replace as changed
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, Real

from covey.data.federated import FederatedData, Split
from covey.engines.rows import need_rows
from covey.estimators.completion import (
    Fit,
    Settings,
    best_fit,
    dispersion_of,
    offset_of,
    path,
    replicas_of,
    with_validation,
)
from covey.estimators.resampling import (
    IDENTITY,
    LOG_ODDS,
    LOGARITHM,
    RESAMPLINGS,
    Resampling,
    Scale,
    interval_over_replicas,
)
from covey.inference.smoothing import local_linear
from covey.models.cell_families import FAMILIES, FamilyName
from covey.models.matrix_completion import MatrixModel
from covey.models.matrix_steps import Factors, is_cell

RANKS = (0, 1, 2, 3, 4)
RIDGES = (100.0, 50.0, 20.0, 10.0, 5.0, 2.0, 1.0)  # of Gaussian cells, times their deviation
_DISPERSION_RANK = 2  # of the Poisson fit whose residuals give the dispersion
_BLOCK = 1 << 23  # cells of all replicas at once
_SCALES: dict[FamilyName, Scale] = {
    "gaussian": IDENTITY,
    "bernoulli": LOG_ODDS,
    "poisson": LOGARITHM,
    "negative_binomial": LOGARITHM,
}


class Interval(NamedTuple):
    """The lower and the upper end, for every cell."""

    low: Float[np.ndarray, "rows columns"]
    high: Float[np.ndarray, "rows columns"]


class _Fitted(NamedTuple):
    model: MatrixModel
    factors: Factors
    replicas: Factors | None


@dataclass
class FederatedImputer:
    """Completes a low-rank matrix from cells that observers saw, with intervals over observers.

    `fit` runs FedMissEM on `covey.models.matrix_completion` with everyone in every round and
    nothing lost, which is the penalised maximum likelihood of the pooled cells. For uploads that
    are compressed or lost run `covey.fedmissem` itself. An observation is a row of data:
    x = (row, column), counted from 0, and its value the outcome. Observers send sums, never cells.

    Rank and ridge may be chosen by the likelihood of validation cells; the fit is then made again
    with those cells too, from several cold starts, and the best by the penalised likelihood is
    kept. Intervals are of expectations over observers, not of counts to come, and do not include
    the bias of the ridge.

    Args:
        rank: Rank of what rows and columns have together, beside their effects. Default "auto"
            chooses among 0 (with effects), 1, 2, 3 and 4.
        seed: Seed of everything random.
        family: Distribution of an observation: "gaussian" (default, with variance 1), "bernoulli",
            "poisson", or "negative_binomial" for counts that vary more than Poisson ones.
        ridge: Penalty on the factors. Default "auto" chooses. Gaussian cells are on the scale of
            their noise.
        effect_ridge: Penalty on effects of rows and columns around the mean. Default 0.3; None
            leaves mean and effects out.
        dispersion: k of the negative binomial, with variance mu + mu^2 / k. Default "auto"
            estimates it by moments from the residuals of a Poisson fit.
        shape: Rows and columns of the matrix. Default: as large as the observed cells need.
        rounds: The most rounds of a fit. Default 500.
        tol: A fit ends when ten rounds have lowered the penalised loss of an observation by less.
            Default 1e-5.
        restarts: Cold starts of the last fit. Default 3; more where fits from other seeds differ.
        replicas: Replicas for intervals. Default 0, no intervals. A jackknife has one per
            observer, and no more than this many groups of observers; 50 or more are advised.
        replica_rounds: Rounds of each replica, from where the fit ended. Default 40.
        resampling: "jackknife" (default) leaves out observers in turn and uses Student's t;
            "exponential" (the Bayesian bootstrap) and "multinomial" use the quantiles of random
            weights, which cover less than they should with few observers.

    Attributes:
        rank_: The rank that was given or chosen.
        ridge_: The ridge that was given or chosen.
        dispersion_: The dispersion that was given or estimated; of negative binomial cells only.
        offset_: The mean of all cells as a parameter.
        row_factors_: U, with the effect first where there are effects.
        column_factors_: V, likewise.
        converged_: Whether the last fit reached `tol` within `rounds`.
        n_iter_: Rounds of the last fit.
        selection_: One row per rank and ridge that was tried: rounds, mean loss of a training and
            of a validation cell, penalised objective.

    Example:
        >>> import numpy as np, covey
        >>> rng = np.random.default_rng(0)
        >>> x = np.stack([rng.integers(0, 6, 200), rng.integers(0, 4, 200)], axis=1)
        >>> y = rng.poisson(np.exp(1 + 0.3 * x[:, 1]))
        >>> data = covey.FederatedData.from_arrays(x, y, rng.integers(0, 9, 200))
        >>> imputer = covey.FederatedImputer(0, seed=0, family="poisson", ridge=1.0, replicas=50)
        >>> trend = imputer.fit(data).trend(level=0.9)
        >>> bool((trend.low < trend.total).all() and trend.total.is_monotonic_increasing)
        True

    Reference: Dieuleveut, Fort, Moulines and Robin (2021), Federated expectation maximization with
    heterogeneity mitigation and variance reduction, section 4; the delete-a-group jackknife is
    that of Efron and Tibshirani (1993), An introduction to the bootstrap, chapter 11.
    """

    rank: int | Literal["auto"] = "auto"
    _: KW_ONLY
    seed: int
    family: FamilyName = "gaussian"
    ridge: float | Literal["auto"] = "auto"
    effect_ridge: float | None = 0.3
    dispersion: float | Literal["auto"] = "auto"
    shape: tuple[int, int] | None = None
    rounds: int = 500
    tol: float = 1e-5
    restarts: int = 3
    replicas: int = 0
    replica_rounds: int = 40
    resampling: Resampling = "jackknife"

    def fit(self, data: FederatedData) -> "FederatedImputer":
        """Fit to the training cells; "auto" chooses by validation cells, then fits to both.

        Returns:
            The imputer itself.
        """
        settings, ridges = self._settings(data)
        if self.rank == "auto" or self.ridge == "auto":
            ranks = RANKS[self.effect_ridge is None :] if self.rank == "auto" else (self.rank,)
            ranks = [rank for rank in ranks if rank <= min(settings.shape)]
            tried = [fit for rank in ranks for fit in path(settings, data, rank, ridges)]
            chosen = min(tried, key=lambda fit: fit.validation_loss)
            data = with_validation(data)
            best = best_fit(settings, data, chosen.rank, chosen.ridge, chosen.server.factors)
        else:
            best = best_fit(settings, data, self.rank, self.ridge)
            tried = [best]
        self._keep(settings, best, tried)
        replicas = None
        if self.replicas:
            replicas = replicas_of(
                settings,
                data,
                best,
                resampling=self.resampling,
                replicas=self.replicas,
                rounds=self.replica_rounds,
            )
        self._fitted = _Fitted(best.model, best.server.factors, replicas)
        return self

    def predict(self, x: Real[np.ndarray | Array, "cells 2"]) -> Float[np.ndarray, " cells"]:
        """The expectations of the cells (row, column); of Bernoulli cells, the probability of 1."""
        fitted = self._fit()
        outside = ~np.asarray(is_cell(fitted.model.shape, np.asarray(x)))
        if outside.any():
            raise ValueError(
                f"{_cell(np.asarray(x)[outside][0])} is not a cell of a matrix of "
                f"{_size(fitted.model.shape)}"
            )
        mean = np.asarray(fitted.model.predictive(fitted.factors, jnp.asarray(x)).mean)
        return mean[:, 1] if self.family == "bernoulli" else mean

    def transform(self, data: FederatedData | None = None) -> Float[np.ndarray, "rows columns"]:
        """The expectation of every cell, which the server knows.

        Args:
            data: Observations that may be seen, e.g. an observer's own: observed cells then have
                the mean of their values.

        Returns:
            The completed matrix.
        """
        model, factors, _ = self._fit()
        matrix = np.array(model.mean(factors, jnp.arange(model.shape[0])), float)
        if data is not None:
            _check_observations(data, model)
            x, y = data.rows
            index, inverse = np.unique(
                np.ravel_multi_index(tuple(np.asarray(x, int).T), model.shape), return_inverse=True
            )
            matrix.ravel()[index] = np.bincount(inverse, y) / np.bincount(inverse)
        return matrix

    def interval(self, level: float = 0.9) -> Interval:
        """An interval for the expectation of every cell.

        Args:
            level: The probability that an interval should cover. Default 0.9.

        Returns:
            The lower and the upper ends, each a matrix.
        """
        model, factors, _ = self._fit()
        replicas = self._replicas()
        count = len(jax.tree.leaves(replicas)[0])
        step = max(1, _BLOCK // (count * model.shape[1]))
        ends = []
        for start in range(0, model.shape[0], step):
            block = jnp.arange(start, min(start + step, model.shape[0]))
            again = jax.vmap(model.mean, (0, None))(replicas, block)
            ends.append(self._ends(model.mean(factors, block), again, level))
        return Interval(*np.concatenate(ends, axis=1))

    def trend(self, level: float = 0.9, *, span: float | None = None) -> pd.DataFrame:
        """The sum over rows for each column, e.g. over sites for each year.

        Args:
            level: The probability that an interval should cover. Default 0.9.
            span: Share of the columns that a LOESS curve through the sums looks at. Default: no
                curve. For columns that are points in time.

        Returns:
            One row per column: `total`, and `low` and `high` where there are replicas; with a
            span also `smooth`, `smooth_low` and `smooth_high`.
        """
        model, factors, replicas = self._fit()
        totals = _totals(model, jax.tree.map(lambda leaf: leaf[None], factors))[0]
        again = None if replicas is None else _totals(model, replicas)
        most = model.shape[0] if self.family == "bernoulli" else 1
        table = {"total": totals}
        if again is not None:
            table["low"], table["high"] = most * self._ends(totals / most, again / most, level)
        if span is not None:
            time = np.arange(len(totals))
            curve = local_linear(time, totals, span=span)
            table["smooth"] = curve
            if again is not None:
                curves = local_linear(time, again.T, span=span).T
                table["smooth_low"], table["smooth_high"] = most * self._ends(
                    curve / most, curves / most, level
                )
        return pd.DataFrame(table)

    def score(self, data: FederatedData, split: Split = "test") -> float:
        """The mean log-likelihood of the observations of a split."""
        model, factors, _ = self._fit()
        need_rows(data, split)
        _check_observations(data, model)
        x, y = data.rows_in(split)
        return float(np.mean(model.predictive(factors, jnp.asarray(x)).log_prob(jnp.asarray(y))))

    def _settings(self, data: FederatedData) -> tuple[Settings, list[float]]:
        """The options of all fits, checked against the data; and the ridges to try."""
        self._check(data)
        x = np.asarray(data.rows.x)
        shape = self.shape or (int(x[:, 0].max()) + 1, int(x[:, 1].max()) + 1)
        values = data.rows_in("train").y.astype(float)
        self.offset_ = 0.0 if self.effect_ridge is None else offset_of(self.family, values)
        settings = Settings(
            self.family,
            shape,
            self.offset_,
            self.effect_ridge,
            1.0 if self.dispersion == "auto" else self.dispersion,
            self.rounds,
            self.tol,
            self.restarts,
            self.seed,
        )
        rank = _DISPERSION_RANK if self.rank == "auto" else self.rank
        model = settings.model(min(rank, *shape) if self.rank == "auto" else rank, 1.0)
        _check_observations(data, model)
        scale = float(values.std()) if self.family == "gaussian" else 1.0
        ridges = [factor * scale for factor in RIDGES] if self.ridge == "auto" else [self.ridge]
        if self.family == "negative_binomial" and self.dispersion == "auto":
            rank = min(_DISPERSION_RANK, rank, *shape)
            settings = changed(settings, dispersion=dispersion_of(settings, data, rank, ridges))
        return settings, ridges

    def _check(self, data: FederatedData) -> None:
        if self.rounds < 1 or self.replica_rounds < 1 or not self.tol >= 0 or self.replicas < 0:
            raise ValueError(
                "rounds and replica_rounds must be at least 1, tol and replicas at least 0, got "
                f"{self.rounds}, {self.replica_rounds}, {self.tol:g} and {self.replicas}"
            )
        if self.restarts < 1:
            raise ValueError(f"restarts must be at least 1, got {self.restarts}")
        if self.resampling not in RESAMPLINGS:
            raise ValueError(
                f"resampling must be one of {', '.join(RESAMPLINGS)}, got {self.resampling!r}"
            )
        if self.family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {self.family!r}")
        if "auto" in (self.rank, self.ridge) and not data.counts("validation").any():
            raise ValueError(
                'rank or ridge "auto" is chosen by validation cells, and there are none: give '
                "values, or split the data, e.g. data.split(validation=0.1, test=0.1, seed=0)"
            )
        x = np.asarray(data.rows.x)
        if x.ndim != 2 or x.shape[1] != 2:
            raise ValueError(
                "an observation has two features, the row and the column of its cell; these have "
                f"shape {x.shape[1:]}"
            )

    def _keep(self, settings: Settings, best: Fit, tried: list[Fit]) -> None:
        self.rank_, self.ridge_ = best.rank, best.ridge
        self.n_iter_, self.converged_ = best.rounds, best.converged
        if self.family == "negative_binomial":
            self.dispersion_ = settings.dispersion
        self.row_factors_, self.column_factors_ = (np.asarray(leaf) for leaf in best.server.factors)
        self.selection_ = pd.DataFrame([fit[:6] for fit in tried], columns=list(Fit._fields[:6]))

    def _ends(
        self, estimate: np.ndarray | Array, again: np.ndarray | Array, level: float
    ) -> np.ndarray:
        """Ends of intervals, on the family's own scale."""
        return interval_over_replicas(
            np.asarray(estimate, float),
            np.asarray(again, float),
            level,
            self.resampling,
            _SCALES[self.family],
        )

    def _fit(self) -> _Fitted:
        if not hasattr(self, "_fitted"):
            raise ValueError("this imputer is not fitted yet: call fit(data) first")
        return self._fitted

    def _replicas(self) -> Factors:
        replicas = self._fit().replicas
        if replicas is None:
            raise ValueError("intervals need replicas over observers: set replicas=100 before fit")
        return replicas


def _check_observations(data: FederatedData, model: MatrixModel) -> None:
    """Raise a ValueError that names the observer and the cell of a row that is no observation."""
    x, y = (np.asarray(leaf) for leaf in data.rows)

    def refuse(wrong: np.ndarray, why: str) -> None:
        if wrong.any():
            first = int(np.argmax(wrong))
            observer = data.name_of(int(np.searchsorted(data.bounds[:, 3], first, side="right")))
            raise ValueError(
                f"client {observer!r} has the value {y[first]:g} for the cell {_cell(x[first])}; "
                f"{why}"
            )

    refuse(
        ~np.asarray(is_cell(model.shape, x)),
        f"rows and columns are whole numbers from 0 on, in a matrix of {_size(model.shape)}",
    )
    family = model.family
    refuse(~np.asarray(family.is_value(y)), f"a {family.name} value is {family.values}")


def _totals(model: MatrixModel, replicas: Factors) -> Float[np.ndarray, "replicas columns"]:
    """The sum over rows, one replica after the other: one matrix at a time."""
    everything = jnp.arange(model.shape[0])
    return np.asarray(
        jax.lax.map(lambda factors: jnp.sum(model.mean(factors, everything), axis=0), replicas)
    )


def _cell(x: np.ndarray) -> str:
    return f"({x[0]:g}, {x[1]:g})"


def _size(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]}"
