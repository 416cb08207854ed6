"""Tables of sites as they come: files, folders, words, gaps, and what is wrong with them."""

import numpy as np
import pandas as pd
import pytest

import covey
from covey.fitting.tables import Table, check_name, column, read_table, read_tables


def write(path, text):
    path.write_text(text)
    return path


def test_a_folder_has_one_file_per_site(tmp_path):
    write(tmp_path / "b.csv", "x,y\n1,2\n")
    write(tmp_path / "a.csv", "y,x\n1,2\n3,4\n")
    pd.DataFrame({"x": [1.0]}).to_parquet(tmp_path / "c.parquet")
    write(tmp_path / "README.md", "no table")
    found = read_tables(tmp_path)
    assert {name: len(table.frame) for name, table in found.items()} == {"a": 2, "b": 1, "c": 1}


def test_one_table_is_divided_by_the_client_column(tmp_path):
    path = write(tmp_path / "all.csv", "site,x\n01,1\n1,2\n01,3\n")
    found = read_tables(path, client="site")
    assert {name: column(table, "x").values.tolist() for name, table in found.items()} == {
        "01": [1.0, 3.0],
        "1": [2.0],
    }
    assert found["1"].row(0) == f"{path}, line 3"


def test_federated_data_are_tables_again():
    data = covey.FederatedData.from_clients(
        {"a": ([[1.0, 2.0]], [5.0]), "b": ([[3.0, 4.0]], [6.0])}, features=["u", "v"]
    )
    tables = read_tables(data, outcome="y")
    assert tables["b"].frame.to_dict("list") == {"u": [3.0], "v": [4.0], "y": [6.0]}


@pytest.mark.parametrize(
    ("given", "kind", "values"),
    [
        (["41", "", "NA", "NaN", "?", "null", " 6 "], "number", [41, *[np.nan] * 5, 6]),
        (["f", "?", "m ", None, "none", "None"], "text", ["f", None, "m", None, "none", "None"]),
        ([True, False], "text", ["True", "False"]),
        (["TRUE", "false", ""], "text", ["True", "False", None]),
        ([1, 2], "number", [1, 2]),
        (["", "?"], "empty", [np.nan, np.nan]),
        (pd.array([1, None], dtype="Int64"), "number", [1, np.nan]),
    ],
)
def test_columns_are_numbers_or_words(given, kind, values):
    found = column(Table("a", pd.DataFrame({"c": given})), "c")
    assert found.kind == kind
    if kind == "text":
        assert found.values.tolist() == values
    else:
        np.testing.assert_array_equal(found.values, values)


def test_a_categorical_keeps_its_order():
    given = pd.Categorical(["mild", "severe", None], categories=["severe", "mild"])
    found = column(Table("a", pd.DataFrame({"c": given})), "c")
    assert found.categories == ("severe", "mild")
    assert found.values.tolist() == ["mild", "severe", None]


def test_text_in_a_column_of_numbers_names_file_line_and_value(tmp_path):
    path = write(tmp_path / "va.csv", "id,age\na,41\n\nb,fifty\nc,67\n")
    with pytest.raises(ValueError, match=r"va.csv, line 4: 'age' is a column of numbers.*'fifty'"):
        column(read_table(path, "va"), "age")
    assert column(read_table(path, "va"), "age", is_factor=True).kind == "text"


@pytest.mark.parametrize("name", ["../va", "a/b", "a\\b", ".hidden", "", "a\x00b", "x" * 201])
def test_names_with_path_characters_are_refused(name):
    with pytest.raises(ValueError, match="a site cannot be called"):
        check_name(name)
    with pytest.raises(ValueError, match="a site cannot be called"):
        read_tables({name: pd.DataFrame({"x": [1]})})


def test_errors_of_places(tmp_path):
    with pytest.raises(ValueError, match="is empty; a CSV file starts with"):
        read_table(write(tmp_path / "e.csv", ""), "e")
    with pytest.raises(ValueError, match="there is no file"):
        read_table(tmp_path / "none.csv", "n")
    with pytest.raises(ValueError, match="there is no file"):
        read_table(tmp_path / "none.parquet", "n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no tables"):
        read_tables(tmp_path / "empty")
    with pytest.raises(ValueError, match="needs a column that names the site"):
        read_tables(pd.DataFrame({"x": [1]}))
    with pytest.raises(ValueError, match=r"no column 'sit'.*did you mean 'site'"):
        read_tables(pd.DataFrame({"site": [1]}), client="sit")
    path = write(tmp_path / "gap.csv", "site,x\na,1\n,2\n")
    with pytest.raises(ValueError, match=r"gap.csv, line 3: 'site' is missing"):
        read_tables(path, client="site")
    dates = Table("a", pd.DataFrame({"d": pd.to_datetime(["2020-01-01"])}))
    with pytest.raises(ValueError, match="'d' is a date"):
        column(dates, "d")
    with pytest.raises(ValueError, match="no site was given"):
        read_tables({})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pd.to_timedelta([1, 2], unit="D"), r"'x' is a length of time; .* column\.dt\.days"),
        (pd.period_range("2020-01", periods=2, freq="M"), "'x' is a date"),
        (np.array([1j, 2]), "'x' is complex numbers"),
    ],
)
def test_times_and_complex_numbers_are_no_columns(values, message):
    with pytest.raises(ValueError, match=message):
        column(Table("a", pd.DataFrame({"x": values})), "x")
