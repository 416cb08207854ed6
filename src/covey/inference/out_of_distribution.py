"""Out-of-distribution detection: scores of rows by their predictive distribution, and how well a
score separates two kinds of rows.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr, gammaln
from jaxtyping import Array, Float, Real
from scipy import special

from covey.models.predictive import (
    Binomial,
    Categorical,
    Mixture,
    NegativeBinomial,
    Normal,
    Poisson,
    Predictive,
    mixture_of,
)

_LARGE_RATE = 100.0  # above, the expansion of the Poisson's entropy is exact to 1e-8
_COUNTS = 300  # a rate of 100 leaves 1e-50 beyond
_TAIL = 1e-12  # probability that the integral over a mixture leaves out at each end
_STEP = 0.5  # standard deviations of the narrowest member; the error of the sum is below 1e-8
_TOGETHER = 2**22  # densities computed side by side


def entropy(predictive: Predictive) -> Float[Array, " rows"]:
    """Entropy of the predictive distribution of each row, in nats.

    A model should be less sure, and the entropy higher, for rows unlike those it was fitted to.

    Args:
        predictive: Predictions of some rows, such as `run.predict` gives. Mixtures are integrated
            numerically.

    Returns:
        One entropy per row: -sum p log p of labels and counts; the differential entropy of a
        continuous outcome, which may be negative.

    Example:
        >>> import jax.numpy as jnp
        >>> sure, unsure = entropy(Categorical(jnp.log(jnp.array([[0.99, 0.01], [0.5, 0.5]]))))
        >>> round(float(sure), 3), round(float(unsure), 3)
        (0.056, 0.693)
    """
    if isinstance(predictive, Categorical):
        return jnp.sum(entr(predictive.mean), axis=-1)
    if isinstance(predictive, Normal):
        return 0.5 * jnp.log(2 * jnp.pi * jnp.e) + jnp.log(predictive.scale)
    if isinstance(predictive, Poisson):
        return _poisson_entropy(predictive)
    if isinstance(predictive, NegativeBinomial | Binomial):  # a mixture with one member
        return entropy(mixture_of(jax.tree.map(lambda leaf: leaf[None], predictive)))
    rows = (
        jax.tree.map(lambda leaf, at=at: leaf[at], predictive)
        for at in range(len(predictive.weight))
    )
    return jnp.asarray([_mixture_entropy(row) for row in rows])


def max_probability_score(predictive: Predictive) -> Float[Array, " rows"]:
    """One minus the probability of the most probable label, by row.

    Args:
        predictive: `Categorical` predictions of some rows.

    Returns:
        One score per row, higher where the model is less sure.

    Example:
        >>> import jax.numpy as jnp
        >>> score = max_probability_score(Categorical(jnp.log(jnp.array([[0.75, 0.25]]))))
        >>> float(score[0])
        0.25

    Reference: Hendrycks and Gimpel (2017), A baseline for detecting misclassified and
    out-of-distribution examples in neural networks.
    """
    if not isinstance(predictive, Categorical):
        raise ValueError(
            f"the score is of labels, and these are {type(predictive).__name__} predictions: "
            "use entropy"
        )
    return 1 - jnp.max(predictive.mean, axis=-1)


def auroc(
    inside: Real[Array | np.ndarray, " inside"], outside: Real[Array | np.ndarray, " outside"]
) -> float:
    """Area under the receiver operating characteristic of a score that separates two kinds of rows.

    Args:
        inside: Scores of in-distribution rows.
        outside: Scores of out-of-distribution rows, which should be higher.

    Returns:
        The probability that an out-of-distribution row scores above an in-distribution one, ties
        counting half; 0.5 where the score separates nothing.

    Example:
        >>> import numpy as np
        >>> auroc(np.array([0.1, 0.2, 0.6]), np.array([0.5, 0.9]))
        0.8333333333333334
    """
    usual, other = np.asarray(inside, float), np.asarray(outside, float)
    if not usual.size or not other.size:
        raise ValueError(
            f"scores of both kinds of rows are needed, got {usual.size} in-distribution and "
            f"{other.size} out-of-distribution scores"
        )
    if np.isnan(usual).any() or np.isnan(other).any():
        raise ValueError("some scores are NaN: they have no rank")
    ordered = np.sort(usual)
    below = np.searchsorted(ordered, other, side="left")
    not_above = np.searchsorted(ordered, other, side="right")
    return float((below + not_above).mean() / (2 * usual.size))


def _mixture_entropy(row: Mixture) -> float:
    """-integral p log p of one row, by the trapezoidal rule; for counts of small rates, the sum."""
    used = np.asarray(row.weight) > 0
    if not used.any():
        return float("nan")
    members = jax.tree.map(lambda leaf: np.asarray(leaf, float)[used], row.members)
    log_weight = np.log(np.asarray(row.weight, float)[used])
    low, high = members.quantile(_TAIL).min(), members.quantile(1 - _TAIL).max()
    step = _STEP * float(np.sqrt(np.asarray(row.members.variance)[used].min()))
    if members.whole:
        step = max(1.0, np.floor(step))
    points = np.arange(low, high + step, step)
    pieces = np.array_split(points, -(-len(points) * len(log_weight) // _TOGETHER))
    each = (special.logsumexp(log_weight + _log_prob(members, at), axis=-1) for at in pieces)
    return step * float(sum(np.sum(special.entr(np.exp(log_density))) for log_density in each))


def _log_prob(
    members: Normal | Poisson | NegativeBinomial | Binomial, at: np.ndarray
) -> Float[np.ndarray, "points members"]:
    """In NumPy: the count of points differs by row, and JAX would compile each."""
    y = at[:, None]
    if isinstance(members, Poisson):
        return y * members.log_rate - np.exp(members.log_rate) - special.gammaln(y + 1)
    if not isinstance(members, Normal):
        mass = members.cdf(y) - members.cdf(y - 1)
        return np.log(np.maximum(mass, np.finfo(float).tiny))
    standardised = (y - members.mean) / members.scale
    return -0.5 * standardised**2 - np.log(members.scale * np.sqrt(2 * np.pi))


def _poisson_entropy(predictive: Poisson) -> Float[Array, " rows"]:
    """A sum over counts; for large rates an expansion in 1 / rate (Evans and Boersma 1988)."""
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
