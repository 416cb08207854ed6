"""Ctrl-C and SIGTERM while a command imports, loads or compiles, in a separate process."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import call, write_config
from covey.runs.interrupt import Stopped

# A command in which one function compiles without end: a signal comes while XLA is at work.
SCRIPT = """
import importlib, pathlib, sys
here, target, *sys.argv[1:] = sys.argv[1:]

def compiles(*_, **__):
    import jax
    while True:
        jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda i, y: y @ x, x))(jax.numpy.eye(3))
        pathlib.Path(here).touch()  # from now on there is a program to be compiled at any time

from covey import cli
module, _, name = target.partition(":")
setattr(importlib.import_module(module), name, compiles)
cli.main()
"""


def start(*words: object) -> subprocess.Popen:
    # A suite that runs in the background ignores Ctrl-C, and its children would too.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(
            [sys.executable, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)


def wait_for(process: subprocess.Popen, folder: Path, pattern: str) -> None:
    end = time.monotonic() + 300
    while not any(folder.glob(pattern)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"{pattern} did not come"
        time.sleep(0.02)


def stopped(folder: Path, number: int, target: str, *words: object) -> list[str]:
    """What a command says that is stopped while `target` compiles."""
    (folder / "here").unlink(missing_ok=True)
    process = start("-c", SCRIPT, folder / "here", target, *words)
    wait_for(process, folder, "here")
    process.send_signal(number)
    said, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert not said
    return err.splitlines()


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_stopped_before_its_first_round_says_so(tmp_path, number):
    config, out = write_config(tmp_path, 5), tmp_path / "run"
    target = "covey.config.configuration:build"
    said = stopped(tmp_path, number, target, "run", config, "--out", out)
    assert said == ["stopped before the first round; nothing was saved"]


@pytest.mark.processes
def test_a_run_stopped_before_it_is_resumed_says_how_to_continue(tmp_path):
    config, out = write_config(tmp_path, 5), tmp_path / "run"
    assert call("run", config, "--out", out)[0] == 0
    target, words = "covey.config.configuration:build", ("run", config, "--resume", "--out", out)
    assert stopped(tmp_path, signal.SIGTERM, target, *words) == [
        f"stopped; round 5 is saved in {out}",
        f"to continue: covey run {out}/config.toml --resume --out {out}",
    ]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("target", "words", "told"),
    [
        (
            "covey.fitting.fit:fit",
            ("fit", "y ~ x0", "--data", "sites.csv"),
            "stopped before the fit was done; nothing was saved",
        ),
        (
            "covey.fitting.store:load_fit",
            ("predict", "run", "sites.csv"),
            "stopped before the rows were predicted",
        ),
        (
            "covey.sweeps.sweep:sweep",
            ("sweep", "sites.toml"),
            "stopped; the same command resumes it",
        ),
    ],
)
def test_other_commands_say_one_line(tmp_path, target, words, told):
    assert stopped(tmp_path, signal.SIGTERM, target, *words) == [told]


@pytest.mark.processes
def test_a_sweep_stopped_by_sigterm_goes_on_by_the_same_command(tmp_path):
    """Its workers hear of it, save their runs and end."""
    study, out = write_config(tmp_path, 10**6), tmp_path / "sweep"
    values = ("--set", "method.batch_size=4,8")
    process = start("-m", "covey.cli", "sweep", study, *values, "--out", out)
    wait_for(process, out, "runs/*/checkpoints/*.checkpoint")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 143, err
    assert err.splitlines()[-1] == "stopped; the same command resumes it"
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("config.toml", "stopped before the fit was done; to start again, remove "),
        ("fit.json", "stopped; the fit is saved in "),
    ],
)
def test_a_fit_stopped_between_rounds_says_what_is_left(tmp_path, monkeypatch, written, told):
    def stopped_fit(*_, out, **__):
        out.mkdir()
        (out / written).touch()
        raise Stopped("stopped after round 3: saved", signal.SIGTERM)

    monkeypatch.setattr("covey.fitting.fit.fit", stopped_fit)
    code, said = call("fit", "y ~ x", "--data", "sites.csv", "--out", tmp_path / "fit")
    assert code == 143
    assert said.startswith(f"{told}{tmp_path / 'fit'}")
    assert len(said.splitlines()) == 1
