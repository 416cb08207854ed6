"""Comparisons with a fair search, on scores that are given: rows, claims and what is searched."""

import numpy as np
import pytest

from covey.runs.launch import run as run_method
from reproductions import fedpop_table, mixture_comparisons
from reproductions.fedpop_image_settings import BATCH, PASSES, Problem
from reproductions.search import Setting

TINY = fedpop_table.Size(
    methods=13, classes=(5,), clients=4, rows=BATCH, rounds=2, every=1, channels=(), hidden=(4,)
)


def given(monkeypatch, module, function, scores, scale=1.0):
    """All settings score alike but for one rate within the grid, and each method as given."""
    asked = []

    def score(*arguments):
        name, setting, seed, split = arguments[-4:]
        asked.append((name, setting, seed, split))
        return scale * (scores[name] - abs(np.log(setting.rate / 0.05)) / 100 + seed / 1000)

    monkeypatch.setattr(module, function, score)
    return asked


def test_the_table_stands_beside_the_papers(monkeypatch):
    scores = dict.fromkeys(fedpop_table.OWN, 0.5) | {"FedSOUL": 0.6, "FedRep": 0.7}
    asked = given(monkeypatch, fedpop_table, "scored", scores)
    monkeypatch.setitem(fedpop_table.SIZES, "full", TINY)
    rows, claims, figure = fedpop_table.run("full", lambda line: None)
    table = {row.quantity: row for row in rows}
    assert table["accuracy, FedSOUL, cifar10, 5 classes"].paper == pytest.approx(79.48)
    assert table["accuracy, FedPer, cifar10, 5 classes"].paper is None
    lost = [claim.claim for claim in claims if not claim.holds]
    assert lost == ["accuracy of FedSOUL minus FedRep, cifar10, 5 classes"]
    assert len(claims) == 12
    assert list(figure.data[0].y)[-2:] == ["FedSOUL", "FedRep"]  # the best is on top
    tried = {
        name: sum(one[0] == name and one[3] == "validation" for one in asked) for name in scores
    }
    assert set(tried.values()) == {8}
    seeds = {
        split: {one[2] for one in asked if one[3] == split} for split in ("validation", "test")
    }
    assert not seeds["validation"] & seeds["test"]
    assert len(seeds["test"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", fedpop_table.OWN)
def test_methods_of_the_table_do_the_same_work(name):
    """One minibatch holds the rows of each client, so that steps are passes."""
    own = fedpop_table.OWN[name]
    method = fedpop_table.method_of(name, Setting(0.01, own[0] if own else None), TINY)
    data = fedpop_table._images(Problem(5, most=TINY.rows), TINY, 0)
    done = run_method(method, data, rounds=1, seed=0, progress=False)
    assert np.all(np.isfinite(done.metrics["train_loss"]))
    # Halves take two gradients a step, pFedMe five steps at a time. L2GD's steps are random.
    half = dict.fromkeys(("APFL", "Ditto", "Per-FedAvg"), PASSES // 2)
    passes = half | {"pFedMe": PASSES - PASSES % 5}
    if "local_steps" in done.metrics and name != "L2GD":
        assert done.metrics["local_steps"].to_list() == [passes.get(name, PASSES)]


def test_fedem_is_held_against_the_best_of_the_others(monkeypatch):
    scores = dict.fromkeys(mixture_comparisons.OWN, 50.0) | {"FedEM": 60.0, "APFL": 61.0}
    given(monkeypatch, mixture_comparisons, "_on_photographs", scores)
    monkeypatch.setitem(
        mixture_comparisons.PHOTOGRAPHS, "quick", mixture_comparisons.PHOTOGRAPHS["full"]
    )
    rows, claims, _ = mixture_comparisons.run_photographs("quick", lambda line: None)
    assert {row.quantity: row.paper for row in rows}["accuracy, FedEM"] == pytest.approx(84.3)
    assert [claim.claim for claim in claims if not claim.holds] == [
        "accuracy of FedEM over APFL, in points, the best other"
    ]


def test_mocha_is_one_of_the_linear_models(monkeypatch):
    given(monkeypatch, mixture_comparisons, "_on_linear", {"FedEM": 60.0, "MOCHA": 55.0})
    rows, claims, _ = mixture_comparisons.run_linear("quick", lambda line: None)
    assert rows[0].quantity == "accuracy, who knows the models and weights"
    assert 60 < rows[0].ours <= 100
    assert [claim.holds for claim in claims] == [True]
    assert claims[0].value == pytest.approx(5.0, abs=0.01)  # their grids differ


LINEAR = (mixture_comparisons.LINEAR, mixture_comparisons.LINEAR_MODELS)
PHOTOGRAPHS = (mixture_comparisons.OWN, mixture_comparisons.PHOTOGRAPHS)


@pytest.mark.parametrize(
    ("name", "comparison"),
    [(name, comparison) for comparison in (LINEAR, PHOTOGRAPHS) for name in comparison[0]],
)
def test_every_method_of_a_comparison_can_be_made(name, comparison):
    values, sizes = comparison
    setting = Setting(0.1, values[name][0] if values[name] else None)
    made = [mixture_comparisons.method_of(name, setting, size) for size in sizes.values()]
    assert made[0].name == made[1].name
