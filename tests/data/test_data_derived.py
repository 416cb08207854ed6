"""Columns that clients make of their own columns."""

import numpy as np
import pytest

from covey.data import FederatedData

DATA = FederatedData.from_clients(
    {"a": ([[1.0, 2.0], [3.0, 4.0]], [0, 1]), "b": ([[5.0, 6.0]], [2]), "new": ([], [])},
    features=["age", "urban"],
)


def test_squares_interactions_and_means_of_a_client():
    """A function sees the rows of one client, also the columns made before it."""
    more = DATA.with_columns(
        square=lambda row: row["age"] ** 2,
        both=lambda row: row["square"] * row["urban"],
        centred=lambda row: row["age"] - (row["age"].mean() if len(row["age"]) else 0),
        one=lambda row: 1.0,
        urban=lambda row: -row["urban"],
    )
    assert more.features == ("age", "urban", "square", "both", "centred", "one")
    assert more.rows.x.tolist() == [
        [1, -2, 1, 2, -1, 1],
        [3, -4, 9, 36, 1, 1],
        [5, -6, 25, 150, 0, 1],
    ]
    assert more.spec.rows.x.shape == (6,)
    assert more.counts("train").tolist() == [2, 1, 0]
    assert DATA.features == ("age", "urban")


@pytest.mark.parametrize(
    ("data", "function", "message"),
    [
        (DATA, lambda row: row["agee"], "'new_' is made of 'agee', but the columns are age, urban"),
        (DATA, lambda row: np.ones(7), r"of client 'a' has shape \(7,\); .* each of its 2 rows"),
        (DATA, lambda row: row["age"] / 0 if len(row["age"]) else 0.0, "client 'a': 2 values"),
        (DATA.standardised()[0], lambda row: row["age"], "are standardised; make columns before"),
        (
            FederatedData.from_clients({"a": ([[1.0]], [0])}),
            lambda row: row["age"],
            "needs named columns",
        ),
    ],
)
def test_what_cannot_be_made(data, function, message):
    with np.errstate(divide="ignore"), pytest.raises(ValueError, match=message):
        data.with_columns(new_=function)
