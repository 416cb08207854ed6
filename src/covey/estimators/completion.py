"""Fits of a low-rank matrix to pooled cells by FedMissEM: descents, cold starts and ranks and
ridges that are chosen.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from covey.algorithms.fedmissem import State, fedmissem
from covey.core import cohort, metrics
from covey.data.federated import FederatedData, Split
from covey.engines.simulate import EngineState, Simulation
from covey.estimators.resampling import Resampling, observer_weights
from covey.models.cell_families import FamilyName
from covey.models.matrix_completion import MatrixModel, matrix_completion
from covey.models.matrix_steps import Factors

PATIENCE = 3  # ridges in a row that are worse than the best, before a path ends
MOST_DISPERSION = 1e3  # counts that vary no more than Poisson ones
_CHECK = 10  # rounds between two looks at the objective
_SPREAD = 0.1  # standard deviation of a cold start


class Fit(NamedTuple):
    """A rank and a ridge, and where the best of their descents ended."""

    rank: int
    ridge: float
    rounds: int
    train_loss: float
    validation_loss: float
    objective: float
    converged: bool
    model: MatrixModel
    server: State


@dataclass(frozen=True)
class Settings:
    """Settings that all fits of an imputer share.

    Attributes:
        family: Of an observation.
        shape: Of the matrix.
        offset: The mean of all cells as a parameter.
        effect_ridge: The penalty on effects, None without effects.
        dispersion: Of negative binomial cells.
        rounds: The most rounds of a descent.
        tol: A descent ends when ten rounds lower the penalised loss of an observation by less.
        restarts: Cold starts of the last fit.
        seed: Of everything random.
    """

    family: FamilyName
    shape: tuple[int, int]
    offset: float
    effect_ridge: float | None
    dispersion: float
    rounds: int
    tol: float
    restarts: int
    seed: int

    def model(self, rank: int, ridge: float) -> MatrixModel:
        """The model of a rank."""
        return matrix_completion(
            rows=self.shape[0],
            columns=self.shape[1],
            rank=rank,
            family=self.family,
            ridge=ridge,
            effect_ridge=self.effect_ridge,
            offset=self.offset,
            curvature="observed",
            dispersion=self.dispersion,
            spread=_SPREAD,
        )

    def engine(
        self, model: MatrixModel, data: FederatedData, plans: cohort.Scheme | None = None
    ) -> Simulation:
        """Everyone in every round, or with the weights of plans; clients have no state."""
        return Simulation(fedmissem(model, memory_rate=0.0), data, seed=self.seed, cohort=plans)


def path(settings: Settings, data: FederatedData, rank: int, ridges: list[float]) -> list[Fit]:
    """Fits of one rank, ridge by ridge from large to small, until `PATIENCE` in a row have been
    worse than the best.

    Each ridge is fitted from where the last one ended and from a cold start, and the better by the
    penalised objective is kept: a path alone may end in a worse optimum. As zero is a saddle, a
    little of the start is added at each ridge.
    """
    model = settings.model(rank, ridges[0])
    engine = settings.engine(model, data)
    first, fits = engine.start(), list[Fit]()
    cold = first.server.factors
    for ridge in ridges if rank else ridges[:1]:  # without factors the ridge has nothing to draw in
        starts = [cold]
        if fits:
            starts.append(jax.tree.map(jnp.add, fits[-1].server.factors, cold))
        fit = min(
            (_descended(settings, engine, model, rank, ridge, start) for start in starts),
            key=lambda fit: fit.objective,
        )
        fits.append(fit._replace(validation_loss=_validation_loss(engine, fit)))
        losses = [fit.validation_loss for fit in fits]
        if len(fits) - int(np.argmin(losses)) > PATIENCE:
            break
    return fits


def best_fit(
    settings: Settings, data: FederatedData, rank: int, ridge: float, warm: Factors | None = None
) -> Fit:
    """The fit of a rank and a ridge: the best by the penalised objective of `restarts` cold starts
    and of a warm one, where that is given. Without factors there is only one optimum.
    """
    model = settings.model(rank, ridge)
    engine = settings.engine(model, data)
    starts = cold_starts(engine, model, settings.restarts if rank else 1)
    starts += [] if warm is None else [warm]
    fits = [_descended(settings, engine, model, rank, ridge, start) for start in starts]
    best = min(fits, key=lambda fit: fit.objective)
    return best._replace(validation_loss=_validation_loss(engine, best))


def cold_starts(engine: Simulation, model: MatrixModel, count: int) -> list[Factors]:
    """The engine's own start, and others that are drawn independently."""
    own = engine.start().server.factors
    keys = [jax.random.fold_in(engine.setup.root, index) for index in range(1, count)]
    return [own, *(model.init(key, engine.data.spec) for key in keys)][:count]


