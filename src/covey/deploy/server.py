"""The server of a study: greet the sites, agree, run the rounds, publish the shared result."""

import fcntl
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from covey.core import atomic_files, protocol
from covey.core.compiling import compile_quickly
from covey.data.roster import Roster, of_sites, spec_as_text
from covey.deploy import status as statuses
from covey.deploy.greeting import Greeter, StudyRefusedError
from covey.deploy.plain_values import checked
from covey.deploy.plan import BadAnswerError, Outcome, Plan
from covey.deploy.status import StatusFile
from covey.deploy.study import Study
from covey.engines.connection import Connection, RoundReport
from covey.engines.setup import spec_of
from covey.engines.transport import Transport
from covey.fitting.tables import check_name
from covey.runs.between_sites import conclude, run_between_sites
from covey.runs.directory import BusyError

if TYPE_CHECKING:
    from covey.fitting.result import Fit
    from covey.runs.run import Run

__all__ = ["StudyRefusedError", "conduct"]


class Agreed(NamedTuple):
    """The agreement of all sites before the first round; `study/agreed.json` of the run directory.

    Attributes:
        study: The study's text.
        server: The identity of this server.
        sites: Names of all sites that were asked, in the order of their ids.
        said: The description of its table from each site that takes part.
        entries: The counts and sums of its rows from each site.
        left_out: The reasons why others take no part, by name.
    """

    study: str
    server: str
    sites: list[str]
    said: dict[str, Any]
    entries: dict[str, Any]
    left_out: dict[str, str]


def conduct(
    study: Study,
    transport: Transport,
    directory: str | Path,
    *,
    sites: Sequence[str] = (),
    resume: bool = False,
    deadline: float = 60.0,
    attempts: int = 2,
    quorum: int | None = None,
    least: int | None = None,
    patience: float = 0.0,
    most_bytes: int = protocol.MOST_BYTES,
    watch: Callable[[RoundReport], None] | None = None,
    found: "Callable[[Fit | Run], None] | None" = None,
    progress: bool = True,
) -> "Fit | Run":
    """Conduct a study between sites, from the first greeting to the last result.

    A transport needs nothing else of Covey at the server: give it something with `exchange`. The
    sites answer with `covey.deploy.site.open_handler`. The call returns when the study has ended;
    after a crash, call it again with `resume=True`: it continues from the last round, and sites go
    back to it.

    Args:
        study: The study, from `covey.deploy.study.read` or `of_formula`.
        transport: Carries messages to sites and brings answers back.
        directory: The run directory. `study/status.json` in it says who does what, at any time.
        sites: Names of the sites, as the transport knows them. A resumed study knows them.
        resume: Continue the study in the directory.
        deadline: Seconds that an exchange waits for answers.
        attempts: Times that a message is sent to a site that has not answered.
        quorum: Sites that must answer before a round is closed. Default: everyone in the cohort.
            A formula needs everyone.
        least: Sites that must take part. Default: all. Those that decline are left out, and the
            status says why.
        patience: Seconds to keep greeting sites that do not answer, or whose owner has not
            approved the study yet.
        most_bytes: Bytes that an answer may have.
        watch: Called with a report of every exchange, for progress.
        found: Called with the result as soon as it is written, before the sites write theirs.
        progress: Show progress once rounds take more than two seconds.

    Returns:
        The fit of a formula, without sites' effects, or the run of a method. Each site has written
        its own effects, predictions and page.

    Raises:
        StudyRefusedError: Too few sites take part; the message says why, site by site.
        ValueError: Sites do not fit together; the message names site and column.
        NoQuorumError: Too few sites answered in a round. The state is kept: resume the study.
        BadAnswerError: A site has said what cannot be; the message names it.
        BusyError: Another process conducts the study in this directory.
    """
    for key, value in (("quorum", quorum), ("least", least)):
        if value is not None and value < 1:
            raise ValueError(f"{key} must be at least 1, got {value}")
    folder = Path(directory)
    (folder / "study").mkdir(parents=True, exist_ok=True)
    with _held(folder):
        known = _read(folder)
        names = _names(folder, study, known, sites, resume=resume)
        status = StatusFile(folder, statuses.fresh(study.name, study.digest, names))
        status.set("greeting")

        def noted(report: RoundReport) -> None:
            status.note(report)
            if watch is not None:
                watch(report)

        connection = Connection(
            transport,
            study=study.name,
            digest=study.digest,
            deadline=deadline,
            attempts=attempts,
            most_bytes=most_bytes,
            watch=noted,
        )
        server = secrets.token_hex(16) if known is None else known.server
        greeter = Greeter(connection, study, server, status, patience=patience)
        try:
            plan = _plan_of(study)
            agreed = _agree(folder, study, plan, greeter, names, known, server, least, quorum)
            status.leave_out(agreed.left_out)
            status.set("running")
            run = _run(folder, study, plan, connection, agreed, quorum, resume, progress)
            outcome = plan.outcome(run, folder)
            if found is not None:
                found(outcome.found)
            lost = _publish(run, outcome, greeter, agreed)
        except BaseException as error:
            if isinstance(error, BadAnswerError):
                status.damaged(error.site, error.why)
            status.set("failed", str(error) or type(error).__name__)
            raise
        status.set("finished", lost)
        return outcome.found


