"""Does a model know when it does not know? Scores of rows by their predictive distribution, and how
well a score separates.

A model trained on one kind of row should be less sure on another. Scores are higher for rows that
look strange; the area under the receiver operating characteristic (AUROC) is the chance that a
strange row scores above a usual one, ties counting half.

Example:
    inside, outside = (entropy(run.predict(x, client="a")) for x in (usual, strange))
    auroc(inside, outside)
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr, gammaln
from jaxtyping import Array, Float, Real

from covey.models.predictive import Categorical, Normal, Poisson, Predictive

_LARGE_RATE = 100.0  # above, the expansion of the Poisson's entropy is exact to 1e-8
_COUNTS = 300  # a rate of 100 leaves 1e-50 beyond


def entropy(predictive: Predictive) -> Float[Array, " rows"]:
    """Of each row, in nats: of labels and counts; of a number, the differential entropy, which may
    be negative.
    """
    if isinstance(predictive, Categorical):
        return jnp.sum(entr(predictive.mean), axis=-1)
    if isinstance(predictive, Normal):
        return 0.5 * jnp.log(2 * jnp.pi * jnp.e) + jnp.log(predictive.scale)
    if isinstance(predictive, Poisson):
        return _poisson_entropy(predictive)
    raise ValueError(
        f"entropy is known of Categorical, Normal and Poisson predictions, not of {type(predictive).__name__}"
    )


def max_probability_score(predictive: Predictive) -> Float[Array, " rows"]:
    """One minus the probability of the likeliest label (Hendrycks and Gimpel 2017)."""
    if not isinstance(predictive, Categorical):
        raise ValueError(
            f"the score is of labels, and these are {type(predictive).__name__} predictions: use entropy"
        )
    return 1 - jnp.max(predictive.mean, axis=-1)


def auroc(
    inside: Real[Array | np.ndarray, " usual"], outside: Real[Array | np.ndarray, " strange"]
) -> float:
    """The chance that a strange row scores above a usual one; 0.5 where the score says nothing."""
    usual, strange = np.asarray(inside, float), np.asarray(outside, float)
    if not usual.size or not strange.size:
        raise ValueError(
            f"scores of both kinds are needed, got {usual.size} usual and {strange.size} strange ones"
        )
    if np.isnan(usual).any() or np.isnan(strange).any():
        raise ValueError("some scores are NaN: they have no rank")
    ordered = np.sort(usual)
    below = np.searchsorted(ordered, strange, side="left")
    not_above = np.searchsorted(ordered, strange, side="right")
    return float((below + not_above).mean() / (2 * usual.size))


def _poisson_entropy(predictive: Poisson) -> Float[Array, " rows"]:
    """A sum over counts; for large rates the expansion in 1 / rate (Evans and Boersma 1988)."""
    rate = predictive.mean
    small = jnp.minimum(predictive.log_rate, jnp.log(_LARGE_RATE))[:, None]
    y = jnp.arange(_COUNTS, dtype=rate.dtype)
    log_mass = y * small - jnp.exp(small) - gammaln(y + 1)
    summed = -jnp.sum(jnp.exp(log_mass) * log_mass, axis=-1)
    large = jnp.maximum(rate, _LARGE_RATE)
    expanded = (
        0.5 * jnp.log(2 * jnp.pi * jnp.e * large)
        - 1 / (12 * large)
        - 1 / (24 * large**2)
        - 19 / (360 * large**3)
    )
    return jnp.where(rate <= _LARGE_RATE, summed, expanded)
