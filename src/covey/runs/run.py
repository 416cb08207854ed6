"""A run and its results so far, to inspect, evaluate and advance."""

from importlib.metadata import version
from typing import Any

import pandas as pd
from jaxtyping import PyTree

from covey.core import wire
from covey.core.algorithm import Approximation, Chains, Message
from covey.core.keys import Stream, key_for
from covey.data.conversion import NewRows
from covey.data.federated import FederatedData, Split
from covey.engines.engine import Engine
from covey.inference.posterior import Origin, RunPosterior
from covey.runs import toml
from covey.runs.advancing import Advancing
from covey.runs.directory import RunDirectory
from covey.runs.evaluation import Evaluation


class Run(Advancing):
    """The state of a run: metrics, evaluations, predictions, posterior; `advance` continues it.

    Made by `covey.run`.
    """

    @classmethod
    def start(
        cls,
        *parts: Any,
        rounds: int | None,
        directory: RunDirectory | None = None,
        tables: toml.Tables | None = None,
    ) -> "Run":
        """A new run after its first `rounds` rounds.

        Args:
            parts: The first arguments of `Run`: name, engine, data, options, seed, questions,
                ledger and unseen clients.
            rounds: Rounds to run; None: until the method has settled.
            directory: The run directory; None writes nothing to disk.
            tables: Tables to record in its `config.toml`.
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
        cls, *parts: Any, rounds: int | None, directory: RunDirectory, tables: toml.Tables
    ) -> "Run":
        """The run in a directory, from its newest checkpoint up to `rounds` rounds in all.

        The arguments are those of `start`.
        """
        engine: Engine = parts[1]
        with directory.held():
            found = directory.resume(tables)
            at = found.header.round if found else 0
            if rounds is not None and at > rounds:
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

    @property
    def questions(self) -> pd.DataFrame:
        """One row per question to all clients beyond the rounds, with the sizes of its messages:
        those of the method's preparation, and of a posterior that asks.
        """
        return pd.DataFrame(self._questions.records)

    @property
    def clients(self) -> pd.DataFrame:
        """One row per client: id, name, rows of each split, and its metrics at the last evaluation
        (now, if there was none).
        """
        return self.evaluation.clients

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation after the last round, on the rows that the run is evaluated on: that of
        the last row of `metrics`, where the run evaluates as it goes. Clients predict with the
        state that the round has published; where a method draws its law at the end only
        (`covey.marginal` with estimate="posterior"), `evaluate` averages over that law and differs
        a little.
        """
        if self._last is None or self._last.round != self.round:
            self._last = self.evaluate(split=self._options.split)
        return self._last

    @property
    def unseen_evaluation(self) -> Evaluation:
        """The evaluation of the unseen clients at this round, on their test rows: each is adapted
        to its training rows first, and the run learns nothing from it.

        Raises:
            ValueError: The run was given no unseen clients.
        """
        if self.unseen is None:
            raise ValueError(
                "this run was given no unseen clients: start it with covey.run(..., unseen=data), "
                "or ask run.evaluate(data)"
            )
        if self._last_unseen is None or self._last_unseen.round != self.round:
            self._last_unseen = self.evaluate(self.unseen)
        return self._last_unseen

    def evaluate(
        self,
        data: FederatedData | None = None,
        *,
        split: Split = "test",
        draws: int | None = None,
    ) -> Evaluation:
        """Every client on one split of its rows.

        Args:
            data: Other data, of new clients: each is adapted to its training rows.
            split: The rows to evaluate on.
            draws: Posterior draws that a prediction averages over. Default: the method's.

        Returns:
            Metrics per client (`.clients`) and over all rows (`.pooled`).
        """
        of = self.data.replaced_by(data)
        found = self._engine.evaluate(self._state, split, data, down=self._down(), draws=draws)
        return Evaluation(self.round, split, of, found)

    def predict(
        self,
        x: NewRows,
        *,
        client: str | int,
        data: FederatedData | None = None,
        standardised: bool = False,
        draws: int | None = None,
    ) -> Any:
        """The predictive distribution of a client for new rows.

        Args:
            x: New rows on their original scale: a data frame or mapping with the run's columns in
                any order, a CSV file, a list of rows or an array. They are scaled as the training
                rows were.
            client: The client's name or id.
            data: Other data, for an unseen client: it adapts to its training rows first.
            standardised: The rows are scaled already.
            draws: Posterior draws that the prediction averages over. Default: the method's.

        Returns:
            A predictive distribution: `.mean`, `.log_prob(y)`; see `covey.models`.
        """
        self._warn_unless_settled(self._stuck(), stacklevel=2)
        rows = self.data.rows_from(x, standardised=standardised)
        position = self.data.replaced_by(data).position_of(client)
        return self._engine.predict(
            self._state, position, rows, data, down=self._down(), draws=draws
        )

    @property
    def posterior(self) -> RunPosterior:
        """The posterior at this round: `.shared`, `.client(name)` and `.clients`.

        Each has `.draws()`, `.trace()` and `.summary()`. A method without one raises
        an error that names what it has instead.
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
            draw_clients=self._draw_clients,
            collected=None if self._draws is None else self._draws.all,
            fitted=self._fitted,
            checked=self._check_chains,
            key=key_for(self._engine.setup.root, Stream.DRAWS, self.round),
        )

    def _draw_clients(self, *arguments: Any) -> PyTree:
        self._warn_unless_settled(self._stuck(), stacklevel=2)
        return self._engine.draws(self._state, *arguments, down=self._down())

    def _fitted(self) -> Any:
        """The law of the shared parameters at this round."""
        shared = self.method.posterior.shared
        if not isinstance(shared, Approximation):
            raise TypeError(f"{self.method.name} has no law of its shared parameters")
        if self._law is None or self._law[0] != self.round:
            ask = self._questions.asker(shared.queries)
            down = self._engine.broadcast(self._state)
            self._law = self.round, shared.fit(down, self._engine.setup.spec, ask)
        return self._law[1]

    def _check_chains(self) -> None:
        """Warn where the law of the chains is off; checked once per round."""
        shared = self.method.posterior.shared
        if not isinstance(shared, Chains) or shared.check is None or self._checked == self.round:
            return
        self._checked = self.round
        ask = self._questions.asker(shared.queries)
        shared.check(self._state.server, self._engine.setup.spec, ask)

    def _down(self) -> Message | None:
        """The state that clients predict and draw with, where it differs from the broadcast."""
        shared = self.method.posterior.shared
        if not isinstance(shared, Approximation) or shared.publish is None:
            return None
        return shared.publish(self._engine.broadcast(self._state), self._fitted())

    @property
    def published(self) -> Message:
        """The state that clients predict and draw with now."""
        sent = self._down()
        return self._engine.broadcast(self._state) if sent is None else sent

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
