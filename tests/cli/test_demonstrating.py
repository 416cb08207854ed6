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


def test_a_folder_of_the_user_is_left_alone(tmp_path):
    """A fit of an earlier demonstration is removed, and nothing else."""
    (tmp_path / "heart").mkdir()
    (tmp_path / "heart" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="is not a fit of an earlier demonstration"):
        demonstrating.write_tables(tmp_path)
    assert (tmp_path / "heart" / "notes.txt").exists()
    (tmp_path / "heart" / "config.toml").write_text("")
    demonstrating.write_tables(tmp_path)
    assert not (tmp_path / "heart").exists()


@pytest.mark.slow
def test_the_demonstration_runs(tmp_path):
    code, output = call("demo", "--out", tmp_path)
    assert code == 0, output
    for told in ("$ covey fit", "$ covey predict", "$ covey add-client", "va added", "The maximum"):
        assert told in output
    page = (tmp_path / "heart" / "report.html").read_text()
    assert "Added without a refit: va" in page
