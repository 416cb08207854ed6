"""Predictive distributions: what a model, a mixture or a posterior says about the outcomes of some
rows.

Each is a NamedTuple of arrays with the row as the leading axis, so it passes through `jit`, `vmap`
and `scan` as it is. Each can score outcomes (`log_prob`), give its mean, and measure itself against
outcomes as metrics that merge over batches and clients.
"""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer, Real

from covey.core.metrics import Calibration, Mean, Metric


class Categorical(NamedTuple):
    """A label. log_probability: normalised, log p(label) by row."""

    log_probability: Float[Array, "rows classes"]

    @classmethod
    def of_logits(cls, logits: Float[Array, "rows classes"]) -> "Categorical":
        """Softmax of the logits."""
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
        """The mixture log sum_m w_m p_m / sum_m w_m: of probabilities, not of logits. Equal weights
        where none are given.

        A member of weight zero does not count, even where its probabilities are not finite. Weights
        that are all zero give NaN.
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

    def log_prob(self, y: Integer[Array, " rows"]) -> Float[Array, " rows"]:
        """The log-probability of the labels. A label past the last class gives NaN, never a silent
        number.
        """
        return jnp.take_along_axis(self.log_probability, y[:, None], axis=-1, mode="fill")[:, 0]

    def measures(self, y: Integer[Array, " rows"], mask: Bool[Array, " rows"]) -> dict[str, Metric]:
        """accuracy; nll; brier = sum over classes of (p - 1{y})^2, between 0 and 2; ece, the
        expected calibration error.
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
    """A number, or several a row, with Gaussian noise of standard deviation `scale`."""

    mean: Float[Array, " rows *numbers"]
    scale: Float[Array, " rows *numbers"]

    def log_prob(self, y: Real[Array, " rows *numbers"]) -> Float[Array, " rows *numbers"]:
        """The Gaussian log-density."""
        return jax.scipy.stats.norm.logpdf(y, self.mean, self.scale)

    def measures(self, y: Real[Array, " rows"], mask: Bool[Array, " rows"]) -> dict[str, Metric]:
        """nll; mse of the mean."""
        return {
            "nll": Mean.of(-self.log_prob(y), mask),
            "mse": Mean.of(jnp.square(y - self.mean), mask),
        }


class Poisson(NamedTuple):
    """A count, or several a row, with mean exp(log_rate)."""

    log_rate: Float[Array, " rows *numbers"]

    @property
    def mean(self) -> Float[Array, " rows *numbers"]:
        """The rate."""
        return jnp.exp(self.log_rate)

    def log_prob(self, y: Real[Array, " rows *numbers"]) -> Float[Array, " rows *numbers"]:
        """The log-mass y log(rate) - rate - log(y!), from the log rate: a rate that underflows to
        zero gives no NaN.
        """
        return y * self.log_rate - self.mean - jax.lax.lgamma(y.astype(self.log_rate.dtype) + 1)

    def measures(self, y: Real[Array, " rows"], mask: Bool[Array, " rows"]) -> dict[str, Metric]:
        """nll; mse of the rate."""
        return {
            "nll": Mean.of(-self.log_prob(y), mask),
            "mse": Mean.of(jnp.square(y - self.mean), mask),
        }


class Mixture(NamedTuple):
    """A number or a count that one of several members tells of: `members` has them along its second
    axis.

    weight: of each member in each row; those of a row add up to one.
    """

    members: Normal | Poisson
    weight: Float[Array, "rows members"]

    @property
    def mean(self) -> Float[Array, " rows"]:
        """The weighted mean of the members' means."""
        return jnp.sum(self.weight * self.members.mean, axis=-1)

    def log_prob(self, y: Real[Array, " rows"]) -> Float[Array, " rows"]:
        """The logarithm of the weighted mean of the members' densities. A member of weight zero
        does not count.
        """
        each = self.members.log_prob(jnp.broadcast_to(y[:, None], self.weight.shape))
        return jax.nn.logsumexp(each, axis=-1, b=self.weight)

    def measures(self, y: Real[Array, " rows"], mask: Bool[Array, " rows"]) -> dict[str, Metric]:
        """nll; mse of the mean."""
        return {
            "nll": Mean.of(-self.log_prob(y), mask),
            "mse": Mean.of(jnp.square(y - self.mean), mask),
        }


Predictive: TypeAlias = Categorical | Normal | Poisson | Mixture


def mixture_of(members: Predictive, weights: Float[Array, " members"]) -> Categorical | Mixture:
    """What predictives together say that are stacked on a leading axis: their mixture, with weights
    that add up to one.
    """
    if isinstance(members, Categorical):
        return Categorical.average(members.log_probability, weights)
    if isinstance(members, Mixture):
        raise ValueError("a mixture of mixtures is not offered; mix their members")
    by_row = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), members)
    return Mixture(by_row, jnp.broadcast_to(weights, by_row.mean.shape))
