"""Partitions: everyone gets something, everything goes to someone, and the shares are those that
the formulas say.
"""

from inspect import unwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.data import partition

LABELS = np.repeat(np.arange(10), 60)
FINE, COARSE = np.repeat(np.arange(20), 30), np.repeat(np.arange(5), 120)

WAYS = {
    "iid": lambda clients, seed: partition.iid(600, clients, seed=seed),
    "quantity": lambda clients, seed: partition.quantity_skew(600, clients, alpha=0.5, seed=seed),
    "dirichlet": lambda clients, seed: partition.label_dirichlet(
        LABELS, clients, alpha=0.1, seed=seed
    ),
    "classes": lambda clients, seed: partition.classes_per_client(
        LABELS, clients, classes=3, seed=seed
    ),
    "pachinko": lambda clients, seed: partition.pachinko(
        FINE, COARSE, clients, alpha=0.1, beta=10.0, seed=seed
    ),
}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=15, deadline=None)
@given(clients=st.integers(4, 120), seed=st.integers(0, 2**32))
def test_every_row_has_one_client_and_every_client_a_row(way, clients, seed):
    owner = WAYS[way](clients, seed)
    assert owner.shape == (600,)
    assert owner.dtype == np.int64
    assert set(owner.tolist()) == set(range(clients))


@pytest.mark.parametrize("way", WAYS)
def test_seeds_make_the_partition(way):
    assert np.array_equal(WAYS[way](20, 1), WAYS[way](20, 1))
    assert not np.array_equal(WAYS[way](20, 1), WAYS[way](20, 2))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("clients", [0, 601])
def test_clients_must_be_possible(way, clients):
    with pytest.raises(ValueError, match=f"600 rows cannot be divided among {clients} clients"):
        WAYS[way](clients, 0)


def test_iid_parts_are_equal_and_mixed():
    owner = partition.iid(603, 10, seed=0)
    assert sorted(np.bincount(owner)) == [60] * 7 + [61] * 3
    # the first half of the rows: 301 draws, each client's share is hypergeometric with variance
    # below 301/10
    assert np.all(
        np.abs(np.bincount(owner[:301], minlength=10) - 30.1) < 4.5 * np.sqrt(30.1 * 0.9 * 0.5)
    )


def test_quantity_shares_have_the_variance_of_a_dirichlet():
    # p_i of Dirichlet(a, ..., a) over b clients has mean 1/b and variance (b-1)/(b^2 (b a + 1)).
    clients, alpha, rows = 5, 0.7, 20_000
    share = np.stack(
        [
            np.bincount(partition.quantity_skew(rows, clients, alpha=alpha, seed=seed)) / rows
            for seed in range(400)
        ]
    )
    assert np.allclose(share.sum(1), 1)
    variance = (clients - 1) / (clients**2 * (clients * alpha + 1))
    assert share[:, 0].mean() == pytest.approx(1 / clients, abs=4 * np.sqrt(variance / 400))
    squares = np.square(share[:, 0] - 1 / clients)
    assert squares.mean() == pytest.approx(variance, abs=4 * squares.std() / np.sqrt(400))


def test_label_shares_are_dirichlet_for_each_label():
    # With alpha large every label is spread evenly; with alpha small one client has almost all of
    # it.
    even = partition.label_dirichlet(LABELS, 6, alpha=1e5, seed=1)
    table = np.stack([np.bincount(even[label == LABELS], minlength=6) for label in range(10)])
    assert np.all(np.abs(table - 10) <= 1)
    skewed = partition.label_dirichlet(LABELS, 6, alpha=1e-3, seed=1)
    table = np.stack([np.bincount(skewed[label == LABELS], minlength=6) for label in range(10)])
    assert np.mean(table.max(1)) > 55
    # the mean of sum p_i^2 is (alpha + 1) / (b alpha + 1)
    alpha, clients, labels = 0.4, 5, np.repeat(np.arange(300), 200)
    owner = partition.label_dirichlet(labels, clients, alpha=alpha, seed=2)
    share = np.stack(
        [np.bincount(owner[labels == label], minlength=clients) / 200 for label in range(300)]
    )
    squares = np.square(share).sum(1)
    expected = (alpha + 1) / (clients * alpha + 1)
    assert squares.mean() == pytest.approx(expected, abs=4 * squares.std() / np.sqrt(300) + 1 / 200)


