"""The cells of a matrix that nobody saw, from those that observers saw: counts by site and month,
ratings, presence.

`fit` runs FedMissEM on `covey.models.matrix_completion` with everyone in every round and nothing
lost, where it is the penalised maximum likelihood of all cells pooled; for uploads that are
compressed or lost run `covey.fedmissem` itself. An observation is a row of data, x = (row, column)
counted from 0, and its value the outcome. Observers send sums, never cells.

Rank and ridge may be chosen by the likelihood of validation cells; the fit is then made again with
those cells too. Ridges are walked from large to small, each from where the last one ended; as zero
is a saddle, a little of the start is added at each.

Uncertainty is that of observers, drawn anew: in a replica each has a random weight of mean one, and
the fit is made again from where it ended. Weights are exponential, scaled to their mean (the
Bayesian bootstrap, Rubin 1981), or the times drawn with replacement ("multinomial"), which takes
all cells of a site away where its only observer is not drawn. Intervals are of expectations, not of
counts to come, and know nothing of what the ridge has drawn in.

Example:
    imputer = covey.FederatedImputer(seed=0, family="poisson",
    replicas=100).fit(data.split(validation=0.1, test=0.1, seed=0)) counts, band =
    imputer.transform(), imputer.trend(level=0.9, span=0.5)
"""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, Real

from covey.algorithms.fedmissem import State, fedmissem
from covey.core import cohort, metrics
from covey.data.federated import FederatedData, Split
from covey.engines.rows import need_rows
from covey.engines.simulate import EngineState, Simulation
from covey.inference.smoothing import local_linear
from covey.models.cell_families import FAMILIES, FamilyName
from covey.models.matrix_completion import MatrixModel, matrix_completion
from covey.models.matrix_steps import Factors, is_cell

