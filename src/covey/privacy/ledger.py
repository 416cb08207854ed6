"""What a run has spent of its privacy, by every accountant, and a budget that it cannot pass."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, TypeAlias

from covey.privacy.accountants import pld, rdp
from covey.privacy.mechanism import Mechanism
from covey.privacy.theorem import OutOfRangeError, theorem

Accountant: TypeAlias = Literal["theorem", "rdp", "pld"]
ACCOUNTANTS: Mapping[str, Callable[..., float]] = {"theorem": theorem, "rdp": rdp, "pld": pld}

_MOST_ROUNDS = 10**7  # looked at, to find how many a budget permits
_AGREE = 1e-6  # relatively: an epsilon that was stored, and the same computed again


class BudgetSpentError(ValueError):
    """More rounds were asked for than the privacy budget permits."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a run may spend, and who counts.

    delta: of the (epsilon, delta) that is accounted.
    epsilon: the budget; None only counts.
    accountants: whose epsilons are reported.
    kept_by: the accountant that the budget is kept by.
    earlier_rounds: that the same mechanism has already had on the same rows, e.g. to tune it. They
        count.
    """

    delta: float
    epsilon: int | float | None = None
    accountants: tuple[Accountant, ...] = ("theorem", "rdp")
    kept_by: Accountant = "rdp"
    earlier_rounds: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ValueError(
                f"privacy: delta must be in (0, 1), far below 1 / (number of rows), got {self.delta:g}"
            )
        if self.epsilon is not None and not self.epsilon > 0:
            raise ValueError(f"privacy: the budget epsilon must be above 0, got {self.epsilon:g}")
        if self.earlier_rounds < 0:
            raise ValueError(
                f"privacy: earlier_rounds must be at least 0, got {self.earlier_rounds}"
            )
        if self.kept_by not in self.accountants:
            raise ValueError(
                f"privacy: kept_by={self.kept_by!r} is not one of the accountants {', '.join(self.accountants)}"
            )

    def table(self) -> Mapping[str, str | int | float | list]:
        """Its values as a table of a configuration holds them."""
        return {name: value for name, value in asdict(self).items() if value is not None} | {
            "accountants": list(self.accountants)
        }


class Ledger(NamedTuple):
    """The privacy of a run's rounds. All rounds cost the same, so that their number is all there is
    to remember.

    mechanism: what a round reveals.
    budget: what may be spent, and who counts.
    """

    mechanism: Mechanism
    budget: Budget

    def spent(self, rounds: int) -> dict[str, float]:
        """Epsilon after so many rounds of the run, by accountant."""
        total = self.budget.earlier_rounds + rounds
        return {name: self._epsilon(name, total) for name in self.budget.accountants}

    def metrics(self, rounds: int) -> dict[str, float]:
        """What a line of a run's metrics says of privacy after so many rounds.

        Past 99 rounds `pld`, which is slow, is of the next number of rounds with two digits: never
        too little.
        """
        total = self.budget.earlier_rounds + rounds
        return {
            f"epsilon_{name}": self._epsilon(name, _two_digits(total) if name == "pld" else total)
            for name in self.budget.accountants
        }

    def next_cost(self, rounds: int) -> float:
        """What one more round would add to the epsilon that the budget is kept by."""
        total = self.budget.earlier_rounds + rounds
        return self._epsilon(self.budget.kept_by, total + 1) - self._epsilon(
            self.budget.kept_by, total
        )

    def left(self, rounds: int) -> int | None:
        """How many rounds the budget permits after so many; None without a budget."""
        permitted = self.permitted()
        return None if permitted is None else max(permitted - rounds, 0)

    def permitted(self) -> int | None:
        """How many rounds a run may have; None without a budget."""
        if self.budget.epsilon is None:
            return None
        return max(_most(self._affords, _MOST_ROUNDS) - self.budget.earlier_rounds, 0)

    def check(self, rounds: int, *, done: int = 0) -> None:
        """See that a run may go on to so many rounds.

        Raises:
            BudgetSpentError: it would pass the budget; says what is left. ValueError: an accountant
            cannot account for it, e.g. the step size is outside of the theorem's range.
        """
        limit, by = self.budget.epsilon, self.budget.kept_by
        now, then = self.spent(done)[by], self.spent(rounds)[by]
        if limit is None or then <= limit:
            return
        left = self.left(done)
        way_out = (
            f"run at most {left} more"
            if left
            else "the budget is spent, and these rows have no privacy left under it"
        )
        raise BudgetSpentError(
            f"the privacy budget is epsilon={limit:g} at delta={self.budget.delta:g}; {done} rounds have spent {now:.4g} of it, "
            f"and going on to round {rounds} would make it {then:.4g} (by {by}): {way_out}. A new run can reach more rounds "
            "with a smaller step_size or correlation, or fewer clients in a round: see `covey privacy plan`"
        )

    def record(self, rounds: int) -> dict[str, float]:
        """The ledger's state, for a checkpoint: plain numbers."""
        return {"rounds": float(self.budget.earlier_rounds + rounds), **self.spent(rounds)}

    def compare(self, record: Mapping[str, float], rounds: int) -> None:
        """See that a stored state is what this ledger says of so many rounds.

        Raises:
            ValueError: it is not; the mechanism or an accountant has changed.
        """
        now = self.record(rounds)
        for name in sorted(now.keys() | record.keys()):
            before, here = record.get(name), now.get(name)
            if (
                before is None
                or here is None
                or abs(before - here) > _AGREE * max(abs(before), abs(here))
            ):
                raise ValueError(
                    f"the checkpoint of round {rounds} says {name}={before} of its privacy, the ledger {here}: resume with the "
                    "settings and the version of dp-accounting that the run was started with"
                )

    def _affords(self, rounds: int) -> bool:
        try:
            epsilons = {name: self._epsilon(name, rounds) for name in self.budget.accountants}
        except OutOfRangeError:  # the theorem's range becomes narrower with the number of rounds
            return False
        return self.budget.epsilon is None or epsilons[self.budget.kept_by] <= self.budget.epsilon

    def _epsilon(self, name: str, rounds: int) -> float:
        return (
            ACCOUNTANTS[name](self.mechanism, rounds=rounds, delta=self.budget.delta)
            if rounds
            else 0.0
        )


def _most(permits: Callable[[int], bool], limit: int) -> int:
    """The largest number that is permitted, where every smaller one is; 0 where none is."""
    too_many = 1
    while too_many <= limit and permits(too_many):
        too_many *= 2
    permitted = too_many // 2
    while too_many - permitted > 1:
        middle = (permitted + too_many) // 2
        permitted, too_many = (middle, too_many) if permits(middle) else (permitted, middle)
    return permitted


def _two_digits(rounds: int) -> int:
    scale = 10 ** max(len(str(rounds)) - 2, 0)
    return -(-rounds // scale) * scale
