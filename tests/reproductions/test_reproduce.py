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


def test_a_setting_of_an_experiment_can_be_changed():
    class Size(NamedTuple):
        seeds: int
        rate: float

    token = result._changes.set({"seeds": 3, "rate": 2})
    try:
        assert result.with_changes(Size(1, 0.5)) == Size(3, 2)
        result._changes.set({"seed": 3})
        with pytest.raises(ValueError, match=r"--set seed: unknown setting .*did you mean 'seeds'"):
            result.with_changes(Size(1, 0.5))
        result._changes.set({"seeds": "three"})
        with pytest.raises(ValueError, match="--set seeds: int is needed, got 'three'"):
            result.with_changes(Size(1, 0.5))
    finally:
        result._changes.reset(token)
