"""Results of many reproductions in one document."""

import json
import subprocess
from pathlib import Path

import plotly.graph_objects as go
import pytest
from typer.testing import CliRunner

from covey.cli import app
from reproductions import EXPERIMENTS
from reproductions.result import Claim, Result, Row, revision, write
from reproductions.results import collect, markdown

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def runs(tmp_path):
    better = [
        Claim("accuracy of ours over theirs", 1.25, 0.0, True),
        Claim("the same of the worst", -0.5, 0.0, False),
    ]
    rows = [
        Row("accuracy, ours", 79.9, 80.123456, None, 1),
        Row("accuracy, theirs", None, 78.9, 0.25, 3),
    ]
    two = Result("two", "quick", 61.0, rows, better, {}, "1a2b3c4 + changes")
    write(tmp_path / "two", two, go.Figure())
    write(tmp_path / "one", Result("one", "full", 5.0, rows[:1], better[:1]), go.Figure())
    return tmp_path


def test_claims_and_numbers_of_every_result_are_told(runs):
    text = markdown(collect(runs))
    assert "| [one](#one-full) | full | 5 s | unknown | 1 of 1 |" in text
    assert "| [two](#two-quick) | quick | 1 min 1 s | 1a2b3c4 + changes | 1 of 2, **1 lost" in text
    assert text.index("## one full") < text.index("## two quick")
    assert "| the same of the worst | -0.5 | 0 | **lost** |" in text
    assert "| accuracy of ours over theirs | 1.25 | 0 | holds |" in text
    assert "| accuracy, ours | 79.9 | 80.12 |  | 1 |" in text
    assert "| accuracy, theirs |  | 78.9 | 0.25 | 3 |" in text
    assert "jax 0." in text


def test_the_command_tells_what_is_lost_and_writes_everything(runs):
    found = CliRunner().invoke(
        app, ["results", str(runs), "--out", str(runs / "all.md")], env={"COLUMNS": "130"}
    )
    assert found.exit_code == 0
    said = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in found.output.splitlines()
        if line.startswith("│")
    ]
    assert said == [
        ["one", "full", "5 s", "1 of 1", "", ""],
        ["two", "quick", "1 min 1 s", "1 of 2", "", ""],
        ["", "", "", "the same of the worst", "-0.5", "0"],
    ]
    assert (runs / "all.md").read_text() == markdown(collect(runs))
    nothing = CliRunner().invoke(app, ["results", str(runs / "none")])
    assert (nothing.exit_code, nothing.stderr.count("\n")) == (2, 1)


def test_a_result_from_before_commits_were_stored_says_earlier(runs):
    path = runs / "two" / "result.json"
    table = json.loads(path.read_text())
    del table["revision"]
    path.write_text(json.dumps(table))
    assert "| 1 min 1 s | earlier | 1 of 2" in markdown(collect(runs))


def test_the_revision_is_that_of_the_clone(tmp_path):
    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        command = ["git", "-C", clone, *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    clone = tmp_path / "clone"
    (clone / "unpacked").mkdir(parents=True)
    assert revision(clone) is None
    git("init", "--quiet")
    (clone / "one.py").write_text("1")
    git("add", "one.py")
    git("commit", "--quiet", "-m", "one")
    commit = git("rev-parse", "--short", "HEAD")
    assert revision(clone) == commit
    assert revision(clone / "unpacked") is None  # of something else
    (clone / "one.py").write_text("2")
    assert revision(clone) == f"{commit} + changes"
    assert revision(tmp_path / "gone") is None


def test_what_is_no_result_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no results: run `covey reproduce"):
        collect(tmp_path)
    (tmp_path / "other.json").write_text(json.dumps({"rows": []}))
    with pytest.raises(ValueError, match=r"other.json is no result of `covey reproduce`: 'claims'"):
        collect(tmp_path)
    (tmp_path / "other.json").write_text("{")
    with pytest.raises(ValueError, match=r"other.json is no result"):
        collect(tmp_path)


def test_the_document_says_what_the_stored_results_say():
    stored = collect(DOCS / "results")
    assert (DOCS / "RESULTS.md").read_text() == markdown(stored)
    assert sorted({one.result.id for one in stored}) == sorted(EXPERIMENTS)


def test_a_result_with_other_settings_says_them(runs):
    changed = Result("two", "quick", 9.0, [], [], {"seeds": 1, "rate": 0.5})
    write(runs / "changed", changed, go.Figure())
    text = markdown(collect(runs))
    assert "| [two](#two-quick-seeds1-rate05) | quick, seeds=1, rate=0.5 | 9 s |" in text
    assert "## two quick, seeds=1, rate=0.5\n" in text
    assert "| [two](#two-quick) | quick | 1 min 1 s |" in text