def replicas_of(
    settings: Settings,
    data: FederatedData,
    fit: Fit,
    *,
    resampling: Resampling,
    replicas: int,
    rounds: int,
) -> Factors:
    """The factors of all replicas, stacked. One program serves them all: a plan of weights for
    each, one after the other, from where the fit ended.
    """
    weights = observer_weights(resampling, replicas, data.clients, settings.seed)
    engine = settings.engine(fit.model, data, cohort.given(weights, rounds=rounds))
    state, found = engine.start(), list[Factors]()
    for _ in weights:
        state, _lines = engine.advance(state._replace(server=fit.server), rounds)
        found.append(state.server.factors)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *found)


def dispersion_of(settings: Settings, data: FederatedData, rank: int, ridges: list[float]) -> float:
    """The dispersion k of counts by moments: sum mu^2 / sum ((y - mu)^2 - mu), with mu of the
    Poisson fit that predicts validation cells best.
    """
    fits = path(replace(settings, family="poisson"), data, rank, ridges)
    best = min(fits, key=lambda fit: fit.validation_loss) if len(fits) > 1 else fits[0]
    x, y = data.rows_in("train")
    mean = np.asarray(best.model.predictive(best.server.factors, jnp.asarray(x)).mean, float)
    excess = float(np.sum((np.asarray(y, float) - mean) ** 2 - mean))
    square = float(np.sum(mean**2))
    return square / excess if excess * MOST_DISPERSION > square else MOST_DISPERSION


def with_validation(data: FederatedData) -> FederatedData:
    """Training and validation cells as training cells."""
    starts, _, tests, ends = data.bounds.T
    return replace(data, bounds=np.stack([starts, tests, tests, ends], axis=1))


def offset_of(family: FamilyName, values: Float[np.ndarray, " cells"]) -> float:
    """The parameter of the mean, a sum that observers share; one that is not finite is half an
    event away.
    """
    mean, little = float(values.mean()), 0.5 / len(values)
    if family == "gaussian":
        return mean
    if family == "bernoulli":
        mean = min(max(mean, little), 1 - little)
        return float(np.log(mean / (1 - mean)))
    return float(np.log(max(mean, little)))


def _descended(
    settings: Settings,
    engine: Simulation,
    model: MatrixModel,
    rank: int,
    ridge: float,
    start: Factors,
) -> Fit:
    """Rounds until the penalised loss of an observation stops falling."""
    state = engine.start()
    server = state.server._replace(factors=start, ridge=jnp.asarray(ridge, float))
    state = state._replace(server=server)
    before, rounds, observations = np.inf, 0, int(engine.data.counts("train").sum())
    while True:
        state, lines = engine.advance(state, min(_CHECK, settings.rounds - rounds))
        rounds += len(lines)
        loss = _loss(engine, state, "train")
        penalty = float(model.penalty(state.server.factors, state.server.ridge))
        objective = loss + penalty / observations
        converged = before - objective < settings.tol
        if converged or rounds >= settings.rounds:
            break
        before = objective
    return Fit(rank, ridge, rounds, loss, np.nan, objective, converged, model, state.server)


def _validation_loss(engine: Simulation, fit: Fit) -> float:
    if not engine.data.counts("validation").any():
        return np.nan
    return _loss(engine, engine.start()._replace(server=fit.server), "validation")


def _loss(engine: Simulation, state: EngineState, split: Split) -> float:
    return float(metrics.values(metrics.merge(engine.evaluate(state, split)))["nll"])
