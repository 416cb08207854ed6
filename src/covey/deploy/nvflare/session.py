"""The coordinator's connection to a server: submit a study, ask how it goes, ask it to stop."""

import contextlib
import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.fuel.flare_api.api_spec import (
    AuthenticationError,
    AuthorizationError,
    InternalError,
    InvalidJobDefinition,
    InvalidTarget,
    JobNotRunning,
    NoClientsAvailable,
    NoConnection,
    NoReply,
    SessionClosed,
    SessionExpired,
)
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.fuel.hci.proto import MetaStatusValue

from covey.deploy.nvflare.kit import Kit
from covey.deploy.nvflare.launch import listens
from covey.deploy.nvflare.provision import COORDINATOR
from covey.deploy.nvflare.tasks import STATUS, STOP

_CONNECT = 10.0  # seconds
_OVER, _RUNS, _LOST = "FINISHED", "RUNNING", "FINISHED:LOST"


class ServerGone(ValueError):  # noqa: N818
    """The server no longer answers."""


class Job(NamedTuple):
    """One job of a study."""

    id: str
    study: str
    state: str

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state.startswith(_OVER)


@contextlib.contextmanager
def connected(kit: Kit) -> Iterator["Coordinator"]:
    """A connection to the server of a kit, closed on the way out.

    Raises:
        ValueError: the server cannot be reached, or does not accept the kit's certificate.
    """
    _quiet(kit)
    if not listens(kit.host, kit.port):
        raise ValueError(
            f"nothing answers at {kit.address}: is `covey deploy server` running there?"
        )
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            session = new_secure_session(COORDINATOR, str(kit.folder), timeout=_CONNECT)
    except NoConnection as error:
        raise ValueError(
            f"the server {kit.address} does not accept this kit ({error}): are all kits of one "
            "`covey deploy init`?"
        ) from None
    except (AuthenticationError, AuthorizationError) as error:
        raise ValueError(f"the server {kit.address} does not accept this kit: {error}") from None
    try:
        yield Coordinator(session, kit)
    finally:
        with contextlib.redirect_stdout(io.StringIO()):
            session.close()


class Coordinator:
    """The requests of the coordinator to the server."""

    def __init__(self, session: Session, kit: Kit):
        self._session, self.kit = session, kit

    def heard(self) -> dict[str, float]:
        """When the server last heard of each connected site, by its own clock."""
        clients = self._ask(self._session.get_connected_client_list)
        return {client.name: client.last_connect_time for client in clients}

    def sites(self) -> list[str]:
        """Sites that are connected."""
        return sorted(self.heard())

    def jobs(self, study: str | None = None) -> list[Job]:
        """Jobs of a study, or of all, the newest last."""
        alive = self._alive()
        found = [
            _job(one["job_id"], one["job_name"], one["status"], alive)
            for one in self._ask(self._session.list_jobs, name_prefix=study)
        ]
        return [job for job in found if study in (None, job.study)]

    def job(self, job_id: str) -> Job:
        """A job by its identity."""
        meta = self._ask(self._session.get_job_meta, job_id)
        return _job(job_id, meta["name"], meta["status"], self._alive())

    def _alive(self) -> set[str]:
        """Jobs that the server has a process for."""
        return {one.job_id for one in self._ask(self._session.get_system_info).job_info}

    def deployment(self, job_id: str) -> list[str]:
        """The answer of each site to the deployment of the job."""
        meta = self._ask(self._session.get_job_meta, job_id)
        return list(meta.get("job_deploy_detail") or [])

    def submit(self, job: Path) -> str:
        """Hand in a job. The server refuses one that brings code."""
        try:
            return self._session.submit_job(str(job))
        except (InvalidJobDefinition, AuthorizationError, InternalError) as error:
            raise ValueError(f"the server refused the job: {error}") from None

    def status(self, job_id: str) -> dict[str, Any] | None:
        """The status of the study; None while its process starts or ends."""
        try:
            return self._ask(self._session.do_app_command, job_id, STATUS, {})
        except (JobNotRunning, NoReply, InternalError):
            return None

    def ask_to_stop(self, job_id: str) -> None:
        """Ask a study to end after its present exchange, so that it can be resumed."""
        with contextlib.suppress(JobNotRunning, NoReply, InternalError):
            self._ask(self._session.do_app_command, job_id, STOP, {})

    def is_free(self, site: str, job_id: str) -> bool:
        """Whether a site answers and has no process for a job."""
        try:
            answers = self._ask(self._session.get_client_job_status, [site]) or []
        except (InvalidTarget, NoClientsAvailable, InternalError):  # gone in the meantime
            return False
        silent = any(
            one["status"] in (MetaStatusValue.NO_REPLY, MetaStatusValue.ERROR) for one in answers
        )
        return bool(answers) and not silent and all(one.get("job_id") != job_id for one in answers)

    def _ask(self, question: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Ask the server; where it is gone, raise a ValueError with a remedy."""
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return question(*args, **kwargs)
        except (NoConnection, SessionClosed, SessionExpired, FLCommunicationError) as error:
            raise ServerGone(
                f"the server {self.kit.address} is gone ({error}): when it runs again, "
                "`covey deploy resume STUDY` continues from its last checkpoint"
            ) from None


def _job(identity: str, study: str, state: str, alive: set[str]) -> Job:
    """A job that runs, says the store, but has no process was lost with an earlier server."""
    return Job(identity, study, _LOST if state == _RUNS and identity not in alive else state)


def _quiet(kit: Kit) -> None:
    """NVFlare's log goes to a file of the kit, not to the console."""
    log = logging.getLogger("nvflare")
    if not log.handlers:
        log.addHandler(logging.FileHandler(kit.folder / "log.txt", delay=True))
        log.propagate = False
