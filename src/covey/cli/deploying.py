"""`covey deploy`: a study between organisations, over NVIDIA FLARE."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from covey.cli.consoles import console, errors, mistakes_in_one_line
from covey.cli.options import Estimate, Family, Formula, Missing, Seed, StudyName
from covey.runs import interrupt

if TYPE_CHECKING:
    from covey.deploy.nvflare.coordinate import Order, Outcome
    from covey.deploy.nvflare.session import Coordinator, Job
    from covey.deploy.study import Study

KITS = Path("kits")
DEADLINE = 300.0  # seconds; the first round compiles. A site that is gone is noticed before
_FAILED = 1
_Kit = Annotated[
    Path, typer.Option("--kit", help="The coordinator's kit.", metavar="FOLDER", show_default=True)
]
_Deadline = Annotated[
    float, typer.Option("--deadline", help="Seconds that a round waits for late sites.")
]
_Quorum = Annotated[
    int | None,
    typer.Option(
        "--quorum",
        help="Number of sites that must answer before a round is closed. Default: all of them.",
    ),
]
_Wait = Annotated[
    float,
    typer.Option("--wait", help="Seconds to wait for sites that are away or have yet to approve."),
]
_Sites = Annotated[
    str | None,
    typer.Option(
        "--sites", help="Sites that take part, separated by commas. Default: all connected ones."
    ),
]


def init_command(
    sites: Annotated[str, typer.Option("--sites", help="Names of the sites, separated by commas.")],
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Host name by which sites reach the server. Default: localhost, for a trial on "
            "this machine.",
        ),
    ] = "localhost",
    port: Annotated[int, typer.Option("--port", help="Port of the server.")] = 8002,
    out: Annotated[Path, typer.Option("--out", help="Folder of the kits.")] = KITS,
) -> None:
    """Make kits with certificates for a server, its sites and the coordinator."""
    with mistakes_in_one_line():
        need_nvflare()
        from covey.deploy.nvflare.provision import AUTHORITY, make_kits

        new = make_kits(out, [site.strip() for site in sites.split(",")], host=host, port=port)
        for kit in new:
            _say(f"new: {kit}")
        if not new:
            _say(f"all kits are there already, in {out}")
        _say(
            f"Give each kit to its owner over a secure channel. {out / AUTHORITY} can sign new "
            "kits: give it to nobody."
        )


def server_command(
    kit: Annotated[Path, typer.Argument(help="The server's kit.", metavar="KIT")] = KITS / "server",
    out: Annotated[Path, typer.Option("--out", help="Folder of the studies' runs.")] = Path("runs"),
) -> None:
    """Run the server of a study, until Ctrl-C."""
    with mistakes_in_one_line(), interrupt.raised():
        need_nvflare()
        from covey.deploy.nvflare import launch
        from covey.deploy.nvflare.events import Follower
        from covey.deploy.nvflare.kit import read_kit

        own = read_kit(kit, "server")
        out.mkdir(parents=True, exist_ok=True)
        follower = Follower(own)
        with launch.running(own, {launch.RUNS: str(out.resolve())}) as process:
            process.wait_until_listening()
            _say(f"listening on {own.address}; studies are written to {out}; Ctrl-C stops")
            _follow(process, follower)


def site_command(
    site: Annotated[
        Path, typer.Argument(help="The site's file: its table and its limits.", metavar="SITE.toml")
    ],
    kit: Annotated[
        Path | None,
        typer.Option(
            "--kit", help="The site's kit; `kit` beside SITE.toml by default.", metavar="FOLDER"
        ),
    ] = None,
) -> None:
    """Run a site, until Ctrl-C. The site's file names the studies it accepts."""
    with mistakes_in_one_line(), interrupt.raised():
        need_nvflare()
        from covey.deploy import site_file
        from covey.deploy.nvflare import launch, rules
        from covey.deploy.nvflare.events import Follower
        from covey.deploy.nvflare.kit import read_kit

        allowed = site_file.read(site)
        own = read_kit(kit or site.parent / "kit", "site")
        if own.name != allowed.name:
            raise ValueError(
                f"{site} is the file of site {allowed.name!r}, and {own.folder} is the kit of "
                f"{own.name!r}: give the kit of {allowed.name!r} with --kit"
            )
        rules.cap_messages(own.folder, allowed.limits.most_bytes)
        follower = Follower(own)
        with launch.running(own, {launch.SITE_FILE: str(site.resolve())}) as process:
            _say(f"{own.name} connects to the server {own.address}; Ctrl-C stops")
            if not launch.listens(own.host, own.port):
                _say(f"nothing answers at {own.address} yet; trying again until it does")
            _follow(process, follower)


