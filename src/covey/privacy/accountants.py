"""The same mechanism by accountants of today: Renyi differential privacy and privacy loss
distributions, from dp-accounting.

A step is the Gaussian mechanism on a minibatch. With minibatches of fixed size, drawn without
replacement, and one row replaced, its Renyi divergence is bounded by Wang, Balle and
Kasiviswanathan (2019). Nor is it more than that of the Gaussian mechanism on all rows, alpha / (2
z^2), as the divergence is quasi-convex: the smaller of both is taken at every order. With Poisson
sampling a row is added or removed, the sum moves by C and not by 2 C, and privacy loss
distributions are nearly exact.

Who takes part in a round is taken to be known to all. A client takes part with chance q, so that a
round's Renyi divergence is

    eps(alpha) = log(1 - q + q e^{(alpha - 1) K eps_step(alpha)}) / (alpha - 1),

an expectation over cohorts and not an amplification by their secrecy. For privacy loss
distributions the rounds that a client takes part in are bounded by a quantile of their binomial
law, and the chance of more is part of delta.
"""

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import binom

from covey.privacy.mechanism import Group, Mechanism, Sampling

if TYPE_CHECKING:
    from types import ModuleType

# Whole orders, where the bound for sampling without replacement is not interpolated; far apart
# where there is little to gain.
_ORDERS = np.array([*range(2, 41), 48, 56, 64, 80, 96, 128, 256, 512, 1024, 2048])
_INTERVAL = 1e-4  # of the discretised privacy loss, as in dp-accounting
_SHARE_OF_UNLIKELY = 0.1  # of delta, for a client that takes part more often than the quantile


def rdp(mechanism: Mechanism, *, rounds: int, delta: float) -> float:
    """The epsilon of so many rounds by Renyi differential privacy, for the client that it is
    largest for.
    """
    _check(rounds, delta)
    compute = _dp_accounting().rdp.rdp_privacy_accountant.compute_epsilon
    return max(
        _finite(compute(_ORDERS, rounds * _of_round(mechanism, group), delta)[0])
        for group in mechanism.groups
    )


def pld(mechanism: Mechanism, *, rounds: int, delta: float) -> float:
    """The epsilon of so many rounds by privacy loss distributions; for Poisson sampling, or where
    there is no sampling of rows.

    Raises:
        ValueError: minibatches of fixed size, for which dp-accounting has no privacy loss
        distribution.
    """
    _check(rounds, delta)
    if mechanism.sampling == "fixed" and any(
        group.batch < group.rows for group in mechanism.groups
    ):
        raise ValueError(
            "privacy: there is no privacy loss distribution for minibatches of fixed size; draw them with sampling='poisson', "
            "use all rows, or account by rdp"
        )
    return max(_of_loss(mechanism, group, rounds, delta) for group in mechanism.groups)


def _of_round(mechanism: Mechanism, group: Group) -> np.ndarray:
    """Renyi divergences of a round, by order."""
    if not group.noise:
        return np.full(len(_ORDERS), np.inf)
    exponent = (
        (_ORDERS - 1)
        * mechanism.steps
        * _of_step(mechanism.sampling, group.batch, group.rows, group.noise)
    )
    absent = math.log1p(-group.chance) if group.chance < 1 else -math.inf
    return np.logaddexp(absent, math.log(group.chance) + exponent) / (_ORDERS - 1)


@lru_cache(maxsize=1024)
def _of_step(sampling: Sampling, batch: int, rows: int, noise: float) -> np.ndarray:
    """Renyi divergences of a step, by order."""
    dp = _dp_accounting()
    if sampling == "poisson":
        accountant = dp.rdp.RdpAccountant(_ORDERS, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
        return accountant.compose(
            dp.PoissonSampledDpEvent(batch / rows, dp.GaussianDpEvent(2 * noise))
        ).rdp
    accountant = dp.rdp.RdpAccountant(_ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    sampled = accountant.compose(
        dp.SampledWithoutReplacementDpEvent(rows, batch, dp.GaussianDpEvent(noise))
    ).rdp
    return np.minimum(sampled, _ORDERS / (2 * noise**2))


def _of_loss(mechanism: Mechanism, group: Group, rounds: int, delta: float) -> float:
    if not group.noise:
        return math.inf
    dp = _dp_accounting()
    if group.chance < 1:
        part = _SHARE_OF_UNLIKELY * delta
        taken, delta = int(binom.isf(part, rounds, group.chance)), delta - part
    else:
        taken = rounds
    # One row more or less moves the sum by C, half of what replacing it does. Where all rows are
    # taken nothing is sampled, and the Gaussian mechanism is the same for either, given its noise
    # over the sensitivity.
    poisson = mechanism.sampling == "poisson"
    gaussian = dp.GaussianDpEvent(2 * group.noise if poisson else group.noise)
    rate = group.batch / group.rows
    event = dp.PoissonSampledDpEvent(rate, gaussian) if poisson and rate < 1 else gaussian
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, _INTERVAL)
    if taken:
        accountant.compose(event, taken * mechanism.steps)
    return float(accountant.get_epsilon(delta))


def _check(rounds: int, delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"privacy: delta must be in (0, 1), got {delta:g}")
    if rounds < 1:
        raise ValueError(f"privacy: rounds must be at least 1, got {rounds}")


def _finite(value: float) -> float:
    return float(value) if not math.isnan(value) else math.inf


def _dp_accounting() -> "ModuleType | Any":
    try:
        import dp_accounting
    except ModuleNotFoundError as error:
        raise ValueError(
            "accounting by rdp or pld needs the package dp-accounting: pip install 'covey[privacy]'"
        ) from error
    return dp_accounting