def test_a_client_that_gets_nothing_is_given_a_row():
    owner = partition.label_dirichlet(np.zeros(50, int), 40, alpha=1e-3, seed=0)
    assert np.bincount(owner).min() == 1
    assert np.bincount(owner).max() == 11


@pytest.mark.parametrize("alpha", [1e-320, 1e-8])
def test_shares_that_underflow_still_divide(alpha):
    assert set(partition.label_dirichlet(LABELS, 12, alpha=alpha, seed=0).tolist()) == set(
        range(12)
    )
    owner = partition.pachinko(FINE, COARSE, 12, alpha=alpha, beta=alpha, seed=0)
    assert np.all(np.bincount(owner) == 50)


@pytest.mark.parametrize("clients", [10, 33])
def test_each_client_holds_its_number_of_classes(clients):
    owner = partition.classes_per_client(LABELS, clients, classes=3, seed=4)
    table = np.zeros((clients, 10), int)
    np.add.at(table, (owner, LABELS), 1)
    assert np.all((table > 0).sum(1) == 3)
    holders = (table > 0).sum(0)
    assert holders.max() - holders.min() <= 1
    for label in range(10):
        sizes = table[table[:, label] > 0, label]
        assert sizes.max() - sizes.min() <= 1


def test_classes_that_cannot_be_held():
    with pytest.raises(ValueError, match="1 to 10 of the 10 labels"):
        partition.classes_per_client(LABELS, 10, classes=11, seed=0)
    with pytest.raises(ValueError, match="3 clients with 3 labels each cannot hold all 10"):
        partition.classes_per_client(LABELS, 3, classes=3, seed=0)
    with pytest.raises(ValueError, match="label 7 has 3 rows for 25 clients; take fewer clients"):
        partition.classes_per_client(np.asarray([7] * 3 + [8] * 97), 50, classes=1, seed=0)


def test_pachinko_clients_are_equal_up_to_the_remainder():
    assert (
        np.bincount(partition.pachinko(FINE, COARSE, 7, alpha=0.1, beta=10.0, seed=0)).tolist()
        == [86] * 5 + [85] * 2
    )


def test_pachinko_concentrates_by_alpha_and_spreads_by_beta():
    owner = partition.pachinko(FINE, COARSE, 30, alpha=0.05, beta=1e4, seed=3)
    coarse = np.zeros((30, 5), int)
    np.add.at(coarse, (owner, COARSE), 1)
    # the first client draws 20 rows before anything runs out: nearly all of one coarse label, its
    # four fine ones alike
    top = coarse[:10].max(1)
    assert np.median(top) >= 17
    fine = np.zeros((30, 20), int)
    np.add.at(fine, (owner, FINE), 1)
    assert np.median(fine[:10].max(1)) <= 10  # multinomial(20, 1/4): mean 5, standard deviation 1.9
    spread = partition.pachinko(FINE, COARSE, 30, alpha=1e4, beta=1e4, seed=3)
    every = np.zeros((30, 5), int)
    np.add.at(every, (spread, COARSE), 1)
    # multinomial(20, 1/5): mean 4, standard deviation 1.79
    assert np.all(np.abs(every.mean(0) - 4) < 1e-9)
    assert np.median(every.max(1)) <= 8


def test_pachinko_needs_a_hierarchy():
    with pytest.raises(ValueError, match="two coarse labels"):
        partition.pachinko(
            np.asarray([0, 0, 1]), np.asarray([0, 1, 1]), 2, alpha=1.0, beta=1.0, seed=0
        )
    with pytest.raises(ValueError, match="3 fine and 2 coarse"):
        unwrap(partition.pachinko)(
            np.asarray([0, 0, 1]), np.asarray([0, 1]), 2, alpha=1.0, beta=1.0, seed=0
        )


def test_by_column_codes_the_values_in_order():
    assert partition.by_column(np.asarray(["b", "a", "b", "c"])).tolist() == [1, 0, 1, 2]
    with pytest.raises(ValueError, match="no rows"):
        partition.by_column(np.asarray([]))


@pytest.mark.parametrize("alpha", [0.0, -1.0, np.inf, np.nan])
def test_concentrations_must_be_positive(alpha):
    with pytest.raises(ValueError, match="alpha must be a positive number"):
        partition.quantity_skew(10, 2, alpha=alpha, seed=0)
