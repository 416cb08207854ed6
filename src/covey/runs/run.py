"""Where a run stands: what it has found so far, for looking at it, evaluating it and going on.

Rounds run in blocks that end where something is due (an evaluation, a checkpoint, the end) and
otherwise grow to about half a second, so that the progress moves and Ctrl-C is heard. No number
depends on where blocks end.
"""

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from time import perf_counter
from typing import NamedTuple

import pandas as pd
from jaxtyping import PyTree

from covey.core import wire
from covey.core.algorithm import Algorithm, State, no_draws
from covey.core.shard import Axis
from covey.data.federated import FederatedData, Split
from covey.engines.record import Diverged, Line
from covey.engines.rows import need_rows
from covey.runs.directory import Record, RunDirectory
from covey.runs.draws import Draws
from covey.engines.engine import Engine, Position
from covey.runs.evaluation import Evaluation
from covey.runs.interrupt import StopRequest
from covey.runs.progress import Display
from covey.inference.posterior import Posterior
from covey.inference.shared import SharedPosterior
from covey.privacy.ledger import Ledger

_BLOCK_SECONDS = 0.5
_CHECKPOINT_SECONDS = 60.0  # between checkpoints where their distance in rounds is not given


class Plan(NamedTuple):
    """What happens between rounds; see `run`."""

    evaluate_every: int | None
    split: Split
    checkpoint_every: int | None
    progress: bool


