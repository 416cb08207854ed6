"""What clients share for a start of EM: sums and means of enough rows, never a row."""

import numpy as np
import pytest

from covey.data.federated import FederatedData
from covey.data.summary import random_rows, summarise

CENTRES = np.array([[-10.0, 0.0], [0.0, 10.0], [10.0, -5.0]])


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    clients = {}
    for number, rows in enumerate((40, 25, 33, 3)):
        z = rng.choice(3, rows, p=np.roll([0.7, 0.2, 0.1], number))
        clients[f"c{number}"] = (
            (CENTRES[z] + rng.normal(size=(rows, 2))).astype(np.float32),
            np.zeros(rows),
        )
    return FederatedData.from_clients(clients).split(validation=0.0, test=0.2, seed=1)


def train(data):
    parts = [
        data.rows.x[start : start + count]
        for start, count in zip(data.starts("train"), data.counts("train"), strict=True)
    ]
    return np.concatenate(parts).astype(np.float64)


def test_moments_are_those_of_all_training_rows(data):
    summary, x = summarise(data, seed=0), train(data)
    np.testing.assert_allclose(summary.second_moment, x.T @ x / len(x))
    np.testing.assert_allclose(summary.covariance, np.cov(x.T, ddof=0), rtol=1e-9)


def test_only_means_of_enough_rows_are_shared(data):
    for at_least in (2, 6):
        summary, x = summarise(data, groups=4, at_least=at_least, seed=0), train(data)
        assert summary.group_sizes.min() >= at_least
        assert summary.group_sizes.sum() <= len(x)
        nearest = np.abs(summary.group_means[:, None] - x).max(-1).min(1)
        assert nearest.min() > 1e-6  # no shared mean is a row
    assert (
        summarise(data, at_least=2, seed=0).group_sizes.sum()
        > summarise(data, at_least=6, seed=0).group_sizes.sum()
    )


def test_starting_means_find_the_clusters_and_every_client_alone_decides_its_groups(data):
    summary = summarise(data, groups=3, at_least=3, seed=0)
    for seed in range(5):
        means = summary.starting_means(3, seed=seed)
        distance = np.linalg.norm(means[:, None] - CENTRES, axis=-1)
        assert sorted(distance.argmin(1)) == [0, 1, 2]
        assert distance.min(1).max() < 4 * np.sqrt(2 / 3)  # a mean of three rows, in two dimensions
    fewer = summarise(data.subset(np.array([0])), groups=3, at_least=3, seed=0)
    np.testing.assert_array_equal(fewer.group_means, summary.group_means[: len(fewer.group_means)])


def test_random_rows_are_training_rows(data):
    rows = random_rows(data, 7, seed=3)
    x = train(data)
    assert all(np.any(np.all(x == row, axis=1)) for row in rows)
    assert len(np.unique(rows, axis=0)) == 7


def test_bad_input(data):
    with pytest.raises(ValueError, match="groups and at_least must be at least 1, got 0 and 5"):
        summarise(data, groups=0, seed=0)
    with pytest.raises(ValueError, match="no client has a group of 1000 rows"):
        summarise(data, at_least=1000, seed=0)
    with pytest.raises(ValueError, match=r"50 means were asked for and \d+ groups are shared"):
        summarise(data, seed=0).starting_means(50, seed=0)
    with pytest.raises(ValueError, match="500 rows were asked for, the clients have"):
        random_rows(data, 500, seed=0)
