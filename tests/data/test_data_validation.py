"""What the constructors refuse, and how they say it."""

import jaxtyping
import numpy as np
import pytest

from covey.core.shard import Rows
from covey.data import FederatedData, values


def clients(**changed):
    base = {
        name: (np.ones((3, 2)) * position, np.asarray([0, 1, 1]))
        for position, name in enumerate(("north", "south", "west"))
    }
    return {**base, **changed}


def test_good_clients_are_accepted_in_the_order_given():
    data = FederatedData.from_clients(clients(), classes=2)
    assert [data.name_of(position) for position in range(3)] == ["north", "south", "west"]
    assert data.ids.tolist() == [0, 1, 2]


def test_an_empty_client_can_be_dropped():
    given = clients(south=(np.ones((0, 2)), np.zeros(0)))
    assert FederatedData.from_clients(given).counts("train").tolist() == [3, 0, 3]
    data = FederatedData.from_clients(given, drop_empty=True)
    assert [data.name_of(position) for position in range(2)] == ["north", "west"]
    assert data.ids.tolist() == [0, 2]  # an id does not move when another client is dropped


def test_missing_features_are_counted_by_client():
    x = np.ones((3, 2))
    x[1, 0] = x[2, 1] = np.nan
    given = clients(west=(x, np.zeros(3)))
    with pytest.raises(
        ValueError,
        match=r"'west' has 2 missing \(NaN\) feature cells: 1 in column 0 \(the first in row 1\),"
        r" 1 in column 1 \(the first in row 2\), rows counted from 0; .*allow_missing=True",
    ):
        FederatedData.from_clients(given)
    kept = FederatedData.from_clients(given, allow_missing=True)
    assert np.isnan(kept.rows.x).sum() == 2


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e300])
def test_infinite_features_are_never_allowed(value):
    x = np.ones((3, 2))
    x[0, 1] = value
    with pytest.raises(ValueError, match="'north' has 1 infinite feature cells"):
        FederatedData.from_clients(clients(north=(x, np.zeros(3))), allow_missing=True)


def test_other_clients_with_the_same_trouble_are_counted():
    x = np.full((3, 2), np.nan)
    with pytest.raises(
        ValueError, match=r"'south' has 6 missing.*\(1 other clients have some too\)"
    ):
        FederatedData.from_clients(clients(south=(x, np.zeros(3)), west=(x, np.zeros(3))))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_outcomes_must_be_finite(value):
    given = clients(south=(np.ones((3, 2)), np.asarray([0, value, 1])))
    for classes in (None, 2):
        with pytest.raises(ValueError, match="'south' has 1 outcomes that are not finite"):
            FederatedData.from_clients(given, classes=classes, allow_missing=True)


@pytest.mark.parametrize(("label", "said"), [(2, "2"), (-1, "-1"), (0.5, "0.5")])
def test_labels_must_be_known(label, said):
    given = clients(south=(np.ones((3, 2)), np.asarray([0, 1, label])))
    with pytest.raises(ValueError, match=rf"'south' has the label {said}.*in 0..1"):
        FederatedData.from_clients(given, classes=2)


def test_one_class_is_no_classification():
    with pytest.raises(ValueError, match="classes=1"):
        FederatedData.from_clients(clients(), classes=1)


def test_widths_must_agree():
    with pytest.raises(ValueError, match=r"'north' has shape \(2,\) per row, 'west' has \(3,\)"):
        FederatedData.from_clients(clients(west=(np.ones((3, 3)), np.zeros(3))))


def test_features_and_outcomes_must_have_the_same_length():
    with pytest.raises(ValueError, match="'west' has 3 rows of features and 2 outcomes"):
        FederatedData.from_clients(clients(west=(np.ones((3, 2)), np.zeros(2))))


def test_no_rows_at_all():
    with pytest.raises(ValueError, match="no rows at all; name their clients with `clients`"):
        FederatedData.from_arrays(np.zeros((0, 2)), np.zeros(0), np.zeros(0, int))
    with pytest.raises(ValueError, match="no clients"):
        FederatedData.from_clients({})


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ([3, 3], "two clients have the id 3"),
        ([0, 2**31], "must be in 0.."),
        ([-1, 0], "must be in 0.."),
        ([0], "1 ids"),
    ],
)
def test_ids_are_checked(identity, message):
    with pytest.raises(ValueError, match=message):
        FederatedData.from_rows(Rows(np.ones((4, 1)), np.ones(4)), [2, 2], ids=identity)