def run_command(
    study: Annotated[Path, typer.Argument(help="The study, a TOML file.", metavar="STUDY.toml")],
    kit: _Kit = KITS / "coordinator",
    sites: _Sites = None,
    quorum: _Quorum = None,
    deadline: _Deadline = DEADLINE,
    wait: _Wait = 0.0,
) -> None:
    """Run a study between the sites: the TOML file of `covey run`, without data."""
    with mistakes_in_one_line():
        need_nvflare()
        from covey.deploy import study as studies

        _start(studies.read(study), kit, sites, quorum=quorum, deadline=deadline, wait=wait)


def fit_command(
    name: StudyName,
    formula: Formula,
    family: Family = None,
    estimate: Estimate = "posterior",
    missing: Missing = "drop",
    seed: Seed = 0,
    kit: _Kit = KITS / "coordinator",
    sites: _Sites = None,
    deadline: _Deadline = DEADLINE,
    wait: _Wait = 0.0,
) -> None:
    """Fit a regression with random effects between the sites."""
    with mistakes_in_one_line():
        need_nvflare()
        from covey.deploy import study as studies

        wanted = studies.of_formula(
            name, formula, family=family, estimate=estimate, missing=missing, seed=seed
        )
        _start(wanted, kit, sites, quorum=None, deadline=deadline, wait=wait)


def resume_command(name: StudyName, kit: _Kit = KITS / "coordinator") -> None:
    """Resume a study from the server's last checkpoint, or watch it if it is running."""
    with mistakes_in_one_line(), _coordinator(kit) as coordinator:
        from covey.deploy.nvflare import coordinate

        with Watching() as watching:
            outcome = coordinate.resume(coordinator, name, show=watching.show, say=watching.say)
        tell(name, outcome)


def stop_command(name: StudyName, kit: _Kit = KITS / "coordinator") -> None:
    """Ask a study to stop after its present message; `resume` continues it."""
    with mistakes_in_one_line(), _coordinator(kit) as coordinator:
        from covey.deploy.nvflare import coordinate

        if coordinate.stop(coordinator, name):
            _say(f"{name} was asked to stop; `covey deploy resume {name}` continues it")
        else:
            raise ValueError(f"{name} is not running")


def status_command(kit: _Kit = KITS / "coordinator") -> None:
    """Show the connected sites, the progress of studies, and refused messages."""
    with mistakes_in_one_line(), _coordinator(kit) as coordinator:
        from covey.deploy.nvflare import coordinate, events, progress

        _say(f"server {coordinator.kit.address}: sites {_listed(coordinator.sites())}")
        for job in _newest(coordinator.jobs()):
            ended = coordinate.last_outcome(coordinator.kit, job.study) if job.over else None
            status = ended.status if ended else coordinator.status(job.id)
            _say(f"{job.study}: {_state(job, ended) if job.over else progress.line(status)}")
            for one in (status or {}).get("refusals", []):
                _say(f"  refused: {one['site']}: {one['reason']}")
            for line in coordinator.deployment(job.id):
                if not line.endswith(": OK"):
                    _say(f"  refused: {line}")
        for one in events.refusals(coordinator.kit.folder.parent / "server"):
            count = one["count"]
            _say(f"refused by the server: {one['reason']} ({count} time{'s' * (count != 1)})")


def _newest(jobs: "list[Job]") -> "list[Job]":
    """The last job of each study."""
    return list({job.study: job for job in jobs}.values())


def _state(job: "Job", ended: "Outcome | None") -> str:
    if ended is None:
        return job.state.lower()
    return f"{ended.how}: {ended.why}" if ended.why else ended.how


