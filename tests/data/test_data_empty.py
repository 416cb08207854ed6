"""Clients without rows: possible wherever data are made, divided, scaled and stored."""

import warnings

import numpy as np
import pandas as pd
import pytest

from covey.core.shard import Rows
from covey.data import SPLITS, FederatedData, summarise
from covey.runs.digest import data_digest

BERN = (np.arange(12.0).reshape(6, 2), np.arange(6) % 2)
NEW = (np.zeros((0, 2)), np.zeros(0))


def with_new(**changed):
    return FederatedData.from_clients({"new": NEW, "bern": BERN, "late": NEW, **changed}, classes=2)


def test_arrays_of_clients_may_be_empty():
    data = with_new(later=([], []))
    assert data.counts("train").tolist() == [0, 6, 0, 0]
    assert [data.name_of(position) for position in range(4)] == ["new", "bern", "late", "later"]
    assert data.rows_of(0, "train").x.shape == (0, 2)
    rows = FederatedData.from_rows(Rows(*BERN), [0, 6, 0])
    assert rows.counts("train").tolist() == [0, 6, 0]


def test_an_empty_client_does_not_change_the_type_of_the_others():
    image = (np.zeros((2, 3, 3), np.uint8), [0, 1])
    for empty in ((np.zeros((0, 3, 3)), []), ([], [])):
        data = FederatedData.from_clients({"a": empty, "b": image}, classes=2)
        assert data.rows.x.dtype == np.uint8


def test_an_empty_table_of_other_columns_is_refused():
    with pytest.raises(ValueError, match=r"'bern' has shape \(2,\) per row, 'odd' has \(3,\)"):
        FederatedData.from_clients({"bern": BERN, "odd": (np.zeros((0, 3)), [])})


def test_all_clients_may_be_empty_and_their_columns_are_known():
    data = FederatedData.from_clients({"new": ([], [])}, features=["age", "dose"])
    assert (data.rows.x.shape, data.clients, data.spec.examples) == ((0, 2), 1, 0)
    with pytest.raises(ValueError, match="no client has rows, and drop_empty=True"):
        FederatedData.from_clients({"new": ([], [])}, features=["age"], drop_empty=True)


def test_clients_that_no_row_names_can_be_listed():
    owner = ["zug", "bern", "zug"]
    x, y = np.arange(3.0)[:, None], [0, 1, 2]
    data = FederatedData.from_arrays(x, y, owner, clients=["zug", "new", "bern"])
    assert [data.name_of(position) for position in range(3)] == ["zug", "new", "bern"]
    assert data.counts("train").tolist() == [2, 0, 1]
    assert data.rows.y.tolist() == [0, 2, 1]
    numbered = FederatedData.from_arrays(x, y, [7, 3, 7], clients=["3", "5", "7"])
    assert (numbered.ids.tolist(), numbered.counts("train").tolist()) == ([3, 5, 7], [1, 0, 2])
    nobody = FederatedData.from_arrays(x[:0], [], [], clients=["a", "b"])
    assert nobody.counts("train").tolist() == [0, 0]
    with pytest.raises(ValueError, match="a client 'bern' that is not in `clients`"):
        FederatedData.from_arrays(x, y, owner, clients=["zug"])
    with pytest.raises(ValueError, match="two clients have the name zug"):
        FederatedData.from_arrays(x, y, owner, clients=["zug", "bern", "zug"])


def test_one_table_may_lack_rows_of_a_client(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("site,age,ill\n7,50,0\n3,61,1\n")
    data = FederatedData.from_table(path, outcome="ill", client="site", clients=["3", "5", "7"])
    assert (data.ids.tolist(), data.counts("train").tolist()) == ([3, 5, 7], [1, 0, 1])
    path.write_text("site,age,ill\n")
    empty = FederatedData.from_table(path, outcome="ill", client="site", clients=["a"])
    assert empty.rows.x.shape == (0, 1)


def test_a_file_with_a_header_only_is_a_client_without_rows(tmp_path):
    paths = {name: tmp_path / f"{name}.csv" for name in ("bern", "zug")}
    paths["bern"].write_text("age,ill\n50,0\n61,1\n")
    paths["zug"].write_text("age,ill\n")
    with pytest.warns(UserWarning, match=r"client 'zug' has no rows: .*zug\.csv"):
        data = FederatedData.from_tables(paths, outcome="ill")
    assert data.counts("train").tolist() == [2, 0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dropped = FederatedData.from_tables(paths, outcome="ill", drop_empty=True)
        frames = {name: pd.read_csv(path) for name, path in paths.items()}
        known = FederatedData.from_tables(frames, outcome="ill")
    assert dropped.clients == 1
    assert known.counts("train").tolist() == [2, 0]


def test_empty_clients_go_through_everything(tmp_path):
    data = with_new().split(0.2, 0.3, seed=1)
    assert [data.counts(split).tolist() for split in SPLITS] == [[0, 3, 0], [0, 1, 0], [0, 2, 0]]
    scaled, scaling = data.standardised()
    assert np.array_equal(scaling.mean, data.rows_of(1, "train").x.mean(0))
    none = scaled.limited(train_rows=0, seed=1)
    assert [none.counts(split)[1] for split in SPLITS] == [0, 1, 2]
    some = scaled.limited(few_rows=0, few_share=1.0, train_rows=2, seed=1)
    assert some.counts("train").tolist() == [0, 0, 0]
    rest, alone = scaled.hold_out(["late"])
    assert (rest.clients, alone.rows.x.shape) == (2, (0, 2))
    raw = data.hold_out(["late"])[1].split(seed=3)
    assert raw.standardised(scaling=scaling)[0].rows.x.shape == (0, 2)
    assert data.pooled().counts("train").tolist() == [3]
    shared = summarise(data, groups=1, at_least=1, seed=0)
    assert shared.group_sizes.tolist() == [3]
    for index, part in enumerate((scaled, alone, none)):
        part.save(tmp_path / str(index))
        again = FederatedData.open(tmp_path / str(index))
        assert data_digest(again) == data_digest(part)
        assert again.rows.x.shape == part.rows.x.shape


def test_no_training_rows_cannot_give_a_scale():
    with pytest.raises(ValueError, match="no training rows to take means and scales from"):
        with_new().as_test().standardised()


def test_as_test_leaves_nothing_to_train_on():
    data = with_new().split(0.2, 0.3, seed=1)
    only = data.as_test()
    assert [only.counts(split).tolist() for split in SPLITS] == [[0, 0, 0], [0, 0, 0], [0, 6, 0]]
    assert only.spec.examples == 0
    assert np.shares_memory(only.rows.x, data.rows.x)
    assert np.array_equal(only.rows_of(1, "test").x, data.rows.x)
