"""`covey.run`: a method on federated data for a number of rounds."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

from covey.core.algorithm import Algorithm
from covey.core.channel import Channel
from covey.core.cohort import Scheme
from covey.core.faults import Faults
from covey.core.method_checks import need_method
from covey.core.shard import Rows
from covey.data.federated import FederatedData, Split
from covey.engines.cluster import Cluster
from covey.engines.engine import Engine
from covey.engines.loop import Loop
from covey.engines.peers import Peers
from covey.engines.questions import ByRounds, Questions, no_questions
from covey.engines.ray import RayCrew
from covey.engines.rows import Storage
from covey.engines.simulate import Simulation
from covey.privacy.ledger import Budget
from covey.runs import toml
from covey.runs.beginning import Venue, begin
from covey.runs.directory import RunDirectory
from covey.runs.run import Run
from covey.runs.schedule import RunOptions
from covey.topology import Topology, complete

EngineName = Literal["simulate", "loop", "peers", "ray"]
_IN_CHUNKS = ("simulate", "ray")  # engines that run clients side by side


def run(
    method: Algorithm,
    data: FederatedData,
    *,
    unseen: FederatedData | None = None,
    rounds: int | None = None,
    seed: int = 0,
    cohort: Scheme | None = None,
    channel: Channel | None = None,
    faults: Faults | None = None,
    engine: EngineName = "simulate",
    topology: Topology | None = None,
    actors: int | None = None,
    address: str | None = None,
    chunk: int | Literal["auto"] = "auto",
    storage: Storage = "auto",
    privacy: Budget | None = None,
    evaluate_every: int | None = None,
    split: Split = "validation",
    out: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    progress: bool = True,
    name: str | None = None,
    settings: toml.Tables | None = None,
) -> Run:
    """Run a method for a number of rounds.

    Args:
        method: A method with its model, e.g. `covey.fedavg(covey.models.logistic())`.
        data: The clients' rows.
        unseen: Clients that never take part, with the columns and the scale of `data`, e.g. from
            `data.hold_out`. After the last round each is adapted to its training rows and evaluated
            on its test rows: `run.unseen_evaluation`, and the report.
        rounds: Rounds in all, counted from the beginning also when a run is resumed. Default: until
            the method has settled, for methods that can tell, such as `covey.marginal`.
        seed: Seed of everything random.
        cohort: Sampler of the clients of a round, from `covey.cohort`. Default: all clients in
            every round.
        channel: Codec of the uploads, from `covey.channel`; of the states that peers send, for
            engine="peers". Default: none, uploads are sent as they are.
        faults: Probabilities of lost, late and repeated messages. Default: none.
        engine: "simulate" runs many clients at once; "loop" one at a time, over real bytes;
            "peers" has no server; "ray" spreads clients over the actors of a Ray cluster
            (`pip install 'covey[cluster]'`).
        topology: Graph of the peers, from `covey.topology`; for engine="peers" only. Default: the
            complete graph.
        actors: Ray actors, each with a block of clients; for engine="ray" only. Default: one per
            CPU of the cluster.
        address: Address of the Ray cluster, "host:port" or "auto"; for engine="ray" only. Default:
            the cluster that Ray is connected to, or else one on this machine.
        chunk: Clients that "simulate", or an actor of "ray", runs side by side.
        storage: Memory of the rows, for "simulate" and the actors of "ray": "device", or "host"
            for rows that are memory-mapped or exceed the device. With "host" and a run directory,
            "simulate" stores the clients' states in that directory, and not in memory.
        privacy: Privacy budget, for methods that protect rows, e.g. `covey.fald(..., clip=1.0)`.
            The epsilon spent is in the metrics of every round, and rounds beyond the budget are
            refused. Only uploads are accounted for, not evaluations.
        evaluate_every: Rounds between evaluations, the last round always included; None: only on
            request.
        split: The rows to evaluate on: "train", "validation" or "test".
        out: The run directory; None writes nothing to disk.
        checkpoint_every: Rounds between checkpoints; None: one per minute. There is always one at
            the end, and after Ctrl-C or SIGTERM.
        resume: Continue the run in `out`, with the method, data, seed and settings it was started
            with.
        progress: Show progress once the work takes more than two seconds.
        name: Name of the run. Default: that of its directory, or of the method.
        settings: Settings to record in `config.toml`; a resumed run must have the same. Default:
            the arguments that TOML can hold.

    Returns:
        The run: its metrics, posterior, predictions and evaluations; `advance` continues it.

    Raises:
        BudgetSpentError: The privacy budget allows fewer rounds than were asked for; none is run.
        KeyboardInterrupt: After Ctrl-C or SIGTERM during rounds, once the checkpoint is written.

    Example:
        >>> import covey
        >>> data = covey.load("heart_disease").split(test=0.2, seed=1)
        >>> data, _ = data.standardised()
        >>> fit = covey.run(covey.fedavg(covey.models.logistic()), data, rounds=5, seed=1)
        >>> fit
        Run(fedavg: fedavg, 4 clients, 5 rounds)
        >>> fit.evaluate(split="test").pooled["accuracy"] > 0.7
        True
    """
    _check_parts(method, data)
    _check_unseen(data, unseen)
    options = RunOptions(evaluate_every, split, checkpoint_every, progress)
    _check(rounds, options, out, resume, engine, topology, chunk, storage)
    _check_cluster(engine, actors, address)
    if engine == "ray":
        engine_of = _on_a_cluster(data, seed, chunk, storage, actors, address)
    else:
        engine_of = _engine_of(engine, data, seed, chunk, storage, topology)
    for_nodes = {"node_directory": Path(out) / "nodes"} if out and engine in _IN_CHUNKS else {}
    venue = Venue(
        data,
        partial(
            engine_of, cohort=cohort, channel=channel, faults=faults, rounds=rounds, **for_nodes
        ),
        Questions(no_questions if engine == "peers" else ByRounds(engine_of)),
        unseen=unseen,
    )
    given = {"engine": engine, "chunk": chunk, "storage": storage}
    given |= {"actors": actors, "address": address}
    with _rows_explained(method, data):
        return begin(
            method,
            venue,
            rounds=rounds,
            seed=seed,
            options=options,
            privacy=privacy,
            directory=None if out is None else RunDirectory(Path(out)),
            resume=resume,
            name=name,
            tables=settings,
            defaults={"faults": (faults or Faults())._asdict()},
            run_table=given,
        )


def _engine_of(
    name: EngineName,
    data: FederatedData,
    seed: int,
    chunk: int | Literal["auto"],
    storage: Storage,
    topology: Topology | None,
) -> Callable[..., Engine]:
    """(method, cohort, channel, faults, rounds) -> the engine of this name on the data."""
    if name == "simulate":
        return partial(Simulation, data=data, seed=seed, chunk=chunk, storage=storage)
    if name == "loop":
        return partial(Loop, data=data, seed=seed)
    given = complete() if topology is None else topology
    return partial(Peers, data=data, seed=seed, topology=given)


def _on_a_cluster(
    data: FederatedData,
    seed: int,
    chunk: int | Literal["auto"],
    storage: Storage,
    actors: int | None,
    address: str | None,
) -> Callable[..., Engine]:
    """As `_engine_of`; all engines of a run have the same actors, started by the first one."""

    @cache
    def crew() -> RayCrew:
        return RayCrew(data, actors=actors, address=address, storage=storage)

    def engine_of(method: Algorithm, **options: Any) -> Cluster:
        return Cluster(method, data, crew=crew(), seed=seed, chunk=chunk, **options)

    return engine_of


def _check_parts(method: object, data: object) -> None:
    """An error where the method is no method, or the data are none."""
    if isinstance(method, FederatedData) and isinstance(data, Algorithm):
        raise ValueError("method and data are swapped: write covey.run(method, data)")
    need_method(method)
    if not isinstance(data, FederatedData):
        raise ValueError(
            "data must be a covey.FederatedData, e.g. from covey.load or "
            f"covey.FederatedData.from_clients, got {type(data).__name__}"
        )


def _check_unseen(data: FederatedData, unseen: object) -> None:
    """An error where the unseen clients cannot be judged by a model of the data."""
    if unseen is None:
        return
    if not isinstance(unseen, FederatedData):
        raise ValueError(
            "unseen must be a covey.FederatedData, e.g. from data.hold_out, got "
            f"{type(unseen).__name__}"
        )
    try:
        data.replaced_by(unseen)
    except ValueError as error:
        raise ValueError(f"unseen: {error}") from error
    if data.spec.rows != unseen.spec.rows or data.spec.classes != unseen.spec.classes:
        raise ValueError(
            "unseen: the rows of these clients have other shapes, types or classes than those of "
            f"the data: {unseen.spec.rows} with classes {unseen.spec.classes}, and not "
            f"{data.spec.rows} with {data.spec.classes}"
        )
    if not unseen.counts("test").any():
        raise ValueError(
            "unseen: these clients have no test rows to be judged on; split the data before "
            "holding clients out, e.g. data.split(test=0.2, seed=0).hold_out([...])"
        )


@contextmanager
def _rows_explained(method: Algorithm, data: FederatedData) -> Iterator[None]:
    """Explain the error of a method that reads x or y from rows without them."""
    try:
        yield
    except AttributeError as error:
        if isinstance(data.rows, Rows) or not re.search(r"attribute '?[xy]'?$", str(error)):
            raise
        raise ValueError(
            f"{method.name} needs rows of type Rows(x, y), got {type(data.rows).__name__}: write "
            "FederatedData.from_rows(Rows(x, y), counts) with covey.core.shard.Rows, or use "
            "FederatedData.from_clients; where there is no outcome, y may be zeros"
        ) from error


def _check_cluster(engine: str, actors: int | None, address: str | None) -> None:
    if engine != "ray" and (actors, address) != (None, None):
        raise ValueError(f"{actors=} and {address=} are for engine='ray', not for {engine!r}")


def _check(rounds, options, out, resume, engine, topology, chunk, storage) -> None:
    """An error for arguments that do not fit each other."""
    known = get_args(EngineName)
    if engine not in known:
        near = get_close_matches(str(engine), known, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"engine must be one of {', '.join(known)}, got {engine!r}{hint}")
    for key, value in (
        ("rounds", rounds),
        ("evaluate_every", options.evaluate_every),
        ("checkpoint_every", options.checkpoint_every),
    ):
        if value is not None and value < 1:
            raise ValueError(f"{key} must be at least 1, got {value}")
    if out is None and (resume or options.checkpoint_every is not None):
        raise ValueError(
            "checkpoints are kept in a run directory: give out= together with resume= or "
            "checkpoint_every="
        )
    if engine not in _IN_CHUNKS and (chunk, storage) != ("auto", "auto"):
        raise ValueError(
            f"{chunk=} and {storage=} are for engine='simulate' or 'ray', not for {engine!r}"
        )
    if topology is not None and engine != "peers":
        raise ValueError(f"a topology is for engine='peers'; {engine!r} has a server")
