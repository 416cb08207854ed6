"""A run between sites: a server that has a roster and a connection to the sites, and no rows."""

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
    """Run a method between sites for a number of rounds; see `covey.run` for all other terms.

    Args:
        method: A method with its model. The sites have the same one.
        roster: The sites that take part; see `covey.data.roster.of_sites`.
        connection: The connection to the sites.
        rounds: Rounds in all. Default: until the method has settled.
        seed: Seed of everything that the server draws.
        cohort: Sampler of the clients of a round. Default: all clients in every round.
        channel: Codec of the uploads; the sites have the same one.
        quorum: Sites that must answer before a round is closed. Default: the whole cohort.
        privacy: Privacy budget of the server; each site has a budget besides.
        evaluate_every: Rounds between evaluations, the last round always included.
        split: The rows to evaluate on.
        out: The run directory; None writes nothing to disk.
        checkpoint_every: Rounds between checkpoints. Default: 1, so that a restarted server repeats
            one round at most.
        resume: Continue the run in `out`: the sites go back to its newest checkpoint.
        progress: Show progress once the work takes more than two seconds.
        name: Name of the run. Default: that of its directory, or of the method.
        settings: Settings to record in `config.toml`; a resumed run must have the same.

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
    """Tell all sites that a run between them has ended, and send the state to predict with.

    Args:
        run: A run by `run_between_sites`.
        down: The state to predict with. Default: the state that the run publishes.

    Returns:
        The names of the sites that were not reached; a second call is safe.
    """
    engine = run._engine
    if not isinstance(engine, Sites):
        raise ValueError("this run has no sites to tell: its clients are in this process")
    return engine.finish(run._state, run.published if down is None else down)
