"""One run: a method on federated data for a number of rounds, watched, checkpointed, stopped and continued.

Rounds run in blocks that end where something is due (an evaluation, a checkpoint, the end) and otherwise grow to about half a
second, so that the progress moves and Ctrl-C is heard. No number depends on where blocks end.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Literal, NamedTuple

import pandas as pd
from jaxtyping import PyTree

from covey.core import wire
from covey.core.algorithm import Algorithm, State, no_draws
from covey.core.cohort import Scheme, full
from covey.core.faults import Faults
from covey.core.node import Channel
from covey.core.shard import Axis
from covey.data.federated import FederatedData, Part
from covey.engines.loop import Loop
from covey.engines.peers import Peers
from covey.engines.record import Diverged, Line
from covey.engines.rows import Storage, chosen, need_rows
from covey.engines.simulate import Simulation
from covey.experiment import toml
from covey.experiment.digest import data_digest
from covey.experiment.directory import Record, RunDirectory
from covey.experiment.draws import Draws
from covey.experiment.engine import Engine, Position
from covey.experiment.environment import versions
from covey.experiment.evaluation import Evaluation
from covey.experiment.interrupt import StopRequest
from covey.experiment.progress import Display
from covey.inference.posterior import Posterior
from covey.inference.shared import SharedPosterior
from covey.privacy.ledger import Budget, Ledger
from covey.topology import Topology, complete

_BLOCK_SECONDS = 0.5
_CHECKPOINT_SECONDS = 60.0  # between checkpoints where their distance in rounds is not given


class Plan(NamedTuple):
    """What happens between rounds; see `run`."""

    evaluate_every: int | None
    part: Part
    checkpoint_every: int | None
    progress: bool


def run(
    method: Algorithm,
    data: FederatedData,
    *,
    rounds: int,
    seed: int,
    cohort: Scheme | None = None,
    channel: Channel | None = None,
    faults: Faults | None = None,
    engine: Literal["simulate", "loop", "peers"] = "simulate",
    topology: Topology | None = None,
    chunk: int | Literal["auto"] = "auto",
    storage: Storage = "auto",
    privacy: Budget | None = None,
    evaluate_every: int | None = None,
    part: Part = "validation",
    out: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    progress: bool = True,
    name: str | None = None,
    settings: toml.Tables | None = None,
) -> "Run":
    """Run a method for `rounds` rounds, and return where it stands.

    Args:
        method: from a factory, e.g. `covey.fedavg(model)`.
        data: the clients' rows.
        rounds: in all, counted from the beginning also when a run is resumed.
        seed: of everything random.
        cohort: who takes part in a round; everyone by default.
        channel: what uploads pass through; unchanged by default.
        faults: chances of lost, late and repeated messages; none by default.
        engine: "simulate" runs many clients at once; "loop" one at a time, over real bytes; "peers" has no server.
        topology: who talks to whom among peers, from `covey.topology`; for engine="peers" only, by default everyone to everyone.
        chunk: clients side by side in "simulate".
        storage: where "simulate" keeps rows: "device", or "host" for rows that are memory-mapped or very many. With rows on the
            host and a run directory, what clients keep between rounds lies there too, memory-mapped.
        privacy: what may be revealed of a row, and who counts; for methods that protect rows, e.g. `covey.fald(..., clip=1.0)`.
            What has been revealed is in the metrics of every round, and more rounds than the budget permits are refused. Only
            uploads are counted: an evaluation shows what it shows.
        evaluate_every: evaluate after each such number of rounds, and after the last; None: only when asked.
        part: the rows to evaluate on.
        out: the run directory; None keeps nothing on disk.
        checkpoint_every: in rounds; None: once a minute. There is always one at the end, and after Ctrl-C.
        resume: go on with the run in `out`. Method, data, seed and settings must be those it was started with.
        progress: show progress once the work takes more than two seconds.
        name: what the run is called; by default the name of its directory, or of the method.
        settings: what `config.toml` records, and a resumed run is compared with; by default the arguments that have a name.

    Raises:
        BudgetSpentError: so many rounds would reveal more than the budget permits; none is run.
        KeyboardInterrupt: after Ctrl-C, once the round is finished and the checkpoint is written.
    """
    for key, value in (("rounds", rounds), ("evaluate_every", evaluate_every), ("checkpoint_every", checkpoint_every)):
        if value is not None and value < 1:
            raise ValueError(f"{key} must be at least 1, got {value}")
    if rounds <= method.burn_in:
        raise ValueError(
            f"{method.name} burns in for {method.burn_in} rounds, and rounds={rounds} ends before it begins; "
            "ask for more rounds, or for a shorter burn-in"
        )
    if out is None and (resume or checkpoint_every is not None):
        raise ValueError("checkpoints are kept in a run directory: give out= together with resume= or checkpoint_every=")
    if engine != "simulate" and (chunk, storage) != ("auto", "auto"):
        raise ValueError(f"{chunk=} and {storage=} are for engine='simulate', not for {engine!r}")
    if topology is not None and engine != "peers":
        raise ValueError(f"a topology is for engine='peers'; {engine!r} has a server")
    if evaluate_every is not None:
        need_rows(data, part)
    ledger = None if privacy is None else _ledger(method, data, cohort, privacy)
    if ledger is not None:
        ledger.check(rounds, done=RunDirectory(Path(out)).newest_round() if resume and out is not None else 0)
    built: Engine
    if engine == "simulate":
        place = chosen(data, storage)
        built = Simulation(
            method,
            data,
            seed=seed,
            cohort=cohort,
            channel=channel,
            faults=faults,
            chunk=chunk,
            storage=place,
            node_directory=Path(out) / "nodes" if out is not None and place == "host" else None,
        )
    elif engine == "loop":
        built = Loop(method, data, seed=seed, cohort=cohort, channel=channel, faults=faults)
    else:
        graph = complete() if topology is None else topology
        built = Peers(method, data, topology=graph, seed=seed, cohort=cohort, channel=channel, faults=faults)
    plan = Plan(evaluate_every, part, checkpoint_every, progress)
    if out is None:
        result = Run(name or method.name, built, method, data, plan, seed, built.start(), [], ledger=ledger)
        result._advance_to(rounds)
        return result
    directory = RunDirectory(Path(out))
    named = {"rounds": rounds, "seed": seed, "engine": engine, "chunk": chunk, "storage": storage, "part": part}
    optional = {"name": name, "evaluate_every": evaluate_every, "checkpoint_every": checkpoint_every}
    tables: dict[str, Mapping[str, toml.Value]]
    tables = {"method": {"name": method.name}, "faults": (faults or Faults())._asdict()} if settings is None else dict(settings)
    if privacy is not None:
        tables["privacy"] = privacy.table()
    tables["run"] = named | {key: value for key, value in optional.items() if value is not None}
    tables["environment"] = versions() | {"data_digest": data_digest(data)}
    with directory.held():
        found = directory.resume(tables) if resume else directory.begin(tables)
        if found is not None and found.header.round > rounds:
            raise ValueError(f"{out} is already at round {found.header.round}, past rounds={rounds}")
        if found is not None and ledger is not None:
            ledger.compare(found.header.privacy or {}, found.header.round)
        records = directory.cut_metrics(found.header.round if found else 0)
        state = built.restore(wire.unpack(found.body, built.snapshot_like())) if found else built.start()
        result = Run(name or directory.path.name, built, method, data, plan, seed, state, records, directory, ledger)
        result._advance_to(rounds)
    return result


class Run:
    """Where a run stands. Made by `run`; look at it, evaluate it, predict with it, and `go_on`."""

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
    def part(self) -> Part:
        """The rows that the run is evaluated on as it goes."""
        return self._plan.part

    @property
    def state(self) -> State:
        """The server's state."""
        return self._state.server

    @property
    def metrics(self) -> pd.DataFrame:
        """One line a round; evaluated metrics, such as `validation_accuracy`, are NaN in rounds without an evaluation."""
        frame = pd.DataFrame(self._records)
        without_numbers = frame.columns[frame.isna().all()]  # Nones only, which pandas would keep as objects
        return frame.astype(dict.fromkeys(without_numbers, float))

    @property
    def clients(self) -> pd.DataFrame:
        """One line a client: id, name, rows of each part, and its metrics at the last evaluation (now, if there was none)."""
        return self.evaluation.clients

    @property
    def evaluation(self) -> Evaluation:
        """The last evaluation of the run as it went (now, if there was none)."""
        return self._last or self.evaluate(part=self._plan.part)

    def evaluate(self, data: FederatedData | None = None, *, part: Part = "test") -> Evaluation:
        """Every client on one part of its rows. Clients of other data are new: each is adapted to its training rows."""
        need_rows(self.data if data is None else data, part)
        metrics = self._engine.evaluate(self._state, part, data)
        return Evaluation(self.round, part, self.data if data is None else data, metrics)

    def predict(self, x: PyTree, *, client: str | int, data: FederatedData | None = None) -> PyTree:
        """The predictive distribution of a client (its name or id) for new rows; with other data, of a client never seen."""
        position = (self.data if data is None else data).position_of(client)
        return self._engine.predict(self._state, position, x, data)

    @property
    def posterior(self) -> Posterior:
        """The clients' posterior at this round: draws, trace and summary. Only methods that draw have it."""
        if self.method.draws is None:
            raise AttributeError(no_draws(self.method))
        return Posterior(self.data, partial(self._engine.draws, self._state), self._origin, self._axes)

    @property
    def chains(self) -> SharedPosterior:
        """The posterior of what all clients share, from all draws so far. Only methods whose server samples have it."""
        if self.method.chains is None or self._draws is None:
            raise AttributeError(f"{self.method.name} does not sample what clients share, as fald does")
        return SharedPosterior(self.method.chains, self._draws.all, self._origin, self._axes)

    @property
    def _origin(self) -> dict[str, str | int]:
        return {"method": self.method.name, "round": self.round, "seed": self.seed, "covey_version": version("covey")}

    @property
    def _axes(self) -> dict[str, Axis]:
        return {} if self.method.axes is None else self.method.axes(self.data.spec)

    def go_on(self, rounds: int) -> "Run":
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
            if self.method.explain is None:
                raise
            raise Diverged(f"{error}: {self._explained(error.client_id)}", error.lines, error.client_id) from error
        self._warn_of_diverged(lines)
        if self.method.chains is not None and self._draws is not None:
            self._draws.add(self.method.chains.kept(self._state.server))
        seconds = perf_counter() - start
        self._block = _next_length(self._block, seconds)
        records = [_finite(line | self._revealed(line) | {"seconds": seconds / len(lines)}) for line in lines]
        if self._is_due(self._plan.evaluate_every, target):
            self._last = self.evaluate(part=self._plan.part)
            records[-1] |= _finite({f"{self._plan.part}_{key}": value for key, value in self._last.pooled.items()})
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
        why = "" if self.method.explain is None else f": {self._explained(client)}"
        warnings.warn(
            f"round {first['round']}: {first['diverged']} of the clients, {name!r} among them, have numbers that are not finite; "
            f"they are left out until they recover. Make the client's step size smaller, or use a preconditioned kernel{why}",
            stacklevel=2,
        )

    def _explained(self, client: int) -> str:
        """What the method has to say of a client that diverged."""
        position = self.data.position_of(client)
        down = self.method.broadcast(self._state.server)
        why = self.method.explain(down, self.data.shard(position, "train")) if self.method.explain is not None else ""
        return f"client {self.data.name_of(position)!r}: {why}"

    def _next_stop(self, target: int) -> int:
        longest = self._block if self._draws is None else min(self._block, self._draws.places)  # before a draw is overwritten
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


def _ledger(method: Algorithm, data: FederatedData, cohort: Scheme | None, budget: Budget) -> Ledger:
    """What this method reveals on these data, with these cohorts."""
    if method.mechanism is None:
        raise ValueError(
            f"{method.name} protects no row, so that there is nothing to account for; leave privacy out, or use a method that "
            "clips gradients and adds noise, e.g. fald with clip"
        )
    counts = data.counts("train")
    return Ledger(method.mechanism(counts, (full() if cohort is None else cohort)(counts)), budget)


def _next_length(block: int, seconds: float) -> int:
    """Twice as many rounds after a short block, half as many after a long one."""
    if seconds < _BLOCK_SECONDS / 2:
        return 2 * block
    return max(block // 2, 1) if seconds > 2 * _BLOCK_SECONDS else block


def _finite(line: dict[str, int | float]) -> Record:
    return {key: value if math.isfinite(value) else None for key, value in line.items()}
