"""CSV files that cannot be read in one way only: errors name the file, the line and the remedy."""

import gzip

import numpy as np
import pandas as pd
import pytest

from covey.core.shard import Rows
from covey.data import FederatedData
from covey.data.csv_files import line_of, read


@pytest.fixture
def told(tmp_path):
    """The error for a file with this content."""

    def of(content, name="a.csv", **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(ValueError) as error:  # noqa: PT011  # the tests look at the message
            FederatedData.from_tables({"bern": path}, **{"outcome": "ill", **options})
        assert str(path) in str(error.value)
        return str(error.value).replace(str(tmp_path), "")

    return of


def test_two_columns_of_one_name(told):
    said = told("age,age,ill\n1,2,0\n3,4,1\n")
    assert "/a.csv, line 1: two columns have the name 'age'; rename one" in said
    frame = pd.DataFrame([[1, 2, 0]], columns=["age", "age", "ill"])
    with pytest.raises(ValueError, match="bern: two columns have the name 'age'"):
        FederatedData.from_tables({"bern": frame}, outcome="ill")


@pytest.mark.parametrize("line", ["1,2,3,4", "1,2"])
def test_a_line_of_another_length(told, line):
    # pandas fills a short line with gaps, in silence
    said = told(f"ill,age,dose\n0,1,2\n\n1,2,3\n{line}\n", allow_missing=True)
    fields = line.count(",") + 1
    assert f"/a.csv, line 5: {fields} fields, but the header has 3; correct the line" in said


def test_a_header_that_is_too_short(told):
    # pandas takes the first column for the row names then, and every column for its neighbour
    assert "line 2: 3 fields, but the header has 2" in told("age,ill\n1,2,0\n3,4,1\n")


def test_latin_1(told):
    said = told("age,ill,ort\n1,0,Bern\n2,1,Zürich\n".encode("latin-1"), features=["age"])
    assert "/a.csv, line 3: the text is not UTF-8 near '2,1,Zürich' (read as Latin-1)" in said
    assert "pandas.read_csv('a.csv', encoding='latin-1') and pass the data frame" in said


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file(told, content):
    assert told(content) == "/a.csv is empty; a CSV file starts with a line of column names"


def test_a_header_without_rows(tmp_path):
    with pytest.raises(ValueError, match=r"/all\.csv has a header and no rows; is it the right"):
        table(tmp_path, "site,age,ill\n")


def test_semicolons_and_decimal_commas(tmp_path, told):
    path = tmp_path / "a.csv"
    path.write_text('age, y;note;dose\n41;"a;b";1,5\n\n67;x,y;-2\n')
    frame = read(path)
    assert frame["dose"].tolist() == [1.5, -2.0]
    assert frame["age, y"].tolist() == [41, 67]
    assert frame["note"].tolist() == ["a;b", "x,y"]
    assert read(path, as_text=None)["dose"].tolist() == ["1.5", "-2"]
    assert line_of(path, 1) == 4
    assert "decimal comma (line 2) and with a decimal point (line 3)" in told(
        "age;ill\n1,5;0\n2.5;1\n"
    )
    assert "line 3: 1 fields, but the header has 2; correct the line (a text with a semicolon" in (
        told("age;ill\n1;0\n2,1\n")
    )


def test_tabs(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("age\till\n1.5\t0\n")
    assert read(path).to_dict("list") == {"age": [1.5], "ill": [0]}


def test_utf_16(told):
    assert "is UTF-16 text; save it as UTF-8" in told("age\till\n1\t0\n".encode("utf-16"))


def test_a_column_of_row_numbers(told):
    assert "a column without a name, as R and pandas write" in told(",age,ill\n1,50,0\n2,61,1\n")


def test_archives(told):
    assert "/a.zip is an archive; unpack it" in told(b"PK", name="a.zip")


def test_text_in_a_numeric_column(told):
    content = 'note,age,ill\n"two\nlines",1,0\n\nx,old,1\ny,?,1\n'
    said = told(content, features=["age"])
    assert "column 'age' of /a.csv has 2 cells that are not numbers" in said
    assert "the first is 'old' in line 5;" in said


def test_missing_cells_and_outcomes(told):
    said = told("age,dose,ill\n1,,0\n2,,1\n,4,1\n")
    assert "client 'bern' has 3 missing (NaN) feature cells in /a.csv: " in said
    assert (
        "1 in column 'age' (the first in line 4), 2 in column 'dose' (the first in line 2)" in said
    )
    said = told("age,ill\n1,0\n2,\n")
    assert "the outcome 'ill' of /a.csv is missing in 1 rows, the first is line 3" in said


def test_the_missing_cells_of_one_client_in_a_table_of_all(tmp_path):
    path = tmp_path / "all.csv"
    path.write_text("site,age,ill\nzug,1,0\nbern,,1\nzug,,1\nbern,3,1\nbern,,0\n")
    with pytest.raises(ValueError, match=r"client 'bern' has 2 missing .* first in line 3\)"):
        FederatedData.from_table(path, outcome="ill", client="site")


def test_a_column_that_is_nearly_there(told):
    assert "has no column 'Ill' (did you mean 'ill'?)" in told("age,ill\n1,0\n", outcome="Ill")
    assert "(did you mean ' ill'?)" in told("age, ill\n1,0\n")


def test_what_is_written_well_is_read(tmp_path):
    text = '\ufeffage,note,ill\n1,"a,b",0\n\n   \n2,"c\nd",1\n'
    path = tmp_path / "a.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        file.write(text)
    assert read(path)["note"].tolist() == ["a,b", "c\nd"]
    assert [line_of(path, row) for row in (-1, 0, 1)] == [1, 2, 5]


def table(tmp_path, content):
    path = tmp_path / "all.csv"
    path.write_text(content)
    return FederatedData.from_table(path, outcome="ill", client="site")


def test_labels_of_clients_stay_as_they_are_written(tmp_path):
    # pandas makes one number of 01 and 1, and a gap of NA
    data = table(tmp_path, "site,age,ill\n01,1,0\n1,2,1\nNA,3,1\n")
    assert [data.name_of(position) for position in range(3)] == ["01", "1", "NA"]
    assert table(tmp_path, "site,age,ill\n10,1,0\n9,2,1\n").ids.tolist() == [9, 10]
    with pytest.raises(ValueError, match="has 1 empty cells, the first in line 3"):
        table(tmp_path, "site,age,ill\n10,1,0\n,2,1\n")


def test_names_that_are_nearly_the_same(tmp_path):
    with pytest.raises(ValueError, match="client names 'a' and 'a ' differ only in white space"):
        table(tmp_path, "site,age,ill\na,1,0\na ,2,1\nb,3,1\n")
    with pytest.raises(ValueError, match="names 'St  Gall' and 'St Gall' differ only in white"):
        table(tmp_path, "site,age,ill\nSt Gall,1,0\nSt  Gall,2,1\n")
    with pytest.warns(UserWarning, match="client names 'A' and 'a' differ only in upper and lower"):
        data = table(tmp_path, "site,age,ill\na,1,0\nA,2,1\nb,3,1\n")
    assert data.clients == 3


def test_a_constant_outcome(tmp_path):
    with pytest.warns(UserWarning, match="outcome 'ill' is 1 in all 3 rows: there is nothing"):
        table(tmp_path, "site,age,ill\na,1,1\na,2,1\nb,3,1\n")
    with pytest.warns(UserWarning, match="'ill' does not vary within any client"):
        table(tmp_path, "site,age,ill\na,1,1\na,2,1\nb,3,0\nb,3,0\nc,3,1\n")
    # one client of one value is no reason for a warning, nor are clients of a single row
    table(tmp_path, "site,age,ill\na,1,1\na,2,1\nb,3,0\nb,3,1\n")
    table(tmp_path, "site,age,ill\na,1,1\nb,3,0\nc,4,2\n")


def test_an_outcome_without_a_name_that_is_constant():
    x, ones, zeros = np.arange(4.0)[:, None], np.ones(4), np.zeros(4)
    with pytest.warns(UserWarning, match="the outcome is 1 in all 4 rows: there is nothing"):
        FederatedData.from_arrays(x, ones, [0, 0, 1, 1])
    with pytest.warns(UserWarning, match="the outcome is 1 in all 8 rows"):
        FederatedData.from_clients({"a": (x, ones), "b": (x, ones)})
    with pytest.warns(UserWarning, match="the outcome is 0 in all 4 rows"):
        FederatedData.from_rows(Rows(x, zeros), [3, 1], classes=2)
    # zeros without classes are data without an outcome, and one hospital may have the ill only
    FederatedData.from_rows(Rows(x, zeros), [3, 1])
    FederatedData.from_clients({"a": (x, ones)})


def test_two_columns_with_the_same_values(tmp_path):
    rows = "a,1,1,1.0,0,0,0\na,0,2,2,0,0,0\nb,1,2,2,0,0,0\nb,0,,,0,1,1\n"
    path = tmp_path / "all.csv"
    path.write_text("site,ill,dose,dose2,nil,x,y\n" + rows + "c,1,2,2,0,1,0\n")
    frame = pd.read_csv(path)
    options = {"outcome": "ill", "allow_missing": True}
    said = "^columns 'dose' and 'dose2' have the same values in all 5 rows: .* with `features`"
    with pytest.warns(UserWarning, match=said) as caught:
        FederatedData.from_table(path, client="site", **options)
    assert len(caught) == 1
    with pytest.warns(UserWarning, match=said):
        FederatedData.from_tables(
            {"a": frame[:2], "b": frame[2:]}, features=list(frame)[2:], **options
        )
    FederatedData.from_table(path, client="site", features=["dose", "nil", "x", "y"], **options)


def test_a_given_split(tmp_path):
    path = tmp_path / "all.csv"
    rows = ["b,1,0,test", "a,2,1,train", "b,3,1,train", "b,4,0,validation", "b,5,1,train"]
    path.write_text("site,age,ill,use\n" + "\n".join(rows) + "\n")
    options = {"outcome": "ill", "split_column": "use"}
    data = FederatedData.from_table(path, client="site", **options)
    assert data.features == ("age",)
    assert data.bounds.tolist() == [[0, 1, 1, 1], [1, 3, 4, 5]]
    assert data.rows.x[:, 0].tolist() == [2, 3, 5, 4, 1]
    assert data.rows.y.tolist() == [1, 1, 1, 0, 0]
    frame = pd.read_csv(path)
    parts = {name: frame[frame.site == name].drop(columns="site") for name in ("a", "b")}
    apart = FederatedData.from_tables(parts, **options)
    assert (apart.bounds.tolist(), apart.features) == (data.bounds.tolist(), ("age",))
    assert apart.rows.x.tolist() == data.rows.x.tolist()
    path.write_text(path.read_text() + "a,6,0,Test\n")
    message = (
        r"all\.csv, line 7, column 'use': 'Test' is not a split; write train, validation or test"
    )
    with pytest.raises(ValueError, match=message):
        FederatedData.from_table(path, client="site", **options)
    with pytest.raises(ValueError, match="has no column 'used'"):
        FederatedData.from_table(path, outcome="ill", client="site", split_column="used")
    with pytest.raises(ValueError, match="split_column 'use' is also in `features`"):
        FederatedData.from_table(path, client="site", features=["age", "use"], **options)


def test_given_splits_of_arrays():
    clients = {"a": ([[1.0], [2.0]], [0, 1]), "b": ([[3.0]], [1]), "c": ([], [])}
    splits = {"a": ["test", "train"], "b": ["validation"], "c": []}
    data = FederatedData.from_clients(clients, splits=splits)
    assert data.bounds.tolist() == [[0, 1, 1, 2], [2, 2, 3, 3], [3, 3, 3, 3]]
    assert data.rows.x[:, 0].tolist() == [2, 1, 3]
    message = r"client 'a', row 1 \(from 0\): 'dev' is not a split"
    with pytest.raises(ValueError, match=message):
        FederatedData.from_clients(clients, splits={**splits, "a": ["test", "dev"]})
    with pytest.raises(ValueError, match="splits must have the same clients as the data; see 'c'"):
        FederatedData.from_clients(clients, splits={"a": splits["a"], "b": splits["b"]})
    with pytest.raises(ValueError, match=r"one label for each of the 3 rows, got shape \(2,\)"):
        FederatedData.from_clients(clients, splits={**splits, "a": ["test"]})
