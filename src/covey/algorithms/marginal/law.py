"""The distribution of the parameters of a marginal likelihood: estimates, errors, draws."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.tree_util import Partial
from jaxtyping import Array, Float, Key

from covey.algorithms.marginal.client import LeftOut
from covey.algorithms.marginal.parameters import POSITIVE
from covey.kernels.pareto_smoothing import Weighted, systematic

_ONE = 1 - 1e-5  # a correlation that counts as 1: it has no standard error


class Comparison(NamedTuple):
    """A likelihood-ratio test: its statistic, degrees of freedom and p-value."""

    statistic: float
    degrees_of_freedom: int
    p_value: float


class LeaveOneOut(NamedTuple):
    """Predictions of each client's rows from those of all others.

    Attributes:
        log_density: The sum over clients of the log predictive density of their rows.
        se: Its standard error.
        unreliable: Clients whose weights are not reliable (k-hat above 0.7): a client that tells
            much about a parameter alone.
    """

    log_density: float
    se: float
    unreliable: int


class Law(NamedTuple):
    """The distribution of the parameters of a marginal likelihood.

    Attributes:
        estimate: "ml", "reml" or "posterior".
        point: The maximum, flattened.
        spread: S, with S S' the inverse of the negative Hessian there.
        describe: (flattened parameters) -> the parameters as users know them.
        names: Names of the described values.
        unknown: Names of described values that the data do not determine.
        zero: Names of deviations of effects that are estimated as 0.
        log_likelihood: The marginal log-likelihood at the maximum; that of REML for "reml".
        parameters: Number of parameters.
        rows: Number of training rows.
        settled: Whether the maximum was found.
        separated: Coefficients that run away because the likelihood has no maximum.
        tied: Names of deviations of effects that are estimated as depending on others.
        infinite: Names of shapes that are estimated as infinite.
        sample: The weighted points of the posterior; None for "ml" and "reml".
        ask_left_out: (points) -> sums over clients for `leave_one_client_out`.
    """

    estimate: str
    point: Float[np.ndarray, " k"]
    spread: Float[np.ndarray, "k k"]
    describe: Callable[[Float[Array, " k"]], dict[str, Array]]
    names: tuple[str, ...]
    unknown: tuple[str, ...]
    zero: tuple[str, ...]
    log_likelihood: float
    parameters: int
    rows: int
    settled: bool
    separated: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    infinite: tuple[str, ...] = ()
    sample: Weighted | None = None
    ask_left_out: Callable[[Float[np.ndarray, "points k"]], LeftOut] | None = None

    def __repr__(self) -> str:
        return (
            f"Law({self.estimate}, {self.parameters} parameters, "
            f"log-likelihood {self.log_likelihood:.2f})"
        )

    @property
    def aic(self) -> float:
        """Akaike's information criterion, -2 log-likelihood + 2 parameters."""
        return 2 * self.parameters - 2 * self.log_likelihood

    @property
    def bic(self) -> float:
        """The Bayesian information criterion, -2 log-likelihood + log(rows) parameters."""
        return float(np.log(self.rows) * self.parameters - 2 * self.log_likelihood)

    @property
    def k_hat(self) -> float | None:
        """k-hat of the weights of the posterior's points, reliable up to 0.7; None without any."""
        return None if self.sample is None else self.sample.k_hat

    @property
    def effective_draws(self) -> float | None:
        """Effective sample size of the posterior's points; None without any."""
        return None if self.sample is None else self.sample.effective

    def compare(self, smaller: "Law") -> Comparison:
        """The likelihood-ratio test of a smaller model within this one.

        Twice the difference of the log-likelihoods is compared with a chi-squared distribution.
        Where the smaller model lacks a deviation of effects, which is then at the boundary 0, the
        p-value is too large: about twice the right one for a single deviation.

        Args:
            smaller: The law of the smaller model, from a fit to the same rows.

        Returns:
            The statistic, its degrees of freedom and the p-value.
        """
        from scipy.stats import chi2

        if "posterior" in (self.estimate, smaller.estimate) or self.estimate != smaller.estimate:
            raise ValueError(
                f"marginal: models are compared by two fits with estimate='ml' or two with 'reml', "
                f"these are {self.estimate!r} and {smaller.estimate!r}"
            )
        if self.rows != smaller.rows:
            raise ValueError(
                f"marginal: models are compared on the same rows, these were fitted to {self.rows} "
                f"and {smaller.rows}"
            )
        if self.estimate == "reml" and self._coefficients() != smaller._coefficients():
            raise ValueError(
                "marginal: REML likelihoods of models with different coefficients cannot be "
                "compared; fit both with estimate='ml'"
            )
        freedom = self.parameters - smaller.parameters
        if freedom < 1:
            raise ValueError(
                f"marginal: the smaller model has {smaller.parameters} parameters and the larger "
                f"one {self.parameters}; write larger.compare(smaller)"
            )
        statistic = max(2 * (self.log_likelihood - smaller.log_likelihood), 0.0)
        return Comparison(statistic, freedom, float(chi2.sf(statistic, freedom)))

    def leave_one_client_out(self, *, points: int = 1000) -> LeaveOneOut:
        """The predictive density of each client's rows, given those of all other clients.

        Each client weights draws of the posterior by one over its own likelihood, smooths the
        weights, and sends the log predictive density of its rows: this takes one round.

        Args:
            points: Draws of the posterior that are sent.

        Returns:
            The sum over clients, its standard error, and for how many clients it is unreliable.
        """
        if self.sample is None or self.ask_left_out is None:
            raise ValueError(
                "marginal: leaving clients out needs the posterior: use estimate='posterior'"
            )
        sums = self.ask_left_out(self.points(jax.random.key(0), points))
        count, total = float(sums.clients), float(sums.value)
        variance = max(float(sums.square) - total**2 / count, 0.0) / max(count - 1, 1)
        return LeaveOneOut(total, float(np.sqrt(count * variance)), int(sums.unreliable))

    def _coefficients(self) -> tuple[str, ...]:
        kinds = ("sd", "cor", *POSITIVE)
        return tuple(name for name in self.names if name.partition("[")[0] not in kinds)

    def points(self, key: Key[Array, ""], count: int) -> Float[np.ndarray, "count k"]:
        """Draws of the flattened parameters."""
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        if self.sample is None:
            return self.point + random.standard_normal((count, len(self.point))) @ self.spread.T
        return self.sample.points[systematic(random, self.sample.weights, count)]

    def table(self, *, probability: float = 0.95) -> pd.DataFrame:
        """Estimates with standard errors and intervals, one row per parameter.

        Args:
            probability: Probability of the intervals.

        Returns:
            For "ml" and "reml": `estimate`, `se`, `lower` and `upper`. Intervals are Gaussian for
            coefficients, for logarithms of standard deviations, and for Fisher's z of correlations.
            For "posterior": `mean`, `sd` and quantiles of the posterior. NaN where the data do not
            determine a parameter; errors and intervals also while the maximum is not found, when
            `estimate` is the best point so far.
        """
        from scipy.stats import norm

        if self.sample is not None:
            return self._posterior_table(probability)
        found = _with_derivatives(self._describe, jnp.asarray(self.point))
        estimate, jacobian = (np.asarray(part, float) for part in found)
        se = np.sqrt(np.sum((jacobian @ self.spread) ** 2, axis=1))
        width = norm.ppf(0.5 + probability / 2)
        kind = np.array([name.partition("[")[0] for name in self.names])
        there, back, derivative = _curves(kind, estimate)
        with np.errstate(all="ignore"):
            lower, upper = (back(there + side * width * se * derivative) for side in (-1, 1))
        table = pd.DataFrame(
            {"estimate": estimate, "se": se, "lower": lower, "upper": upper},
            index=pd.Index(self.names, name="parameter"),
        )
        bound = [*self.unknown, *self.zero, *self.infinite]
        table.loc[bound, ["se", "lower", "upper"]] = np.nan
        table.loc[(kind == "cor") & (np.abs(estimate) > _ONE), ["se", "lower", "upper"]] = np.nan
        table.loc[list(self.unknown), "estimate"] = np.nan
        if not self.settled:
            table[["se", "lower", "upper"]] = np.nan
        return table

    def _posterior_table(self, probability: float) -> pd.DataFrame:
        assert self.sample is not None
        drawn = _each_flattened(self._describe, jnp.asarray(self.sample.points))
        values = np.asarray(drawn, float)
        weights = self.sample.weights
        mean = weights @ values
        ends = []
        for side in ((1 - probability) / 2, (1 + probability) / 2):
            order = np.argsort(values, axis=0)
            below = np.cumsum(weights[order], axis=0)
            index = np.argmax(below >= side, axis=0)
            ends.append(np.take_along_axis(values, order, 0)[index, np.arange(len(mean))])
        sd = np.sqrt(weights @ (values - mean) ** 2)
        columns = {"mean": mean, "sd": sd, "lower": ends[0], "upper": ends[1]}
        return pd.DataFrame(columns, index=pd.Index(self.names, name="parameter"))

    @property
    def _describe(self) -> Partial:
        """`describe` as an argument of a program."""
        return self.describe if isinstance(self.describe, Partial) else Partial(self.describe)

    def described(self, points: Float[np.ndarray, "points k"]) -> dict[str, Array]:
        """Flattened parameters as users know them, on the leading axis."""
        return _each_described(self._describe, jnp.asarray(points, float))


