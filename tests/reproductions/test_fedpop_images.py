"""FedPop's experiments on images, on made-up images: sizes, budgets, and that choices are made on
validation rows.
"""

from dataclasses import replace

import numpy as np
import optax
import pytest

from covey import models
from covey.algorithms.fedavg import fedavg
from covey.core.metrics import Calibration, Mean
from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.datasets.loaders import load
from covey.runs.evaluation import Evaluation
from covey.runs.launch import run
from covey.runs.run import Run
from reproductions import fedpop_image_settings, fedpop_images
from reproductions.fedpop_image_settings import (
    COLOURS,
    PASSES,
    SETTINGS,
    Problem,
    Size,
    method_of,
)
from reproductions.fedpop_images import best, calibration, images_of, small, strange

TINY = Size(
    seeds=1,
    clients=4,
    channels=(2, 3),
    hidden=(4,),
    halved=True,
    rounds=2,
    every=1,
    candidates=1,
    cohort=4,
)


def made_up(name: str, *, clients: int, **options: object) -> FederatedData:
    """Images whose label is the column of their bright stripe; a hundred clients become six."""
    rng = np.random.default_rng(len(name))
    side, channels = (32, 3) if name in ("cifar10", "svhn") else (28, 1)
    y = rng.integers(0, 10, 240 if clients == 1 else 6 * 40)
    x = rng.integers(0, 60, (len(y), side, side, channels))
    x[np.arange(len(y)), :, y * side // 10] += 150
    owner = np.zeros(len(y), int) if clients == 1 else np.repeat(np.arange(6), 40)
    return FederatedData.from_arrays(x.astype(np.uint8), y, owner, classes=10)


@pytest.fixture(autouse=True)
def no_files(monkeypatch):
    monkeypatch.setattr(fedpop_images, "load", made_up)
    fedpop_images._divided.cache_clear()  # real images of an earlier test
    yield
    fedpop_images._divided.cache_clear()


def test_clients_have_the_images_that_the_problem_says():
    data = images_of(Problem(5, few=3, share=0.5, most=10), TINY, 0)
    assert data.clients == 4
    assert sorted(data.counts("train")) == [3, 3, 10, 10]
    assert set(data.counts("test")) == set(data.counts("validation")) == {8}
    assert data.spec.rows.x.shape == data.rows.x.shape[1:] == (16, 16, 3)
    assert set(
        images_of(Problem(5, most=None), TINY._replace(halved=False), 0).counts("train")
    ) == {24}


def test_halving_takes_means_of_four_pixels():
    whole = images_of(Problem(2), TINY._replace(halved=False), 0)
    half = images_of(Problem(2), TINY, 0)
    np.testing.assert_array_equal(half.rows.y, whole.rows.y)
    corner = np.round(whole.rows.x[7, 4:6, 10:12].astype(float).mean((0, 1)))
    np.testing.assert_array_equal(half.rows.x[7, 2, 5], corner)


@pytest.mark.slow
@pytest.mark.parametrize("name", COLOURS)
def test_all_methods_do_the_same_work(name, monkeypatch):
    """One minibatch holds the ten rows of each client, so that steps are passes."""
    # Perceptrons: convolutions take long to compile.
    monkeypatch.setattr(
        fedpop_image_settings, "cifar_cnn", lambda *, channels, hidden: models.mlp(hidden=hidden)
    )
    monkeypatch.setattr(
        fedpop_image_settings,
        "mixed_cifar_cnn",
        lambda *, channels, hidden: models.mixed_mlp(hidden=hidden),
    )
    done = run(
        method_of(name, 0.1, TINY, 10),
        images_of(Problem(5, most=10), TINY, 0),
        rounds=1,
        seed=0,
        progress=False,
    )
    # FedPop's gradient by phi is the last pass; a step of APFL takes two, and its share another.
    passes = {"FedSOUL": PASSES - 1, "APFL": PASSES // 2}.get(name, PASSES)
    assert done.metrics["local_steps"].to_list() == [passes]


def evaluation(data, accuracy, confidence=0.5):
    """Of clients that are all equally good, and as sure as is said."""
    rows = np.full(data.clients, 8.0)
    bins = Calibration(confidence * rows[:, None], accuracy * rows[:, None], rows[:, None])
    return Evaluation(1, "test", data, {"accuracy": Mean(accuracy * rows, rows), "ece": bins})


def test_the_validation_rows_choose_where_a_run_is_scored(monkeypatch):
    looks = {"validation": [0.2, 0.3, 0.5, 0.4], "test": [0.9, 0.1, 0.6, 0.8]}
    data = images_of(Problem(2), TINY, 0)

    class Walk(Run):
        round = 0

        def __init__(self):
            """Of nothing."""

        def advance(self, rounds):
            self.round += rounds
            return self

        def evaluate(self, *, split):
            return evaluation(data, looks[split][self.round - 1])

    monkeypatch.setattr(
        fedpop_images, "run_method", lambda *arguments, rounds, **options: Walk().advance(rounds)
    )
    method = method_of("FedAvg", 0.1, TINY, 10)
    validation, seen = best(
        method, data, TINY._replace(rounds=4), 0, lambda done: done.evaluate(split="test")
    )
    assert (validation, seen.pooled["accuracy"]) == (pytest.approx(0.5), pytest.approx(0.6))


@pytest.fixture
def scripted(monkeypatch):
    """Runs whose validation accuracy grows with the setting; test accuracy and confidence are those
    of the method.
    """
    asked = []
    accuracy = {"FedSOUL": 0.6, "FedRep": 0.7, "APFL": 0.5, "FedAvg": 0.3, "Local": 0.2}

    def best(method, data, size, seed, look):
        name, setting = method
        asked.append(method)
        return setting, evaluation(
            data, accuracy[name] + 0.01 * (seed - fedpop_images.FIRST_SEED), confidence=0.8
        )

    monkeypatch.setattr(
        fedpop_images, "method_of", lambda name, setting, size, rows: (name, setting)
    )
    monkeypatch.setattr(fedpop_images, "best", best)
    return asked


def test_settings_are_chosen_at_the_first_seed_and_kept(scripted):
    said: list[str] = []
    cell = Problem(5, 3, 0.5, most=10)
    rows, claims, figure = small([cell], TINY._replace(seeds=3, candidates=2), said.append)
    first, second = SETTINGS["FedSOUL"][:2]
    assert [setting for name, setting in scripted if name == "FedSOUL"] == [
        first,
        second,
        *[max(first, second)] * 2,
    ]
    assert [(row.ours, row.sd, row.seeds) for row in rows[:2]] == [
        (pytest.approx(x), pytest.approx(0.01), 3) for x in (0.61, 0.71)
    ]
    assert [(claim.value, claim.holds) for claim in claims] == [(pytest.approx(-0.1), False)]
    assert (len(said), len(figure.data)) == (12, 4)


@pytest.mark.usefixtures("scripted")
def test_calibration_compares_pooled_errors():
    rows, claims, figure = calibration([Problem(5)], TINY, print)
    assert [row.ours for row in rows] == [pytest.approx(x) for x in (0.2, 0.1, 0.6, 0.7)]
    assert [(claim.value, claim.holds) for claim in claims] == [(pytest.approx(2.0), False)]
    np.testing.assert_allclose(figure.data[1].y, [0.7])


@pytest.mark.slow
def test_images_out_of_distribution_differ_by_entropy(monkeypatch):
    """A plain classifier learns stripes; images without anything leave it in doubt."""

    def load_plain(name, **options):
        data = made_up(name, **options)
        return (
            replace(data, rows=Rows(np.zeros_like(data.rows.x), data.rows.y))
            if name == "notmnist"
            else data
        )

    monkeypatch.setattr(fedpop_images, "load", load_plain)
    monkeypatch.setattr(
        fedpop_images,
        "method_of",
        lambda name, setting, size, rows: fedavg(
            models.softmax(), client_optimizer=optax.sgd(0.1), epochs=20
        ),
    )
    rows, claims, figure = strange({Problem(5, images="mnist"): ("notmnist",)}, TINY, print)
    assert rows[0].quantity == "AUROC of the entropy, FedSOUL, mnist against notmnist"
    assert rows[0].ours > 0.9
    assert [(claim.value, claim.holds) for claim in claims] == [(rows[0].ours, True)]
    assert {trace.name for trace in figure.data} == {"mnist", "notmnist"}


@pytest.mark.slow
def test_real_images(monkeypatch, data_dir):
    monkeypatch.setattr(fedpop_images, "load", load)
    size = TINY._replace(rounds=1)
    assert len(small([Problem(2, 5, 0.5)], size, print)[0]) == 4
    assert (
        len(
            strange(
                {Problem(2, images="mnist"): ("fashion_mnist", "notmnist"), Problem(2): ("svhn",)},
                size,
                print,
            )[0]
        )
        == 6
    )
