"""`covey sweep`: a grid of runs, resumed without doing a finished run twice, chosen by validation
rows.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from command_line import call, is_running, lines, write_config
from covey.config.checking import ConfigurationError
from covey.sweeps import results, trial
from covey.sweeps.grid import Axis, Trial, axis_of, grid_of
from covey.sweeps.trial import Outcome

RATE = "method.server_optimizer.learning_rate"


@pytest.fixture
def study(tmp_path) -> Path:
    return write_config(tmp_path, 4)


def runs_of(out: Path) -> list[Path]:
    return sorted((out / "runs").iterdir())


def test_values_are_separated_outside_of_brackets_and_quotes():
    given = 'a.b={name="x,y", c=[1, 2]}, "p,q",[3,4], word ,0.5'
    assert axis_of(given).values == (
        '{name="x,y", c=[1, 2]}', '"p,q"', "[3,4]", "word", "0.5",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("method.step_size=", "the list is empty"),
        ("method.step_size=0.1,,0.2", "a value of the list is empty"),
        ("method.step_size=0.1,0.1", "0.1 is there twice"),
        ("step_size=0.1", "write table.key=value,value"),
        ("run.seed=1,2", "--seeds says how many"),
        ("run.split=test", "validation rows only"),
    ],
)
def test_a_list_that_makes_no_axis(given, told):
    with pytest.raises(ConfigurationError, match=told):
        axis_of(given)


def test_the_grid_is_every_combination_and_its_directories_follow_the_configuration(study):
    axes = [axis_of("method.batch_size=4,8"), axis_of("run.rounds=2,3")]
    trials = grid_of(study, axes, 2, study.parent / "runs")
    assert len({one.directory for one in trials}) == len(trials) == 8
    assert [one.seed for one in trials] == [5, 6] * 4
    again = grid_of(study, axes[::-1], 1, study.parent / "runs")
    digests = {one.directory.name[-8:] for one in trials}
    assert {one.directory.name[-8:] for one in again} < digests
    study.write_text(study.read_text().replace("probability = 0.7", "probability = 0.8"))
    changed = grid_of(study, axes, 2, study.parent / "runs")
    assert not {one.directory.name[-8:] for one in changed} & digests
    with pytest.raises(ConfigurationError, match=r"learning_rate 0.2, .* are the same run"):
        grid_of(study, [axis_of(f"{RATE}=0.2,0.20")], 1, study.parent / "runs")


@pytest.mark.processes
def test_a_sweep_runs_once_chooses_by_validation_rows_and_draws(study, tmp_path, monkeypatch):
    out = tmp_path / "sweep"
    command = ("sweep", study, "--set", f"{RATE}=0.0001,0.2", "--out", out, "--workers", 1)
    code, said = call(*command)
    assert code == 0, said
    table = pd.read_csv(out / "table.csv")
    assert table[RATE].tolist() == [0.0001, 0.2]
    assert table["seeds"].tolist() == [1, 1]
    best = table[table["chosen"]].iloc[0]
    assert best[RATE] == 0.2
    assert best["nll"] == table["nll"].min()
    assert f"--set {RATE}=0.2" in said
    page = (out / "figure.html").read_text()
    assert "nll of validation rows" in page
    assert "<script src" not in page

    for run in runs_of(out):  # what was chosen by is what the run has found on validation rows
        result = json.loads((run / "result.json").read_text())
        assert result["measures"]["nll"] == pytest.approx(lines(run)[-1]["validation_nll"])
        assert not any(name.startswith("test") for name in lines(run)[-1])
    before = {run.name: (run / "metrics.jsonl").stat().st_mtime_ns for run in runs_of(out)}
    monkeypatch.setattr(trial, "_run", lambda one: pytest.fail(f"{one} was done twice"))
    code, said = call(*command, "--by", "accuracy")
    assert code == 0, said
    assert "2 of 2 runs are done already" in said
    assert "best accuracy" in said
    assert before == {r.name: (r / "metrics.jsonl").stat().st_mtime_ns for r in runs_of(out)}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--set", "method.bach_size=3,4"), "did you mean 'batch_size'?"),
        (("--set", "method.batch_size="), "the list is empty"),
        (("--set", "data.validation=0.0"), "set data.validation, e.g. --set data.validation=0.2"),
        (("--seeds", 0), "--seeds must be at least 1"),
        (("--workers", 0), "--workers must be at least 1"),
        (("--address", "127.0.0.1:1"), "no Ray cluster answers at 127.0.0.1:1"),
        (("--address", "nowhere"), "address must be host:port"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_nothing_begins(study, tmp_path, arguments, told):
    code, said = call("sweep", study, *arguments, "--out", tmp_path / "sweep")
    assert code == 2
    assert told in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "sweep").exists()


def test_a_study_that_is_not_there(tmp_path):
    code, said = call("sweep", tmp_path / "none.toml", "--out", tmp_path / "sweep")
    assert code == 2
    assert "none.toml" in said
    assert len(said.strip().splitlines()) == 1


def outcomes_of(scores: dict[str, list[float | None]]) -> dict[Trial, Outcome]:
    return {
        Trial(Path(), (("m.a", value),), seed, Path()): Outcome(
            1, {"nll": score}, None if score is not None else "not finite"
        )
        for value, found in scores.items()
        for seed, score in enumerate(found)
    }


def test_the_choice_is_by_means_and_leaves_diverged_settings_out():
    scores = {"0.1": [1.0, 3.0], "0.3": [1.5, 1.7], "1": [0.1, None]}
    axes = [Axis("m.a", tuple(scores))]
    choice = results.choose(axes, outcomes_of(scores))
    assert dict(choice.settings) == {"m.a": "0.3"}
    assert choice.table["nll_se"].iloc[0] == pytest.approx(1.0)
    assert choice.table["diverged"].tolist() == [0, 0, 1]
    assert not choice.at_the_end
    lower = results.choose(axes, outcomes_of(scores | {"0.1": [0.0, 0.0]}))
    assert lower.at_the_end == ("m.a",)
    with pytest.raises(ValueError, match="every setting diverged"):
        results.choose(axes, outcomes_of({"0.1": [None], "0.3": [None]}))
    with pytest.raises(ValueError, match="did you mean 'nll'"):
        results.choose(axes, outcomes_of(scores), by="nlll")


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_does_no_finished_run_twice(tmp_path):
    """kill -9 of the command while its two workers run: they end too, and what was finished is
    neither run nor written again.
    """
    study, out = write_config(tmp_path, 400), tmp_path / "sweep"
    arguments = ("sweep", study, "--set", "method.batch_size=4,8", "--seeds", 2, "--out", out)
    command = [sys.executable, "-m", "covey.cli", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + 300
    while not list(out.glob("runs/*/result.json")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    workers = children.read_text().split() if children.exists() else []
    process.send_signal(signal.SIGKILL)
    process.communicate()
    end = time.monotonic() + 300
    while any(is_running(int(one)) for one in workers):
        assert time.monotonic() < end, "a worker outlived the sweep"
        time.sleep(0.05)
    done = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}
    metrics = [path.with_name("metrics.jsonl") for path in done]
    written = {path: path.stat().st_mtime_ns for path in metrics}
    assert 0 < len(done) < 4
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert f"{len(done)} of 4 runs are done already" in finished.stderr
    assert len(list(out.glob("runs/*/result.json"))) == 4
    assert all(path.stat().st_mtime_ns == when for path, when in (done | written).items())

    code, said = call(*arguments[:-1], tmp_path / "whole", "--workers", 1)
    assert code == 0, said
    for one, other in zip(runs_of(out), runs_of(tmp_path / "whole"), strict=True):
        assert lines(one) == lines(other)
