"""Start, watch and stop the process of a kit. Its output goes to a file in the kit."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import psutil

from covey.deploy.nvflare import rules
from covey.deploy.nvflare.kit import Kit

RUNS, SITE_FILE = "COVEY_DEPLOY_RUNS", "COVEY_DEPLOY_SITE"
_MODULES = {
    "server": ("nvflare.private.fed.app.server.server_train", "fed_server.json"),
    "site": ("nvflare.private.fed.app.client.client_train", "fed_client.json"),
}
_SECONDS = {  # that NVFlare waits; its own choices are 900, 60 and 60
    "NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "2",  # for the last word of a killed site, at the end
    "NVFLARE_DEAD_CLIENT_GRACE_PERIOD": "1",  # before the server says that a site is gone
    "NVFLARE_MAX_RUNNER_SYNC_TIMEOUT": "600",  # of a site, for a server that is slow to start
}
_GRACE = 5.0  # seconds that a process has to end by itself


@contextmanager
def running(kit: Kit, environment: Mapping[str, str]) -> Iterator["Process"]:
    """The process of a kit, stopped on the way out, whatever happens.

    Args:
        kit: The kit of a server or of a site.
        environment: Variables for the process, beside those of this one.

    Raises:
        ValueError: the kit is in use by another process, or the server's port is.
    """
    with _alone(kit):
        if kit.kind == "server":
            _check_port(kit)
            rules.server_resources(kit.folder)
        with kit.console.open("a", encoding="utf-8") as console:
            process = Process(kit, _start(kit, environment, console))
            try:
                yield process
            finally:
                process.stop()


class Process:
    """A process of NVFlare and the processes that it starts for each study."""

    def __init__(self, kit: Kit, popen: subprocess.Popen[bytes]):
        self.kit, self._popen = kit, popen
        self.pid = popen.pid

    def check(self) -> None:
        """Raise ValueError if the process has ended."""
        code = self._popen.poll()
        if code is not None:
            raise ValueError(
                f"the process of the {self.kit.kind} {self.kit.name} ended with code {code}; "
                f"{self.kit.console} says why: {last_error(self.kit.console)}"
            )

    def wait_until_listening(self, seconds: float = 60.0) -> None:
        """Wait until the server takes connections."""
        end = time.monotonic() + seconds
        while not listens(self.kit.host, self.kit.port):
            self.check()
            if time.monotonic() > end:
                raise ValueError(
                    f"the server does not listen on {self.kit.address} after {seconds:.0f} s; "
                    f"{self.kit.console} says why: {last_error(self.kit.console)}"
                )
            time.sleep(0.2)

    def kill(self) -> None:
        """End the process and its children at once, as a crash would (SIGKILL)."""
        for process in self._tree():
            _quietly(process.kill)
        self._popen.wait()

    def stop(self) -> None:
        """End the process and its children; those that do not end by themselves are killed."""
        tree = self._tree()
        for process in tree:
            _quietly(process.terminate)
        _, left = psutil.wait_procs(tree, timeout=_GRACE)
        for process in left:
            _quietly(process.kill)
        self._popen.wait()

    def _tree(self) -> list[psutil.Process]:
        try:
            process = psutil.Process(self.pid)
            return [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def listens(host: str, port: int) -> bool:
    """Whether a process accepts connections at an address."""
    try:
        with socket.create_connection((host, port), timeout=2.0):
            return True
    except OSError:
        return False


def last_error(console: Path) -> str:
    """The last line of a console that looks like an error, for messages."""
    lines = console.read_text("utf-8", errors="replace").splitlines() if console.exists() else []
    telling = [line for line in lines[-400:] if "Error" in line or "ERROR" in line]
    return (telling or lines or ["nothing was written"])[-1].strip()[:300]


def _start(kit: Kit, environment: Mapping[str, str], console: TextIO) -> subprocess.Popen[bytes]:
    module, config = _MODULES[kit.kind]
    arguments = ["-m", str(kit.folder), "-s", config, "--set", "secure_train=true"]
    if kit.kind == "site":
        arguments += [f"uid={kit.name}", f"heart_beat_interval={rules.HEARTBEAT}"]
    arguments += [f"org={kit.organisation}", "config_folder=config"]
    own = "covey.deploy.nvflare.process"
    return subprocess.Popen(
        [sys.executable, "-u", "-m", own, str(os.getpid()), module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=console,
        stderr=subprocess.STDOUT,
        env={**os.environ, **_SECONDS, **environment},
        start_new_session=True,  # Ctrl-C reaches the command, which stops its children in order
    )


def _check_port(kit: Kit) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1" if kit.host == "localhost" else "", kit.port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise ValueError(
                f"port {kit.port} is in use by another program: stop it, or make kits for "
                "another port with `covey deploy init --port`"
            ) from None


@contextmanager
def _alone(kit: Kit) -> Iterator[None]:
    """One process per kit: two servers with one study, or two sites with one store, would each
    count the other's rounds.
    """
    with (kit.folder / "running.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise ValueError(
                f"{kit.folder}: the {kit.kind} {kit.name} is already running, as process "
                f"{lock.read().strip() or 'unknown'}"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


def _quietly(act: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        act()