class Run:
    """Where a run stands. Made by `covey.run`; look at it, evaluate it, predict with it, and
    `advance`.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        method: Algorithm,
        data: FederatedData,
        plan: Plan,
        seed: int,
        state: Position,
        records: list[Record],
        directory: RunDirectory | None = None,
        ledger: Ledger | None = None,
    ):
        self.name, self.method, self.data, self.seed, self.ledger = name, method, data, seed, ledger
        self._engine, self._plan, self._directory = engine, plan, directory
        self._state, self._records = state, records
        self._last: Evaluation | None = None
        self._saved_at = perf_counter()
        self._block = 1
        self._told_of_diverged = False
        self._draws: Draws | None = None
        if method.chains is not None:
            folder = None if directory is None else directory.path / "draws"
            self._draws = Draws(method.chains.kept(state.server), folder)

    def __repr__(self) -> str:
        return f"Run({self.name}: {self.method.name}, {self.data.clients} clients, {self.round} rounds)"

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self._state.round

    @property
    def split(self) -> Split:
        """The rows that the run is evaluated on as it goes."""
        return self._plan.split

    @property
    def state(self) -> State:
        """The server's state."""
        return self._state.server

    @property
    def metrics(self) -> pd.DataFrame:
        """One line a round; evaluated metrics, such as `validation_accuracy`, are NaN in rounds
        without an evaluation.
        """
        frame = pd.DataFrame(self._records)
        # Nones only, which pandas would keep as objects
        without_numbers = frame.columns[frame.isna().all()]
        return frame.astype(dict.fromkeys(without_numbers, float))

    @property
    def clients(self) -> pd.DataFrame:
        """One line a client: id, name, rows of each split, and its metrics at the last evaluation
        (now, if there was none).
        """
        return self.evaluation.clients

    @property
    def evaluation(self) -> Evaluation:
        """The last evaluation of the run as it went (now, if there was none)."""
        return self._last or self.evaluate(split=self._plan.split)

    def evaluate(self, data: FederatedData | None = None, *, split: Split = "test") -> Evaluation:
        """Every client on one split of its rows. Clients of other data are new: each is adapted to
        its training rows.
        """
        of = self.data.replaced_by(data)
        need_rows(of, split)
        return Evaluation(self.round, split, of, self._engine.evaluate(self._state, split, data))

    def predict(self, x: PyTree, *, client: str | int, data: FederatedData | None = None) -> PyTree:
        """The predictive distribution of a client (its name or id) for new rows; with other data,
        of a client never seen.
        """
        return self._engine.predict(self._state, self.data.replaced_by(data).position_of(client), x, data)

    @property
    def posterior(self) -> Posterior:
        """The clients' posterior at this round: draws, trace and summary. Only methods that draw
        have it.
        """
        if self.method.draws is None:
            raise AttributeError(no_draws(self.method))
        return Posterior(self.data, partial(self._engine.draws, self._state), self._origin, self._axes)

    @property
    def chains(self) -> SharedPosterior:
        """The posterior of what all clients share, from all draws so far. Only methods whose server
        samples have it.
        """
        if self.method.chains is None or self._draws is None:
            raise AttributeError(f"{self.method.name} does not sample what clients share, as fald does")
        return SharedPosterior(self.method.chains, self._draws.all, self._origin, self._axes)

    @property
    def _origin(self) -> dict[str, str | int]:
        return {"method": self.method.name, "round": self.round, "seed": self.seed, "covey_version": version("covey")}

    @property
    def _axes(self) -> dict[str, Axis]:
        return {} if self.method.axes is None else self.method.axes(self.data.spec)

    def advance(self, rounds: int) -> "Run":
        """Run `rounds` rounds more, as the run was started. Returns itself."""
        if rounds < 1:
            raise ValueError(f"rounds must be at least 1, got {rounds}")
        target = self.round + rounds
        if self.ledger is not None:
            self.ledger.check(target, done=self.round)
        if self._directory is None:
            self._advance_to(target)
            return self
        with self._directory.held():
            self._catch_up(self._directory)
            self._advance_to(target)
        return self

    def save(self) -> None:
        """Write a checkpoint and the table of clients to the run directory now."""
        if self._directory is None:
            raise ValueError("this run has no directory to save to: start it with out=")
        with self._directory.held():
            self._catch_up(self._directory)
            self._checkpoint(self._directory)
            self._write_clients(self._directory)

    def _advance_to(self, target: int) -> None:
        bits = sum((record.get("bits_up") or 0) + (record.get("bits_down") or 0) for record in self._records)
        with (
            StopRequest() as stop,
            Display(self.name, target, bits=float(bits)) if self._plan.progress else nullcontext() as display,
        ):
            while self.round < target and not stop.asked:
                records = self._advance_block(target)
                if display is not None:
                    display.update(self.round, records)
            if self._directory is not None:
                if self._directory.newest_round() != self.round:
                    self._checkpoint(self._directory)
                self._write_clients(self._directory)
        if self.round < target:
            kept = "not saved" if self._directory is None else f"saved in {self._directory.path}; resume=True goes on from there"
            raise KeyboardInterrupt(f"stopped after round {self.round} of {target}: {kept}")

    def _advance_block(self, target: int) -> list[Record]:
        """Some rounds, and what is due after them."""
        start, first = perf_counter(), self.round
        try:
            self._state, lines = self._engine.advance(self._state, self._next_stop(target) - first)
        except Diverged as error:  # what was good before it is kept, for the user to look at
            if self._directory is not None:
                self._directory.append([_finite(line | self._revealed(line)) for line in error.lines])
            if self.method.diagnose is None:
                raise
            raise Diverged(f"{error}: {self._diagnosed(error.client_id)}", error.lines, error.client_id) from error
        self._warn_of_diverged(lines)
        if self.method.chains is not None and self._draws is not None:
            self._draws.add(self.method.chains.kept(self._state.server))
        seconds = perf_counter() - start
        self._block = _next_length(self._block, seconds)
        records = [_finite(line | self._revealed(line) | {"seconds": seconds / len(lines)}) for line in lines]
        if self._is_due(self._plan.evaluate_every, target):
            self._last = self.evaluate(split=self._plan.split)
            records[-1] |= _finite({f"{self._plan.split}_{key}": value for key, value in self._last.pooled.items()})
        self._records += records
        if self._directory is not None:
            self._directory.append(records)
            late = self._plan.checkpoint_every is None and perf_counter() - self._saved_at > _CHECKPOINT_SECONDS
            if late or self._is_due(self._plan.checkpoint_every, target):
                self._checkpoint(self._directory)
        return records

    def _revealed(self, line: Line) -> Line:
        """What the rounds up to this line's have revealed, by every accountant."""
        return {} if self.ledger is None else {**self.ledger.metrics(int(line["round"]))}

    def _warn_of_diverged(self, lines: Sequence[Line]) -> None:
        """Once a run: some clients cannot go on, and the others do not wait for them."""
        first = next((line for line in lines if line["diverged"]), None)
        if first is None or self._told_of_diverged:
            return
        self._told_of_diverged = True
        client = int(first["diverged_id"])
        name = self.data.name_of(self.data.position_of(client))
        why = "" if self.method.diagnose is None else f": {self._diagnosed(client)}"
        warnings.warn(
            f"round {first['round']}: {first['diverged']} of the clients, {name!r} among them, have numbers that are not finite; "
            f"they are left out until they recover. Make the client's step size smaller, or use a preconditioned kernel{why}",
            stacklevel=2,
        )

    def _diagnosed(self, client: int) -> str:
        """What the method has to say of a client that diverged."""
        position = self.data.position_of(client)
        down = self.method.broadcast(self._state.server)
        why = self.method.diagnose(down, self.data.shard(position, "train")) if self.method.diagnose is not None else ""
        return f"client {self.data.name_of(position)!r}: {why}"

    def _next_stop(self, target: int) -> int:
        # before a draw is overwritten
        longest = self._block if self._draws is None else min(self._block, self._draws.places)
        stops = [target, self.round + longest]
        stops += [
            (self.round // every + 1) * every for every in (self._plan.evaluate_every, self._plan.checkpoint_every) if every
        ]
        return min(stops)

    def _is_due(self, every: int | None, target: int) -> bool:
        return every is not None and (self.round % every == 0 or self.round == target)

    def _checkpoint(self, directory: RunDirectory) -> None:
        if self._draws is not None:
            self._draws.save()
        spent = None if self.ledger is None else self.ledger.record(self.round)
        directory.save(self.round, self.method.name, wire.pack(self._engine.snapshot(self._state)), spent)
        self._engine.checkpointed()
        self._saved_at = perf_counter()

    def _write_clients(self, directory: RunDirectory) -> None:
        if self._last is not None:
            directory.write_clients(self._last.clients)

    def _catch_up(self, directory: RunDirectory) -> None:
        """Make the directory's metrics those of this run: after a full disk they may be behind."""
        newest = directory.newest_round()
        if newest > self.round:
            raise ValueError(
                f"{directory.path} has moved on to round {newest}, this run is at {self.round}: resume=True goes on from there"
            )
        directory.cut_metrics(newest)
        directory.append(self._records[newest:])


def begun(run: Run, rounds: int) -> Run:
    """A run that was just made or restored, after its rounds. Whoever made it holds its directory
    and has checked its budget.
    """
    run._advance_to(rounds)
    return run


def _next_length(block: int, seconds: float) -> int:
    """Twice as many rounds after a short block, half as many after a long one."""
    if seconds < _BLOCK_SECONDS / 2:
        return 2 * block
    return max(block // 2, 1) if seconds > 2 * _BLOCK_SECONDS else block


def _finite(line: dict[str, int | float]) -> Record:
    return {key: value if math.isfinite(value) else None for key, value in line.items()}
