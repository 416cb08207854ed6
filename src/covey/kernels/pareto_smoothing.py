"""Importance sampling of a log-density that is expensive to ask for and can be asked for many
points at once.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

HIGHEST_K = 0.7  # above, Pareto smoothed importance sampling is not reliable
MOST_ASKED = 5  # times that a log-density is asked for
GOOD_K = 0.5  # up to here the weights have a finite variance
_WIDEST = 1.6  # how much wider a proposal is than its points where these have heavy tails
_FREEDOM = 6.0  # degrees of freedom of the proposal: tails heavier than those of most posteriors


class Weighted(NamedTuple):
    """Points with weights.

    Attributes:
        points: The points.
        weights: They add up to one.
        k_hat: Shape of the tail of the weights: up to 0.5 all is well, above 0.7 it is not.
        asked: Calls of the density.
    """

    points: Float[np.ndarray, "points k"]
    weights: Float[np.ndarray, " points"]
    k_hat: float
    asked: int

    @property
    def effective(self) -> float:
        """The count of equally weighted points that they are worth."""
        return float(1 / np.sum(self.weights**2))


class Student(NamedTuple):
    """A multivariate Student t distribution: its mean, and R with R R' its scale matrix."""

    mean: Float[np.ndarray, " k"]
    root: Float[np.ndarray, "k k"]

    def draw(self, seed: int, count: int) -> Float[np.ndarray, "count k"]:
        """Draws that fill the distribution evenly (a scrambled Sobol sequence): means over them
        vary much less than those over independent ones.
        """
        from scipy.stats import chi2, norm, qmc

        sequence = qmc.Sobol(len(self.mean) + 1, rng=np.random.default_rng(seed))
        even = sequence.random_base2(math.ceil(math.log2(count)))[:count].clip(1e-10, 1 - 1e-10)
        stretch = np.sqrt(chi2.ppf(even[:, 0], _FREEDOM) / _FREEDOM)
        return self.mean + (norm.ppf(even[:, 1:]) / stretch[:, None]) @ self.root.T

    def log_density(self, points: Float[np.ndarray, "count k"]) -> Float[np.ndarray, " count"]:
        """Up to a constant that is the same for all means and scales."""
        white = np.linalg.solve(self.root, (points - self.mean).T)
        log_det = np.linalg.slogdet(self.root)[1]
        power = (_FREEDOM + len(self.mean)) / 2
        return -power * np.log1p(np.sum(white**2, axis=0) / _FREEDOM) - log_det


def importance_sample(
    log_density: Callable[[Float[np.ndarray, "points k"]], Float[np.ndarray, " points"]],
    mean: Float[np.ndarray, " k"],
    covariance: Float[np.ndarray, "k k"],
    *,
    draws: int,
    seed: int,
    most: int = MOST_ASKED,
) -> Weighted:
    """Points of a distribution, weighted by its density over that of Student t proposals.

    The first proposal has the mean and covariance given. While the weights have no finite variance
    (k-hat above 0.5), or the points are worth fewer than `draws` independent ones, the proposal is
    moved to the weighted mean and covariance of all points, wider where tails are heavy, and as
    many points again are asked for; each point is weighted by the mixture of all proposals.

    Args:
        log_density: (points) -> log density at each, up to a constant.
        mean: Mean of the first proposal, e.g. the mode.
        covariance: Its covariance, e.g. the inverse of the negative Hessian at the mode.
        draws: Independent draws that the points are to be worth. At first half as many again are
            asked for.
        seed: Seed of the proposals.
        most: Largest count of calls of the density.

    Returns:
        The points, and how reliable their weights are.

    Example:
        >>> normal = lambda points: -np.sum((points - 3) ** 2, axis=1) / 2
        >>> found = importance_sample(normal, np.zeros(1), np.eye(1), draws=1000, seed=0)
        >>> bool(abs(found.weights @ found.points[:, 0] - 3) < 0.1)
        True

    Reference: Cornuet, Marin, Mira and Robert (2012), Adaptive multiple importance sampling;
    Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling.
    """
    from arviz_stats.base.array import array_stats  # takes a second to import

    count = draws + draws // 2
    proposals = [Student(mean, _root(covariance))]
    points, values = np.zeros((0, len(mean))), np.zeros(0)
    while True:
        new = proposals[-1].draw(seed + len(proposals), count)
        points, values = np.concatenate([points, new]), np.append(values, log_density(new))
        each = np.stack([one.log_density(points) for one in proposals])
        raw = values - np.logaddexp.reduce(each)
        raw = np.where(np.isfinite(raw), raw, -1e300)
        kept, k_hat = array_stats.psislw(raw.max() - raw)  # it takes negative log weights
        log_weights = np.asarray(kept, float)
        weights = np.exp(log_weights - log_weights.max())
        found = Weighted(points, weights / weights.sum(), float(k_hat), len(proposals))
        good = found.k_hat <= GOOD_K and found.effective >= draws
        if good or len(proposals) >= most:
            return found
        proposals.append(_moved(points, raw))


