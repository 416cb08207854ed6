"""The demonstration is made of commands that users type."""

import pandas as pd
import pytest

from command_line import call
from covey.cli import demonstrating


def test_the_tables_are_what_hospitals_have(tmp_path):
    demonstrating.write_tables(tmp_path)
    names = sorted(path.stem for path in (tmp_path / "hospitals").iterdir())
    assert names == ["cleveland", "hungarian", "switzerland"]
    table = pd.read_csv(tmp_path / "new" / "va.csv")
    assert len(table) == 200
    assert set(table["sex"]) == {"male", "female"}
    assert set(table["disease"]) == {"yes", "no"}
    assert "disease" not in pd.read_csv(tmp_path / "new" / "patients.csv")


@pytest.mark.slow
def test_the_demonstration_runs(tmp_path):
    code, output = call("demo", "--out", tmp_path)
    assert code == 0, output
    for told in ("$ covey fit", "$ covey predict", "$ covey add-client", "va added", "The maximum"):
        assert told in output
    page = (tmp_path / "heart" / "report.html").read_text()
    assert "Added without a refit: va" in page