Resampling = Literal["exponential", "multinomial"]
RANKS = (0, 1, 2, 3)
RIDGES = (100.0, 50.0, 20.0, 10.0, 5.0, 2.0, 1.0)  # of Gaussian cells, times their deviation
_CHECK = 10  # rounds between two looks at the objective
_SPREAD = 0.1  # deviation of the start
_BLOCK = 1 << 23  # cells of all replicas at once


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
    """A matrix of low rank, completed.

    Args:
        rank: of what rows and columns have together, beside their effects; "auto" chooses among 0
            (with effects), 1, 2, 3.
        seed: of everything random.
        family: of an observation, "gaussian" (with variance 1), "bernoulli" or "poisson".
        ridge: the penalty on the factors; "auto" chooses. Gaussian cells are on the scale of their
            noise.
        effect_ridge: the penalty on effects of rows and columns around the mean; None leaves mean
            and effects out.
        shape: of the matrix; by default as large as the observed cells ask for.
        rounds: the most rounds of a fit.
        tol: a fit ends when ten rounds have lowered the penalised loss of an observation by less.
        replicas: of the bootstrap; 0 is without intervals.
        replica_rounds: of each replica, from where the fit ended.
        resampling: weights of observers in a replica.

    Attributes:
        rank_, ridge_, offset_: as chosen, and the mean as a natural parameter.
        row_factors_, column_factors_: U and V; the effect first, where there are effects.
        converged_, n_iter_: whether the last fit reached `tol` within `rounds`, and the rounds that
            it took.
        selection_: a line for each rank and ridge that was tried: rounds, loss of a training and of
            a validation cell.
    """

    rank: int | Literal["auto"] = "auto"
    _: KW_ONLY
    seed: int
    family: FamilyName = "gaussian"
    ridge: float | Literal["auto"] = "auto"
    effect_ridge: float | None = 0.3
    shape: tuple[int, int] | None = None
    rounds: int = 500
    tol: float = 1e-5
    replicas: int = 0
    replica_rounds: int = 40
    resampling: Resampling = "exponential"

    def fit(self, data: FederatedData) -> "FederatedImputer":
        """Fit to the training cells; "auto" chooses by validation cells, then fits to both. Returns
        itself.
        """
        shape = self._check(data)
        values = data.rows_in("train").y.astype(float)
        self.offset_ = 0.0 if self.effect_ridge is None else _offset(self.family, values)
        scale = float(values.std()) if self.family == "gaussian" else 1.0
        ridges = [factor * scale for factor in RIDGES] if self.ridge == "auto" else [self.ridge]
        ranks = RANKS[self.effect_ridge is None :] if self.rank == "auto" else [self.rank]
        tried = [fit for rank in ranks for fit in self._path(data, shape, rank, ridges)]
        best = min(tried, key=lambda fit: fit.validation_loss)
        if "auto" in (self.rank, self.ridge):
            data = _with_validation(data)
            best = self._finished(best, data)
        self.rank_, self.ridge_, self.n_iter_, self.converged_ = (
            best.rank,
            best.ridge,
            best.rounds,
            best.converged,
        )
        self.row_factors_, self.column_factors_ = (np.asarray(leaf) for leaf in best.server.factors)
        self.selection_ = pd.DataFrame([fit[:5] for fit in tried], columns=list(_Fit._fields[:5]))
        replicas = self._bootstrap(best, data) if self.replicas else None
        self._fitted = _Fitted(best.model, best.server.factors, replicas)
        return self

    def predict(self, x: Real[np.ndarray | Array, "cells 2"]) -> Float[np.ndarray, " cells"]:
        """The expectations of cells (row, column); of Bernoulli cells, the probability of 1."""
        fitted = self._fit()
        outside = ~np.asarray(is_cell(fitted.model.shape, np.asarray(x)))
        if outside.any():
            raise ValueError(
                f"{_cell(np.asarray(x)[outside][0])} is no cell of a matrix of {_size(fitted.model.shape)}"
            )
        mean = np.asarray(fitted.model.predictive(fitted.factors, jnp.asarray(x)).mean)
        return mean[:, 1] if self.family == "bernoulli" else mean

    def transform(self, data: FederatedData | None = None) -> Float[np.ndarray, "rows columns"]:
        """The expectation of every cell, which the server can tell; with data, their mean in the
        cells that were observed.

        The second is for who may see the cells: an observer's own data fill its own matrix.
        """
        model, factors, _ = self._fit()
        matrix = np.array(model.mean(factors, jnp.arange(model.shape[0])), float)
        if data is not None:
            _check_observations(data, model.shape, self.family)
            x, y = data.rows
            place, times = np.unique(
                np.ravel_multi_index(tuple(np.asarray(x, int).T), model.shape), return_inverse=True
            )
            matrix.ravel()[place] = np.bincount(times, y) / np.bincount(times)
        return matrix

    def interval(self, level: float = 0.9) -> Interval:
        """An interval for the expectation of every cell: quantiles of the replicas."""
        model, replicas = self._fit().model, self._replicas()
        step = max(1, _BLOCK // (self.replicas * model.shape[1]))
        blocks = [
            np.arange(start, min(start + step, model.shape[0]))
            for start in range(0, model.shape[0], step)
        ]
        ends = [
            np.quantile(_means(model, replicas, block), _tails(level), axis=0) for block in blocks
        ]
        return Interval(*np.concatenate(ends, axis=1))

    def trend(self, level: float = 0.9, *, span: float | None = None) -> pd.DataFrame:
        """The sum over rows for each column, e.g. sites by year: `total`, `low` and `high` where
        there are replicas.

        With `span`, columns are points in time and a curve is drawn through them, `smooth`, with a
        band of its own.
        """
        model, factors, replicas = self._fit()
        totals = _totals(model, jax.tree.map(lambda leaf: leaf[None], factors))[0]
        again = None if replicas is None else _totals(model, replicas)
        table = {"total": totals}
        if again is not None:
            table["low"], table["high"] = np.quantile(again, _tails(level), axis=0)
        if span is not None:
            time = np.arange(len(totals))
            table["smooth"] = local_linear(time, totals, span=span)
            if again is not None:
                curves = local_linear(time, again.T, span=span)
                table["smooth_low"], table["smooth_high"] = np.quantile(
                    curves, _tails(level), axis=1
                )
        return pd.DataFrame(table)

    def score(self, data: FederatedData, split: Split = "test") -> float:
        """The mean log-likelihood of the observations of a split."""
        model, factors, _ = self._fit()
        need_rows(data, split)
        _check_observations(data, model.shape, self.family)
        x, y = data.rows_in(split)
        return float(np.mean(model.predictive(factors, jnp.asarray(x)).log_prob(jnp.asarray(y))))

    def _check(self, data: FederatedData) -> tuple[int, int]:
        if self.rounds < 1 or self.replica_rounds < 1 or not self.tol >= 0 or self.replicas < 0:
            raise ValueError(
                f"rounds and replica_rounds must be at least 1, tol and replicas at least 0, got {self.rounds}, "
                f"{self.replica_rounds}, {self.tol:g} and {self.replicas}"
            )
        if self.resampling not in ("exponential", "multinomial"):
            raise ValueError(
                f"resampling must be 'exponential' or 'multinomial', got {self.resampling!r}"
            )
        if self.family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(FAMILIES)}, got {self.family!r}")
        if "auto" in (self.rank, self.ridge) and not data.counts("validation").any():
            raise ValueError(
                'rank or ridge "auto" is chosen by validation cells, and there are none: give numbers, or split the data, '
                "e.g. data.split(validation=0.1, test=0.1, seed=0)"
            )
        x = np.asarray(data.rows.x)
        if x.ndim != 2 or x.shape[1] != 2:
            raise ValueError(
                f"an observation has two features, the row and the column of its cell; these have shape {x.shape[1:]}"
            )
        shape = (
            (int(x[:, 0].max()) + 1, int(x[:, 1].max()) + 1) if self.shape is None else self.shape
        )
        _check_observations(data, shape, self.family)
        return shape

    def _path(
        self, data: FederatedData, shape: tuple[int, int], rank: int, ridges: list[float]
    ) -> "list[_Fit]":
        """Fits of one rank, ridge by ridge, until three in a row have been worse than the best."""
        model = matrix_completion(
            rows=shape[0],
            columns=shape[1],
            rank=rank,
            family=self.family,
            ridge=ridges[0],
            effect_ridge=self.effect_ridge,
            offset=self.offset_,
            curvature="observed",
            spread=_SPREAD,
        )
        engine = self._engine(model, data)
        state, fits = engine.start(), list[_Fit]()
        start = state.server.factors
        for ridge in (
            ridges if rank else ridges[:1]
        ):  # without factors there is nothing that the ridge is about
            factors = jax.tree.map(jnp.add, state.server.factors, start) if fits else start
            state = state._replace(
                server=state.server._replace(factors=factors, ridge=jnp.asarray(ridge, float))
            )
            state, rounds, loss, converged = self._descend(model, engine, state)
            held_out = (
                _loss(engine, state, "validation") if data.counts("validation").any() else np.nan
            )
            fits.append(_Fit(rank, ridge, rounds, loss, held_out, converged, model, state.server))
            losses = [fit.validation_loss for fit in fits]
            if len(fits) - int(np.argmin(losses)) > 3:
                break
        return fits

    def _finished(self, best: "_Fit", data: FederatedData) -> "_Fit":
        """The fit that was chosen, gone on with on other cells."""
        engine = self._engine(best.model, data)
        state, rounds, loss, converged = self._descend(
            best.model, engine, engine.start()._replace(server=best.server)
        )
        return best._replace(
            rounds=rounds, train_loss=loss, converged=converged, server=state.server
        )

    def _engine(
        self, model: MatrixModel, data: FederatedData, plans: cohort.Scheme | None = None
    ) -> Simulation:
        return Simulation(fedmissem(model, memory_rate=0.0), data, seed=self.seed, cohort=plans)

    def _descend(
        self, model: MatrixModel, engine: Simulation, state: EngineState
    ) -> tuple[EngineState, int, float, bool]:
        """Rounds until the penalised loss of an observation stands still: state, rounds, loss
        without penalty, and whether.
        """
        before, rounds, observations = np.inf, 0, int(engine.data.counts("train").sum())
        while True:
            state, lines = engine.advance(state, min(_CHECK, self.rounds - rounds))
            rounds += len(lines)
            loss = _loss(engine, state, "train")
            now = (
                loss + float(model.penalty(state.server.factors, state.server.ridge)) / observations
            )
            if before - now < self.tol or rounds >= self.rounds:
                return state, rounds, loss, before - now < self.tol
            before = now

    def _bootstrap(self, best: "_Fit", data: FederatedData) -> Factors:
        """The factors of all replicas, stacked. One program serves them all: a plan of weights for
        each, one after the other.
        """
        generator, size = np.random.default_rng(self.seed), (self.replicas, data.clients)
        if self.resampling == "multinomial":
            weights = generator.multinomial(
                data.clients, np.full(data.clients, 1 / data.clients), self.replicas
            )
        else:
            weights = generator.exponential(size=size)
            weights *= data.clients / weights.sum(axis=1, keepdims=True)
        plans = cohort.given(weights, rounds=self.replica_rounds)
        engine = self._engine(best.model, data, plans)
        state, found = engine.start(), list[Factors]()
        for _ in range(self.replicas):
            state, _lines = engine.advance(state._replace(server=best.server), self.replica_rounds)
            found.append(state.server.factors)
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)

    def _fit(self) -> _Fitted:
        if not hasattr(self, "_fitted"):
            raise ValueError("this imputer is not fitted yet: call fit(data) first")
        return self._fitted

    def _replicas(self) -> Factors:
        replicas = self._fit().replicas
        if replicas is None:
            raise ValueError(
                "intervals come from a bootstrap over observers: set replicas, e.g. 200, before fit"
            )
        return replicas


