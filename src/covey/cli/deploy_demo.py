"""`covey deploy demo`: a server and four hospitals as processes of this machine."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from covey.cli.consoles import console, mistakes_in_one_line
from covey.cli.demonstrating import FORMULA, hospital_tables
from covey.cli.deploying import DEADLINE, Watching, need_nvflare, order_of, tell
from covey.runs import interrupt

STUDY = "heart"
_MARK = "covey-deploy-demo.txt"  # a folder without it is not removed
_STARTS_WITHIN = 120.0  # seconds


def demo_command(
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the kits, the hospitals and the study.")
    ] = Path("runs/deploy-demo"),
) -> None:
    """Fit one model between four hospitals: five processes over mutual TLS, on this machine."""
    with mistakes_in_one_line(), interrupt.raised():
        need_nvflare()
        from covey.deploy import study as studies
        from covey.deploy.nvflare import coordinate
        from covey.deploy.nvflare.kit import read_kit
        from covey.deploy.nvflare.session import connected

        clear(out)
        sites = write_hospitals(out)
        with processes(out, sites):
            with connected(read_kit(out / "kits" / "coordinator", "coordinator")) as coordinator:
                _wait_for(coordinator, sites)
                study = studies.of_formula(STUDY, FORMULA)
                order = order_of(study, sites, quorum=None, deadline=DEADLINE, wait=0.0)
                _say(f"$ covey deploy fit {STUDY} {FORMULA!r}")
                with Watching() as watching:
                    outcome = coordinate.run(
                        coordinator, order, show=watching.show, say=watching.say
                    )
            tell(STUDY, outcome)
        _say("all five processes are stopped")


def clear(out: Path) -> None:
    """Make room for the demonstration: a folder that it made before is removed, and no other.

    Args:
        out: The folder.

    Raises:
        ValueError: The folder holds other files.
    """
    import shutil

    from covey.core import atomic_files

    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file: give another folder with --out")
    if out.is_symlink() or (out.is_dir() and any(out.iterdir()) and not (out / _MARK).is_file()):
        raise ValueError(
            f"{out} is not empty and not of an earlier demonstration: nothing was changed; give a "
            "new folder with --out"
        )
    if out.is_dir():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    atomic_files.write(out / _MARK, b"Made by `covey deploy demo`, which removes this folder.\n")


def write_hospitals(out: Path) -> list[str]:
    """Make kits, tables and site files of the four hospitals.

    Args:
        out: The folder of the demonstration.

    Returns:
        Their names.
    """
    from covey.deploy.nvflare.provision import make_kits
    from covey.runs import toml

    tables = hospital_tables()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    make_kits(out / "kits", list(tables), host="localhost", port=port)
    _say(f"kits with certificates for a server and {', '.join(tables)}: {out / 'kits'}")
    for name, table in tables.items():
        folder = out / "hospitals" / name
        folder.mkdir(parents=True)
        table.to_csv(folder / "patients.csv", index=False)
        columns = [one for one in table.columns if one != "disease"]
        said = {
            "site": {"name": name},
            "data": {"table": "patients.csv", "columns": columns, "outcome": ["disease"]},
            "studies": {"methods": ["marginal"], "names": [STUDY], "approve": "listed"},
            "limits": {"rare_levels": "use"},  # the posterior is then that of `covey fit`
            "privacy": {"budget": "none"},
        }
        (folder / "site.toml").write_text(toml.text_of(said), "utf-8")
    return list(tables)


@contextmanager
def processes(out: Path, sites: list[str]) -> Iterator[None]:
    """A server and its sites as processes, stopped on the way out.

    Args:
        out: The folder of the demonstration.
        sites: Names of the sites.
    """
    from covey.deploy.nvflare import launch
    from covey.deploy.nvflare.kit import read_kit

    runs, hospitals = (out / "runs").resolve(), (out / "hospitals").resolve()
    runs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        server = read_kit(out / "kits" / "server", "server")
        process = stack.enter_context(launch.running(server, {launch.RUNS: str(runs)}))
        process.wait_until_listening()
        _say(f"the server is process {process.pid}, on {server.address}")
        for name in sites:
            kit = read_kit(out / "kits" / "sites" / name, "site")
            own = {launch.SITE_FILE: str(hospitals / name / "site.toml")}
            process = stack.enter_context(launch.running(kit, own))
            _say(f"{name} is process {process.pid}; its patients are in {hospitals / name}")
        yield


def _wait_for(coordinator, sites: list[str]) -> None:
    end = time.monotonic() + _STARTS_WITHIN
    while set(coordinator.sites()) < set(sites):
        if time.monotonic() > end:
            missing = sorted(set(sites) - set(coordinator.sites()))
            raise ValueError(
                f"{', '.join(missing)} did not connect within {_STARTS_WITHIN:.0f} s; the console "
                "of each process is console.txt in its kit"
            )
        time.sleep(0.3)
    _say("all sites are connected")


def _say(text: str) -> None:
    console.print(Text(text), soft_wrap=True)