def _agree(
    folder: Path,
    study: Study,
    plan: Plan,
    greeter: Greeter,
    names: list[str],
    known: Agreed | None,
    server: str,
    least: int | None,
    quorum: int | None,
) -> Agreed:
    """Take the steps before the first round; a resumed study repeats them with stored answers.

    The agreement is on disk before any site starts.
    """
    there = list(names) if known is None else list(known.said)
    needed = least if known is None else quorum
    first = {"study": study.text, "sites": names}
    said, silent = greeter.ask("describe", there, first, least=needed)
    part = [name for name in there if name in said]
    content = plan.agree({name: said[name] for name in part} if known is None else known.said)
    entries, _ = greeter.ask("agree", part, content)
    for name, one in entries.items():
        if not isinstance(one, dict) or not isinstance(one.get("entry"), dict):
            raise BadAnswerError(name, "says nothing of its rows")
    if known is None:
        entries = {name: entries[name] for name in part}
        agreed = Agreed(study.text, server, names, said, entries, silent)
    else:
        agreed = known
    shared = plan.share(agreed.entries)
    roster = _roster(agreed)
    if known is None:
        text = json.dumps(agreed._asdict(), indent=1)
        atomic_files.write(folder / "study" / "agreed.json", text.encode())
    greeter.ask("start", part, {"spec": spec_as_text(spec_of(roster)), "shared": shared})
    return agreed


def _run(
    folder: Path,
    study: Study,
    plan: Plan,
    connection: Connection,
    agreed: Agreed,
    quorum: int | None,
    resume: bool,
    progress: bool,
) -> "Run":
    """Run the rounds."""
    program = plan.program(progress=progress)
    options = program.options
    return run_between_sites(
        program.method,
        _roster(agreed),
        connection,
        rounds=program.rounds,
        seed=study.seed,
        cohort=program.cohort,
        channel=program.channel,
        quorum=quorum,
        privacy=program.privacy,
        evaluate_every=options.evaluate_every,
        split=options.split,
        out=folder,
        checkpoint_every=options.checkpoint_every,
        resume=resume and (folder / "config.toml").exists(),
        progress=options.progress,
        name=study.name,
        settings=program.settings,
    )


def _publish(run: "Run", outcome: Outcome, greeter: Greeter, agreed: Agreed) -> str:
    """Send the shared result, by which each site writes its own; the sites not reached."""
    missed = conclude(run, outcome.down)
    heard = [name for name in agreed.said if name not in missed]
    _, silent = greeter.ask("result", heard, outcome.content, least=0) if heard else ({}, {})
    lost = dict.fromkeys(missed, "has not heard the end of the study") | silent
    return "; ".join(f"{name}: {why}" for name, why in lost.items())


def _plan_of(study: Study) -> Plan:
    """The plan of this kind of study. A job is one study: the other kind is not imported."""
    if study.kind == "fit":
        compile_quickly()
        from covey.deploy.fit_plan import FitPlan

        return FitPlan(study)
    from covey.deploy.run_plan import RunPlan

    return RunPlan(study)


def _roster(agreed: Agreed) -> Roster:
    """The sites that take part. A site's id is its index among all that were asked."""
    entries = {name: one["entry"] for name, one in agreed.entries.items()}
    found = of_sites(entries)
    ids = [agreed.sites.index(found.name_of(at)) for at in range(found.clients)]
    return replace(found, ids=np.array(ids, np.int64))


def _names(
    folder: Path, study: Study, known: Agreed | None, sites: Sequence[str], *, resume: bool
) -> list[str]:
    """The sites of the study, in the order of their ids."""
    if known is not None and not resume:
        raise ValueError(
            f"{folder} already holds the study {json.loads(known.study)['name']!r}: resume it, or "
            "choose another directory"
        )
    if known is not None and known.study != study.text:
        raise ValueError(
            f"{folder} holds another study than the one given, or another configuration of it; "
            "a changed study needs another name and directory"
        )
    if known is not None:
        return known.sites
    if not sites or len(set(sites)) < len(sites):
        raise ValueError(f"a study needs the names of its sites, each once, got {list(sites)}")
    for name in sites:
        check_name(name)
    return sorted(sites)


def _read(folder: Path) -> Agreed | None:
    path = folder / "study" / "agreed.json"
    if not path.exists():
        return None
    try:
        return checked(Agreed, json.loads(path.read_text("utf-8")))
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: {error}; start the study under another name"
        ) from None


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold the study; another process that tries is told so."""
    with (folder / "study" / "lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"{folder} is in use by another process: two servers cannot conduct one study"
            ) from None
        yield
