"""A study from the coordinator's side: submit it, watch it, resume when a site is back.

NVFlare does not start a job again at a site that was restarted. So a study is one job after
another: where a site has come back, the job is asked to end, and the next continues from the
server's last checkpoint with all sites that are there.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from covey.core import atomic_files
from covey.deploy.nvflare import jobs, rules
from covey.deploy.nvflare.kit import Kit
from covey.deploy.nvflare.session import Coordinator
from covey.deploy.nvflare.tasks import DONE, FAILED, STOPPED, WAITING

_LOOK = 0.5  # seconds between looks at a study
_LOOK_AROUND = 3.0  # seconds between looks for sites that are back
_WAITS = 3  # times that a study resumes after one and the same silence
_STUDIES, _ORDER, _OUTCOME = "studies", ".order.json", ".outcome.json"


class Order(NamedTuple):
    """The order of the coordinator: a study, its sites, and settings."""

    name: str
    sites: list[str]
    settings: dict[str, Any]
    controller: str = rules.CONTROLLER
    executor: str = rules.EXECUTOR


class Outcome(NamedTuple):
    """The end of a study: done, stopped, waiting for a site or failed; why, and its last status."""

    how: str
    why: str
    status: dict[str, Any]


Show = Callable[[dict[str, Any] | None], None]
Say = Callable[[str], None]


def run(coordinator: Coordinator, order: Order, *, show: Show, say: Say) -> Outcome:
    """Start a study and stay with it until it ends.

    Args:
        coordinator: The connection.
        order: The study.
        show: Called with the study's status at every look.
        say: Called with a sentence whenever something happens.

    Raises:
        ValueError: the study is running already, no site is there, or the server is gone.
    """
    if running := _running(coordinator, order.name):
        raise ValueError(
            f"{order.name} is already running (job {running}): `covey deploy resume {order.name}` "
            f"watches it, `covey deploy stop {order.name}` ends it"
        )
    save(coordinator.kit, order)
    return _go_on(coordinator, order, None, show, say)


def resume(coordinator: Coordinator, name: str, *, show: Show, say: Say) -> Outcome:
    """Resume a study from the server's last checkpoint, or watch it if it is running.

    Raises:
        ValueError: this coordinator knows no such study, or the server is gone.
    """
    order = load(coordinator.kit, name)
    order = order._replace(settings={**order.settings, "resume": True})
    return _go_on(coordinator, order, _running(coordinator, name), show, say)


def stop(coordinator: Coordinator, name: str) -> bool:
    """Ask a study to end after its present exchange. Whether it was running."""
    job = _running(coordinator, name)
    if job is None:
        return False
    coordinator.ask_to_stop(job)
    return True


def save(kit: Kit, order: Order) -> None:
    """Remember an order, for `resume`."""
    folder = kit.folder / _STUDIES
    folder.mkdir(exist_ok=True)
    atomic_files.write(folder / f"{order.name}{_ORDER}", json.dumps(order._asdict()).encode())


def load(kit: Kit, name: str) -> Order:
    """The order of a study."""
    path = kit.folder / _STUDIES / f"{name}{_ORDER}"
    if not path.is_file():
        known = sorted(one.name.removesuffix(_ORDER) for one in path.parent.glob(f"*{_ORDER}"))
        raise ValueError(
            f"this coordinator has started no study {name!r}"
            + (f"; it has started {', '.join(known)}" if known else "")
        )
    return Order(**json.loads(path.read_text("utf-8")))


def last_outcome(kit: Kit, name: str) -> Outcome | None:
    """The end of a study that this coordinator has watched."""
    path = kit.folder / _STUDIES / f"{name}{_OUTCOME}"
    return Outcome(**json.loads(path.read_text("utf-8"))) if path.is_file() else None


def _save_outcome(kit: Kit, name: str, outcome: Outcome) -> None:
    path = kit.folder / _STUDIES / f"{name}{_OUTCOME}"
    atomic_files.write(path, json.dumps(outcome._asdict()).encode())


def _running(coordinator: Coordinator, name: str) -> str | None:
    running = [job.id for job in coordinator.jobs(name) if not job.over]
    return running[-1] if running else None


def _go_on(
    coordinator: Coordinator, order: Order, job: str | None, show: Show, say: Say
) -> Outcome:
    """Job after job, until one ends by itself."""
    absences, waits = Absences(order.sites), Counter[str]()
    while True:
        job = _submit(coordinator, order, say) if job is None else job
        outcome, back = _watch(coordinator, job, absences, show)
        _save_outcome(coordinator.kit, order.name, outcome)
        if outcome.how == WAITING and waits[outcome.why] < _WAITS:
            waits[outcome.why] += 1
            say(f"{order.name} waits: {outcome.why}")
            _wait_for_all(coordinator, order.sites, show)
            say("all sites are there: resuming from the last checkpoint")
        elif outcome.how == STOPPED and back:
            say(f"{', '.join(back)} came back: resuming from the last checkpoint")
        else:
            return outcome
        _wait_until_over(coordinator, job)
        order, job = order._replace(settings={**order.settings, "resume": True}), None


class Absences:
    """Sites that take no part, and whether they have come back.

    A site is back when the server has heard of it since it was missed, and it has no process for
    the study's job. One that came back in vain, e.g. because it refuses the job, is not taken in a
    second time before it has answered.
    """

    def __init__(self, sites: list[str]):
        self._sites = sites
        self._missed: dict[str, float] = {}  # when the server last heard of it, when it was missed
        self._tried: set[str] = set()

    def back(self, coordinator: Coordinator, job: str, status: dict[str, Any]) -> list[str]:
        """Sites that are back; to be asked now and then."""
        now = status["now"]
        self._tried -= set(now["answered"])
        absent = [one for one in self._sites if one in now["away"] or one not in now["asked"]]
        self._missed = {one: self._missed[one] for one in absent if one in self._missed}
        if not absent:
            return []
        heard = coordinator.heard()
        for one in absent:
            self._missed.setdefault(one, heard.get(one, 0.0))
        suspects = [
            one
            for one in absent
            if heard.get(one, 0.0) > self._missed[one] and one not in self._tried
        ]
        found = [one for one in suspects if coordinator.is_free(one, job)]
        self._tried |= set(found)
        return found


def _submit(coordinator: Coordinator, order: Order, say: Say) -> str:
    there = coordinator.sites()
    sites = [site for site in order.sites if site in there]
    absent = [site for site in order.sites if site not in there]
    if not sites:
        raise ValueError(
            f"none of {', '.join(order.sites)} is connected: start `covey deploy site` at the sites"
        )
    if absent:
        say(f"not connected, and taken in when they are: {', '.join(absent)}")
    with tempfile.TemporaryDirectory() as folder:
        job = jobs.write_job(
            Path(folder),
            order.name,
            sites,
            settings=order.settings,
            controller=order.controller,
            executor=order.executor,
        )
        return coordinator.submit(job)


def _watch(
    coordinator: Coordinator, job: str, absences: Absences, show: Show
) -> tuple[Outcome, list[str]]:
    """Look at a job until it ends. How it ended, and the sites whose return ended it."""
    last: dict[str, Any] = {}
    back: list[str] = []
    looked = time.monotonic()
    while True:
        status = coordinator.status(job)
        show(status)
        last = status or last
        if status and (outcome := status["outcome"]):
            return Outcome(outcome["how"], outcome["why"], status), back
        if status is None and (found := coordinator.job(job)).over:
            return _ended(coordinator, job, found.state, last), back
        if status and not back and time.monotonic() > looked + _LOOK_AROUND:
            looked = time.monotonic()
            back = absences.back(coordinator, job, status)
            if back:
                coordinator.ask_to_stop(job)
        time.sleep(_LOOK)


def _ended(coordinator: Coordinator, job: str, state: str, status: dict[str, Any]) -> Outcome:
    """The outcome of a job that ended without a word: it was refused, or its process was killed."""
    refused = [line for line in coordinator.deployment(job) if not line.endswith(": OK")]
    why = "; ".join(refused) or f"the job ended as {state}"
    completed = state.endswith("COMPLETED")
    return Outcome(DONE if completed else FAILED, "" if completed else why, status)


def _wait_for_all(coordinator: Coordinator, sites: list[str], show: Show) -> None:
    """Wait until the server has heard of every site anew."""
    before = coordinator.heard()
    while True:
        heard = coordinator.heard()
        if all(heard.get(one, 0.0) > before.get(one, 0.0) for one in sites):
            return
        show(None)
        time.sleep(_LOOK)


def _wait_until_over(coordinator: Coordinator, job: str) -> None:
    while not coordinator.job(job).over:
        time.sleep(_LOOK)
