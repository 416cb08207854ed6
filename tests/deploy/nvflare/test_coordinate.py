"""A study from the coordinator's side, with a server that is a script."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'covey[deploy]'")

import psutil

from covey.deploy.nvflare import coordinate, jobs, rules
from covey.deploy.nvflare.coordinate import Absences, Order
from covey.deploy.nvflare.kit import Kit
from covey.deploy.nvflare.session import Coordinator, Job

SITES = ["a", "b", "c"]


def status(exchange=1, away=(), outcome=None):
    asked = [one for one in SITES if one not in away]
    now = {
        "exchange": exchange,
        "doing": "round",
        "asked": asked,
        "answered": dict.fromkeys(asked, 0.1),
        "late": [],
        "away": list(away),
        "seconds": 0.1,
    }
    totals = {"exchanges": exchange, "bytes_down": 1, "bytes_up": 1, "late": 0}
    return {"now": now, "totals": totals, "refusals": [], "note": {}, "outcome": outcome}


def ended(how, why=""):
    return status(outcome={"how": how, "why": why, "time": 0.0})


class Server(Coordinator):
    """Answers as the coordinator's connection does; each job has a list of statuses."""

    def __init__(self, folder, *scripts):
        self.kit = Kit(folder, "coordinator", "x", "x", "localhost", 1)
        self.scripts, self.orders, self.asked = [list(one) for one in scripts], [], 0
        self.clock, self.free, self.there = 0.0, set(), list(SITES)
        self.known: list[Job] = []

    def heard(self):
        self.clock += 1.0
        return dict.fromkeys(self.there, self.clock)

    def sites(self):
        return self.there

    def jobs(self, study=None):
        return self.known

    def job(self, identity):
        return Job(identity, "s", "FINISHED:COMPLETED")

    def deployment(self, identity):
        return []

    def submit(self, folder):
        text = (folder / "app" / "config" / "config_fed_server.json").read_text()
        self.orders.append(json.loads(text)["workflows"][0]["args"])
        return f"job {len(self.orders)}"

    def status(self, identity):
        script = self.scripts[len(self.orders) - 1]
        return script.pop(0) if len(script) > 1 else script[0]

    def ask_to_stop(self, identity):
        self.asked += 1
        self.scripts[len(self.orders) - 1] = [ended("stopped")]

    def is_free(self, site, identity):
        return site in self.free


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(coordinate, "_LOOK", 0.0)
    monkeypatch.setattr(coordinate, "_LOOK_AROUND", 0.0)


def run(server, said=None):
    heard = [] if said is None else said
    order = Order("s", SITES, {"x": 1})
    return coordinate.run(server, order, show=lambda status: None, say=heard.append)


def test_a_study_that_ends_is_done_and_its_outcome_is_kept(tmp_path):
    server = Server(tmp_path, [status(), ended("done")])
    assert run(server).how == "done"
    assert server.orders == [{"x": 1}]
    assert coordinate.last_outcome(server.kit, "s").how == "done"
    assert coordinate.load(server.kit, "s").sites == SITES
    with pytest.raises(ValueError, match="started no study 't'; it has started s"):
        coordinate.load(server.kit, "t")


def test_a_study_goes_on_with_a_site_that_is_back(tmp_path):
    server, said = Server(tmp_path, [status(away=["b"])], [ended("done")]), []
    server.free = {"b"}
    assert run(server, said).how == "done"
    assert server.asked == 1
    assert server.orders == [{"x": 1}, {"x": 1, "resume": True}]
    assert said == ["b came back: resuming from the last checkpoint"]


def test_a_site_that_is_busy_or_unheard_of_is_not_back(tmp_path):
    server, absences = Server(tmp_path), Absences(SITES)
    away = status(away=["b"])
    assert absences.back(server, "job", away) == []
    assert absences.back(server, "job", away) == []  # it works on the job
    server.free, server.there = {"b"}, ["a", "c"]
    assert absences.back(server, "job", away) == []  # the server has not heard of it since
    server.there = SITES
    assert absences.back(server, "job", away) == ["b"]
    assert absences.back(server, "job", away) == []  # once, until it has answered
    assert absences.back(server, "job", status()) == []
    absences.back(server, "job", away)
    assert absences.back(server, "job", away) == ["b"]


def test_a_study_that_waits_for_a_site_goes_on_when_all_are_heard_of(tmp_path):
    server, said = Server(tmp_path, [ended("waiting", "b is silent")], [ended("done")]), []
    assert run(server, said).how == "done"
    assert said[0] == "s waits: b is silent"
    assert server.orders[1]["resume"]


def test_the_same_silence_again_and_again_ends_the_study(tmp_path):
    server = Server(tmp_path, *[[ended("waiting", "b is silent")] for _ in range(9)])
    assert run(server).how == "waiting"
    assert len(server.orders) == 4


def test_a_study_that_runs_is_not_started_twice_and_one_without_sites_not_at_all(tmp_path):
    server = Server(tmp_path, [ended("done")])
    server.known = [Job("1", "s", "RUNNING")]
    with pytest.raises(ValueError, match="s is already running"):
        run(server)
    server.known, server.there = [], []
    with pytest.raises(ValueError, match="none of a, b, c is connected"):
        run(server)


def test_a_job_is_configuration_only(tmp_path):
    job = jobs.write_job(tmp_path, "s", SITES, settings={"x": 1})
    files = sorted(str(path.relative_to(job)) for path in job.rglob("*") if path.is_file())
    assert files == [
        "app/config/config_fed_client.json",
        "app/config/config_fed_server.json",
        "meta.json",
    ]
    server = json.loads((job / files[1]).read_text())
    assert server["server"]["task_request_interval"] == jobs.POLLING
    assert server["workflows"] == [{"id": "study", "path": rules.CONTROLLER, "args": {"x": 1}}]
    client = json.loads((job / files[0]).read_text())
    assert [one["executor"] for one in client["executors"]] == [
        {"path": rules.EXECUTOR, "args": {}}
    ]


@pytest.mark.processes
def test_a_process_ends_with_the_command_that_started_it():
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'covey.deploy.nvflare.process',\n"
        "    str(os.getpid()), 'http.server', '--bind', '127.0.0.1', '0'],\n"
        "    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        time.sleep(0.5)
        assert child.is_running()
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    child.wait(60)
