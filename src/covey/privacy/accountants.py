"""Accounting by Renyi differential privacy and by privacy loss distributions, of dp-accounting.

A step is the Gaussian mechanism on a minibatch. With minibatches of a fixed size, drawn without
replacement, and one row replaced, its Renyi divergence is bounded by Wang, Balle and
Kasiviswanathan (2019). Nor is it more than that of the Gaussian mechanism on all rows,
alpha / (2 z^2), as the divergence is quasi-convex: the smaller of both is taken at every order.
With Poisson sampling one row is zeroed out (`LangevinMechanism` says more of adjacency), and
privacy loss distributions are nearly exact. The noise z is in units of the sensitivity of either.

Who takes part in a round is taken to be public. A client takes part with probability q, so that a
round's Renyi divergence is

    eps(alpha) = log(1 - q + q e^{(alpha - 1) K eps_step(alpha)}) / (alpha - 1),

an expectation over cohorts and not an amplification by their secrecy. For privacy loss
distributions the rounds that a client takes part in are bounded by a quantile of their binomial
distribution, and the probability of more is part of delta.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.privacy.mechanism import Group, LangevinMechanism, Sampling

if TYPE_CHECKING:
    from types import ModuleType

# Integer orders, where the bound for sampling without replacement needs no interpolation; far
# apart where there is little to gain.
_ORDERS = np.array([*range(2, 41), 48, 56, 64, 80, 96, 128, 256, 512, 1024, 2048])
_INTERVAL = 1e-4  # of the discretised privacy loss, as in dp-accounting
_SHARE_OF_UNLIKELY = 0.1  # of delta, for a client that takes part more often than the quantile


def rdp(mechanism: LangevinMechanism, *, rounds: int, delta: float) -> float:
    """Epsilon by Renyi differential privacy, of the client for which it is largest.

    Args:
        mechanism: Settings of a round.
        rounds: Number of rounds.
        delta: Delta of the (epsilon, delta) that is accounted.

    Returns:
        Epsilon; infinite where nothing but shared noise is added.

    Example:
        >>> round_ = LangevinMechanism(
        ...     step_size=1e-6, temperature=1.0, correlation=0.0, clip=0.5, local_steps=10,
        ...     rows=(1000,) * 10, batch_size=200,
        ... )
        >>> round(rdp(round_, rounds=100, delta=1e-5), 2)
        0.55

    Reference: Wang, Balle and Kasiviswanathan (2019), Subsampled Renyi differential privacy and
    analytical moments accountant, theorem 27; Mironov et al. (2019) for Poisson sampling.
    """
    _check(rounds, delta)
    compute = _dp_accounting().rdp.rdp_privacy_accountant.compute_epsilon
    return max(
        _finite(compute(_ORDERS, rounds * _of_round(mechanism, group), delta)[0])
        for group in mechanism.groups
    )


def rdp_of_several(spent: Sequence[tuple[LangevinMechanism, int]], *, delta: float) -> float:
    """Epsilon of rounds of several mechanisms on the same rows, by Renyi differential privacy.

    Divergences of all rounds add up at every order; where a mechanism has clients of several
    sizes, the largest divergence at each order is taken.

    Args:
        spent: Each mechanism, and the count of its rounds.
        delta: Delta of the (epsilon, delta) that is accounted.

    Returns:
        Epsilon of all rounds together; 0 without rounds.

    Example:
        >>> round_ = LangevinMechanism(
        ...     step_size=1e-6, temperature=1.0, correlation=0.0, clip=0.5, local_steps=10,
        ...     rows=(1000,) * 10, batch_size=200,
        ... )
        >>> round(rdp_of_several([(round_, 60), (round_, 40)], delta=1e-5), 2)
        0.55

    Reference: Mironov (2017), Renyi differential privacy, proposition 1.
    """
    total = np.zeros(len(_ORDERS))
    for mechanism, rounds in spent:
        if rounds:
            _check(rounds, delta)
            each = [_of_round(mechanism, group) for group in mechanism.groups]
            total = total + rounds * np.max(each, axis=0)
    if not total.any():
        return 0.0
    compute = _dp_accounting().rdp.rdp_privacy_accountant.compute_epsilon
    return _finite(compute(_ORDERS, total, delta)[0])


def pld(mechanism: LangevinMechanism, *, rounds: int, delta: float) -> float:
    """Epsilon by privacy loss distributions, of the client for which it is largest.

    For Poisson sampling, or where all rows are used.

    Args:
        mechanism: Settings of a round.
        rounds: Number of rounds.
        delta: Delta of the (epsilon, delta) that is accounted.

    Returns:
        Epsilon, nearly exact where every client takes part in every round.

    Raises:
        ValueError: minibatches of a fixed size, for which dp-accounting has no privacy loss
            distribution.

    Example:
        >>> round_ = LangevinMechanism(
        ...     step_size=1e-6, temperature=1.0, correlation=0.0, clip=0.5, local_steps=10,
        ...     rows=(1000,) * 10,
        ... )
        >>> round(pld(round_, rounds=100, delta=1e-5), 2)
        0.23

    Reference: Koskela, Jalko and Honkela (2020), Computing tight differential privacy guarantees
    using FFT; Doroshenko et al. (2022), Connect the dots.
    """
    _check(rounds, delta)
    if mechanism.sampling == "fixed" and any(
        group.batch < group.rows for group in mechanism.groups
    ):
        raise ValueError(
            "privacy: there is no privacy loss distribution for minibatches of fixed size; "
            "draw them with sampling='poisson', use all rows, or account by rdp"
        )
    return max(_of_loss(mechanism, group, rounds, delta) for group in mechanism.groups)


def _of_round(mechanism: LangevinMechanism, group: Group) -> np.ndarray:
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
        accountant = dp.rdp.RdpAccountant(_ORDERS, dp.NeighboringRelation.REPLACE_SPECIAL)
        return accountant.compose(
            dp.PoissonSampledDpEvent(batch / rows, dp.GaussianDpEvent(noise))
        ).rdp
    accountant = dp.rdp.RdpAccountant(_ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    sampled = accountant.compose(
        dp.SampledWithoutReplacementDpEvent(rows, batch, dp.GaussianDpEvent(noise))
    ).rdp
    return np.minimum(sampled, _ORDERS / (2 * noise**2))


def _of_loss(mechanism: LangevinMechanism, group: Group, rounds: int, delta: float) -> float:
    if not group.noise:
        return math.inf
    dp = _dp_accounting()
    if group.chance < 1:
        from scipy.stats import binom  # takes a second to import

        part = _SHARE_OF_UNLIKELY * delta
        taken, delta = int(binom.isf(part, rounds, group.chance)), delta - part
    else:
        taken = rounds
    # Where all rows are taken nothing is sampled, and given its noise over the sensitivity the
    # Gaussian mechanism is the same for every adjacency.
    gaussian, rate = dp.GaussianDpEvent(group.noise), group.batch / group.rows
    event = dp.PoissonSampledDpEvent(rate, gaussian) if rate < 1 else gaussian
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, _INTERVAL)
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