def flattened(
    describe: Callable[[Float[Array, " k"]], dict[str, Array]], flat: Float[Array, " k"]
) -> Float[Array, " values"]:
    """The described values one after the other."""
    found = describe(flat)
    return jnp.concatenate([jnp.reshape(found[name], -1) for name in found])


# `describe` is an argument, so that laws of one method share these programs.
@jax.jit
def _each_described(describe: Partial, points: Float[Array, "points k"]) -> dict[str, Array]:
    return jax.vmap(describe)(points)


@jax.jit
def _each_flattened(
    describe: Partial, points: Float[Array, "points k"]
) -> Float[Array, "points v"]:
    return jax.vmap(partial(flattened, describe))(points)


@jax.jit
def _with_derivatives(describe: Partial, flat: Float[Array, " k"]) -> tuple[Array, Array]:
    function = partial(flattened, describe)
    return function(flat), jax.jacobian(function)(flat)


def _curves(kind: np.ndarray, estimate: np.ndarray):
    """The scale of Gaussian intervals: the values there, the inverse map, and the derivative."""
    positive, bounded = np.isin(kind, ("sd", *POSITIVE)), kind == "cor"
    with np.errstate(all="ignore"):
        there = np.where(positive, np.log(np.abs(estimate)), estimate)
        there = np.where(bounded, np.arctanh(np.clip(estimate, -1, 1)), there)
        derivative = np.where(positive, 1 / np.abs(estimate), 1.0)
        derivative = np.where(bounded, 1 / (1 - estimate**2), derivative)

    def back(values):
        return np.where(positive, np.exp(values), np.where(bounded, np.tanh(values), values))

    return there, back, derivative
