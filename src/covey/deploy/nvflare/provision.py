"""Kits: the certificates and rules of the server, each site and the coordinator.

One authority signs every certificate. A kit carries the rules that its owner enforces: the classes
that a job may name, that no job may bring code, and what the coordinator may ask for.
"""

import json
import logging
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from nvflare.lighter.constants import CtxKey
from nvflare.lighter.entity import Project
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner

from covey.deploy.nvflare import rules

PROJECT = "covey"
COORDINATOR = "coordinator@covey.org"  # NVFlare wants the form of an address; no mail is sent
SERVER_KIT, SITE_KITS, COORDINATOR_KIT, AUTHORITY = "server", "sites", "coordinator", "authority"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_RESERVED = {"server", "all", "coordinator"}
_log = logging.getLogger(__name__)


def make_kits(folder: Path, sites: Sequence[str], *, host: str, port: int) -> list[Path]:
    """Make the kits of a server, its sites and the coordinator, or of sites that join later.

    The folder has `server/`, `sites/NAME/`, `coordinator/` and `authority/`. Each kit goes to its
    owner over a secure channel, and `authority/`, which can sign new kits, stays where it is. Kits
    that are there already are left alone, so that the same command adds sites.

    Args:
        folder: Parent folder of the kits.
        sites: Names of the sites.
        host: Name by which the sites reach the server. With `localhost` the server listens on the
            loopback interface only.
        port: Port of the server, for sites and coordinator.

    Returns:
        The kits that are new.

    Raises:
        ValueError: a name is not allowed or given twice, the folder holds something else, or the
            kits are of another server.
    """
    _check_names(sites)
    _check_address(host, port)
    _check_folder(folder)
    _check_same_server(folder, host, port)
    signing = folder / AUTHORITY
    signing.mkdir(parents=True, exist_ok=True)
    signing.chmod(0o700)
    made = _provision(signing, sites, host, port)
    try:
        return _take(made, folder, host, sites)
    finally:
        shutil.rmtree(made)


def _provision(signing: Path, sites: Sequence[str], host: str, port: int) -> Path:
    """The folder with one NVFlare kit per participant, signed by the authority in `signing`."""
    project = Project(PROJECT, "a study between organisations")
    project.set_server(host, PROJECT, {"fed_learn_port": port, "admin_port": port})
    for site in sites:
        project.add_client(site, re.sub(r"\W", "_", site), {})
    project.add_admin(COORDINATOR, PROJECT, {"role": rules.COORDINATOR_ROLE})
    builders = [
        WorkspaceBuilder(),
        StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(),
    ]
    context = Provisioner(str(signing), builders).provision(project, logger=_log)
    if context.get(CtxKey.BUILD_ERROR):
        raise ValueError(f"NVFlare could not make kits in {signing}; its log says why")
    for path in (signing / PROJECT / "state").iterdir():  # the authority's private key
        path.chmod(0o600)
    return Path(context[CtxKey.CURRENT_PROD_DIR])


def _take(made: Path, folder: Path, host: str, sites: Sequence[str]) -> list[Path]:
    """Move the new kits to their places, with Covey's rules in them."""
    moves = [(host, Path(SERVER_KIT), rules.write_server)]
    moves += [(site, Path(SITE_KITS) / site, rules.write_site) for site in sites]
    moves += [(COORDINATOR, Path(COORDINATOR_KIT), rules.write_coordinator)]
    new = []
    for name, place, write_rules in moves:
        kit = folder / place
        if kit.exists():
            continue
        write_rules(made / name)
        kit.parent.mkdir(parents=True, exist_ok=True)
        (made / name).replace(kit)
        kit.chmod(0o700)  # it holds a private key
        new.append(kit)
    return new


def _check_names(sites: Sequence[str]) -> None:
    if not sites:
        raise ValueError("no sites were given: say for example --sites north,south,east")
    for site in sites:
        if not _NAME.fullmatch(site) or site.lower() in _RESERVED:
            raise ValueError(
                f"{site!r} cannot be the name of a site: use up to 63 letters, digits, - and _, "
                f"and none of {', '.join(sorted(_RESERVED))}"
            )
    repeated = sorted({site for site in sites if list(sites).count(site) > 1})
    if repeated:
        raise ValueError(f"sites named twice: {', '.join(repeated)}")


def _check_address(host: str, port: int) -> None:
    if not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is not a host name: give the name that sites reach it by")
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port} is not between 1 and 65535")


def _check_folder(folder: Path) -> None:
    """An error for a folder of something else, and for kits that no authority can add to."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, and kits need a folder: give another one with --out")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / AUTHORITY).is_dir():
        kits = any((folder / kit).exists() for kit in (SERVER_KIT, COORDINATOR_KIT))
        raise ValueError(
            f"{folder} has kits but no {AUTHORITY}/, which signed them: put it back to add sites, "
            "or make all kits anew in another folder"
            if kits
            else f"{folder} is not empty and holds no kits: give a new folder with --out"
        )


def _check_same_server(folder: Path, host: str, port: int) -> None:
    written = folder / SERVER_KIT / "startup" / "fed_server.json"
    if not written.exists():
        return
    there = json.loads(written.read_text("utf-8"))["servers"][0]["service"]["target"]
    if there != f"{host}:{port}":
        raise ValueError(
            f"{folder} has kits for the server {there}, not {host}:{port}: give the same --host "
            "and --port to add sites, or another folder"
        )
