"""One run: a method on federated data for a number of rounds, watched, checkpointed, stopped and
continued.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from covey.core import wire
from covey.core.algorithm import Algorithm
from covey.core.cohort import Scheme, full
from covey.core.faults import Faults
from covey.core.node import Channel
from covey.data.federated import FederatedData, Split
from covey.engines.loop import Loop
from covey.engines.peers import Peers
from covey.engines.rows import Storage, chosen, need_rows
from covey.engines.simulate import Simulation
from covey.runs import toml
from covey.runs.digest import data_digest
from covey.runs.directory import RunDirectory
from covey.engines.engine import Engine
from covey.runs.environment import versions
from covey.runs.run import Plan, Run, begun
from covey.privacy.ledger import Budget, Ledger
from covey.topology import Topology, complete


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
    split: Split = "validation",
    out: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    progress: bool = True,
    name: str | None = None,
    settings: toml.Tables | None = None,
) -> Run:
    """Run a method for `rounds` rounds, and return where it stands.

    Args:
        method: from a factory, e.g. `covey.fedavg(model)`.
        data: the clients' rows.
        rounds: in all, counted from the beginning also when a run is resumed.
        seed: of everything random.
        cohort: who takes part in a round; everyone by default.
        channel: what uploads pass through; unchanged by default.
        faults: chances of lost, late and repeated messages; none by default.
        engine: "simulate" runs many clients at once; "loop" one at a time, over real bytes; "peers"
            has no server.
        topology: who talks to whom among peers, from `covey.topology`; for engine="peers" only, by
            default everyone to everyone.
        chunk: clients side by side in "simulate".
        storage: where "simulate" keeps rows: "device", or "host" for rows that are memory-mapped or
            very many. With rows on the host and a run directory, what clients keep between rounds
            lies there too, memory-mapped.
        privacy: what may be revealed of a row, and who counts; for methods that protect rows, e.g.
            `covey.fald(..., clip=1.0)`. What has been revealed is in the metrics of every round,
            and more rounds than the budget permits are refused. Only uploads are counted: an
            evaluation shows what it shows.
        evaluate_every: evaluate after each such number of rounds, and after the last; None: only
            when asked.
        split: the rows to evaluate on.
        out: the run directory; None keeps nothing on disk.
        checkpoint_every: in rounds; None: once a minute. There is always one at the end, and after
            Ctrl-C.
        resume: go on with the run in `out`. Method, data, seed and settings must be those it was
            started with.
        progress: show progress once the work takes more than two seconds.
        name: what the run is called; by default the name of its directory, or of the method.
        settings: what `config.toml` records, and a resumed run is compared with; by default the
            arguments that have a name.

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
        need_rows(data, split)
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
    plan = Plan(evaluate_every, split, checkpoint_every, progress)
    if out is None:
        return begun(Run(name or method.name, built, method, data, plan, seed, built.start(), [], ledger=ledger), rounds)
    directory = RunDirectory(Path(out))
    named = {"rounds": rounds, "seed": seed, "engine": engine, "chunk": chunk, "storage": storage, "split": split}
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
        made = Run(name or directory.path.name, built, method, data, plan, seed, state, records, directory, ledger)
        return begun(made, rounds)


def _ledger(method: Algorithm, data: FederatedData, cohort: Scheme | None, budget: Budget) -> Ledger:
    """What this method reveals on these data, with these cohorts."""
    if method.mechanism is None:
        raise ValueError(
            f"{method.name} protects no row, so that there is nothing to account for; leave privacy out, or use a method that "
            "clips gradients and adds noise, e.g. fald with clip"
        )
    counts = data.counts("train")
    return Ledger(method.mechanism(counts, (full() if cohort is None else cohort)(counts)), budget)
