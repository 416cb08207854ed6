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
from itertools import count
from time import perf_counter
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from covey.core import wire
from covey.core.algorithm import Approximation, Chains, Message, State, Statistic
from covey.core.keys import Stream, key_for
from covey.data.conversion import NewRows
from covey.data.federated import FederatedData, Split
from covey.engines.engine import Engine, Position
from covey.engines.record import Diverged, Line
from covey.engines.rows import need_rows
from covey.inference.posterior import Origin, RunPosterior
from covey.privacy.ledger import Ledger
from covey.report import page
from covey.runs import toml
from covey.runs.directory import Record, RunDirectory
from covey.runs.draws import Draws
from covey.runs.evaluation import Evaluation
from covey.runs.interrupt import StopRequest
from covey.runs.progress import Display

_BLOCK_SECONDS = 0.5
_FEWEST_LOSSES = 5  # rounds; before, a loss says little
_CHECKPOINT_SECONDS = 60.0  # between checkpoints where their distance in rounds is not given


class RunOptions(NamedTuple):
    """What happens between rounds; see `covey.run`."""

    evaluate_every: int | None
    split: Split
    checkpoint_every: int | None
    progress: bool


class Run:
    """The state of a run: metrics, evaluations, predictions, posterior; `advance` continues it.

    Made by `covey.run`.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        data: FederatedData,
        options: RunOptions,
        seed: int,
        ledger: Ledger | None = None,
        *,
        state: Position,
        records: list[Record],
        directory: RunDirectory | None = None,
    ):
        self.name, self.data, self.seed, self.ledger = name, data, seed, ledger
        self.method = engine.setup.algorithm
        self._engine, self._options, self._directory = engine, options, directory
        self._state, self._records = state, records
        self._last: Evaluation | None = None
        self._saved_at = perf_counter()
        self._block = 1
        self._told_of_diverged = False
        self._draws: Draws | None = None
        if isinstance(self.method.posterior.shared, Chains):
            folder = None if directory is None else directory.path / "draws"
            self._draws = Draws(self.method.posterior.shared.kept(state.server), folder)

    @classmethod
    def start(
        cls,
        *parts: Any,
        rounds: int,
        directory: RunDirectory | None = None,
        tables: toml.Tables | None = None,
    ) -> "Run":
        """A new run after its first `rounds` rounds.

        Args:
            parts: The first arguments of `Run`: name, engine, data, options, seed and ledger.
            rounds: Rounds to run.
            directory: Where it is kept; None keeps nothing on disk.
            tables: What `config.toml` there records.
        """
        engine: Engine = parts[1]
        if directory is None:
            run = cls(*parts, state=engine.start(), records=[])
            run._advance_to(rounds)
            return run
        with directory.held():
            directory.begin(tables or {})
            records = directory.cut_metrics(0)
            run = cls(*parts, state=engine.start(), records=records, directory=directory)
            run._advance_to(rounds)
        return run

    @classmethod
    def resume(
        cls, *parts: Any, rounds: int, directory: RunDirectory, tables: toml.Tables
    ) -> "Run":
        """The run in a directory, from its newest checkpoint up to `rounds` rounds in all.

        The arguments are those of `start`.
        """
        engine: Engine = parts[1]
        with directory.held():
            found = directory.resume(tables)
            at = found.header.round if found else 0
            if at > rounds:
                raise ValueError(f"{directory.path} is already at round {at}, past rounds={rounds}")
            records = directory.cut_metrics(at)
            state = engine.start()
            if found is not None:
                state = engine.restore(wire.unpack(found.body, engine.snapshot_like()))
            run = cls(*parts, state=state, records=records, directory=directory)
            if found is not None and run.ledger is not None:
                run.ledger.compare(found.header.privacy or {}, at)
            run._advance_to(rounds)
        return run

    def __repr__(self) -> str:
        return (
            f"Run({self.name}: {self.method.name}, {self.data.clients} clients, "
            f"{self.round} rounds)"
        )

    @property
    def round(self) -> int:
        """How many rounds are done."""
        return self._state.round

    @property
    def split(self) -> Split:
        """The rows that the run is evaluated on as it goes."""
        return self._options.split

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
        """The evaluation after the last round, on the rows that the run is evaluated on."""
        if self._last is None or self._last.round != self.round:
            self._last = self.evaluate(split=self._options.split)
        return self._last

    def evaluate(self, data: FederatedData | None = None, *, split: Split = "test") -> Evaluation:
        """Every client on one split of its rows. Clients of other data are new: each is adapted to
        its training rows.
        """
        of = self.data.replaced_by(data)
        need_rows(of, split)
        return Evaluation(self.round, split, of, self._engine.evaluate(self._state, split, data))

    def predict(
        self,
        x: NewRows,
        *,
        client: str | int,
        data: FederatedData | None = None,
        standardised: bool = False,
    ) -> Any:
        """The predictive distribution of a client for new rows.

        Args:
            x: New rows on their original scale: a data frame or mapping with the run's columns in
                any order, a CSV file, a list of rows or an array. They are scaled as the training
                rows were.
            client: The client's name or id.
            data: Other data, for an unseen client: it adapts to its training rows first.
            standardised: The rows are scaled already.

        Returns:
            A predictive distribution: `.mean`, `.log_prob(y)`; see `covey.models`.
        """
        rows = self.data.rows_from(x, standardised=standardised)
        position = self.data.replaced_by(data).position_of(client)
        return self._engine.predict(self._state, position, rows, data)

    @property
    def posterior(self) -> RunPosterior:
        """The posterior at this round: `.shared`, `.client(name)` and `.clients`.

        Each has `.draws()`, `.trace()` and `.summary()`. A method without one says what it has
        instead.
        """
        attributes: dict[str, str | int] = {
            "method": self.method.name,
            "round": self.round,
            "seed": self.seed,
            "covey_version": version("covey"),
        }
        axes = self.method.posterior.axes
        return RunPosterior(
            self.method,
            self.data,
            Origin(attributes, {} if axes is None else axes(self.data.spec)),
            draw_clients=partial(self._engine.draws, self._state),
            collected=None if self._draws is None else self._draws.all,
            fitted=self._fitted,
            key=key_for(self._engine.setup.root, Stream.DRAWS, self.round),
        )

    def _fitted(self) -> Any:
        """The law of the shared parameters at this round."""
        shared = self.method.posterior.shared
        if not isinstance(shared, Approximation):
            raise TypeError(f"{self.method.name} has no law of its shared parameters")
        queries = count()

        def ask(statistic: Statistic) -> PyTree:
            return self._engine.query(statistic, next(queries))

        return shared.fit(self._engine.broadcast(self._state), self._engine.setup.spec, ask)

    def advance(self, rounds: int) -> "Run":
        """Run `rounds` more rounds, as the run was started. Returns the run."""
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
        """Write a checkpoint, the table of clients and the report to the run directory now."""
        if self._directory is None:
            raise ValueError("this run has no directory to save to: start it with out=")
        with self._directory.held():
            self._catch_up(self._directory)
            self._checkpoint(self._directory)
            self._write_results(self._directory)

    def _advance_to(self, target: int) -> None:
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
            while self.round < target and not stop.asked:
                records = self._advance_block(target)
                if display is not None:
                    display.update(self.round, records)
            if self._directory is not None:
                if self._directory.newest_round() != self.round:
                    self._checkpoint(self._directory)
                self._write_results(self._directory)
        self._warn_of_a_rise()
        if self.round < target:
            kept = (
                "not saved"
                if self._directory is None
                else f"saved in {self._directory.path}; resume=True continues from there"
            )
            raise KeyboardInterrupt(f"stopped after round {self.round} of {target}: {kept}")

    def _advance_block(self, target: int) -> list[Record]:
        """Some rounds, and what is due after them."""
        start, first = perf_counter(), self.round
        try:
            self._state, lines = self._engine.advance(self._state, self._next_stop(target) - first)
        except Diverged as error:  # what was good before it is kept, for the user to look at
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
        self._block = _next_length(self._block, seconds)
        records = [
            _finite(line | self._revealed(line) | {"seconds": seconds / len(lines)})
            for line in lines
        ]
        if self._is_due(self._options.evaluate_every, target):
            self._last = self.evaluate(split=self._options.split)
            records[-1] |= _finite(
                {f"{self._options.split}_{key}": value for key, value in self._last.pooled.items()}
            )
        self._records += records
        if self._directory is not None:
            self._directory.append(records)
            late = (
                self._options.checkpoint_every is None
                and perf_counter() - self._saved_at > _CHECKPOINT_SECONDS
            )
            if late or self._is_due(self._options.checkpoint_every, target):
                self._checkpoint(self._directory)
        return records

    def _revealed(self, line: Line) -> Line:
        """What the rounds up to this line's have revealed, by every accountant."""
        return {} if self.ledger is None else {**self.ledger.metrics(int(line["round"]))}

    @property
    def participants(self) -> int:
        """How many clients have taken part so far."""
        return int(self._engine.seen(self._state).sum())

    def _warn_of_diverged(self, lines: Sequence[Line]) -> None:
        """Once per run: some clients cannot continue, and the others do not wait for them."""
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
        """Why a client's values may have stopped being finite, and what would help."""
        position = self.data.position_of(client)
        data = self.data.shard(position, "train")
        who = f"client {self.data.name_of(position)!r}"
        if missing := _missing(data.rows, self.data.features):
            return (
                f"{who} has {missing}, which {self.method.name} with this model cannot use: fill "
                "the cells in, drop the rows, or choose a model for missing values"
            )
        if self.method.hooks.diagnose is not None:
            return f"{who}: {self.method.hooks.diagnose(self._broadcast(), data)}"
        return (
            f"{who} is one: make the client's step size smaller, check the scale of the features, "
            "or use a preconditioned kernel"
        )

    def _broadcast(self) -> Message:
        return self.method.broadcast(self._state.server)

    def _warn_of_a_rise(self) -> None:
        """Where training has made the loss worse than it was in the first round."""
        losses = [record["train_loss"] for record in self._records if "train_loss" in record]
        if len(losses) < _FEWEST_LOSSES:
            return
        first, last = losses[0], losses[-1]
        if first is not None and (last is None or last > first + max(abs(first), 1.0)):
            warnings.warn(
                f"the training loss rose from {first:.4g} to "
                f"{'a value that is not finite' if last is None else f'{last:.4g}'} in "
                f"{self.round} rounds: the fit is worse than its start; make the step size smaller",
                stacklevel=3,
            )

    def _next_stop(self, target: int) -> int:
        # before a draw is overwritten
        longest = self._block if self._draws is None else min(self._block, self._draws.size)
        stops = [target, self.round + longest]
        stops += [
            (self.round // every + 1) * every
            for every in (self._options.evaluate_every, self._options.checkpoint_every)
            if every
        ]
        return min(stops)

    def _is_due(self, every: int | None, target: int) -> bool:
        return every is not None and (self.round % every == 0 or self.round == target)

    def _checkpoint(self, directory: RunDirectory) -> None:
        if self._draws is not None:
            self._draws.save()
        spent = None if self.ledger is None else self.ledger.record(self.round)
        directory.save(
            self.round, self.method.name, wire.pack(self._engine.snapshot(self._state)), spent
        )
        self._engine.checkpointed()
        self._saved_at = perf_counter()

    def _write_results(self, directory: RunDirectory) -> None:
        """The table of clients and the page of the run."""
        if self._last is not None:
            directory.write_clients(self._last.clients)
        page.write(self, directory.path / "report.html", settings=directory.settings_text())

    def _catch_up(self, directory: RunDirectory) -> None:
        """Make the directory's metrics those of this run: after a full disk they may be behind."""
        newest = directory.newest_round()
        if newest > self.round:
            raise ValueError(
                f"{directory.path} has moved on to round {newest}, this run is at {self.round}: "
                "resume=True continues from there"
            )
        directory.cut_metrics(newest)
        directory.append(self._records[newest:])


def _next_length(block: int, seconds: float) -> int:
    """Twice as many rounds after a short block, half as many after a long one."""
    if seconds < _BLOCK_SECONDS / 2:
        return 2 * block
    return max(block // 2, 1) if seconds > 2 * _BLOCK_SECONDS else block


def _missing(rows: PyTree, features: tuple[str, ...] | None) -> str:
    """How many cells of some rows are missing, and in which columns; empty where none is."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(rows)]
    empty = [np.isnan(leaf) for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)]
    count = sum(int(where.sum()) for where in empty)
    if not count:
        return ""
    columns = np.flatnonzero(empty[0].any(0)) if empty[0].ndim == 2 else []
    names = [str(at) if features is None else features[at] for at in columns]
    where = f" (columns {', '.join(names[:5])})" if names else ""
    return f"{count} missing value{'s' if count > 1 else ''}{where}"


def _finite(line: dict[str, int | float]) -> Record:
    return {key: value if math.isfinite(value) else None for key, value in line.items()}
