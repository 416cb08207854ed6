"""Predictive distributions of counts: Poisson, negative binomial and binomial; and functions that
all numeric distributions share.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betaln
from jaxtyping import Array, Bool, Float, Real
from scipy import special  # not scipy.stats, which takes a second to import

from covey.core.metrics import Mean, Metric
from covey.models.log_sigmoid import log_sigmoid

Values: TypeAlias = Array | np.ndarray
Interval: TypeAlias = tuple[Float[np.ndarray, " rows *values"], Float[np.ndarray, " rows *values"]]
_DEVIATIONS = 10.0  # above the mean, where the search for a quantile of a count begins


class Poisson(NamedTuple):
    """Predictive distribution of a count.

    Attributes:
        log_rate: Logarithm of the mean count, one value or several per row.

    Example:
        >>> import jax.numpy as jnp
        >>> counts = Poisson(jnp.log(jnp.array([4.0])))
        >>> [float(end[0]) for end in counts.interval(0.9)]
        [1.0, 8.0]
    """

    log_rate: Float[Array, " rows *values"]
    whole = True

    @property
    def mean(self) -> Float[Array, " rows *values"]:
        """The rate."""
        return jnp.exp(self.log_rate)

    @property
    def variance(self) -> Float[Array, " rows *values"]:
        """The rate."""
        return self.mean

    def log_prob(self, y: Real[Array, " rows *values"]) -> Float[Array, " rows *values"]:
        """The log-mass y log(rate) - rate - log(y!), finite also where the rate underflows to 0."""
        return y * self.log_rate - self.mean - jax.lax.lgamma(y.astype(self.log_rate.dtype) + 1)

    def cdf(self, y: Real[Values, " rows *values"]) -> Float[np.ndarray, " rows *values"]:
        """The probability of a count of at most y."""
        count = np.floor(np.asarray(y, float))
        rate = np.exp(np.asarray(self.log_rate, float))
        return np.where(count < 0, 0.0, special.pdtr(np.maximum(count, 0.0), rate))

    def quantile(self, probability: float) -> Float[np.ndarray, " rows *values"]:
        """The smallest count that the outcome stays at or below with at least this probability."""
        rate = np.exp(np.asarray(self.log_rate, float))
        # The continuous inverse may be one too high by rounding.
        count = np.maximum(np.ceil(special.pdtrik(probability, rate)), 0.0)
        before = np.maximum(count - 1, 0.0)
        return np.where(special.pdtr(before, rate) >= probability, before, count)

    def interval(self, probability: float = 0.9) -> Interval:
        """The equal-tailed interval of counts that holds at least this probability, by row."""
        return interval_of(self, probability)

    def measures(self, y: Real[Array, " rows"], mask: Bool[Array, " rows"]) -> dict[str, Metric]:
        """nll, the mean negative log-mass; mse, the mean squared error of the rate."""
        return measures_of(self, y, mask)


class NegativeBinomial(NamedTuple):
    """Predictive distribution of a count that varies more than a Poisson one.

    The mean is mu = exp(log_mean) and the variance mu + mu^2 / dispersion, as in R's MASS and
    `glmer.nb`, where the dispersion is called theta.

    Attributes:
        log_mean: Logarithm of the mean count, one value or several per row.
        dispersion: The dispersion; smaller means more variance, infinity is a Poisson.

    Example:
        >>> import jax.numpy as jnp
        >>> counts = NegativeBinomial(jnp.log(jnp.array([4.0])), jnp.array([2.0]))
        >>> round(float(counts.variance[0]), 3), [float(end[0]) for end in counts.interval(0.9)]
        (12.0, [0.0, 11.0])
    """

    log_mean: Float[Array, " rows *values"]
    dispersion: Float[Array, " rows *values"]
    whole = True

    @property
    def mean(self) -> Float[Array, " rows *values"]:
        """The mean count."""
        return jnp.exp(self.log_mean)

    @property
    def variance(self) -> Float[Array, " rows *values"]:
        """The variance of the count."""
        return self.mean + self.mean**2 / self.dispersion

    def log_prob(self, y: Real[Array, " rows *values"]) -> Float[Array, " rows *values"]:
        """The log-mass of the counts, exact also for a large dispersion."""
        y, k = y.astype(self.log_mean.dtype), self.dispersion
        odds = self.log_mean - jnp.log(k)
        constant = -betaln(k, y + 1) - jnp.log(y + k)  # log Gamma(y + k) / (Gamma(k) y!)
        return constant + y * odds + (y + k) * log_sigmoid(-odds)

    def cdf(self, y: Real[Values, " rows *values"]) -> Float[np.ndarray, " rows *values"]:
        """The probability of a count of at most y."""
        count, k = np.floor(np.asarray(y, float)), np.asarray(self.dispersion, float)
        chance = special.expit(np.log(k) - np.asarray(self.log_mean, float))
        return np.where(count < 0, 0.0, special.betainc(k, np.maximum(count, 0.0) + 1, chance))

    def quantile(self, probability: float) -> Float[np.ndarray, " rows *values"]:
        """The smallest count that the outcome stays at or below with at least this probability."""
        mean, variance = np.asarray(self.mean, float), np.asarray(self.variance, float)
        return _smallest(self.cdf, probability, mean + _DEVIATIONS * np.sqrt(variance) + 1)

    def interval(self, probability: float = 0.9) -> Interval:
        """The equal-tailed interval of counts that holds at least this probability, by row."""
        return interval_of(self, probability)

    def measures(self, y: Real[Array, " rows"], mask: Bool[Array, " rows"]) -> dict[str, Metric]:
        """nll, the mean negative log-mass; mse, the mean squared error of the mean."""
        return measures_of(self, y, mask)


class Binomial(NamedTuple):
    """Predictive distribution of the number of successes among a known number of trials.

    Attributes:
        logit: log p - log(1 - p) of a success, one value or several per row.
        total: Number of trials.

    Example:
        >>> import jax.numpy as jnp
        >>> cases = Binomial(jnp.array([0.0]), jnp.array([10.0]))
        >>> float(cases.mean[0]), [float(end[0]) for end in cases.interval(0.9)]
        (5.0, [2.0, 8.0])
    """

    logit: Float[Array, " rows *values"]
    total: Float[Array, " rows *values"]
    whole = True

    @property
    def mean(self) -> Float[Array, " rows *values"]:
        """The mean number of successes."""
        return self.total * jax.nn.sigmoid(self.logit)

    @property
    def variance(self) -> Float[Array, " rows *values"]:
        """The variance n p (1 - p)."""
        return self.mean * jax.nn.sigmoid(-self.logit)

    def log_prob(self, y: Real[Array, " rows *values"]) -> Float[Array, " rows *values"]:
        """The log-mass of the counts of successes; NaN for more successes than trials."""
        y = y.astype(self.logit.dtype)
        possible = (y >= 0) & (y <= self.total)
        # Other values in place of impossible ones, so that derivatives stay finite under a mask.
        total, y = jnp.where(possible, self.total, 1.0), jnp.where(possible, y, 0.0)
        ways = -betaln(total - y + 1, y + 1) - jnp.log(total + 1)
        known = y * log_sigmoid(self.logit) + (total - y) * log_sigmoid(-self.logit)
        return jnp.where(possible, ways + known, jnp.nan)

    def cdf(self, y: Real[Values, " rows *values"]) -> Float[np.ndarray, " rows *values"]:
        """The probability of at most y successes."""
        total, failure = (
            np.asarray(self.total, float),
            special.expit(-np.asarray(self.logit, float)),
        )
        count = np.clip(np.floor(np.asarray(y, float)), -1, total)
        left = np.maximum(total - count, 1.0)  # not 0, where the distribution function is 1
        inside = special.betainc(left, np.maximum(count, 0.0) + 1, failure)
        return np.where(count < 0, 0.0, np.where(count >= total, 1.0, inside))

    def quantile(self, probability: float) -> Float[np.ndarray, " rows *values"]:
        """The smallest number of successes that is not passed with at least this probability."""
        return _smallest(self.cdf, probability, np.asarray(self.total, float))

    def interval(self, probability: float = 0.9) -> Interval:
        """The equal-tailed interval of counts that holds at least this probability, by row."""
        return interval_of(self, probability)

    def measures(self, y: Real[Array, " rows"], mask: Bool[Array, " rows"]) -> dict[str, Metric]:
        """nll, the mean negative log-mass; mse, the mean squared error of the mean count."""
        return measures_of(self, y, mask)


def interval_of(predictive: Any, probability: float) -> Interval:
    """The equal-tailed interval of a distribution with quantiles, by row."""
    if not 0 < probability < 1:
        raise ValueError(f"probability must be between 0 and 1, e.g. 0.9, got {probability:g}")
    tail = (1 - probability) / 2
    return predictive.quantile(tail), predictive.quantile(1 - tail)


def measures_of(
    predictive: Any, y: Real[Array, " rows"], mask: Bool[Array, " rows"]
) -> dict[str, Metric]:
    """The mean negative log-density, and the mean squared error of the mean."""
    return {
        "nll": Mean.of(-predictive.log_prob(y), mask),
        "mse": Mean.of(jnp.square(y - predictive.mean), mask),
    }


def _smallest(
    cdf: Callable[[np.ndarray], np.ndarray], probability: float, high: np.ndarray
) -> np.ndarray:
    """The smallest count whose distribution function reaches a probability, by bisection."""
    high = np.ceil(high)
    while np.any(short := cdf(high) < probability):
        high = np.where(short, 2 * high + 1, high)
    low = np.full_like(high, -1.0)
    while np.any(high - low > 1):
        middle = np.floor((low + high) / 2)
        reached = cdf(middle) >= probability
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return np.where(np.isnan(cdf(high)), np.nan, high)
