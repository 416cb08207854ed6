"""A server and three sites as processes over mutual TLS, for tests."""

import json
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pandas as pd

from covey.deploy import status as statuses
from covey.deploy.nvflare import events, launch, progress, session
from covey.deploy.nvflare.kit import read_kit
from covey.deploy.nvflare.provision import make_kits
from covey.deploy.study import of_tables
from site_folders import table_of, write_site

SITES = ["basel", "bern", "chur"]
METHODS = ["fedavg", "fedpop", "fedem", "fald"]
PATIENCE = 300.0  # seconds after which a test gives up; a quiet machine needs a fifth of it
RUN = {
    "columns": {"features": ["age", "dose"], "outcome": "gain", "standardise": True},
    "model": {"name": "linear"},
    "method": {"name": "fedavg", "batch_size": 16},
    "run": {"rounds": 30, "seed": 3},
}


def study_of(name: str, rounds: int = 30):
    return of_tables(name, {**RUN, "run": {"rounds": rounds, "seed": 3}})


class Federation:
    """A server and its sites, in a folder; everything is stopped when it is closed."""

    def __init__(self, folder: Path):
        self.folder, self._stack, self.processes = folder, ExitStack(), {}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        make_kits(folder, SITES, host="localhost", port=self.port)
        for seed, site in enumerate(SITES):
            known = {
                "privacy": {"budget": "none", "randomness": "study"},
                "studies": {"methods": METHODS},
            }
            write_site(folder / "owners" / site, site, table_of(seed), known)
        self.follower = events.Follower(read_kit(folder / "server", "server"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def kit(self, name: str) -> Path:
        return self.folder / ("server" if name == "server" else f"sites/{name}")

    def start(self, name: str) -> None:
        kind = "server" if name == "server" else "site"
        environment = {
            launch.RUNS: str(self.folder / "runs"),
            launch.SITE_FILE: str(self.folder / "owners" / name / "site.toml"),
        }
        stack = self._stack.enter_context(ExitStack())
        process = stack.enter_context(launch.running(read_kit(self.kit(name), kind), environment))
        self.processes[name] = process, stack
        if name == "server":
            process.wait_until_listening()

    def kill(self, name: str) -> None:
        process, stack = self.processes.pop(name)
        process.kill()
        stack.close()

    def coordinator(self):
        return session.connected(read_kit(self.folder / "coordinator", "coordinator"))

    def rounds(self, study: str) -> int:
        folder = self.folder / "runs" / study
        return statuses.read(folder).round if (folder / "study" / "status.json").exists() else 0

    def sent(self, site: str, study: str) -> list[dict]:
        """What a site's audit log says that it has sent in rounds."""
        log = self.folder / "owners" / site / "covey-site" / "audit.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        sent = [one for one in lines if one["event"] == "sent" and one["study"] == study]
        return [one for one in sent if one["kind"] == "round"]

    def predictions(self, site: str, study: str) -> pd.DataFrame:
        return predictions(self.folder / "owners" / site, study)


def predictions(folder: Path, study: str) -> pd.DataFrame:
    return pd.read_csv(folder / "covey-site" / "results" / study / "predictions.csv")


def bounded(show=lambda status: None):
    """A look at a study that fails when the study takes too long."""
    end = time.monotonic() + PATIENCE

    def look(status):
        assert time.monotonic() < end, f"too long: {progress.line(status)}"
        show(status)

    return look


def until(happened, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.2)
