"""`covey run`, mostly as a user meets it: in a separate process."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command_line import call, lines, write_config
from covey.config import configuration
from covey.runs import checkpoint


def start(*arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "covey.cli", *map(str, arguments)]
    # A suite that runs in the background ignores Ctrl-C, and its children would too.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def wait_for_round(process: subprocess.Popen, run: Path, number: int) -> None:
    """Until the run has a checkpoint of that round or a later one."""
    end = time.monotonic() + 600
    while max(checkpoint.rounds(run / "checkpoints"), default=0) < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "no checkpoint came"
        time.sleep(0.005)


def wait_for_bytes(path: Path, more: int) -> None:
    """Until a file has grown by that much: a moment between checkpoints, inside of a line too."""
    size, end = path.stat().st_size + more, time.monotonic() + 600
    while path.stat().st_size < size:
        assert time.monotonic() < end, f"{path} does not grow"


def final_state(run: Path) -> bytes:
    found = checkpoint.newest(run / "checkpoints", at_most=10**9)
    assert found is not None
    return found.body


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "killed"),
    [
        (signal.SIGINT, False),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.slow),
    ],
)
def test_killed_and_stopped_runs_end_as_if_nothing_had_happened(tmp_path, number, killed):
    """kill -9 at a random moment, resume, stop by Ctrl-C, resume: the metrics and the final state
    of a run left alone. Rounds without end until the last command, however fast the machine is.
    """
    moments = random.Random(0)
    config, run = write_config(tmp_path, 10**6), tmp_path / "run"
    reached, resumed = 0, ()

    if killed:
        process = start("run", config, "--out", run)
        wait_for_round(process, run, 5 * moments.randrange(1, 20))
        wait_for_bytes(run / "metrics.jsonl", moments.randrange(1, 4000))
        process.kill()
        finish(process)
        reached, resumed = max(checkpoint.rounds(run / "checkpoints")), ("--resume",)

    process = start("run", config, *resumed, "--out", run)
    wait_for_round(process, run, reached + 20)
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 128 + number, err
    assert f"to continue: covey run {run}/config.toml --resume --out {run}" in err
    assert "stopped after round" in err
    assert "Traceback" not in err
    stopped = max(checkpoint.rounds(run / "checkpoints"))
    assert len(lines(run)) == stopped  # the checkpoint is of the last round that was run
    assert reached < stopped

    enough = ("--set", f"run.rounds={stopped + 12}")
    code, said = call("run", run / "config.toml", "--resume", "--out", run, *enough)
    assert code == 0, said
    assert f"{stopped + 12} rounds of fedavg on 3 clients" in said
    assert "held-out clients, test rows: accuracy" in said

    code, said = call("run", config, "--out", tmp_path / "whole", *enough)
    assert code == 0, said
    assert lines(run) == lines(tmp_path / "whole")
    assert final_state(run) == final_state(tmp_path / "whole")


def test_a_run_with_overrides_and_what_it_refuses(tmp_path):
    config, out = write_config(tmp_path, 50), tmp_path / "run"
    code, said = call(
        "run",
        config,
        "--out",
        out,
        "--set",
        "run.rounds=3",
        "--set",
        "method.batch_size=4",
        "--seed",
        9,
    )
    assert code == 0, said
    assert "3 rounds of fedavg" in said
    assert "held-out clients, test rows: accuracy" in said
    assert "judged on their test rows: b" in (out / "report.html").read_text("utf-8")
    assert len(lines(out)) == 3
    assert {path.name for path in out.iterdir()} == {
        "checkpoints", "clients.parquet", "config.toml", "lock", "metrics.jsonl", "report.html",
    }  # fmt: skip
    resolved = configuration.read(out / "config.toml")
    assert (resolved.options["run"]["seed"], resolved.options["method"]["batch_size"]) == (9, 4)

    code, said = call("run", config, "--out", out)
    assert code == 2
    assert "already holds a run" in said

    code, said = call("run", config, "--out", out, "--resume")
    assert code == 2
    assert "run.seed was 9 and is now 5" in said


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--set", "method.bach_size=3"), "did you mean 'batch_size'?"),
        (("--set", "method.name=fedavgg"), "did you mean 'fedavg'?"),
        (("--set", "run.rounds=many"), "input should be a valid integer, got 'many'"),
        (("--set", "cohort.probability=2"), "probabilities must be in (0, 1]"),
        (("--set", "data.path=nowhere.csv"), "nowhere.csv"),
        (("--set", "model.name=poisson"), "poisson: these data have 2 classes"),
    ],
)
def test_a_mistake_is_told_without_a_trace(tmp_path, arguments, told):
    code, said = call("run", write_config(tmp_path, 5), "--out", tmp_path / "run", *arguments)
    assert code == 2
    assert told in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()  # nothing was begun


def test_a_missing_file_is_named(tmp_path):
    code, said = call("run", tmp_path / "none.toml")
    assert code == 2
    assert "none.toml" in said


def test_the_trace_can_be_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_DEBUG", "1")
    with pytest.raises(configuration.ConfigurationError):
        call("run", write_config(tmp_path, 5), "--set", "method.bach_size=3")


def test_a_learning_rate_that_is_absurd_is_refused_in_one_line(tmp_path):
    steep = "method.client_optimizer={name = 'sgd', learning_rate = 1e38}"
    code, said = call("run", write_config(tmp_path, 5), "--out", tmp_path / "run", "--set", steep)
    assert code == 2
    assert len(said.strip().splitlines()) == 1
    assert "learning_rate: must be above 0 and at most 10000" in said