def smoothed(
    log_weights: Float[Array, " points"],
) -> tuple[Float[Array, " points"], Float[Array, ""]]:
    """Log importance weights whose largest are replaced by quantiles of a Pareto distribution.

    Args:
        log_weights: The raw log weights, up to a constant.

    Returns:
        Log weights whose weights add up to one, and k-hat, the shape of the distribution.

    Example:
        >>> _, k_hat = smoothed(jnp.log(jnp.arange(1.0, 101.0)))
        >>> bool(k_hat < 0.5)
        True

    Reference: Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling;
    Zhang and Stephens (2009), A new and efficient estimation method for the generalized Pareto
    distribution.
    """
    count = len(log_weights)
    tail = math.floor(3 * math.sqrt(count)) if count > 225 else count // 5
    values = log_weights - jnp.max(log_weights)
    order = jnp.argsort(values)
    cut = jnp.exp(values[order[-tail - 1]])
    largest = order[-tail:]
    excess = jnp.maximum(jnp.exp(values[largest]) - cut, 1e-300)
    k_hat, scale = _pareto(excess)
    quantile = (jnp.arange(tail) + 0.5) / tail
    fitted = scale * jnp.expm1(-k_hat * jnp.log1p(-quantile)) / k_hat
    new = values.at[largest].set(jnp.minimum(jnp.log(fitted + cut), 0.0))
    # Equal weights have no tail.
    flat = jnp.exp(values[order[-1]]) - cut < 1e-12
    new, k_hat = jnp.where(flat, values, new), jnp.where(flat, -jnp.inf, k_hat)
    return new - jax.nn.logsumexp(new), k_hat


def _pareto(excess: Float[Array, " tail"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Shape and scale of a generalised Pareto distribution, from sorted values."""
    count = len(excess)
    grid = 30 + int(math.sqrt(count))
    steps = 1 - jnp.sqrt(grid / (jnp.arange(1, grid + 1) - 0.5))
    rate = steps / (3 * excess[int(count / 4 + 0.5) - 1]) + 1 / excess[-1]
    shape = jnp.mean(jnp.log1p(-rate[:, None] * excess), axis=1)
    profile = count * (jnp.log(-rate / shape) - shape - 1)
    rate = jax.nn.softmax(profile) @ rate
    shape = jnp.mean(jnp.log1p(-rate * excess))
    return (count * shape + 10 * 0.5) / (count + 10), -shape / rate


def systematic(
    random: np.random.Generator, weights: Float[np.ndarray, " points"], count: int
) -> Int[np.ndarray, " count"]:
    """Indices drawn by weight, in random order; each as often as its weight says, to within one."""
    at = (np.arange(count) + random.uniform()) / count
    index = np.searchsorted(np.cumsum(weights), at).clip(0, len(weights) - 1)
    return random.permutation(index)


def _moved(points: Float[np.ndarray, "points k"], log_weights: np.ndarray) -> Student:
    """The proposal with the weighted moments of the points, wider along parameters with heavy
    tails: where points are missing, their weights do not tell. Weights of few points are flattened
    first, until ten points per dimension count.
    """
    least = min(10.0 * points.shape[1], len(points) / 2)
    weights = np.full(len(points), 1 / len(points))
    for power in (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05):
        weights = np.exp(power * (log_weights - log_weights.max()))
        weights /= weights.sum()
        if 1 / np.sum(weights**2) >= least:
            break
    mean = weights @ points
    off = points - mean
    covariance = (off.T * weights) @ off
    kurtosis = weights @ (off / np.sqrt(np.diagonal(covariance))) ** 4
    wider = 1 + np.clip((kurtosis - 3) / 4, 0, _WIDEST - 1)
    return Student(mean, wider[:, None] * _root(covariance))


def _root(covariance: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    scale = np.sqrt(np.diagonal(covariance))
    return scale[:, None] * np.linalg.cholesky(covariance / np.outer(scale, scale))
