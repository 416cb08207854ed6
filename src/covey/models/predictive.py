"""Predictive distributions of the outcomes of some rows, by a model, a mixture or a posterior.

Each is a NamedTuple of arrays with the row as the leading axis, so it passes through `jit`, `vmap`
and `scan` as it is. Quantiles are computed on the host, in double precision.
"""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, Real
from scipy import special  # not scipy.stats, which takes a second to import

from covey.core.metrics import Calibration, Mean, Metric
from covey.models.predictive_counts import (
    Binomial,
    Interval,
    NegativeBinomial,
    Poisson,
    Values,
    interval_of,
    measures_of,
)

__all__ = [
    "Binomial",
    "Categorical",
    "Interval",
    "Mixture",
    "NegativeBinomial",
    "Normal",
    "Poisson",
    "Predictive",
    "mixture_of",
]

_BISECTIONS = 45  # leave 3e-14 of the first bracket
_ROUNDING = 1e-14  # of a sum of probabilities in double precision


class Categorical(NamedTuple):
    """Predictive distribution of a label.

    Attributes:
        log_probability: Normalised log p(label), one row per outcome and one column per class.

    Example:
        >>> import jax.numpy as jnp
        >>> labels = Categorical.of_logits(jnp.zeros((2, 4)))
        >>> labels.mean[0].tolist()
        [0.25, 0.25, 0.25, 0.25]
    """

    log_probability: Float[Array, "rows classes"]

    @classmethod
    def of_logits(cls, logits: Float[Array, "rows classes"]) -> "Categorical":
        """Softmax of one logit per class."""
        return cls(jax.nn.log_softmax(logits))

    @classmethod
    def of_logit(cls, logit: Float[Array, " rows"]) -> "Categorical":
        """Two labels; the logit is log p(1) - log p(0)."""
        return cls(jax.nn.log_sigmoid(jnp.stack([-logit, logit], axis=-1)))

    @classmethod
    def average(
        cls,
        log_probability: Float[Array, "members rows classes"],
        weights: Float[Array, " members"] | Float[Array, "members rows"] | None = None,
    ) -> "Categorical":
        """The mixture log(sum_m w_m p_m / sum_m w_m): of probabilities, not of logits.

        Args:
            log_probability: Log-probabilities of each member, stacked on a leading axis.
            weights: One weight per member, or per member and row. Default: equal weights. A member
                of weight zero does not count, even where its probabilities are not finite.

        Returns:
            The mixture; NaN where all weights are zero.
        """
        if weights is None:
            weights = jnp.ones(log_probability.shape[0], log_probability.dtype)
        by_row = weights if weights.ndim == 2 else weights[:, None]
        total = jax.nn.logsumexp(log_probability, axis=0, b=by_row[:, :, None])
        return cls(total - jnp.log(jnp.sum(by_row, axis=0))[:, None])

    @property
    def mean(self) -> Float[Array, "rows classes"]:
        """Probabilities of the labels: the mean of the outcome written as an indicator vector."""
        return jnp.exp(self.log_probability)

    @property
    def variance(self) -> Float[Array, "rows classes"]:
        """The variance p (1 - p) of each entry of the indicator vector."""
        return self.mean * (1 - self.mean)

    def log_prob(self, y: Integer[Array, " rows"]) -> Float[Array, " rows"]:
        """The log-probability of the labels; NaN for a label past the last class."""
        return jnp.take_along_axis(self.log_probability, y[:, None], axis=-1, mode="fill")[:, 0]

    def measures(self, y: Integer[Array, " rows"], mask: Bool[Array, " rows"]) -> dict[str, Metric]:
        """Measures of the predictions against outcomes, as metrics that merge over clients.

        Returns:
            accuracy; nll, the mean negative log-probability; brier, the sum over classes of
            (p - 1{y})^2, between 0 and 2; ece, the expected calibration error.
        """
        probability = self.mean
        outcome = jax.nn.one_hot(y, probability.shape[-1], dtype=probability.dtype)
        correct = jnp.argmax(probability, axis=-1) == y
        return {
            "accuracy": Mean.of(correct.astype(probability.dtype), mask),
            "nll": Mean.of(-self.log_prob(y), mask),
            "brier": Mean.of(jnp.sum(jnp.square(probability - outcome), axis=-1), mask),
            "ece": Calibration.of(jnp.max(probability, axis=-1), correct, mask),
        }


class Normal(NamedTuple):
    """Predictive distribution of a continuous outcome with Gaussian noise.

    Attributes:
        mean: Mean of the outcome, one value or several per row.
        scale: Standard deviation of the outcome.

    Example:
        >>> import jax.numpy as jnp
        >>> lower, upper = Normal(jnp.array([10.0]), jnp.array([2.0])).interval(0.95)
        >>> [round(float(end[0]), 2) for end in (lower, upper)]
        [6.08, 13.92]
    """

    mean: Float[Array, " rows *values"]
    scale: Float[Array, " rows *values"]
    whole = False

    @property
    def variance(self) -> Float[Array, " rows *values"]:
        """The squared scale."""
        return self.scale**2

    def log_prob(self, y: Real[Array, " rows *values"]) -> Float[Array, " rows *values"]:
        """The Gaussian log-density."""
        return jax.scipy.stats.norm.logpdf(y, self.mean, self.scale)

    def cdf(self, y: Real[Values, " rows *values"]) -> Float[np.ndarray, " rows *values"]:
        """The probability of an outcome of at most y."""
        return special.ndtr((np.asarray(y, float) - self.mean) / np.asarray(self.scale, float))

    def quantile(self, probability: float) -> Float[np.ndarray, " rows *values"]:
        """The value below which the outcome lies with this probability."""
        mean, scale = np.asarray(self.mean, float), np.asarray(self.scale, float)
        return mean + scale * special.ndtri(probability)

    def interval(self, probability: float = 0.9) -> Interval:
        """The equal-tailed interval that holds the outcome with this probability, by row."""
        return interval_of(self, probability)

    def measures(self, y: Real[Array, " rows"], mask: Bool[Array, " rows"]) -> dict[str, Metric]:
        """nll, the mean negative log-density; mse, the mean squared error of the mean."""
        return measures_of(self, y, mask)


