"""Settings of FA-LD inside a privacy budget."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal, NamedTuple

from covey.privacy.ledger import ACCOUNTANTS, Accountant
from covey.privacy.mechanism import LangevinMechanism, Sampling
from covey.privacy.theorem import OutOfRangeError

_GRID = 1.02  # ratio of a noise to the one before it on the grid
_STRIDE = 16  # in the search for a bracket
_FURTHEST = 1200  # a noise of 2e10 times the sensitivity


class Proposal(NamedTuple):
    """Settings, and what they spend.

    Attributes:
        cohort_size: Clients per round (S).
        rounds: Number of rounds.
        correlation: Share of the noise that all clients have in common (rho).
        step_size: Largest Langevin step that keeps the budget (eta).
        spent: Epsilon by each accountant that can account for these settings.
    """

    cohort_size: int
    rounds: int
    correlation: float
    step_size: float
    spent: Mapping[str, float]


def plan(
    *,
    epsilon: int | float,
    delta: float,
    clients: int,
    rows: int,
    batch_size: int | None = None,
    local_steps: int = 10,
    chains: int = 1,
    temperature: int | float = 1.0,
    clip: int | float = 1.0,
    correlations: Sequence[float] | None = None,
    cohort_sizes: Sequence[int] | None = None,
    rounds: Sequence[int] | None = None,
    scheme: Literal["uniform", "weighted"] = "uniform",
    sampling: Sampling = "fixed",
    kept_by: Accountant = "rdp",
) -> list[Proposal]:
    """The largest step sizes of FA-LD that keep a privacy budget.

    One proposal for each cohort size, number of rounds and correlation. What a step reveals depends
    on step size, temperature and correlation only through the noise z ~ sqrt(tau (1 - rho^2) /
    eta), so the least z that keeps the budget is searched once for each cohort size and number of
    rounds, on a grid of steps of 2 %.

    Args:
        epsilon: Budget for all rounds together.
        delta: Delta of the (epsilon, delta) that is accounted; far below 1 / (number of rows).
        clients: Number of clients (N).
        rows: Training rows per client; clients are taken to be of equal size.
        batch_size: Rows of a minibatch. Default: None, all rows.
        local_steps: Langevin steps per round (K). Default: 10.
        chains: Chains side by side; each costs as much as one. Default: 1.
        temperature: Temperature of the target (tau). Default: 1, the posterior.
        clip: Largest norm of one row's gradient (C). Default: 1.
        correlations: Shares of the noise in common (rho) to try. Default: 0, 0.5 and 0.9.
        cohort_sizes: Clients per round (S) to try. Default: all, half and a tenth of them.
        rounds: Numbers of rounds to try. Default: 100 and 1000.
        scheme: Scheme of the cohorts: "uniform" (default) or "weighted".
        sampling: Scheme of the minibatches: "fixed" (default) or "poisson". Their epsilons cover
            different changes of a row; see `LangevinMechanism`.
        kept_by: Accountant that the budget is kept by. Default: "rdp".

    Returns:
        The proposals, without those for which no step is small enough.

    Raises:
        ValueError: a setting is out of range, or nothing keeps the budget.

    Example:
        >>> found = plan(
        ...     epsilon=1.0, delta=1e-5, clients=10, rows=1000, rounds=[50], cohort_sizes=[5],
        ...     correlations=[0.5],
        ... )
        >>> [(one.cohort_size, one.rounds, one.spent["rdp"] <= 1) for one in found]
        [(5, 50, True)]
    """
    if not epsilon > 0:
        raise ValueError(f"privacy: the budget epsilon must be above 0, got {epsilon:g}")
    if not 0 < delta < 1:
        raise ValueError(f"privacy: delta must be in (0, 1), got {delta:g}")
    if clients < 1 or rows < 1:
        raise ValueError(f"privacy: clients and rows must be at least 1, got {clients} and {rows}")
    sizes = cohort_sizes or sorted(
        {clients, max(clients // 2, 1), max(clients // 10, 1)}, reverse=True
    )
    proposals = []
    for size, count in product(sizes, rounds or (100, 1000)):
        full = scheme == "uniform" and size == clients
        base = LangevinMechanism(
            step_size=1.0,
            temperature=temperature,
            correlation=0.0,
            clip=clip,
            local_steps=local_steps,
            rows=(rows,) * clients,
            batch_size=batch_size,
            scheme="full" if full else scheme,
            cohort_size=None if full else size,
            sampling=sampling,
            chains=chains,
        )
        noise = _least_noise(base, count, delta, epsilon, kept_by)
        if noise is None:
            continue
        largest = float(base.noises[0] / noise) ** 2
        # The same for every correlation, with the step size that goes with it.
        spent = _spent(replace(base, step_size=largest), count, delta)
        for correlation in (0.0, 0.5, 0.9) if correlations is None else correlations:
            private = (
                replace(base, correlation=correlation).private_temperature
                / base.private_temperature
            )
            if private:  # without noise that clients draw themselves no step is small enough
                proposals.append(Proposal(size, count, correlation, largest * private, spent))
    if not proposals:
        raise ValueError(
            f"privacy: no step size keeps epsilon={epsilon:g} at delta={delta:g}; allow fewer "
            "rounds, local steps or chains, a larger epsilon, or a correlation below 1"
        )
    return proposals


def _least_noise(
    mechanism: LangevinMechanism, rounds: int, delta: float, epsilon: float, kept_by: Accountant
) -> float | None:
    """The least noise on the grid that keeps the budget; None where none does."""

    def keeps(index: int) -> bool:
        tried = replace(mechanism, step_size=float(mechanism.noises[0] / _GRID**index) ** 2)
        try:
            return ACCOUNTANTS[kept_by](tried, rounds=rounds, delta=delta) <= epsilon
        except OutOfRangeError:
            return False

    # The sum of many small steps by the central limit theorem; usually within a factor of two.
    steps = rounds * mechanism.steps * float(mechanism.chances[0])
    guess = 2 * float(mechanism.rates[0]) * math.sqrt(2 * steps * math.log(1 / delta)) / epsilon
    enough = max(round(math.log(max(guess, 0.1)) / math.log(_GRID)), 0)
    while not keeps(enough):
        enough += _STRIDE
        if enough > _FURTHEST:
            return None
    too_few = enough - _STRIDE
    while too_few > -_FURTHEST and keeps(too_few):
        too_few, enough = too_few - _STRIDE, too_few
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if keeps(middle) else (middle, enough)
    return _GRID**enough


def _spent(mechanism: LangevinMechanism, rounds: int, delta: float) -> dict[str, float]:
    """Epsilons by every accountant that has one for this mechanism."""
    sampled = mechanism.sampling == "fixed" and mechanism.rates.min() < 1
    names = [
        "rdp",
        *(["theorem"] if mechanism.sampling == "fixed" else []),
        *([] if sampled else ["pld"]),
    ]
    spent = {}
    for name in names:
        try:
            spent[name] = ACCOUNTANTS[name](mechanism, rounds=rounds, delta=delta)
        except OutOfRangeError:  # the theorem does not cover steps this large
            continue
    return spent
