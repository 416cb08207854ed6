"""The site's own privacy ledger: the privacy loss of one of its rows, over all studies together.

A server's ledger is about one run, and the server keeps it. This one is the owner's: it counts
every answer that the site has computed, in every study, and is written before the answer leaves.

The noise that it counts on comes from the site's own key, which no server knows
(`secret_key.secret_of`).

A ledger that counts fewer answers of a study than the audit log beside it is an old copy: nothing
leaves until its owner has restored it. Where the whole folder is set back, log and ledger agree;
answers since then are not counted, and only the owner can know of them.
"""

import fcntl
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from covey.core import atomic_files
from covey.deploy.audit import AuditLog
from covey.deploy.refusal import DeclinedError
from covey.deploy.site_file import Privacy
from covey.privacy.accountants import rdp_of_several
from covey.privacy.mechanism import LangevinMechanism


class Charge(NamedTuple):
    """Rounds of one study that revealed the same.

    Attributes:
        study: The study's name.
        mechanism: Privacy mechanism of one of its rounds; None for a method without one.
        rounds: Answers that were computed.
    """

    study: str
    mechanism: LangevinMechanism | None
    rounds: int


class SiteLedger:
    """The answers of a site over all studies: `ledger.json` in its state folder.

    Example:
        >>> import tempfile
        >>> ledger = SiteLedger(Path(tempfile.mkdtemp()), Privacy(epsilon=1.0, delta=1e-5))
        >>> round_ = LangevinMechanism(
        ...     step_size=1e-6, temperature=1.0, correlation=0.0, clip=0.5, local_steps=10,
        ...     rows=(1000, 9000), batch_size=200,
        ... )
        >>> ledger.charge("heart", round_)
        >>> round(ledger.spent(), 3), ledger.rounds("heart")
        (0.073, 1)
    """

    def __init__(self, folder: Path, privacy: Privacy):
        self._path, self._privacy = folder / "ledger.json", privacy
        self._log, self._is_current = AuditLog(folder / "audit.jsonl"), False

    def charges(self) -> list[Charge]:
        """The answers to each study."""
        if not self._path.exists():
            return []
        try:
            content = json.loads(self._path.read_text("utf-8"))
            return [
                Charge(str(one["study"]), _mechanism(one["mechanism"]), int(one["rounds"]))
                for one in content
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise DeclinedError(
                "budget",
                f"the site's privacy ledger cannot be read ({type(error).__name__}), so that "
                "nothing may leave; its owner has to restore it",
                f"{self._path} is damaged ({error}), so that nothing may leave: put the newest "
                "copy of it back",
            ) from None

    def rounds(self, study: str) -> int:
        """Answers that a study has had."""
        return sum(one.rounds for one in self.charges() if one.study == study)

    def spent(self) -> float:
        """Epsilon of all studies together; 0 where no budget is kept."""
        return self._epsilon(self.charges())

    def need_accounting(self, study: str, method: str, mechanism: Any) -> None:
        """A refusal where the site has a budget and the method has no privacy mechanism.

        Args:
            study: The study's name.
            method: The method's name.
            mechanism: Privacy mechanism of its rounds; None without one.
        """
        if self._privacy.budget == "none":
            return
        if not isinstance(mechanism, LangevinMechanism):
            raise DeclinedError(
                "budget",
                f"the site keeps a privacy budget, and {method} does not account for what it "
                "reveals of a row; use a method that does, e.g. fald with clip=",
            )
        self._check(_with_one_more(self.charges(), study, mechanism), study)

    def charge(self, study: str, mechanism: LangevinMechanism | None) -> None:
        """Count one answer, before it leaves.

        Args:
            study: The study's name.
            mechanism: Privacy mechanism of the answer.

        Raises:
            DeclinedError: The budget does not allow it, or the ledger is an old copy; nothing is
                counted then.
            OSError: The ledger cannot be written.
        """
        with self._held():
            self._need_current()
            charges = _with_one_more(self.charges(), study, mechanism)
            if self._privacy.budget != "none":
                self._check(charges, study)
            content = [
                one._asdict()
                | {"mechanism": None if one.mechanism is None else asdict(one.mechanism)}
                for one in charges
            ]
            text = json.dumps(content, indent=1)
            atomic_files.write(self._path, text.encode(), private=True)

    def _need_current(self) -> None:
        """A refusal where the log has answers that the ledger does not count; looked at once."""
        if self._is_current:
            return
        sent = {
            (one.get("study"), one.get("kind"), one.get("epoch"), one.get("round"))
            for one in self._log.lines()
            if one.get("event") == "sent" and one.get("kind") == "round"
        }
        logged = Counter(str(study) for study, *_ in sent)
        for study, count in logged.items():
            if self.rounds(study) < count:
                raise DeclinedError(
                    "budget",
                    "the site's privacy ledger is older than its audit log, so that nothing may "
                    "leave; its owner has to restore it",
                    f"{self._path} counts {self.rounds(study)} answers of {study!r}, and the audit "
                    f"log has {count}: the ledger is an old copy, or was removed. Put the newest "
                    "one back",
                )
        self._is_current = True

    @contextmanager
    def _held(self) -> Iterator[None]:
        """A lock: studies may run in separate processes, which count one after the other."""
        lock = self._path.with_suffix(".lock")
        with atomic_files.explained(lock), lock.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _check(self, charges: Sequence[Charge], study: str) -> None:
        """A refusal where these charges, the last answer included, pass the budget."""
        then = self._epsilon(charges)
        if then > (self._privacy.epsilon or 0.0):
            rounds = sum(one.rounds for one in charges if one.study == study) - 1
            raise DeclinedError(
                "budget",
                f"the site's privacy budget of epsilon {self._privacy.epsilon:g} at delta "
                f"{self._privacy.delta:g} over all studies is spent: {rounds} rounds of "
                f"{study!r} were answered, and one more would make it {then:.4g}",
            )

    def _epsilon(self, charges: Sequence[Charge]) -> float:
        if self._privacy.budget == "none" or self._privacy.delta is None:
            return 0.0
        if any(one.mechanism is None for one in charges):
            return float("inf")  # rounds without noise, from before a budget was set
        spent = [(one.mechanism, one.rounds) for one in charges if one.mechanism is not None]
        return rdp_of_several(spent, delta=self._privacy.delta)


def _with_one_more(
    charges: Sequence[Charge], study: str, mechanism: LangevinMechanism | None
) -> list[Charge]:
    same = [one.study == study and one.mechanism == mechanism for one in charges]
    if not any(same):
        return [*charges, Charge(study, mechanism, 1)]
    return [
        one._replace(rounds=one.rounds + 1) if found else one
        for one, found in zip(charges, same, strict=True)
    ]


def _mechanism(content: dict[str, Any] | None) -> LangevinMechanism | None:
    if content is None:
        return None
    values: dict[str, Any] = {**content, "rows": tuple(content["rows"])}
    return LangevinMechanism(**values)
