"""The frame of a reproduction: what is written, and that nothing half-written stays."""

import json
import sys
from types import ModuleType
from typing import NamedTuple

import plotly.graph_objects as go
import pytest

from reproductions import EXPERIMENTS, result
from reproductions.result import Claim, Experiment, Result, Row, perform, write

ROWS = [
    Row("accuracy of FedAvg", 0.81, 0.8125, 0.01, 3),
    Row("accuracy of ours", None, 0.9, None, 1),
]
CLAIMS = [Claim("ours is better by 5 points", 0.0875, 0.05, True)]


@pytest.fixture
def experiment(monkeypatch) -> Experiment:
    module = ModuleType("some_paper")
    module.__dict__["run"] = lambda scale, report: (
        report(f"working at {scale}"),
        (ROWS, CLAIMS, go.Figure()),
    )[1]
    monkeypatch.setitem(sys.modules, "some_paper", module)
    return Experiment("some_paper:run", "A paper", {"quick": 1.0, "full": 2.0})


def test_result_has_exactly_the_agreed_form(experiment, tmp_path):
    said: list[str] = []
    result = perform(
        "some-paper", experiment, scale="quick", out=tmp_path / "out", report=said.append
    )
    assert said == ["working at quick"]
    assert result.holds
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    assert list(written) == [
        "id",
        "scale",
        "seconds",
        "rows",
        "claims",
        "changes",
        "revision",
        "environment",
    ]
    assert (written["id"], written["scale"]) == ("some-paper", "quick")
    assert written["seconds"] >= 0
    assert written["rows"] == [
        {"quantity": "accuracy of FedAvg", "paper": 0.81, "ours": 0.8125, "sd": 0.01, "seeds": 3},
        {"quantity": "accuracy of ours", "paper": None, "ours": 0.9, "sd": None, "seeds": 1},
    ]
    assert written["claims"] == [
        {"claim": "ours is better by 5 points", "value": 0.0875, "bound": 0.05, "holds": True}
    ]
    assert {"covey", "jax", "python"} <= written["environment"].keys()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "figure.html",
        "result.json",
    ]


def test_the_figure_needs_no_network(experiment, tmp_path):
    perform("some-paper", experiment, scale="quick", out=tmp_path, report=lambda line: None)
    page = (tmp_path / "figure.html").read_text()
    assert "<script src=" not in page
    assert "Plotly.newPlot" in page


def test_one_claim_that_fails_is_enough():
    failed = Claim("a claim", 0.1, 0.2, False)
    assert not Result("x", "quick", 1.0, ROWS, [*CLAIMS, failed]).holds


def test_numbers_that_are_not_finite_are_refused(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write(
            tmp_path,
            Result("x", "quick", 1.0, [Row("q", None, float("nan"), None, 1)], []),
            go.Figure(),
        )
    assert not list(tmp_path.iterdir())


def test_quick_stays_below_its_limit():
    assert all(experiment.expected_seconds["quick"] <= 90 for experiment in EXPERIMENTS.values())


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_loaded(name):
    assert callable(EXPERIMENTS[name].load())


class Size(NamedTuple):
    seeds: int
    rate: float
    lengths: tuple[int, ...] = (1, 2)
    limit: int | None = None


STANDARD = Size(1, 0.5)


@pytest.fixture
def sized(monkeypatch) -> Experiment:
    """An experiment that says which size it was asked for."""

    def run(scale, report):
        report(str(result.with_changes(STANDARD)))
        return ROWS, CLAIMS, go.Figure()

    module = ModuleType("sized_paper")
    module.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, "sized_paper", module)
    return Experiment("sized_paper:run", "A paper", {"quick": 1.0, "full": 2.0})


def test_a_setting_that_is_changed_is_stored_beside_the_scale(sized, tmp_path):
    said: list[str] = []
    given = {"seeds": 3, "rate": 2, "lengths": (4,), "limit": 7}
    found = perform("x", sized, scale="quick", out=tmp_path, report=said.append, changes=given)
    assert said == [str(Size(3, 2.0, (4,), 7))]
    assert found.changes == given
    assert found.size == "quick, seeds=3, rate=2.0, lengths=(4,), limit=7"
    assert json.loads((tmp_path / "result.json").read_text())["changes"]["lengths"] == [4]
    same = perform(
        "x", sized, scale="quick", out=tmp_path, report=said.append, changes={"rate": 0.5}
    )
    assert (same.changes, same.size) == ({}, "quick")  # it is the standard one


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("seed", 3, r"--set seed: unknown setting 'seed'; did you mean 'seeds'\?"),
        ("seeds", "three", "--set seeds: input should be a valid integer, got 'three'"),
        ("seeds", True, "--set seeds: input should be a valid integer, got True"),
        ("seeds", 0, "--set seeds: at least 1 is needed, got 0"),
        ("limit", -2, "--set limit: at least 1 is needed, got -2"),
        ("rate", -0.5, "--set rate: it must not be negative, got -0.5"),
        ("rate", float("inf"), "--set rate: a finite number is needed, got inf"),
        ("lengths", (), r"--set lengths: at least one value is needed, got \(\)"),
        ("lengths", (1, 0), r"--set lengths: at least 1 is needed, got \(1, 0\)"),
        ("lengths", ("a",), "--set lengths: input should be a valid integer, got"),
    ],
)
def test_a_setting_that_does_not_fit_is_named(sized, tmp_path, name, value, told):
    with pytest.raises(ValueError, match=told):
        perform("x", sized, scale="quick", out=tmp_path, report=print, changes={name: value})
    assert not list(tmp_path.iterdir())


def test_changes_that_an_experiment_does_not_take_are_not_stored(experiment, tmp_path):
    with pytest.raises(ValueError, match="x has no settings that can be changed: leave --set out"):
        perform("x", experiment, scale="quick", out=tmp_path, report=print, changes={"seeds": 2})
    assert not list(tmp_path.iterdir())
