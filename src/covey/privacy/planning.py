"""Settings of FA-LD inside a privacy budget: the largest step size for each way to share noise,
draw clients and end.

What a step reveals depends on step size, temperature and correlation through the noise z ~ sqrt(tau
(1 - rho^2) / eta) alone. So the least z that keeps the budget is looked for once for each cohort
size and number of rounds, on a grid of steps of 2 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal, NamedTuple

from covey.privacy.ledger import ACCOUNTANTS, Accountant
from covey.privacy.mechanism import Mechanism, Sampling
from covey.privacy.theorem import OutOfRangeError

_GRID = 1.02  # from one noise to the next that is tried
_STRIDE = 16  # of the grid, while a bracket is looked for
_FURTHEST = 1200  # on the grid: a noise of 2e10 times the sensitivity


class Proposal(NamedTuple):
    """Settings, and what they spend by each accountant that can account for them."""

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
    """The largest step size that keeps the budget, for each cohort size, number of rounds and
    correlation.

    Clients are taken to have `rows` rows each. Without choices of its own: all, half and a tenth of
    the clients; 100 and 1000 rounds; correlations of 0, 0.5 and 0.9.

    Raises:
        ValueError: a setting is out of range, or nothing keeps the budget.
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
    for size, number in product(sizes, rounds or (100, 1000)):
        full = scheme == "uniform" and size == clients
        base = Mechanism(
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
        noise = _least_noise(base, number, delta, epsilon, kept_by)
        if noise is None:
            continue
        largest = float(base.noises[0] / noise) ** 2
        spent = _spent(
            replace(base, step_size=largest), number, delta
        )  # the same for every correlation, with its step size
        for correlation in (0.0, 0.5, 0.9) if correlations is None else correlations:
            private = (
                replace(base, correlation=correlation).private_temperature
                / base.private_temperature
            )
            if private:  # without noise of the clients' own no step is small enough
                proposals.append(Proposal(size, number, correlation, largest * private, spent))
    if not proposals:
        raise ValueError(
            f"privacy: no step size keeps epsilon={epsilon:g} at delta={delta:g}; allow fewer rounds, local steps or chains, a "
            "larger epsilon, or noise of the clients' own (a correlation below 1)"
        )
    return proposals


def _least_noise(
    mechanism: Mechanism, rounds: int, delta: float, epsilon: float, kept_by: Accountant
) -> float | None:
    """The least noise on the grid that keeps the budget; None where none does."""

    def keeps(place: int) -> bool:
        tried = replace(mechanism, step_size=float(mechanism.noises[0] / _GRID**place) ** 2)
        try:
            return ACCOUNTANTS[kept_by](tried, rounds=rounds, delta=delta) <= epsilon
        except OutOfRangeError:
            return False

    # What many small steps come to by the central limit theorem: twice too much or too little at
    # most, mostly.
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


def _spent(mechanism: Mechanism, rounds: int, delta: float) -> dict[str, float]:
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
        except OutOfRangeError:  # the theorem says nothing of steps this large
            continue
    return spent
