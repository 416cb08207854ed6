"""Tables with named columns."""

import numpy as np
import pandas as pd
import pytest

from covey.data import FederatedData


@pytest.fixture
def hospitals(tmp_path):
    paths = {}
    for position, name in enumerate(("bern", "zug")):
        frame = pd.DataFrame(
            {
                "age": [50.5 + position, 61, 43],
                "smoker": [True, False, True],
                "ill": [0, 1, position],
            }
        )
        paths[name] = tmp_path / f"{name}.csv"
        frame.to_csv(paths[name], index=False)
    return paths


def test_one_file_for_each_client(hospitals):
    data = FederatedData.from_tables(hospitals, outcome="ill", classes=2)
    assert [data.name_of(position) for position in range(2)] == ["bern", "zug"]
    assert data.rows.x.tolist() == [[50.5, 1], [61, 0], [43, 1], [51.5, 1], [61, 0], [43, 1]]
    assert data.rows.y.tolist() == [0, 1, 0, 0, 1, 1]
    assert data.features == ("age", "smoker")
    assert data.rows.y.dtype == np.int32


def test_paths_may_be_text_and_frames_are_tables_too(hospitals):
    mixed = {"bern": str(hospitals["bern"]), "zug": pd.read_csv(hospitals["zug"])}
    one, other = (FederatedData.from_tables(given, outcome="ill") for given in (hospitals, mixed))
    assert np.array_equal(one.rows.x, other.rows.x)


def test_features_choose_columns_and_their_order(hospitals):
    data = FederatedData.from_tables(hospitals, outcome="ill", features=["smoker", "age"])
    assert data.rows.x[0].tolist() == [1, 50.5]
    assert data.features == ("smoker", "age")


def test_columns_are_matched_by_name_and_not_by_index(hospitals):
    frame = pd.read_csv(hospitals["zug"])[["ill", "smoker", "age"]]
    frame.to_csv(hospitals["zug"], index=False)
    data = FederatedData.from_tables(hospitals, outcome="ill")
    assert data.rows.x[3].tolist() == [51.5, 1]
    assert data.features == ("age", "smoker")


def test_one_table_with_a_column_of_clients(hospitals):
    frames = [pd.read_csv(path).assign(site=name) for name, path in reversed(hospitals.items())]
    data = FederatedData.from_table(pd.concat(frames), outcome="ill", client="site", classes=2)
    apart = FederatedData.from_tables(hospitals, outcome="ill", classes=2)
    assert [data.name_of(position) for position in range(2)] == ["bern", "zug"]
    assert np.array_equal(data.rows.x, apart.rows.x)
    assert np.array_equal(data.rows.y, apart.rows.y)
    assert data.features == apart.features == ("age", "smoker")


def test_empty_cells_are_missing_values(hospitals):
    hospitals["zug"].write_text("age,smoker,ill\n,True,0\n44,False,1\n")
    told = r"'zug' has 1 missing .* in .*zug\.csv: 1 in column 'age' \(the first in line 2\)"
    with pytest.raises(ValueError, match=told):
        FederatedData.from_tables(hospitals, outcome="ill")
    data = FederatedData.from_tables(hospitals, outcome="ill", allow_missing=True)
    assert np.isnan(data.rows.x[3, 0])


def refused(message, given, **options):
    with pytest.raises(ValueError, match=message):
        FederatedData.from_tables(given, **{"outcome": "ill", **options})


def test_errors_name_the_file_and_the_column(hospitals):
    refused(
        r"zug\.csv has no column 'weight'; its columns are: age, smoker, ill",
        hospitals | {"bern": hospitals["zug"]},
        features=["weight"],
    )
    refused(r"bern\.csv has no column 'dead'", hospitals, outcome="dead")
    refused("also in `features`", hospitals, features=["age", "ill"])
    refused(r"no file .*basel\.csv", hospitals | {"basel": hospitals["zug"].with_name("basel.csv")})
    refused("no tables", {})
    hospitals["zug"].write_text("age,smoker,ill\nold,1,0\n44,?,1\nyoung,1,1\n")
    refused(
        r"'age' of .*zug\.csv has 2 cells that are not numbers, the first is 'old' in line 2",
        hospitals,
    )
    hospitals["zug"].write_text("age,drinker,ill\n44,1,1\n")
    refused(r"only in .*bern\.csv: \['smoker'\]; only in .*zug\.csv: \['drinker'\]", hospitals)


def test_dates_are_not_numbers():
    frame = pd.DataFrame({"day": pd.to_datetime(["2020-01-01", "2020-01-02"]), "ill": [0, 1]})
    refused(
        "'day' of bern has 2 cells that are not numbers, the first is '2020-01-01' in row 0",
        {"bern": frame},
    )


def test_a_row_without_client_is_refused():
    frame = pd.DataFrame(
        {"age": [1.0, 2.0], "ill": [0, 1], "site": pd.array([1, None], dtype="Int64")}
    )
    with pytest.raises(
        ValueError, match=r"'site' of the table has 1 empty cells, the first in row 1 \(from 0\)"
    ):
        FederatedData.from_table(frame, outcome="ill", client="site")


def test_columns_keep_their_names_through_everything(hospitals):
    data = FederatedData.from_tables(hospitals, outcome="ill", features=["smoker", "age"])
    others = [
        data.split(0.0, 0.3, seed=1),
        data.limited(train_rows=2, seed=1),
        data.subset([1, 0]),
        *data.hold_out(["zug"]),
        data.pooled(),
        data.standardised()[0],
    ]
    assert [other.features for other in others] == [("smoker", "age")] * len(others)


def test_arrays_may_have_names_too():
    x, y = np.zeros((2, 2)), np.zeros(2)
    assert FederatedData.from_arrays(x, y, [0, 1], features=["a", "b"]).features == ("a", "b")
    assert FederatedData.from_clients({"one": (x, y)}, features=["a", "b"]).features == ("a", "b")
    assert FederatedData.from_clients({"one": (x, y)}).features is None


def test_other_data_must_have_the_same_columns(hospitals):
    data = FederatedData.from_tables(hospitals, outcome="ill", features=["smoker", "age"])
    same = FederatedData.from_tables(hospitals, outcome="ill", features=["smoker", "age"])
    assert data.replaced_by(None) is data
    assert data.replaced_by(same) is same
    with pytest.raises(ValueError, match="in another order: age, smoker, and not smoker, age"):
        data.replaced_by(
            FederatedData.from_tables(hospitals, outcome="ill", features=["age", "smoker"])
        )
    with pytest.raises(
        ValueError,
        match=r"smoker missing, none not known; make the data with features=\['smoker', 'age'\]",
    ):
        data.replaced_by(FederatedData.from_tables(hospitals, outcome="ill", features=["age"]))
    nameless = FederatedData.from_clients({"one": (np.zeros((2, 2)), np.zeros(2))})
    assert data.replaced_by(nameless) is nameless
