"""A Gaussian mixture of rows that stay with their owners, fitted like scikit-learn's
`GaussianMixture`.

`fit` runs FedEM on the sufficient statistics of `covey.models.gaussian_mixture`. With its default
options (all rows of all clients, nothing compressed) a round is one step of EM on all rows, so that
from the same start the fit is scikit-learn's, iteration for iteration, where `ridge` is zero or the
covariance tied. Otherwise the ridge is a penalty on the likelihood, which gives small components
more than scikit-learn's `reg_covar` does.

It drives an engine itself, not through `covey.run`: when to stop is decided by the likelihood, that
of the start included.

Example:
    mixture = covey.FederatedGaussianMixture(3, covariance_type="full", seed=0).fit(data)
    labels = mixture.predict(x)
"""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

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


@dataclass
class FederatedGaussianMixture:
    """A Gaussian mixture of the features of all clients' training rows.

    Args:
        n_components: the number of components.
        seed: of everything random.
        covariance_type: "full", "tied", "diag"; or "known", which is `covariance_init` and stays as
            it is.
        rounds: the most rounds, scikit-learn's max_iter.
        tol: stop when a round has changed the mean log-likelihood of a training row by less.
        ridge: the penalty on small covariances; see `covey.models.gaussian_mixture`.
        init: starting means: "kmeans++" among the means of groups of rows that clients share;
            "random", rows drawn from all clients, which publishes them; or the means.
        weights_init: starting weights; equal by default.
        covariance_init: the starting covariance of every component; by default that of all rows, or
            the identity where the means are given.
        smallest_group: the fewest rows whose mean a client shares for "kmeans++".
        batch_size: rows of a client in a round; None is all of them.
        cohort: who takes part in a round; everyone by default.
        channel: what uploads pass through; unchanged by default.
        step_size: of FedEM. None is 1 where every round sees all rows of all clients as they are,
            and 0.1 otherwise.
        decay: the step sizes fall like 1 / round^decay; with minibatches, above 0.5 averages their
            noise out.
        memory_rate: alpha of FedEM; None is 1 / (1 + omega) of the channel.

    Attributes:
        weights_, means_, covariances_: the mixture. covariances_ is one matrix (tied, known), one a
            component, or diagonals.
        converged_: whether `tol` was reached within `rounds`.
        n_iter_: rounds that were made.
        lower_bound_: the mean log-likelihood of a training row as the last round found it, before
            its step.
        history_: a line a round: who took part, bits, `lower_bound`.
    """

    n_components: int
    _: KW_ONLY
    seed: int
    covariance_type: CovarianceType = "full"
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

    def fit(self, data: FederatedData) -> "FederatedGaussianMixture":
        """Fit to the training rows. Returns itself."""
        self._check(data)
        model = self._model(data)
        engine = self._engine(model, data)
        state, lines = engine.start(), list[Line]()
        before, now, moved = -np.inf, _mean_log_likelihood(engine, state), True
        self.converged_ = False
        while not self.converged_ and len(lines) < self.rounds:
            state, (line,) = engine.advance(state, 1)
            lines.append(line | {"lower_bound": now})
            # A round in which nobody took part says nothing about convergence.
            self.converged_ = moved and abs(now - before) < self.tol
            before, now, moved = now, _mean_log_likelihood(engine, state), line["clients"] > 0
        theta: GaussianMixture = state.server.theta
        self.weights_, self.means_, self.covariances_ = (np.asarray(leaf) for leaf in theta)
        self.n_iter_, self.lower_bound_, self.history_ = len(lines), before, pd.DataFrame(lines)
        self._fitted = model, theta
        return self

    def predict_proba(
        self, x: Shaped[np.ndarray | Array, " rows *features"]
    ) -> Float[np.ndarray, "rows components"]:
        """The probability of each component, for each row."""
        model, theta = self._fit()
        return np.asarray(model.predictive(theta, self._numbers(x)).mean)

    def predict(self, x: Shaped[np.ndarray | Array, " rows *features"]) -> Int[np.ndarray, " rows"]:
        """The most probable component of each row."""
        return np.argmax(self.predict_proba(x), axis=1)

    def score_samples(
        self, x: Shaped[np.ndarray | Array, " rows *features"]
    ) -> Float[np.ndarray, " rows"]:
        """The log-likelihood of each row."""
        model, theta = self._fit()
        numbers = self._numbers(x)
        return np.asarray(model.log_likelihood(theta, Rows(numbers, jnp.zeros(len(numbers)))))

    def score(self, x: Shaped[np.ndarray | Array, " rows *features"]) -> float:
        """The mean log-likelihood of a row."""
        return float(np.mean(self.score_samples(x)))

    def _check(self, data: FederatedData) -> None:
        if self.covariance_type not in _COVARIANCES:
            raise ValueError(
                f"covariance_type must be one of {', '.join(_COVARIANCES)}, got {self.covariance_type!r}"
            )
        if isinstance(self.init, str) and self.init not in ("kmeans++", "random"):
            raise ValueError(
                f"init must be 'kmeans++', 'random' or an array of means, got {self.init!r}"
            )
        if self.rounds < 1 or not self.tol >= 0:
            raise ValueError(
                f"rounds must be at least 1 and tol at least 0, got {self.rounds} and {self.tol:g}"
            )
        if np.isnan(data.rows.x).any():
            raise ValueError(
                "these rows have missing features; fill them, e.g. by data.standardised(), or leave those rows out"
            )

    def _model(self, data: FederatedData) -> LatentModel:
        means, covariance = self.init, self.covariance_init
        if isinstance(means, str):
            groups = max(_GROUPS, self.n_components)
            summary = summarise(data, groups=groups, at_least=self.smallest_group, seed=self.seed)
            if means == "kmeans++":
                means = summary.starting_means(self.n_components, seed=self.seed)
            else:
                means = random_rows(data, self.n_components, seed=self.seed)
            if covariance is None and self.covariance_type != "known":
                covariance = summary.covariance + self.ridge * np.eye(means.shape[1])
        return gaussian_mixture(
            components=self.n_components,
            covariance=_COVARIANCES[self.covariance_type],
            ridge=self.ridge,
            weights=self.weights_init,
            means=means,
            start_covariance=covariance,
        )

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
                "this channel is biased, so there is no rate that suits it; give memory_rate, e.g. 0.5"
            )
        start = jax.eval_shape(lambda: model.expected(model.init(root_key(self.seed), data.spec)))
        return 1 / (1 + omega(start))

    def _fit(self) -> tuple[LatentModel, GaussianMixture]:
        if not hasattr(self, "_fitted"):
            raise ValueError("this mixture is not fitted yet: call fit(data) first")
        return self._fitted

    def _numbers(self, x: np.ndarray | Array) -> Array:
        features = self.means_.shape[1]
        if int(np.prod(x.shape[1:])) != features:
            raise ValueError(
                f"rows of {int(np.prod(x.shape[1:]))} features were given to a mixture of {features}"
            )
        return jnp.asarray(x)


def _mean_log_likelihood(engine: Simulation, state: EngineState) -> float:
    return -float(metrics.values(metrics.merge(engine.evaluate(state, "train")))["nll"])
