"""The progress of a run: rounds, evaluations and draws between them, checkpoints."""

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd

from covey.core import wire
from covey.core.algorithm import Chains, Message, State
from covey.data.federated import FederatedData, Split
from covey.data.roster import Roster
from covey.engines.engine import Engine, Position
from covey.engines.questions import Questions
from covey.engines.record import Diverged, Line
from covey.privacy.ledger import Ledger
from covey.runs.advice import diagnosed, missing_clients, warn_of_a_rise
from covey.runs.directory import Record, RunDirectory
from covey.runs.draws import Draws
from covey.runs.evaluation import Evaluation
from covey.runs.interrupt import Stopped, StopRequest
from covey.runs.progress import Display
from covey.runs.schedule import MOST_ROUNDS, RunOptions, next_check, next_length


class Advancing:
    """A run that advances; `Run` adds its results."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        data: FederatedData | Roster,
        options: RunOptions,
        seed: int,
        questions: Questions,
        ledger: Ledger | None = None,
        unseen: FederatedData | None = None,
        *,
        state: Position,
        records: list[Record],
        directory: RunDirectory | None = None,
    ):
        self.name, self.data, self.seed, self.ledger = name, data, seed, ledger
        self.unseen = unseen
        self.method = engine.setup.algorithm
        self._engine, self._options, self._directory = engine, options, directory
        self._state, self._records = state, records
        self._last: Evaluation | None = None
        self._last_unseen: Evaluation | None = None
        self._saved_at = perf_counter()
        self._block = 1
        self._told_of_diverged = False
        self._questions = questions
        self._law: tuple[int, Any] | None = None
        self._checked: int | None = None
        self._began = state.round
        self._draws: Draws | None = None
        if isinstance(self.method.posterior.shared, Chains):
            folder = None if directory is None else directory.path / "draws"
            self._draws = Draws(self.method.posterior.shared.kept(state.server), folder)

    def __repr__(self) -> str:
        of = self.data.clients
        return (
            f"Run({self.name}: {self.method.name}, "
            f"{of} client{'s' * (of != 1)}, {self.round} round{'s' * (self.round != 1)})"
        )

    @property
    def round(self) -> int:
        """The count of rounds done."""
        return self._state.round

    @property
    def directory(self) -> Path | None:
        """The run directory; None for a run without files."""
        return None if self._directory is None else self._directory.path

    @property
    def split(self) -> Split:
        """The rows that the run is evaluated on as it goes."""
        return self._options.split

    @property
    def state(self) -> State:
        """The server's state."""
        return self._state.server

    @property
    def upload(self) -> Message:
        """Shapes of what one client sends in one round."""
        return self._engine.setup.shapes.up

    @property
    def metrics(self) -> pd.DataFrame:
        """One row per round; evaluated metrics, such as `validation_accuracy`, are NaN in rounds
        without an evaluation.
        """
        frame = pd.DataFrame(self._records)
        # Nones only, which pandas would keep as objects
        without_numbers = frame.columns[frame.isna().all()]
        return frame.astype(dict.fromkeys(without_numbers, float))

    def save(self) -> None:
        """Write a checkpoint, the table of clients and the report to the run directory now."""
        if self._directory is None:
            raise ValueError("this run has no directory to save to: start it with out=")
        with self._directory.held():
            self._catch_up(self._directory)
            self._checkpoint(self._directory)
            self._write_results(self._directory, finished=True)

    def _advance_to(self, target: int | None) -> None:
        """Run up to a round, or until the method has settled."""
        self._began = self.round
        bits = sum(
            (record.get("bits_up") or 0) + (record.get("bits_down") or 0)
            for record in self._records
        )
        with (
            StopRequest() as stop,
            Display(self.name, target, bits=float(bits))
            if self._options.progress
            else nullcontext() as display,
        ):
            while not self._ended(target) and not stop.asked:
                records = self._advance_block(target)
                if display is not None:
                    display.update(self.round, records)
            if self._directory is not None:
                if self._directory.newest_round() != self.round:
                    self._checkpoint(self._directory)
                if not self._directory.report_is_current():
                    self._write_results(self._directory, finished=self._ended(target))
        warn_of_a_rise(self._records)
        if stop.number is not None and not self._ended(target):
            kept = (
                "not saved"
                if self._directory is None
                else f"saved in {self._directory.path}; --resume (resume=True) continues from there"
            )
            of = "" if target is None else f" of {target}"
            raise Stopped(f"stopped after round {self.round}{of}: {kept}", stop.number)
        self._warn_of_the_result()

    def _ended(self, target: int | None) -> bool:
        """Whether a run up to a round, or until the method has settled, is at its end."""
        if target is not None:
            return self.round >= target
        if self.round >= MOST_ROUNDS:
            return True
        if next_check(self.round - 1) != self.round:
            return False
        return self._unsettled() is None or self._stuck() is not None

    def _unsettled(self) -> str | None:
        """The reason for more rounds; None where the method has settled or cannot tell."""
        unsettled = self.method.hooks.unsettled
        return None if unsettled is None else unsettled(self._state.server)

    def _stuck(self) -> str | None:
        """The reason why more rounds would not help, and a remedy; None where they may."""
        hooks, server = self.method.hooks, self._state.server
        if self._unsettled() is None:
            return None
        if hooks.given_up is not None and (why := hooks.given_up(server)):
            return why
        if hooks.waiting is None:
            return None
        waited = min(hooks.waiting(server), self.round - self._began)  # those before may be mended
        return missing_clients(waited, self._records, self._engine.seen(self._state), self.data)

    def _warn_unless_settled(self, why: str | None, stacklevel: int) -> None:
        if why is not None:
            done = f"{self.round} round{'s' * (self.round != 1)}"
            told = f"{self.method.name} has not settled after {done}: {why}"
            warnings.warn(told, stacklevel=stacklevel + 1)

    def _warn_of_the_result(self) -> None:
        """Warn where the method has not settled, or where its result is no estimate."""
        self._warn_unless_settled(self._stuck() or self._unsettled(), stacklevel=4)
        if self.method.hooks.cautions is not None:
            spec = self._engine.setup.spec
            for text in self.method.hooks.cautions(self._state.server, spec):
                warnings.warn(text, stacklevel=4)

    def _advance_block(self, target: int | None) -> list[Record]:
        """Some rounds, with the evaluation and the checkpoint due after them."""
        start, first = perf_counter(), self.round
        try:
            self._state, lines = self._engine.advance(self._state, self._next_stop(target) - first)
        except Diverged as error:  # the rounds before it are kept, for the user to inspect
            if self._directory is not None:
                self._directory.append(
                    [_finite(line | self._revealed(line)) for line in error.lines]
                )
            why = self._diagnosed(error.client_id)
            raise Diverged(f"{error}; {why}", error.lines, error.client_id) from error
        self._warn_of_diverged(lines)
        shared = self.method.posterior.shared
        if isinstance(shared, Chains) and self._draws is not None:
            self._draws.add(shared.kept(self._state.server))
        seconds = perf_counter() - start
        self._block = next_length(self._block, seconds)
        records = [
            _finite(line | self._revealed(line) | {"seconds": seconds / len(lines)})
            for line in lines
        ]
        if self._is_due(self._options.evaluate_every, target):
            found = self._engine.evaluate(self._state, self._options.split)
            self._last = Evaluation(self.round, self._options.split, self.data, found)
            records[-1] |= _finite(
                {f"{self._options.split}_{key}": value for key, value in self._last.pooled.items()}
            )
        self._records += records
        if self._directory is not None:
            self._directory.append(records)
            if self._options.is_late(perf_counter() - self._saved_at) or self._is_due(
                self._options.checkpoint_every, target
            ):
                self._checkpoint(self._directory)
        return records

    def _revealed(self, line: Line) -> Line:
        """The privacy spent up to the round of this line, by every accountant."""
        return {} if self.ledger is None else {**self.ledger.metrics(int(line["round"]))}

    @property
    def participants(self) -> int:
        """The count of clients that have taken part so far."""
        return int(self._engine.seen(self._state).sum())

    def _warn_of_diverged(self, lines: Sequence[Line]) -> None:
        """Warn once per run that some clients cannot continue; the others do not wait."""
        first = next((line for line in lines if line["diverged"]), None)
        if first is None or self._told_of_diverged:
            return
        self._told_of_diverged = True
        warnings.warn(
            f"round {first['round']}: {first['diverged']} of the clients sent values that are not "
            "finite and are left out until they recover; "
            f"{self._diagnosed(int(first['diverged_id']))}",
            stacklevel=2,
        )

    def _diagnosed(self, client: int) -> str:
        """The likely reason why a client's values are not finite, and a remedy."""
        return diagnosed(self.method, self.method.broadcast(self._state.server), self.data, client)

    def _next_stop(self, target: int | None) -> int:
        # before a draw is overwritten
        longest = self._block if self._draws is None else min(self._block, self._draws.size)
        last = next_check(self.round) if target is None else target
        return min(last, self.round + longest, self._options.next_due(self.round))

    def _is_due(self, every: int | None, target: int | None) -> bool:
        return every is not None and (self.round % every == 0 or self._ended(target))

    def _checkpoint(self, directory: RunDirectory) -> None:
        if self._draws is not None:
            self._draws.save()
        spent = None if self.ledger is None else self.ledger.record(self.round)
        directory.save(
            self.round, self.method.name, wire.pack(self._engine.snapshot(self._state)), spent
        )
        self._engine.checkpointed()
        self._saved_at = perf_counter()

    def _write_results(self, directory: RunDirectory, *, finished: bool) -> None:
        """The table of clients and the page of the run; its posterior only at the end."""
        if self._last is not None:
            directory.write_clients(self._last.clients)
        settings = directory.settings_text()
        if "\n[fit]\n" in settings:  # `covey.fit` writes the page of a fit, in its terms
            return
        from covey.report import from_run  # Plotly is needed here only

        from_run.write(self, directory.path / "report.html", settings=settings, finished=finished)

    def _catch_up(self, directory: RunDirectory) -> None:
        """Make the directory's metrics those of this run: after a full disk they may be behind."""
        newest = directory.newest_round()
        if newest > self.round:
            raise ValueError(
                f"{directory.path} has moved on to round {newest}, this run is at {self.round}: "
                "--resume (resume=True) continues from there"
            )
        directory.cut_metrics(newest)
        directory.append(self._records[newest:])


def _finite(line: dict[str, int | float]) -> Record:
    return {key: value if math.isfinite(value) else None for key, value in line.items()}