def test_names_are_checked():
    rows = Rows(np.ones((4, 1)), np.ones(4))
    with pytest.raises(ValueError, match="two clients have the name a"):
        FederatedData.from_rows(rows, [2, 2], names=["a", "a"])
    with pytest.raises(ValueError, match="3 names were given for 2 clients"):
        FederatedData.from_rows(rows, [2, 2], names=["a", "b", "c"])


def test_counts_must_add_up():
    with pytest.raises(ValueError, match=r"\[4\] rows.*clients 5"):
        FederatedData.from_rows(Rows(np.ones((4, 1)), np.ones(4)), [2, 3])
    with pytest.raises(ValueError, match="counts must be"):
        FederatedData.from_rows(Rows(np.ones((4, 1)), np.ones(4)), [5, -1])


@pytest.mark.parametrize("client", [np.asarray([1.0, np.nan]), np.asarray(["a", None], object)])
def test_every_row_needs_a_client(client):
    with pytest.raises(ValueError, match="missing labels"):
        FederatedData.from_arrays(np.ones((2, 1)), np.ones(2), client)
    with pytest.raises(ValueError, match="one label for each of the 2 rows"):
        FederatedData.from_arrays(np.ones((2, 1)), np.ones(2), [0])


def test_text_is_refused():
    with pytest.raises(ValueError, match="features must be numbers"):
        FederatedData.from_arrays(np.asarray([["red"], ["blue"]]), np.ones(2), [0, 1])
    with pytest.raises(ValueError, match="outcomes must be numbers"):
        FederatedData.from_arrays(np.ones((2, 1)), np.asarray(["yes", "no"]), [0, 1])


def test_codes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="outside the range of int32"):
        FederatedData.from_arrays(np.asarray([[0], [2**40]]), np.ones(2), [0, 1])


def test_rows_are_checked_in_blocks_and_found_in_the_right_client(monkeypatch):
    monkeypatch.setattr(values, "_BLOCK_BYTES", 64)  # two rows of four float64
    sizes = []

    class Spied(np.ndarray):
        def __getitem__(self, key):
            got = super().__getitem__(key)
            if isinstance(got, np.ndarray):
                sizes.append(len(got))
            return got

    x = np.ones((50, 4))
    x[37, 2] = np.nan
    with pytest.raises(ValueError, match="client '3' has 1 missing"):
        FederatedData.from_rows(Rows(x.view(Spied), np.ones(50)), [10, 10, 10, 10, 10])
    assert max(sizes) == 2
    assert sum(sizes) >= 50


@pytest.mark.parametrize(
    ("x", "features", "told"),
    [
        (np.zeros((2, 2)), ["a"], "1 names were given for 2 columns of x"),
        (np.zeros((2, 2)), ["a", "a"], "two columns have the name 'a'"),
        (np.zeros((2, 2)), "ab", "a list of names, got 'ab'"),
        (np.zeros((2, 2, 1)), ["a", "b"], "not a list of numbers; leave it out"),
        (np.zeros(2), ["a"], "not a list of numbers; leave it out"),
    ],
)
def test_names_of_columns_are_checked(x, features, told):
    with pytest.raises(ValueError, match=told):
        FederatedData.from_rows(Rows(x, np.zeros(2)), [1, 1], features=features)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (np.zeros((3, 2)), r"got an array of shape \(3, 2\)"),
        (np.zeros((2, 2)), r"got an array of shape \(2, 2\)"),  # which would unpack
        (([[1.0]], [1], [2]), "got 3 values"),
        ("x", "got str"),
    ],
)
def test_a_client_without_a_pair_is_named(given, told):
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)  # as for users: types are not checked
    try:
        with pytest.raises(ValueError, match=rf"client 'a' needs a pair \(x, y\) .*{told}"):
            FederatedData.from_clients({"a": given})
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
