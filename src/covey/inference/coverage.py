"""Are credible intervals right as often as they say? Checks over simulated clients, and intervals
of predictions.

Draw a client's effects from their law, rows given the effects, and draws from the posterior given
the rows. If the posterior is exact, effects and draws are exchangeable: an interval of probability
p holds the true effect with probability p, and the number of draws below the true effect is uniform
on 0 .. S (simulation-based calibration; Talts, Betancourt, Simpson, Vehtari and Gelman 2018). Draws
of a Markov chain must be thinned until they are about independent.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, Int, Real
from scipy import special  # not scipy.stats, which takes a second to import

from covey.inference.posterior import check_probability
from covey.models.predictive import Normal, Poisson, Predictive

Numbers = Array | np.ndarray
_FEWEST_IN_A_BIN = 5  # expected; with fewer the statistic does not follow its law
_BISECTIONS = 60


class RankCheck(NamedTuple):
    """Pearson's test that ranks are uniform.

    counts: of each effect by bin, from ranks below all draws to ranks above all. Too narrow a
        posterior fills the outer bins.
    statistic, p_value: of each effect. Small p-values say that the posterior is not calibrated.
    """

    counts: Int[np.ndarray, "effects bins"]
    statistic: Float[np.ndarray, " effects"]
    p_value: Float[np.ndarray, " effects"]


def interval_coverage(
    draws: Float[Numbers, "clients draws effects"],
    truth: Float[Numbers, "clients effects"],
    *,
    levels: Sequence[float] = (0.5, 0.8, 0.9, 0.95),
) -> pd.DataFrame:
    """How many clients' equal-tailed intervals hold their true effect: a line a level and effect.

    Columns: level, effect, coverage, and standard_error, the binomial one that the coverage has if
    the level is right.
    """
    drawn, true = np.asarray(draws, float), np.asarray(truth, float)
    clients, number, effects = drawn.shape
    widest = (number - 1) / (number + 1)
    for level in levels:
        if not 0 < level <= widest:
            raise ValueError(
                f"{number} draws make intervals of levels above 0 and up to {widest:.3g}, got {level:g}"
            )
    pieces = []
    for level in levels:
        # Between neighbouring order statistics lies a mass of 1 / (draws + 1) on average, which is
        # what Weibull's rule takes.
        lower, upper = np.quantile(
            drawn, [(1 - level) / 2, (1 + level) / 2], axis=1, method="weibull"
        )
        inside = (lower <= true) & (true <= upper)
        columns = {"level": level, "effect": np.arange(effects), "coverage": inside.mean(0)}
        pieces.append(
            pd.DataFrame(columns).assign(standard_error=np.sqrt(level * (1 - level) / clients))
        )
    return pd.concat(pieces, ignore_index=True)


def ranks(
    draws: Float[Numbers, "clients draws effects"], truth: Float[Numbers, "clients effects"]
) -> Int[np.ndarray, "clients effects"]:
    """How many of a client's draws lie below its true effect: 0 to the number of draws."""
    return np.sum(np.asarray(draws) < np.asarray(truth)[:, None], axis=1)


def rank_check(
    rank: Int[np.ndarray, "clients effects"], *, draws: int, bins: int = 20
) -> RankCheck:
    """Test that ranks among `draws` draws are uniform, in `bins` bins of as equal size as whole
    ranks allow.
    """
    if rank.size and not 0 <= rank.min() <= rank.max() <= draws:
        raise ValueError(
            f"ranks among {draws} draws are 0 to {draws}, got {rank.min()} to {rank.max()}"
        )
    if not 2 <= bins <= draws + 1:
        raise ValueError(f"{draws} draws make 2 to {draws + 1} bins, got {bins}")
    sizes = np.bincount(np.arange(draws + 1) * bins // (draws + 1), minlength=bins)
    expected = len(rank) * sizes / (draws + 1)
    if expected.min() < _FEWEST_IN_A_BIN:
        raise ValueError(
            f"{len(rank)} clients put {expected.min():.2g} into a bin, and the test needs {_FEWEST_IN_A_BIN}: "
            f"take more clients, or fewer than {bins} bins"
        )
    counts = np.stack(
        [np.bincount(column * bins // (draws + 1), minlength=bins) for column in rank.T]
    )
    statistic = np.sum((counts - expected) ** 2 / expected, axis=1)
    return RankCheck(counts, statistic, special.chdtrc(bins - 1, statistic))


def predictive_interval(
    predictive: Predictive, probability: float = 0.9
) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]]:
    """The equal-tailed interval of each row's outcome. That of counts is of whole numbers and holds
    at least the probability.
    """
    lower, upper = _tails(probability)
    if isinstance(predictive, Normal):
        mean, scale = np.asarray(predictive.mean, float), np.asarray(predictive.scale, float)
        return mean + scale * special.ndtri(lower), mean + scale * special.ndtri(upper)
    if isinstance(predictive, Poisson):
        rate = np.exp(np.asarray(predictive.log_rate, float))
        return _poisson_quantile(lower, rate), _poisson_quantile(upper, rate)
    raise ValueError(
        f"intervals are of Normal and Poisson predictions, not of {type(predictive).__name__}"
    )


def mixture_interval(
    mean: Real[Array, "members rows"], scale: Real[Array, "members rows"], probability: float = 0.9
) -> tuple[Float[Array, " rows"], Float[Array, " rows"]]:
    """The equal-tailed interval of a mixture of normals with equal weights: what posterior draws
    predict together.

    A run's own prediction is the normal with the mixture's mean and variance; where draws disagree,
    the mixture has other quantiles. They are found by bisection, between the least and the greatest
    of the members' quantiles.
    """

    def quantile(tail):
        ends = mean + scale * jax.scipy.stats.norm.ppf(tail)

        def halve(_, ends):
            low, high = ends
            middle = (low + high) / 2
            below = jnp.mean(jax.scipy.stats.norm.cdf(middle, mean, scale), axis=0) < tail
            return jnp.where(below, middle, low), jnp.where(below, high, middle)

        low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, (ends.min(0), ends.max(0)))
        return (low + high) / 2

    lower, upper = _tails(probability)
    return quantile(lower), quantile(upper)


def _poisson_quantile(tail: float, rate: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
    """The least count whose distribution function reaches `tail`; the continuous inverse may be one
    too high by rounding.
    """
    count = np.maximum(np.ceil(special.pdtrik(tail, rate)), 0.0)
    before = np.maximum(count - 1, 0.0)
    return np.where(special.pdtr(before, rate) >= tail, before, count)


def _tails(probability: float) -> tuple[float, float]:
    check_probability(probability)
    return (1 - probability) / 2, (1 + probability) / 2
