"""A Gaussian mixture of rows that stay with their owners, fitted like scikit-learn's
`GaussianMixture`.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, Int, Shaped

from covey.algorithms.fedem import fedem
from covey.channel.identity import identity
from covey.core import metrics
from covey.core.channel import Channel
from covey.core.cohort import Scheme
from covey.core.keys import root_key
from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.data.summary import random_rows, summarise
from covey.engines.record import Line
from covey.engines.simulate import EngineState, Simulation
from covey.models.gaussian_mixture import Covariance, GaussianMixture, gaussian_mixture
from covey.models.latent import LatentModel

CovarianceType = Literal["full", "tied", "diag", "known"]
_COVARIANCES: dict[str, Covariance] = {
    "full": "full",
    "tied": "tied",
    "diag": "diagonal",
    "known": "known",
}
_GROUPS = 5  # groups of rows that a client summarises, at least


class _Descent(NamedTuple):
    """One start of EM and its end."""

    model: LatentModel
    theta: GaussianMixture
    lines: list[Line]
    converged: bool
    lower_bound: float


@dataclass
class FederatedGaussianMixture:
    """Gaussian mixture of the features of all clients' training rows.

    `fit` runs FedEM on the sufficient statistics of `covey.models.gaussian_mixture`. With its
    default options (all rows of all clients, nothing compressed) a round is one step of EM on the
    pooled rows, so that from the same start the fit is scikit-learn's, iteration for iteration,
    where `ridge` is zero or the covariance tied. Otherwise the ridge is a penalty on the
    likelihood, which gives small components more than scikit-learn's `reg_covar` does. The fit
    stops by the likelihood.

    Args:
        n_components: Components of the mixture.
        seed: Seed of everything random.
        covariance_type: "full" (default), "tied" or "diag", as in scikit-learn; or "known", which
            is `covariance_init` and stays as it is.
        n_init: Starts of EM, of which the one with the largest likelihood is kept. Default 1; more
            where fits from other seeds differ.
        rounds: The most rounds per start (scikit-learn's max_iter). Default 100.
        tol: A fit stops when a round changes the mean log-likelihood of a training row by less.
            Default 1e-3.
        ridge: Penalty on small covariances. Default 1e-6; see `covey.models.gaussian_mixture`.
        init: Starting means: "kmeans++" (default) among the means of groups of rows that clients
            share; "random" rows drawn from all clients, which publishes them; or the means.
        weights_init: Starting weights. Default: equal.
        covariance_init: Starting covariance of every component. Default: that of all rows, or the
            identity where the means are given.
        smallest_group: The fewest rows whose mean a client shares for "kmeans++". Default 5.
        batch_size: Rows per client and round. Default: all.
        cohort: Scheme of the cohorts. Default: all clients in every round.
        channel: Channel of the uploads. Default: none.
        step_size: Step of FedEM (gamma). Default: 1 where every round sees all rows of all clients
            as they are, and 0.1 otherwise.
        decay: Steps fall like 1 / round^decay. Default 0; with minibatches, above 0.5 averages
            their noise out.
        memory_rate: Rate at which client memories learn (alpha of FedEM). Default:
            1 / (1 + omega) of the channel.

    Attributes:
        weights_: The components' weights.
        means_: The components' means.
        covariances_: One matrix (tied, known), one per component (full), or diagonals (diag).
        converged_: Whether `tol` was reached within `rounds`.
        n_iter_: Rounds of the best start.
        lower_bound_: The mean log-likelihood of a training row as the last round found it, before
            its step.
        history_: One row per round: who took part, bits, `lower_bound`.

    Example:
        >>> import numpy as np, covey
        >>> rng = np.random.default_rng(0)
        >>> rows = {"a": rng.normal(-3, 1, (40, 1)), "b": rng.normal(3, 1, (60, 1))}
        >>> mixture = covey.FederatedGaussianMixture(2, seed=0).fit(rows)
        >>> sorted(round(float(weight), 1) for weight in mixture.weights_)
        [0.4, 0.6]

    Reference: Dieuleveut, Fort, Moulines and Robin (2021), Federated expectation maximization with
    heterogeneity mitigation and variance reduction; k-means++ is that of Arthur and Vassilvitskii
    (2007).
    """

    n_components: int
    _: KW_ONLY
    seed: int
    covariance_type: CovarianceType = "full"
    n_init: int = 1
    rounds: int = 100
    tol: float = 1e-3
    ridge: float = 1e-6
    init: (
        Literal["kmeans++", "random"] | list[list[float]] | Float[np.ndarray, "components features"]
    ) = "kmeans++"
    weights_init: list[float] | Float[np.ndarray, " components"] | None = None
    covariance_init: list[list[float]] | Float[np.ndarray, "features features"] | None = None
    smallest_group: int = 5
    batch_size: int | None = None
    cohort: Scheme | None = None
    channel: Channel | None = None
    step_size: float | None = None
    decay: float = 0.0
    memory_rate: float | None = None

    def fit(
        self, data: FederatedData | Mapping[str, np.ndarray | pd.DataFrame]
    ) -> "FederatedGaussianMixture":
        """Fit to the training rows.

        Args:
            data: The clients' data, the outcomes of which are not used; or simply each client's
                rows of features by its name.

        Returns:
            The mixture itself.
        """
        data = data if isinstance(data, FederatedData) else _without_outcome(data)
        self._check(data)
        first, *others = self._models(data)
        engine = self._engine(first, data)
        best = self._descend(engine, first)
        for model in others:
            other = self._descend(engine, model)
            best = other if other.lower_bound > best.lower_bound else best
        self.weights_, self.means_, self.covariances_ = (np.asarray(leaf) for leaf in best.theta)
        self.converged_, self.lower_bound_ = best.converged, best.lower_bound
        self.n_iter_, self.history_ = len(best.lines), pd.DataFrame(best.lines)
        self._fitted = best.model, best.theta
        return self

    def predict_proba(
        self, x: Shaped[np.ndarray | Array, " rows *features"]
    ) -> Float[np.ndarray, "rows components"]:
        """The probability of each component, one row per row of x."""
        model, theta = self._fit()
        return np.asarray(model.predictive(theta, self._features(x)).mean)

    def predict(self, x: Shaped[np.ndarray | Array, " rows *features"]) -> Int[np.ndarray, " rows"]:
        """The most probable component of each row."""
        return np.argmax(self.predict_proba(x), axis=1)

    def score_samples(
        self, x: Shaped[np.ndarray | Array, " rows *features"]
    ) -> Float[np.ndarray, " rows"]:
        """The log-likelihood of each row."""
        model, theta = self._fit()
        rows = self._features(x)
        return np.asarray(model.log_likelihood(theta, Rows(rows, jnp.zeros(len(rows)))))

    def score(self, x: Shaped[np.ndarray | Array, " rows *features"]) -> float:
        """The mean log-likelihood of a row."""
        return float(np.mean(self.score_samples(x)))

    def _check(self, data: FederatedData) -> None:
        if self.covariance_type not in _COVARIANCES:
            raise ValueError(
                f"covariance_type must be one of {', '.join(_COVARIANCES)}, "
                f"got {self.covariance_type!r}"
            )
        if isinstance(self.init, str) and self.init not in ("kmeans++", "random"):
            raise ValueError(
                f"init must be 'kmeans++', 'random' or an array of means, got {self.init!r}"
            )
        if self.rounds < 1 or not self.tol >= 0:
            raise ValueError(
                f"rounds must be at least 1 and tol at least 0, got {self.rounds} and {self.tol:g}"
            )
        if self.n_init < 1 or (self.n_init > 1 and not isinstance(self.init, str)):
            raise ValueError(
                f"n_init must be at least 1, and 1 where the means are given as init, as all "
                f"starts would be the same; got {self.n_init}"
            )
        if np.isnan(data.rows.x).any():
            raise ValueError(
                "these rows have missing features; fill them, e.g. by data.standardised(), or "
                "leave those rows out"
            )

    def _models(self, data: FederatedData) -> list[LatentModel]:
        """The model at each of the starts."""
        init, covariance = self.init, self.covariance_init
        if not isinstance(init, str):
            means = [init]
        else:
            groups = max(_GROUPS, self.n_components)
            summary = summarise(data, groups=groups, at_least=self.smallest_group, seed=self.seed)
            seeds = [self.seed, *(_seed(self.seed, start) for start in range(1, self.n_init))]
            if init == "kmeans++":
                means = [summary.starting_means(self.n_components, seed=seed) for seed in seeds]
            else:
                means = [random_rows(data, self.n_components, seed=seed) for seed in seeds]
            if covariance is None and self.covariance_type != "known":
                covariance = summary.covariance + self.ridge * np.eye(len(summary.mean))
        return [
            gaussian_mixture(
                components=self.n_components,
                covariance=_COVARIANCES[self.covariance_type],
                ridge=self.ridge,
                weights=self.weights_init,
                means=each,
                start_covariance=covariance,
            )
            for each in means
        ]

    def _descend(self, engine: Simulation, model: LatentModel) -> _Descent:
        """EM from the start of the model, with the engine of a model that differs in its start
        only.
        """
        theta = model.init(root_key(self.seed), engine.data.spec)
        state = engine.start()
        server = state.server._replace(theta=theta, statistics=model.expected(theta))
        state, lines = state._replace(server=server), list[Line]()
        before, now, moved = -np.inf, _mean_log_likelihood(engine, state), True
        converged = False
        while not converged and len(lines) < self.rounds:
            state, (line,) = engine.advance(state, 1)
            lines.append(line | {"lower_bound": now})
            # A round in which nobody took part says nothing about convergence.
            converged = moved and abs(now - before) < self.tol
            before, now, moved = now, _mean_log_likelihood(engine, state), line["clients"] > 0
        return _Descent(model, state.server.theta, lines, converged, before)

    def _engine(self, model: LatentModel, data: FederatedData) -> Simulation:
        exact = self.batch_size is None and self.cohort is None and self.channel is None
        method = fedem(
            model,
            step_size=(1.0 if exact else 0.1) if self.step_size is None else self.step_size,
            decay=self.decay,
            memory_rate=self._memory_rate(model, data)
            if self.memory_rate is None
            else self.memory_rate,
            batch_size=self.batch_size,
        )
        return Simulation(method, data, seed=self.seed, cohort=self.cohort, channel=self.channel)

    def _memory_rate(self, model: LatentModel, data: FederatedData) -> float:
        omega = (self.channel or identity()).omega
        if omega is None:
            raise ValueError(
                "this channel is biased, so that no memory_rate follows from it; give memory_rate, "
                "e.g. 0.1"
            )
        start = jax.eval_shape(lambda: model.expected(model.init(root_key(self.seed), data.spec)))
        return 1 / (1 + omega(start))

    def _fit(self) -> tuple[LatentModel, GaussianMixture]:
        if not hasattr(self, "_fitted"):
            raise ValueError("this mixture is not fitted yet: call fit(data) first")
        return self._fitted

    def _features(self, x: np.ndarray | Array) -> Array:
        features = self.means_.shape[1]
        if int(np.prod(x.shape[1:])) != features:
            raise ValueError(
                f"rows of {int(np.prod(x.shape[1:]))} features were given to a mixture of "
                f"{features}"
            )
        return jnp.asarray(x)


def _mean_log_likelihood(engine: Simulation, state: EngineState) -> float:
    return -float(metrics.values(metrics.merge(engine.evaluate(state, "train")))["nll"])


def _without_outcome(rows: Mapping[str, np.ndarray | pd.DataFrame]) -> FederatedData:
    """Rows of features by client, with outcomes that are not used."""
    clients = {name: np.asarray(x, float) for name, x in rows.items()}
    return FederatedData.from_clients({name: (x, np.zeros(len(x))) for name, x in clients.items()})


def _seed(seed: int, start: int) -> int:
    """The seed of a further start."""
    return int(np.random.SeedSequence([seed, start]).generate_state(1)[0])
