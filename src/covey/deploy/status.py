"""The state of a study at its server, for people and for `covey deploy status`: `status.json`."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from covey.core import atomic_files
from covey.core.protocol import Kind
from covey.deploy.plain_values import checked
from covey.engines.connection import RoundReport

Stage: TypeAlias = Literal["greeting", "waiting", "running", "finished", "failed"]
SiteState: TypeAlias = Literal["not heard", "answered", "late", "refused", "left out", "damaged"]


class SiteStatus(NamedTuple):
    """The status of a site.

    Attributes:
        state: Outcome of the last message to it.
        why: Reason of a refusal, or of a message that could not be used; empty where it answered.
        missed: Messages in a row, up to the last one, that it did not answer.
        answers: Messages that it has answered.
        round: The last round that it answered; -1 before.
    """

    state: SiteState = "not heard"
    why: str = ""
    missed: int = 0
    answers: int = 0
    round: int = -1


class Status(NamedTuple):
    """The state of a study.

    Attributes:
        study: The study's name.
        digest: Digest of its configuration.
        stage: Stage of the server.
        why: Reason why the study waits or has failed; empty otherwise.
        round: Rounds so far.
        seconds: Seconds of the last round.
        bytes_up: Bytes that all sites have sent.
        bytes_down: Bytes that they were sent.
        updated: When this was written (UTC).
        sites: The sites by name.
    """

    study: str
    digest: str
    stage: Stage = "greeting"
    why: str = ""
    round: int = 0
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    updated: str = ""
    sites: dict[str, SiteStatus] = {}  # noqa: RUF012  never changed in place

    def words(self) -> list[str]:
        """The status in sentences."""
        first = f"{self.study} ({self.digest[:16]}): {self.stage}, round {self.round}"
        said = [first + (f": {self.why}" if self.why else "")]
        for name, one in self.sites.items():
            missed = f", {one.missed} message{'s' * (one.missed != 1)} missed" if one.missed else ""
            why = f": {one.why}" if one.why else ""
            said.append(f"  {name}: {one.state}{missed}{why}")
        return said


def read(folder: Path) -> Status:
    """The status of the study in a run directory.

    Args:
        folder: The run directory.

    Raises:
        ValueError: There is no study.
    """
    path = folder / "study" / "status.json"
    if not path.is_file():
        raise ValueError(f"{folder} holds no study: it has no study/status.json")
    try:
        return checked(Status, json.loads(path.read_text("utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


class StatusFile:
    """Keeps a study's status up to date.

    Args:
        folder: The run directory.
        status: The status to begin with.
    """

    def __init__(self, folder: Path, status: Status):
        self._path = folder / "study" / "status.json"
        self.status = status

    def set(self, stage: Stage, why: str = "") -> None:
        """Note the stage of the server."""
        self._write(self.status._replace(stage=stage, why=why))

    def leave_out(self, sites: Mapping[str, str]) -> None:
        """Note sites that take no part, and why."""
        known = dict(self.status.sites)
        for name, why in sites.items():
            known[name] = known.get(name, SiteStatus())._replace(state="left out", why=why)
        self._write(self.status._replace(sites=known))

    def damaged(self, site: str, why: str) -> None:
        """Note a site that has given an impossible answer."""
        known = self.status.sites.get(site, SiteStatus())
        self._write(
            self.status._replace(
                sites=self.status.sites | {site: known._replace(state="damaged", why=why)}
            )
        )

    def note(self, report: RoundReport) -> None:
        """Note the outcome of an exchange."""
        sites = dict(self.status.sites)
        for name in report.asked:
            sites[name] = _after(sites.get(name, SiteStatus()), name, report)
        is_round = report.kind == Kind.ROUND
        self._write(
            self.status._replace(
                sites=sites,
                round=report.round + 1 if is_round and report.answered else self.status.round,
                seconds=report.seconds if is_round else self.status.seconds,
                bytes_up=self.status.bytes_up + report.bytes_up,
                bytes_down=self.status.bytes_down + report.bytes_down,
            )
        )

    def _write(self, status: Status) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.status = status._replace(updated=now)
        sites = {name: one._asdict() for name, one in status.sites.items()}
        content = self.status._asdict() | {"sites": sites}
        atomic_files.write(self._path, json.dumps(content, indent=1).encode())


def _after(before: SiteStatus, name: str, report: RoundReport) -> SiteStatus:
    if name in report.answered:
        round_ = report.round if report.kind == Kind.ROUND else before.round
        return SiteStatus("answered", "", 0, before.answers + 1, round_)
    missed = before._replace(missed=before.missed + 1)
    if name in report.refused:
        return missed._replace(state="refused", why=report.refused[name].text)
    if name in report.damaged:
        return missed._replace(state="damaged", why=report.damaged[name])
    return missed._replace(state="late", why="no answer in time")


def fresh(study: str, digest: str, sites: Sequence[str]) -> Status:
    """The status of a study that has not begun.

    Args:
        study: Its name.
        digest: Its digest.
        sites: Names of its sites.
    """
    return Status(study, digest, sites={name: SiteStatus() for name in sites})
