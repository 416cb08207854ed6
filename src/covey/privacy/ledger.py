"""The privacy that a run has spent, by every accountant, and a budget that it cannot pass."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, TypeAlias

from covey.privacy.accountants import pld, rdp
from covey.privacy.mechanism import LangevinMechanism
from covey.privacy.theorem import OutOfRangeError, theorem

Accountant: TypeAlias = Literal["theorem", "rdp", "pld"]
ACCOUNTANTS: Mapping[str, Callable[..., float]] = {"theorem": theorem, "rdp": rdp, "pld": pld}

_MOST_ROUNDS = 10**7  # in the search for how many rounds a budget permits
_AGREE = 1e-6  # relative difference between a stored epsilon and the same computed again


class BudgetSpentError(ValueError):
    """More rounds were asked for than the privacy budget allows."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The privacy that a run may spend, and the accountants that count it.

    Attributes:
        delta: Delta of the (epsilon, delta) that is accounted; far below 1 / (number of rows).
        epsilon: Largest epsilon of all rounds together. Default: None, count only.
        accountants: Accountants whose epsilons are reported: "theorem", "rdp", "pld". Default: the
            first two.
        kept_by: Accountant that decides whether the budget is kept. Default: "rdp".
        earlier_rounds: Rounds that the same mechanism has already had on the same rows, for tuning
            for example; they count. Default: 0.

    Example:
        >>> Budget(delta=1e-5, epsilon=2.0).kept_by
        'rdp'
    """

    delta: float
    epsilon: int | float | None = None
    accountants: tuple[Accountant, ...] = ("theorem", "rdp")
    kept_by: Accountant = "rdp"
    earlier_rounds: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise ValueError(
                "privacy: delta must be in (0, 1), far below 1 / (number of rows), "
                f"got {self.delta:g}"
            )
        if self.epsilon is not None and not self.epsilon > 0:
            raise ValueError(f"privacy: the budget epsilon must be above 0, got {self.epsilon:g}")
        if self.earlier_rounds < 0:
            raise ValueError(
                f"privacy: earlier_rounds must be at least 0, got {self.earlier_rounds}"
            )
        if self.kept_by not in self.accountants:
            raise ValueError(
                f"privacy: kept_by={self.kept_by!r} is not one of the accountants "
                f"{', '.join(self.accountants)}"
            )

    def table(self) -> Mapping[str, str | int | float | list]:
        """The budget as a table of a configuration."""
        return {name: value for name, value in asdict(self).items() if value is not None} | {
            "accountants": list(self.accountants)
        }


class Ledger(NamedTuple):
    """The privacy that the rounds of a run spend.

    All rounds cost the same, so the number of rounds is the whole state.

    Attributes:
        mechanism: Settings that decide what a round reveals of one row, and the adjacency.
        budget: The epsilon that may be spent, and the accountants that count it.

    Example:
        >>> round_ = LangevinMechanism(
        ...     step_size=1e-6, temperature=1.0, correlation=0.0, clip=0.5, local_steps=10,
        ...     rows=(1000,) * 10, batch_size=200,
        ... )
        >>> ledger = Ledger(round_, Budget(delta=1e-5, epsilon=1.0, accountants=("rdp",)))
        >>> ledger.permitted(), round(ledger.spent(100)["rdp"], 2)
        (299, 0.55)
    """

    mechanism: LangevinMechanism
    budget: Budget

    def spent(self, rounds: int) -> dict[str, float]:
        """Epsilon after this many rounds of the run, by accountant."""
        total = self.budget.earlier_rounds + rounds
        return {name: self._epsilon(name, total) for name in self.budget.accountants}

    def metrics(self, rounds: int) -> dict[str, float]:
        """The privacy columns of a run's metrics after this many rounds.

        `pld` is slow: past 99 rounds it is computed for the number of rounds rounded up to two
        digits, so that it is never too small.
        """
        total = self.budget.earlier_rounds + rounds
        return {
            f"epsilon_{name}": self._epsilon(name, _two_digits(total) if name == "pld" else total)
            for name in self.budget.accountants
        }

    def next_cost(self, rounds: int) -> float:
        """Epsilon that one more round would add, by the accountant that keeps the budget."""
        total = self.budget.earlier_rounds + rounds
        return self._epsilon(self.budget.kept_by, total + 1) - self._epsilon(
            self.budget.kept_by, total
        )

    def left(self, rounds: int) -> int | None:
        """Rounds that the budget allows after this many; None without a budget."""
        permitted = self.permitted()
        return None if permitted is None else max(permitted - rounds, 0)

    def permitted(self) -> int | None:
        """Rounds that the budget allows in all; None without a budget."""
        if self.budget.epsilon is None:
            return None
        return max(_most(self._affords, _MOST_ROUNDS) - self.budget.earlier_rounds, 0)

    def check(self, rounds: int, *, done: int = 0) -> None:
        """Check that the budget allows a run to continue.

        Args:
            rounds: Round that the run would continue to.
            done: Rounds that the run has had. Default: 0.

        Raises:
            BudgetSpentError: the run would pass the budget; the message says what is left.
            ValueError: an accountant cannot account for it; for example, the step size is outside
                of the theorem's range.
        """
        limit, by = self.budget.epsilon, self.budget.kept_by
        now, then = self.spent(done)[by], self.spent(rounds)[by]
        if limit is None or then <= limit:
            return
        raise BudgetSpentError(
            f"the privacy budget allows {self.left(done)} more rounds, {rounds - done} were asked "
            f"for: it is epsilon={limit:g} at delta={self.budget.delta:g}; {done} rounds have "
            f"spent {now:.4g} of it, and round {rounds} would make it {then:.4g} (by {by}). A "
            "new run can reach more rounds with a smaller step_size or correlation, or fewer "
            "clients per round: see `covey privacy plan`"
        )

    def record(self, rounds: int) -> dict[str, float]:
        """The ledger's state as floats, for a checkpoint."""
        return {"rounds": float(self.budget.earlier_rounds + rounds), **self.spent(rounds)}

    def compare(self, record: Mapping[str, float], rounds: int) -> None:
        """Check a stored state against what this ledger computes.

        Args:
            record: State from a checkpoint.
            rounds: Rounds that the checkpoint is of.

        Raises:
            ValueError: they differ; the mechanism or an accountant has changed.
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
                    f"the checkpoint of round {rounds} says {name}={before} of its privacy, the "
                    f"ledger {here}: resume with the settings and the version of dp-accounting "
                    "that the run was started with"
                )

    def _affords(self, rounds: int) -> bool:
        try:
            epsilons = {name: self._epsilon(name, rounds) for name in self.budget.accountants}
        except OutOfRangeError:  # the theorem's range shrinks with the number of rounds
            return False
        return self.budget.epsilon is None or epsilons[self.budget.kept_by] <= self.budget.epsilon

    def _epsilon(self, name: str, rounds: int) -> float:
        return (
            ACCOUNTANTS[name](self.mechanism, rounds=rounds, delta=self.budget.delta)
            if rounds
            else 0.0
        )


def _most(permits: Callable[[int], bool], limit: int) -> int:
    """The largest integer that is permitted, where every smaller one is; 0 where none is."""
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
