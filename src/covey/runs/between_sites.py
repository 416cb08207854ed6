"""A run between sites: a server that has a roster and a line to the sites, and no rows."""

from functools import partial
from pathlib import Path

from covey.core.algorithm import Algorithm, Message
from covey.core.channel import Channel
from covey.core.cohort import Scheme
from covey.data.division import Split
from covey.data.roster import Roster
from covey.engines.connection import Connection, Inquiry
from covey.engines.questions import Questions
from covey.engines.sites import Sites
from covey.privacy.ledger import Budget
from covey.runs import toml
from covey.runs.beginning import Venue, begin
from covey.runs.directory import RunDirectory
from covey.runs.run import Run
from covey.runs.schedule import RunOptions


def run_between_sites(
    method: Algorithm,
    roster: Roster,
    connection: Connection,
    *,
    rounds: int | None = None,
    seed: int = 0,
    cohort: Scheme | None = None,
    channel: Channel | None = None,
    quorum: int | None = None,
    privacy: Budget | None = None,
    evaluate_every: int | None = None,
    split: Split = "validation",
    out: str | Path | None = None,
    checkpoint_every: int | None = 1,
    resume: bool = False,
    progress: bool = True,
    name: str | None = None,
    settings: toml.Tables | None = None,
) -> Run:
    """Run a method between sites for a number of rounds; see `covey.run` for what is not said here.

    Args:
        method: A method with its model. The sites have the same one.
        roster: Who takes part; see `covey.data.roster.of_sites`.
        connection: The line to the sites.
        rounds: Rounds in all. Default: until the method has settled.
        seed: Seed of everything that the server draws.
        cohort: Who takes part in a round. Default: everyone.
        channel: What uploads pass through; the sites have the same one.
        quorum: Sites that must answer before a round is closed. Default: the whole cohort.
        privacy: Privacy budget that the server keeps; sites keep their own.
        evaluate_every: Rounds between evaluations, the last round always included.
        split: The rows to evaluate on.
        out: The run directory; None keeps nothing on disk.
        checkpoint_every: Rounds between checkpoints. Default: 1, so that a restarted server repeats
            one round at most.
        resume: Continue the run in `out`: the sites go back to its newest checkpoint.
        progress: Show progress once the work takes more than two seconds.
        name: Name of the run. Default: that of its directory, or of the method.
        settings: What `config.toml` records and a resumed run is compared with.

    Returns:
        The run. Predictions and draws of a site are made at the site.

    Raises:
        NoQuorumError: Too few sites answered. With a run directory, `resume` continues from there.
    """
    inquiry = Inquiry(connection, roster)

    def engine_of(prepared: Algorithm) -> Sites:
        make = partial(Sites, seed=seed, cohort=cohort, channel=channel, rounds=rounds)
        engine = make(prepared, roster, connection, quorum=quorum)
        inquiry.known = engine.known
        return engine

    return begin(
        method,
        Venue(roster, engine_of, Questions(inquiry), inquiry.prepared),
        rounds=rounds,
        seed=seed,
        options=RunOptions(
            evaluate_every, split, checkpoint_every if out is not None else None, progress
        ),
        privacy=privacy,
        directory=None if out is None else RunDirectory(Path(out)),
        resume=resume,
        name=name,
        tables=settings,
        run_table={"engine": "sites"},
    )


def conclude(run: Run, down: Message | None = None) -> tuple[str, ...]:
    """Tell all sites that a run between them has ended, and what to predict with from now on.

    Args:
        run: A run by `run_between_sites`.
        down: What they predict with. Default: what the run publishes.

    Returns:
        The names of the sites that have not heard it; it can be said to them again.
    """
    engine = run._engine
    if not isinstance(engine, Sites):
        raise ValueError("this run has no sites to tell: its clients are in this process")
    return engine.finish(run._state, run.published if down is None else down)