class _Fit(NamedTuple):
    """A rank and a ridge, and where their descent ended."""

    rank: int
    ridge: float
    rounds: int
    train_loss: float
    validation_loss: float
    converged: bool
    model: MatrixModel
    server: State


def _with_validation(data: FederatedData) -> FederatedData:
    """Training and validation cells as training cells."""
    starts, _, tests, ends = data.bounds.T
    return replace(data, bounds=np.stack([starts, tests, tests, ends], axis=1))


def _check_observations(data: FederatedData, shape: tuple[int, int], family: FamilyName) -> None:
    """A ValueError that names the observer and the cell of an observation that is none."""
    x, y = (np.asarray(leaf) for leaf in data.rows)

    def refuse(wrong: np.ndarray, why: str) -> None:
        if wrong.any():
            first = int(np.argmax(wrong))
            observer = data.name_of(int(np.searchsorted(data.bounds[:, 3], first, side="right")))
            raise ValueError(
                f"client {observer!r} has the value {y[first]:g} for the cell {_cell(x[first])}; {why}"
            )

    refuse(
        ~np.asarray(is_cell(shape, x)),
        f"rows and columns are whole numbers from 0 on, in a matrix of {_size(shape)}",
    )
    values = {
        "gaussian": "any number",
        "bernoulli": "0 or 1",
        "poisson": "a whole number of at least 0",
    }
    refuse(~np.asarray(FAMILIES[family].is_value(y)), f"a {family} value is {values[family]}")


