"""Calibration of posteriors: coverage of credible intervals over simulated clients, and intervals
of predictions.

Draw a client's effects from their law, rows given the effects, and draws from the posterior given
the rows. If the posterior is exact, an interval of probability p holds the true effect with
probability p, and the number of draws below it is uniform on 0 .. S. Draws of a Markov chain must
be thinned until they are about independent.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Array, Float, Int, Real
from scipy import special  # not scipy.stats, which takes a second to import

from covey.models.predictive import Categorical, Interval, Normal, Predictive, mixture_of

Numbers = Array | np.ndarray
_FEWEST_IN_A_BIN = 5  # expected; with fewer the statistic does not follow its law


class RankCheck(NamedTuple):
    """Pearson's test that ranks are uniform.

    Attributes:
        counts: Ranks of each effect by bin, from below all draws to above all. Too narrow a
            posterior fills the outer bins.
        statistic: Pearson's statistic of each effect.
        p_value: Its p-value; a small one says that the posterior is not calibrated.
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
    """Share of clients whose equal-tailed credible interval holds their true effect.

    Args:
        draws: Posterior draws of each client's effects.
        truth: True effects of each client.
        levels: Probabilities of the intervals.

    Returns:
        One row per level and effect, with the columns level, effect, coverage, and standard_error,
        the binomial standard error of the coverage if the level is right.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> draws, truth = rng.normal(size=(500, 99, 1)), rng.normal(size=(500, 1))
        >>> table = interval_coverage(draws, truth, levels=(0.9,))
        >>> bool(abs(table["coverage"][0] - 0.9) < 3 * table["standard_error"][0])
        True
    """
    drawn, true = np.asarray(draws, float), np.asarray(truth, float)
    clients, count, effects = drawn.shape
    widest = (count - 1) / (count + 1)
    for level in levels:
        if not 0 < level <= widest:
            raise ValueError(
                f"{count} draws make intervals of levels above 0 and up to {widest:.3g}, "
                f"got {level:g}"
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
    """Rank of each client's true effect among its draws.

    Args:
        draws: Posterior draws of each client's effects.
        truth: True effects of each client.

    Returns:
        The number of draws below the true effect, 0 to the number of draws.

    Example:
        >>> import numpy as np
        >>> ranks(np.array([[[1.0], [2.0], [3.0]]]), np.array([[2.5]])).tolist()
        [[2]]
    """
    return np.sum(np.asarray(draws) < np.asarray(truth)[:, None], axis=1)


def rank_check(
    rank: Int[np.ndarray, "clients effects"], *, draws: int, bins: int = 20
) -> RankCheck:
    """Simulation-based calibration: Pearson's test that ranks are uniform.

    Args:
        rank: Ranks of the true effects, from `ranks`.
        draws: Number of draws that they are ranks among.
        bins: Number of bins, of as equal size as whole ranks allow. Default: 20; take fewer where
            clients are few.

    Returns:
        Counts by bin, statistic and p-value of each effect.

    Example:
        >>> import numpy as np
        >>> uniform = np.arange(100)[:, None] % 10
        >>> float(rank_check(uniform, draws=9, bins=10).p_value[0])
        1.0

    Reference: Talts, Betancourt, Simpson, Vehtari and Gelman (2018), Validating Bayesian inference
    algorithms with simulation-based calibration.
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
            f"{len(rank)} clients put {expected.min():.2g} into a bin, and the test needs "
            f"{_FEWEST_IN_A_BIN}: take more clients, or fewer than {bins} bins"
        )
    counts = np.stack(
        [np.bincount(column * bins // (draws + 1), minlength=bins) for column in rank.T]
    )
    statistic = np.sum((counts - expected) ** 2 / expected, axis=1)
    return RankCheck(counts, statistic, special.chdtrc(bins - 1, statistic))


def predictive_interval(predictive: Predictive, probability: float = 0.9) -> Interval:
    """The equal-tailed interval of each row's outcome.

    Args:
        predictive: A `Normal`, `Poisson` or `Mixture` prediction, such as `run.predict` gives.
        probability: Probability that the outcome lies inside. Default: 0.9.

    Returns:
        Lower and upper ends, one per row. For counts they are whole numbers, and the interval holds
        at least the probability.

    Example:
        >>> import jax.numpy as jnp
        >>> lower, upper = predictive_interval(Normal(jnp.array([1.0]), jnp.array([0.5])), 0.95)
        >>> round(float(lower[0]), 2), round(float(upper[0]), 2)
        (0.02, 1.98)
    """
    if isinstance(predictive, Categorical):
        raise ValueError(
            "intervals are of Normal, Poisson and Mixture predictions, not of Categorical; "
            "use its probabilities, predictive.mean"
        )
    return predictive.interval(probability)


def mixture_interval(
    mean: Real[Array, "members rows"], scale: Real[Array, "members rows"], probability: float = 0.9
) -> Interval:
    """The equal-tailed interval of an equally weighted mixture of normals.

    Args:
        mean: Means of the members, such as one per posterior draw, on the leading axis.
        scale: Their standard deviations.
        probability: Probability that the outcome lies inside. Default: 0.9.

    Returns:
        Lower and upper ends, one per row, in double precision.

    Example:
        >>> import jax.numpy as jnp
        >>> lower, upper = mixture_interval(jnp.array([[-3.0], [3.0]]), jnp.ones((2, 1)), 0.95)
        >>> round(float(lower[0]), 3), round(float(upper[0]), 3)
        (-4.645, 4.645)
    """
    return predictive_interval(mixture_of(Normal(mean, scale)), probability)