@contextmanager
def _coordinator(kit: Path) -> Iterator["Coordinator"]:
    need_nvflare()
    from covey.deploy.nvflare.kit import read_kit
    from covey.deploy.nvflare.session import connected

    with interrupt.raised(), connected(read_kit(kit, "coordinator")) as coordinator:
        yield coordinator


def _start(study: "Study", kit: Path, sites: str | None, **options: Any) -> None:
    from covey.deploy.nvflare import coordinate

    with _coordinator(kit) as coordinator:
        named = None if sites is None else [site.strip() for site in sites.split(",")]
        order = order_of(study, named or coordinator.sites(), **options)
        _say(f"{study.name} between {', '.join(order.sites)}; digest {study.digest[:16]}")
        with Watching() as watching:
            outcome = coordinate.run(coordinator, order, show=watching.show, say=watching.say)
        tell(study.name, outcome)


def order_of(
    study: "Study", sites: list[str], *, quorum: int | None, deadline: float, wait: float
) -> "Order":
    """The order of a study, as the coordinator submits it.

    Args:
        study: The study.
        sites: Its sites.
        quorum: Sites that must answer before a round is closed; None for all.
        deadline: Seconds that a round waits for late sites.
        wait: Seconds to wait for sites that are away or have yet to approve.
    """
    from covey.deploy.nvflare.coordinate import Order

    if not sites:
        raise ValueError("no site is connected: start `covey deploy site` at the sites")
    if deadline <= 0 or wait < 0:
        raise ValueError(
            f"--deadline must be above 0 s and --wait not below, got {deadline:g} and {wait:g}"
        )
    if quorum is not None and not 1 <= quorum <= len(sites):
        raise ValueError(f"--quorum is {quorum}; give 1 to {len(sites)}, the number of sites")
    settings = {
        "study": study.text,
        "sites": sites,
        "quorum": quorum,
        "deadline": deadline,
        "wait": wait,
        "resume": False,
    }
    return Order(study.name, sites, settings)


class Watching:
    """A status line of a running study, and lines that stay."""

    def __init__(self):
        self._status = console.status("the study is submitted")
        self._last: dict[str, Any] | None = None

    def __enter__(self) -> "Watching":
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()

    def show(self, status: dict[str, Any] | None) -> None:
        """Show the progress of the study."""
        from covey.deploy.nvflare import progress

        for event in progress.events(self._last, status):
            self.say(event)
        self._last = status or self._last
        self._status.update(Text(progress.line(status)))

    def say(self, text: str) -> None:
        """Print a line that stays."""
        console.print(Text(text), soft_wrap=True)


def tell(name: str, outcome: "Outcome") -> None:
    """Print how a study ended; a failed one ends the command with code 1. Its results were
    printed when they came.
    """
    from covey.deploy.nvflare.tasks import DONE, STOPPED, WAITING
    from covey.report.units import in_bytes

    totals = outcome.status.get("totals")
    if totals:
        count = totals["exchanges"]
        _say(
            f"{count} message{'s' * (count != 1)} to each site; "
            f"{in_bytes(totals['bytes_down'])} to the sites, "
            f"{in_bytes(totals['bytes_up'])} from them"
        )
    if outcome.how == DONE:
        return
    if outcome.how == STOPPED:
        _say(f"{name} was stopped; `covey deploy resume {name}` continues it")
        return
    hint = f"; `covey deploy resume {name}` continues it" if outcome.how == WAITING else ""
    errors.print(Text(f"{name} {outcome.how}: {outcome.why}{hint}"), style="red", soft_wrap=True)
    raise typer.Exit(_FAILED)


def _follow(process: Any, follower: Any) -> None:
    """Print the events of a process, until it ends or Ctrl-C."""
    import time

    while True:
        process.check()
        for event in follower.events():
            text = f"refused: {event.text}" if event.refused else event.text
            console.print(Text(text), style="yellow" if event.refused else None, soft_wrap=True)
        time.sleep(0.5)


def need_nvflare() -> None:
    """Raise an error with the command that installs NVFlare, where it is missing."""
    from importlib.util import find_spec

    if find_spec("nvflare") is None:
        raise ValueError("`covey deploy` needs NVFlare: pip install 'covey[deploy]'")


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _say(text: str) -> None:
    console.print(Text(text), soft_wrap=True)