def _offset(family: FamilyName, values: Float[np.ndarray, " cells"]) -> float:
    """The natural parameter of the mean, a sum that observers share; one that is not finite is half
    an event away.
    """
    mean, little = float(values.mean()), 0.5 / len(values)
    if family == "gaussian":
        return mean
    if family == "poisson":
        return float(np.log(max(mean, little)))
    mean = min(max(mean, little), 1 - little)
    return float(np.log(mean / (1 - mean)))


def _loss(engine: Simulation, state: EngineState, split: Split) -> float:
    return float(metrics.values(metrics.merge(engine.evaluate(state, split)))["nll"])


def _means(
    model: MatrixModel, replicas: Factors, rows: np.ndarray
) -> Float[np.ndarray, "replicas some columns"]:
    return np.asarray(jax.vmap(model.mean, (0, None))(replicas, jnp.asarray(rows)))


def _totals(model: MatrixModel, replicas: Factors) -> Float[np.ndarray, "replicas columns"]:
    """The sum over rows, one replica after the other: a matrix at a time."""
    everything = jnp.arange(model.shape[0])
    return np.asarray(
        jax.lax.map(lambda factors: jnp.sum(model.mean(factors, everything), axis=0), replicas)
    )


def _tails(level: float) -> tuple[float, float]:
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level:g}")
    return (1 - level) / 2, (1 + level) / 2


def _cell(x: np.ndarray) -> str:
    return f"({x[0]:g}, {x[1]:g})"


def _size(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]}"