class Mixture(NamedTuple):
    """Mixture of continuous or count distributions, such as one member per posterior draw.

        p(y) = sum_m w_m p_m(y)

    Attributes:
        members: The members' distributions; the last axis counts members.
        weight: Weight of each member in each row; the weights of a row add up to one.

    Example:
        >>> import jax.numpy as jnp
        >>> two = Mixture(Normal(jnp.array([[-3.0, 3.0]]), jnp.ones((1, 2))), jnp.full((1, 2), 0.5))
        >>> float(two.mean[0]), float(two.variance[0])
        (0.0, 10.0)
        >>> round(float(two.quantile(0.975)[0]), 3)  # a normal of variance 10 would say 6.198
        4.645
    """

    members: Normal | Poisson | NegativeBinomial | Binomial
    weight: Float[Array, " rows *values members"]

    @property
    def mean(self) -> Float[Array, " rows *values"]:
        """The weighted mean of the members' means."""
        return self._average(self.members.mean)

    @property
    def variance(self) -> Float[Array, " rows *values"]:
        """The mean of the members' variances plus the variance of their means."""
        off = self.members.mean - self.mean[..., None]
        return self._average(self.members.variance + off**2)

    def log_prob(self, y: Real[Array, " rows *values"]) -> Float[Array, " rows *values"]:
        """The logarithm of the weighted mean of the members' densities, without underflow."""
        each = self.members.log_prob(jnp.broadcast_to(y[..., None], self.weight.shape))
        return jax.nn.logsumexp(each, axis=-1, b=self.weight)

    def cdf(self, y: Real[Values, " rows *values"]) -> Float[np.ndarray, " rows *values"]:
        """The probability of an outcome of at most y."""
        weight = np.asarray(self.weight, float)
        y = np.broadcast_to(np.asarray(y, float)[..., None], weight.shape)
        each = np.where(weight > 0, self.members.cdf(y), 0.0)
        return np.sum(weight * each, axis=-1) / np.sum(weight, axis=-1)

    def quantile(self, probability: float) -> Float[np.ndarray, " rows *values"]:
        """The smallest outcome whose distribution function reaches this probability.

        Found by bisection between the least and the greatest of the members' quantiles.
        """
        counts, each = np.asarray(self.weight) > 0, self.members.quantile(probability)
        low, high = (
            np.where(np.any(counts, axis=-1), end, np.nan)
            for end in (
                np.min(each, axis=-1, where=counts, initial=np.inf),
                np.max(each, axis=-1, where=counts, initial=-np.inf),
            )
        )
        whole = self.members.whole
        low = low - 1.0 if whole else low  # below every member's quantile
        for _ in range(_BISECTIONS):
            middle = np.floor((low + high) / 2) if whole else (low + high) / 2
            reached = self.cdf(middle) >= probability - _ROUNDING
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
            if whole and not np.any(high - low > 1):
                break
        return high

    def interval(self, probability: float = 0.9) -> Interval:
        """The equal-tailed interval by row; for counts it holds at least this probability."""
        return interval_of(self, probability)

    def measures(self, y: Real[Array, " rows"], mask: Bool[Array, " rows"]) -> dict[str, Metric]:
        """nll, the mean negative log-density of the mixture; mse of its mean."""
        return measures_of(self, y, mask)

    def _average(self, values: Float[Array, " rows *values members"]) -> Array:
        """The weighted mean over members; those of weight zero may hold anything."""
        return jnp.sum(self.weight * jnp.where(self.weight > 0, values, 0.0), axis=-1)


Predictive: TypeAlias = Categorical | Normal | Poisson | NegativeBinomial | Binomial | Mixture


def mixture_of(
    members: Predictive, weights: Float[Array, " members"] | None = None
) -> Categorical | Mixture:
    """The mixture of predictives that are stacked on a leading axis, such as one per draw.

    Labels mix their probabilities, which is again a `Categorical`. Continuous outcomes and counts
    become a `Mixture`, which keeps every member: memory grows as members times rows.

    Args:
        members: Predictive distributions of the same rows, stacked on a leading axis.
        weights: One weight per member, of any sum. Default: equal weights. A member of weight zero
            does not count.

    Returns:
        The mixture; NaN where all weights are zero.

    Example:
        >>> import jax.numpy as jnp
        >>> draws = Poisson(jnp.log(jnp.array([[2.0], [20.0]])))  # two draws, one row
        >>> mixed = mixture_of(draws)
        >>> round(float(mixed.mean[0]), 3), round(float(mixed.variance[0]), 3)
        (11.0, 92.0)
        >>> [float(end[0]) for end in mixed.interval(0.9)]  # a Poisson of mean 11: 6 to 17
        [0.0, 26.0]
    """
    if isinstance(members, Categorical):
        return Categorical.average(members.log_probability, weights)
    count = jax.tree.leaves(members)[0].shape[0]
    each = jnp.ones(count) if weights is None else weights
    each = each / jnp.sum(each)
    by_row = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), members)
    if isinstance(by_row, Mixture):  # the members of all mixtures side by side
        flat = by_row._replace(weight=by_row.weight * each)
        return jax.tree.map(lambda leaf: leaf.reshape(*leaf.shape[:-2], -1), flat)
    return Mixture(by_row, jnp.broadcast_to(each, by_row.mean.shape))
