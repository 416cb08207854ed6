"""Small counts at a site: what a study of a formula learns does not depend on a few rows."""

import json

import numpy as np
import pandas as pd
import pytest

from covey.deploy import fit_rows
from covey.deploy.fit_said import description_of
from covey.deploy.refusal import DeclinedError
from covey.deploy.site_file import read
from covey.deploy.site_table import open_table
from covey.deploy.study import of_formula
from covey.fitting.combination import combine
from covey.fitting.description import describe
from covey.fitting.priors import Statistics
from covey.fitting.tables import Table
from site_folders import table_of, write_site

FORMULA = "ill ~ age + sex + (1 | hospital)"


def site_of(folder, table, **limits):
    return read(write_site(folder, "basel", table, {"limits": limits} if limits else None))


def with_levels(counts: dict[str, int], seed: int = 0) -> pd.DataFrame:
    table = table_of(seed, sum(counts.values()))
    return table.assign(sex=np.repeat(list(counts), list(counts.values())))


def described(site, study):
    return fit_rows.described(site, study, open_table(site))


def said_in_all(folder, table, study, **limits):
    """All that leaves before the first round: the description, and sums over the rows."""
    site = site_of(folder, table, **limits)
    said = described(site, study)
    other = Table("bern", pd.concat([table_of(7, 80), table_of(8, 80)]))
    options = {"missing": study.tables["fit"]["missing"]}
    both = [description_of(study, "basel", said), describe(other, study.formula, **options)]
    design = combine(both, study.formula, **options)
    found = fit_rows.made(site, design, open_table(site))
    sums = Statistics.of(design, found.rows)._asdict()
    return json.loads(json.dumps({**said, "sums": sums})), found


def rare_level(table):
    table.loc[:3, "sex"] = "x"
    return range(4), FORMULA, {}


def rare_cell(table):
    """Each level has many rows, and their combination three."""
    table["sex"] = ["f"] * 30 + ["m"] * 30
    table["ward"] = ["north"] * 27 + ["south"] * 18 + ["north"] * 15
    return range(27, 30), "ill ~ age + sex * ward + (1 | hospital)", {}


def few_ones(table):
    """The mean of a column of 0 and 1 times the number of rows is a count."""
    table["dose"] = [1] * 2 + [0] * 58
    return range(2), "ill ~ age + dose + (1 | hospital)", {}


def few_above(table):
    table["age"] = [95.0] * 3 + list(np.linspace(30, 80, 57))
    return range(3), "ill ~ age + I(age > 90) + (1 | hospital)", {}


def few_gaps(table):
    """Missing values that would be filled are counted by what the mean becomes."""
    table.loc[:2, "age"] = np.nan
    return range(3), FORMULA, {"missing": "impute"}


def one_after_another(table):
    """Without the rows of one rare level another level is rare."""
    table["sex"] = ["x"] * 4 + ["f"] * 28 + ["m"] * 28
    table["ward"] = ["east"] * 6 + ["north"] * 27 + ["south"] * 27
    return range(6), "ill ~ ward + sex + (1 | hospital)", {}


CASES = [rare_level, rare_cell, few_ones, few_above, few_gaps, one_after_another]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_leaves_is_what_a_table_without_the_rare_rows_would_send(tmp_path, case):
    """Then nobody can read how many there are, neither directly nor by what is left of a sum."""
    table = table_of(1)
    gone, formula, options = case(table)
    study = of_formula("a", formula, **options)
    one, found = said_in_all(tmp_path / "all", table, study)
    other, _ = said_in_all(tmp_path / "fewer", table.drop(index=gone), study)
    assert one.pop("withheld")  # that something is left out is told, and nothing more
    assert not other.pop("withheld")
    assert one == other
    assert sum(rare.rows for rare in found.rare) == len(gone)  # the owner learns how many
    assert len(found.table.frame) == 60 - len(gone)
    used, _ = said_in_all(tmp_path / "used", table, study, rare_levels="use")
    assert used["sums"]["outcome"][0] == 60


def test_rare_levels_are_not_named_unless_the_owner_says_so(tmp_path):
    table, study = with_levels({"f": 30, "m": 28, "x": 4, "y": 5}), of_formula("a", FORMULA)
    found = described(site_of(tmp_path / "drop", table), study)
    assert [level for level, _ in found["levels"]["sex"]] == ["f", "m", "y"]
    assert found["withheld"] == ("sex",)
    assert (found["complete"], found["rows"]) == (63, 63)
    assert '"x"' not in json.dumps(found)
    assert str(tmp_path) not in json.dumps(found)
    found = described(site_of(tmp_path / "use", table, rare_levels="use"), study)
    assert [level for level, _ in found["levels"]["sex"]] == ["f", "m", "x", "y"]
    assert (found["withheld"], found["complete"]) == ((), 67)


@pytest.mark.parametrize("rule", ["use", "drop"])
def test_a_column_that_names_rows_is_not_sent(tmp_path, rule):
    table = table_of(1).assign(sex=[f"Smith {min(at, 58)}" for at in range(60)])
    site = site_of(tmp_path, table, rare_levels=rule)
    with pytest.raises(DeclinedError, match=r"names rows|fewer than 20") as error:
        described(site, of_formula("a", FORMULA))
    assert "Smith" not in error.value.why
    if rule == "drop":
        assert "sex is 'Smith 7' (1); 51 more" in error.value.detail


def test_counts_of_gaps_are_told_in_steps(tmp_path):
    """Two of them and the number of dropped rows would tell how many rows have both."""
    table = with_levels({"f": 30, "m": 30})
    table.loc[:6, "age"] = np.nan
    table.loc[6:17, "dose"] = np.nan
    table.loc[20:23, "ward"] = np.nan
    study = of_formula("a", "ill ~ age + dose + sex + ward + (1 | h)")
    found = described(site_of(tmp_path, table), study)
    assert found["missing"] == {"age": 5, "dose": 10, "sex": 0, "ward": 0, "ill": 0}
    assert (found["complete"], found["rows"]) == (38, 58)


@pytest.mark.parametrize(("gaps", "count"), [(1, 59), (4, 56), (5, 60)])
def test_two_sums_do_not_differ_by_a_few_rows(tmp_path, gaps, count):
    """The mean age of 60 rows and that of 59 of them tell the age of one."""
    table = with_levels({"f": 30, "m": 30})
    table.loc[: gaps - 1, "dose"] = np.nan
    study = of_formula("a", "ill ~ scale(age) + dose + (1 | h)")
    found = described(site_of(tmp_path, table), study)
    assert found["moments"]["scale(age)"].count == count
    assert found["complete"] == 60 - gaps


def test_sizes_of_groups_inside_a_site_are_not_told(tmp_path):
    table = table_of(1).assign(ward=["north"] * 57 + ["south"] * 3)
    said, _ = said_in_all(tmp_path, table, of_formula("a", "gain ~ age + (1 | ward)"))
    assert set(said["sums"]["columns"]) == {"age"}


def test_a_value_of_the_outcome_that_few_rows_have_keeps_the_site_out(tmp_path):
    table = table_of(1).assign(ill=["yes"] * 4 + ["no"] * 56)
    study = of_formula("a", FORMULA)
    with pytest.raises(DeclinedError, match="one value of the outcome") as error:
        described(site_of(tmp_path / "drop", table), study)
    assert "4" not in error.value.why
    assert "ill is 'yes' in 4 rows" in error.value.detail
    found = described(site_of(tmp_path / "use", table, rare_levels="use"), study)
    assert found["outcome"]["values"] == ["no", "yes"]
