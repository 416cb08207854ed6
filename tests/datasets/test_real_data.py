"""Loaders on the real data, where `COVEY_DATA_DIR` has them."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from covey.datasets import LOADERS, load
from covey.datasets.shakespeare import VOCABULARY

DATA = os.environ.get("COVEY_DATA_DIR")
needs_data = pytest.mark.skipif(not DATA, reason="COVEY_DATA_DIR is not set")


@needs_data
def test_mnist_by_writer():
    data = load("mnist", split="test")
    assert (data.clients, len(data.rows.y)) == (297, 10000)
    assert np.bincount(data.rows.y).tolist() == [
        980,
        1135,
        1032,
        1010,
        982,
        892,
        958,
        1028,
        974,
        1009,
    ]


@needs_data
@pytest.mark.slow
def test_writers_of_training_and_test_digits_are_others():
    data = load("mnist")
    assert (
        data.clients,
        len(data.rows.y),
        data.counts("train").min(),
        data.counts("train").max(),
    ) == (539, 60000, 19, 131)
    other = load("mnist", split="test")
    assert not set(data.ids.tolist()) & set(other.ids.tolist())
    assert np.bincount(data.rows.y).tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]


@needs_data
@pytest.mark.slow
def test_cifar10_pixels_have_the_published_statistics():
    data = load("cifar10", split="test", partition="dirichlet", clients=50, alpha=0.4, seed=0)
    assert data.rows.x.shape == (10000, 32, 32, 3)
    assert np.bincount(data.rows.y).tolist() == [1000] * 10
    # published for the 50,000 training images; a mean of 10,000 test images has a standard error
    # near 0.0012
    assert np.allclose(data.rows.x.mean((0, 1, 2)) / 255, [0.4914, 0.4822, 0.4465], atol=0.006)
    neighbours = np.diff(data.rows.x[:500].astype(int), axis=1)
    assert np.median(np.abs(neighbours)) < 10  # images, not noise


@needs_data
@pytest.mark.parametrize(
    ("name", "options", "shape"),
    [
        (
            "cifar100",
            {
                "split": "test",
                "partition": "pachinko",
                "clients": 20,
                "alpha": 0.1,
                "beta": 10.0,
                "seed": 0,
            },
            (2000, 32, 32, 3),
        ),
        pytest.param(
            "svhn",
            {"partition": "iid", "clients": 10, "seed": 0},
            (5000, 32, 32, 3),
            marks=pytest.mark.slow,
        ),
        ("notmnist", {"by": "label"}, (10000, 28, 28, 1)),
        (
            "fashion_mnist",
            {"split": "test", "partition": "classes", "clients": 20, "classes": 2, "seed": 0},
            (10000, 28, 28, 1),
        ),
    ],
)
def test_other_images(name, options, shape):
    data = load(name, **options)
    assert data.rows.x.shape == shape
    assert data.rows.x.dtype == np.uint8
    assert len(np.unique(data.rows.y)) == data.spec.classes


@needs_data
def test_shakespeare_windows_follow_the_text():
    data = load("shakespeare", min_characters=20_000, stride=80)
    wide = load("shakespeare", min_characters=20_000, stride=40)
    assert data.spec.classes == 81
    x, y = (np.asarray(leaf) for leaf in data.shard(0, "train").rows)
    assert np.array_equal(y[:-1], x[1:, 0])  # the next character opens the next window
    assert np.array_equal(wide.shard(0, "train").rows.x[::2], x)
    assert load("shakespeare").clients == 438
    letters = np.asarray(list(VOCABULARY))
    assert "the" in "".join(letters[x[:50].reshape(-1)])


HIERARCHICAL = {
    "radon": (85, 919, 2),
    "sleepstudy": (18, 180, 1),
    "exam": (65, 4059, 5),
    "contraception": (60, 1934, 5),
    "grouseticks": (63, 403, 3),
    "cbpp": (15, 56, 4),
    "inst_eval": (1128, 73421, 3),
    "gu_immun": (161, 2159, 15),
}


@needs_data
@pytest.mark.parametrize("name", HIERARCHICAL)
def test_hierarchical_tables(name):
    data = load(name)
    assert (data.clients, *data.rows.x.shape) == HIERARCHICAL[name]
    assert np.isfinite(data.rows.x).all()
    assert np.all(data.rows.x.std(0) > 0)  # an indicator that matches no row would be constant
    assert f"{data.clients:,} " in LOADERS[name].description
    assert f"{len(data.rows.y):,} " in LOADERS[name].description


BIRDS = {
    "green_woodpecker": (437, 3699, 267, 14),
    "pacific_wren": (683, 5480, 393, 57),
    "swiss_birds": (191, 42028, 266, 158),
}


@needs_data
@pytest.mark.parametrize("name", BIRDS)
def test_counts_of_birds(name):
    data = load(name)
    x, y = (np.asarray(leaf) for leaf in data.rows)
    assert (data.clients, len(y), *(x.max(0) + 1)) == BIRDS[name]
    assert np.issubdtype(x.dtype, np.integer)
    assert len(np.unique(x, axis=0)) == len(x)  # a cell is seen once
    assert np.all((y >= 0) & (y == np.floor(y)))
    for number in (f"{data.clients:,} ", f"{len(y):,} ", f"{x[:, 0].max() + 1} "):
        assert number in LOADERS[name].description


@needs_data
def test_counts_of_birds_are_those_of_the_tables():
    folder = Path(str(DATA)) / "birds"
    wrens = pd.read_csv(folder / "bbs_pacific_wren.csv.gz")
    line = wrens[(wrens.obs_n == 990137) & (wrens.year == 1974)].iloc[0]
    rows = load("pacific_wren").rows_of(load("pacific_wren").position_of(990137), "train")
    here = (rows.x[:, 0] == sorted(wrens.site.unique()).index(line.site)) & (
        rows.x[:, 1] == 1974 - 1968
    )
    assert rows.y[here].tolist() == [line.species_total]
    wide = pd.read_csv(folder / "green_woodpecker_wide.csv.gz")
    data = load("green_woodpecker")
    rows = data.rows_of(data.position_of(int(wide.loc[1, "X2004.observer"])), "train")
    here = np.all(rows.x == [1, 0], axis=1)
    assert rows.y[here].tolist() == [
        wide.loc[1, ["X2004.1.count", "X2004.2.count", "X2004.3.count"]].max()
    ]


@needs_data
def test_indicators_are_those_of_the_table():
    frame = pd.read_csv(
        Path(str(DATA)) / "hierarchical" / "contraception_bangladesh.csv"
    ).sort_values("district", kind="stable")
    data = load("contraception")
    assert np.array_equal(data.rows.y == 1, frame["use"] == "Y")
    assert np.array_equal(data.rows.x[:, 4] == 1, frame["livch"] == "3+")
    assert data.features == ("age", "urban=Y", "livch=1", "livch=2", "livch=3+")
    np.testing.assert_allclose(data.rows.x[:, 0], frame["age"].to_numpy(), rtol=1e-6)


@needs_data
def test_sleepstudy_gives_the_published_pooled_fit():
    # lme4's documentation: reaction time grows by 10.467 ms a day from 251.405 ms (the data are
    # balanced, so pooling agrees)
    data = load("sleepstudy")
    slope, intercept = np.polyfit(data.rows.x[:, 0].astype(float), data.rows.y.astype(float), 1)
    assert (slope, intercept) == (pytest.approx(10.467, abs=1e-3), pytest.approx(251.405, abs=1e-3))
