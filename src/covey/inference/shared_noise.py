"""Effective draws of chains that share part of their noise.

Chains of the shared parameters run through the same rounds: where only some clients take part, all
chains are pulled towards the same cohort, and their errors do not average out. The usual effective
sample size takes chains as independent and is then too large, the more so the more chains there
are.
"""

from typing import NamedTuple

import numpy as np
from arviz_stats.base.array import array_stats
from jaxtyping import Float
from scipy import special

_ERRORS = 3.0  # standard errors beyond which chains do not count as independent
_TAIL = 0.05  # as in ArviZ's summary, which looks at the 5 % and the 95 % quantile


class Effective(NamedTuple):
    """Diagnostics of one parameter per entry.

    Attributes:
        bulk: Effective sample size of the centre of the distribution.
        tail: Effective sample size of its tails.
        mcse: Monte Carlo standard error of the mean.
    """

    bulk: Float[np.ndarray, " values"]
    tail: Float[np.ndarray, " values"]
    mcse: Float[np.ndarray, " values"]


def effective(draws: Float[np.ndarray, "chains draws values"]) -> Effective:
    """Effective sample sizes and Monte Carlo standard errors where chains share noise.

    The mean over chains of a statistic f is one series m, with all that the chains have in common.
    Its Monte Carlo variance v follows from its autocorrelation, and the effective sample size of f
    is Var(f) / v. For `mcse` f is the parameter itself; for `bulk` its rank-normalised value, for
    `tail` whether it is below the 5 % or the 95 % quantile, as for independent chains (Vehtari,
    Gelman, Simpson, Carpenter and Bürkner 2021).

    One series estimates its autocorrelation less exactly than several. Therefore chains count as
    independent unless the variance of m exceeds the value for independent chains, a chain's
    variance over the number of chains, by three standard errors.

    Args:
        draws: Draws of each parameter; those of a chain in order.

    Returns:
        The diagnostics; NaN for a parameter by which the chains are independent.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> shared, own = rng.normal(size=(1, 1000, 1)), rng.normal(size=(4, 1000, 1))
        >>> effective(shared + 0.1 * own).bulk.round()  # four chains are worth one
        array([978.])
        >>> effective(own).bulk
        array([nan])
    """
    by_value = np.moveaxis(np.asarray(draws, np.float64), -1, 0)
    found = np.array([_of_one(one) for one in by_value]).reshape(-1, 3)
    return Effective(*found.T)


def _of_one(draws: np.ndarray) -> tuple[float, float, float]:
    """Bulk, tail and standard error of the draws (chains, draws) of one parameter."""
    if not np.all(np.isfinite(draws)) or np.ptp(draws) == 0:
        return np.nan, np.nan, np.nan
    from scipy.stats import rankdata  # takes a second to import

    ranks = rankdata(draws).reshape(draws.shape)
    normal = special.ndtri((ranks - 0.375) / (draws.size + 0.25))
    quantiles = np.quantile(draws, (_TAIL, 1 - _TAIL))
    tails = [_size((draws <= quantile).astype(float)) for quantile in quantiles]
    return _size(normal), float(np.fmin.reduce(tails)), float(np.sqrt(_variance_of_mean(draws)))


def _size(statistic: np.ndarray) -> float:
    return float(np.var(statistic, ddof=1) / _variance_of_mean(statistic))


def _variance_of_mean(statistic: np.ndarray) -> float:
    """The Monte Carlo variance of the mean over chains and draws; NaN where these chains are
    independent.
    """
    chains, series = len(statistic), statistic.mean(0)
    within = float(np.var(statistic, axis=1, ddof=1).mean())
    if chains == 1 or not within:
        return np.nan
    ratio = chains * np.var(series, ddof=1) / within
    of_a_chain = _independent_draws(statistic) / chains
    if not ratio > 1 + _ERRORS * np.sqrt(2 / of_a_chain):
        return np.nan
    return float(np.var(series, ddof=1) / _independent_draws(series[None]))


def _independent_draws(draws: np.ndarray) -> float:
    """The effective sample size of the mean, of independent chains (chains, draws)."""
    return float(np.asarray(array_stats.ess(draws, method="mean")))
