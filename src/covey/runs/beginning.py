"""The beginning of every run: `covey.run` and a deployed server both call this."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from jaxtyping import PyTree

from covey.core.algorithm import Algorithm, Plan
from covey.data.federated import FederatedData
from covey.data.roster import Roster
from covey.engines.engine import Engine
from covey.engines.questions import PREPARATION, Questions
from covey.engines.rows import need_rows
from covey.privacy.ledger import Budget, Ledger
from covey.runs import toml
from covey.runs.digest import data_digest
from covey.runs.directory import RunDirectory
from covey.runs.environment import versions
from covey.runs.run import Run
from covey.runs.schedule import RunOptions


class Venue(NamedTuple):
    """The surroundings of a run: its clients, its engine, and its line to the clients.

    Attributes:
        clients: The clients, with their rows or without.
        engine_of: (method, prepared) -> the engine.
        questions: Asks all clients.
        tell: Sends the result of a preparation to the clients, where they prepare the method
            themselves; None where they share this process.
        unseen: Clients that never take part, to be evaluated; None where there are none.
    """

    clients: FederatedData | Roster
    engine_of: Callable[[Algorithm], Engine]
    questions: Questions
    tell: Callable[[PyTree], None] | None = None
    unseen: FederatedData | None = None


def begin(
    method: Algorithm,
    venue: Venue,
    *,
    rounds: int | None,
    seed: int,
    options: RunOptions,
    privacy: Budget | None = None,
    directory: RunDirectory | None = None,
    resume: bool = False,
    name: str | None = None,
    tables: toml.Tables | None = None,
    defaults: toml.Tables | None = None,
    run_table: Mapping[str, toml.Value] | None = None,
) -> Run:
    """Start or resume a run and advance it.

    Args:
        method: A method with its model.
        venue: The surroundings of the run.
        rounds: Rounds in all; None until the method has settled.
        seed: Seed of everything random.
        options: Evaluations, checkpoints and progress between rounds.
        privacy: Privacy budget.
        directory: The run directory; None writes nothing to disk.
        resume: Continue the run in the directory.
        name: Name of the run. Default: that of its directory, or of the method.
        tables: Tables to record in `config.toml`. Default: the method's name and `defaults`.
        defaults: Tables beside the method's name.
        run_table: Values of the table `run` of `config.toml` that describe the venue.

    Returns:
        The run.
    """
    if options.evaluate_every is not None:
        need_rows(venue.clients, options.split)
    method = _prepared(method, venue, privacy)
    if rounds is None and method.hooks.unsettled is None:
        raise ValueError(
            f"{method.name} cannot tell when to stop: give a number of rounds, e.g. rounds=100"
        )
    engine = venue.engine_of(method)
    ledger = None if privacy is None else _ledger(engine, venue.clients, privacy)
    if ledger is not None:
        done = directory.newest_round() if resume and directory is not None else 0
        if rounds is None:
            raise ValueError("a privacy budget needs a number of rounds: give rounds=")
        ledger.check(rounds, done=done)
    title = name or (method.name if directory is None else directory.path.name)
    clients, unseen = venue.clients, venue.unseen
    parts = (title, engine, clients, options, seed, venue.questions, ledger, unseen)
    if directory is None:
        return Run.start(*parts, rounds=rounds)
    recorded: dict[str, Mapping[str, toml.Value]] = dict(
        tables or {"method": {"name": method.name}, **(defaults or {})}
    )
    if privacy is not None:
        recorded["privacy"] = privacy.table()
    recorded["run"] = _recorded(rounds, seed, run_table or {}, name, options)
    own = dict(recorded.get("environment", {}))
    recorded["environment"] = own | versions() | {"data_digest": data_digest(venue.clients)}
    start = Run.resume if resume else Run.start
    return start(*parts, rounds=rounds, directory=directory, tables=recorded)


def _prepared(method: Algorithm, venue: Venue, privacy: Budget | None) -> Algorithm:
    """The method after its preparation, which asks clients about their data."""
    if not isinstance(method, Algorithm) or method.preparation is None:
        return method
    if privacy is not None:
        raise ValueError(
            f"{method.name} asks clients about their data before it starts, which no privacy "
            "budget accounts for; give it the settings that it looks for, e.g. step_size="
        )
    ask = venue.questions.asker(method.preparation.queries, first=PREPARATION)
    found = method.preparation.find(venue.clients.spec, ask)
    if venue.tell is not None:
        venue.tell(found)
    return method.preparation.finish(found)


def _recorded(rounds, seed, run_table, name, options) -> dict[str, toml.Value]:
    """The table `run` of `config.toml`."""
    given = {
        "rounds": rounds,
        "seed": seed,
        **run_table,
        "split": options.split,
        "name": name,
        "evaluate_every": options.evaluate_every,
        "checkpoint_every": options.checkpoint_every,
    }
    return {key: value for key, value in given.items() if value is not None}


def _ledger(engine: Engine, clients: FederatedData | Roster, budget: Budget) -> Ledger:
    """The privacy ledger of the method on these data, with these cohorts."""
    setup = engine.setup
    method = setup.algorithm
    if method.privacy is None:
        raise ValueError(
            f"{method.name} protects no row, so that there is nothing to account for; leave "
            "privacy out, or use a method that clips gradients and adds noise, e.g. fald with clip"
        )
    plan = Plan(clients.counts("train"), setup.sampler, setup.channel, setup.shapes.up)
    return Ledger(method.privacy(plan), budget)
