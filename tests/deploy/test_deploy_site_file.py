"""site.toml: what is read, and mistakes by file and key."""

import pytest

from covey.deploy.site_file import SiteFileError, read
from site_folders import table_of, write_site


def site(tmp_path, **changes):
    return write_site(tmp_path, "basel", table_of(1), changes)


def test_a_site_file_is_read_with_absolute_paths_and_defaults(tmp_path):
    found = read(site(tmp_path))
    assert found.data.table == tmp_path / "table.csv"
    assert found.site.state == tmp_path / "covey-site"
    assert (found.limits.min_rows, found.limits.min_count, found.metrics.shown_to) == (
        20,
        5,
        "nobody",
    )
    assert found.privacy.randomness == "secret"


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        (
            {"limits": {"min_count": 3}},
            "limits.min_count",
            "got 3, and a number of at least 5 is needed; or leave the key out for 5",
        ),
        ({"limits": {"most_rounds": -1}}, "limits.most_rounds", "got -1, and a number of at least"),
        ({"limits": {"min_rows": True}}, "limits.min_rows", "got True, and a whole number"),
        ({"limits": {"min_rows": 20.5}}, "limits.min_rows", "got 20.5, and a whole number"),
        ({"limits": {"most_bytes": "64"}}, "limits.most_bytes", "got '64', and a whole number"),
        ({"limits": {"rare_levels": "keep"}}, "limits.rare_levels", "'drop' or 'use'"),
        ({"site": {"name": ""}}, "site.name", "a text of at least 1 letter"),
        ({"site": {"name": 5}}, "site.name", "got 5, and a text in quotes"),
        ({"site": {"state": "table.csv"}}, "site.state", "is a file; name a folder"),
        ({"data": {"table": "."}}, "data.table", "is a folder; name a CSV or Parquet file"),
        ({"data": {"table": "none.csv"}}, "data.table", "none.csv; name a CSV or Parquet file"),
        ({"data": {"table": 3}}, "data.table", "got 3, and a path in quotes"),
        ({"data": {"columns": "age"}}, "data.columns", 'a list of texts, e.g. ["age", "sex"]'),
        ({"data": {"columns": ["age", "age"]}}, "data.columns", "'age' is there twice"),
        ({"data": {"columns": ["age", ""]}}, "data.columns.1", "at least 1 letter"),
        ({"studies": {"formulas": ["ill ~ ~"]}}, "studies.formulas", "'ill ~ ~' is no formula"),
        ({"privacy": {"epsilon": -1.0, "delta": 1e-5}}, "privacy.epsilon", "a number above 0"),
        ({"privacy": {"epsilon": True, "delta": 1e-5}}, "privacy.epsilon", "got True, and a num"),
        ({"privacy": {"epsilon": 1.0, "delta": 1.0}}, "privacy.delta", "a number below 1"),
        (
            {"privacy": {"epsilon": 1.0}},
            "privacy",
            "epsilon is given alone; give epsilon and delta",
        ),
        ({"privacy": {"delta": 1e-5}}, "privacy", "delta is given alone; give epsilon and delta"),
        (
            {"privacy": {"epsilon": 1.0, "delta": 1e-5}, "metrics": {"shown_to": "server"}},
            "metrics.shown_to",
            "leave without noise",
        ),
        ({"limits": {"min_rws": 3}}, "limits.min_rws", "did you mean 'min_rows'"),
        ({"extra": {"a": 1}}, "extra", "known: site, data, studies"),
        ({"studies": {"methods": ["margnal"]}}, "studies.methods", "did you mean 'marginal'"),
        ({"studies": {"methods": []}}, "studies.methods", "a list of at least 1 text"),
        ({"site": {"name": "../va"}}, "site.name", "cannot be called"),
        ({"data": {"outcome": ["age"]}}, "data.columns", "has one role"),
        ({"privacy": {"budget": "none", "epsilon": 1.0}}, "privacy", "leave one of them out"),
        ({"privacy": {"budget": "some"}}, "privacy.budget", "'none'"),
        ({"metrics": {"shown_to": "all"}}, "metrics.shown_to", "'nobody' or 'server'"),
    ],
)
def test_mistakes_name_the_file_and_the_key(tmp_path, changes, key, words):
    path = site(tmp_path, **changes)
    with pytest.raises(SiteFileError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: {key}: ")
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "nothing is given; give epsilon and delta"),
        ("epsilon = inf\ndelta = 1e-5", "a finite number"),
        ("epsilon = 1.0", "epsilon is given alone"),
        ('epsilon = 1.0\ndelta = 1e-5\nrandomness = "study"', "could subtract the noise"),
    ],
)
def test_a_privacy_budget_is_stated_whole(tmp_path, lines, words):
    path = site(tmp_path)
    path.write_text(path.read_text().replace('budget = "none"', lines))
    with pytest.raises(SiteFileError, match=words):
        read(path)


def test_a_missing_table_of_the_file_is_named(tmp_path):
    path = site(tmp_path)
    path.write_text(
        path.read_text().replace("[privacy]", "[metrics]").replace("budget", "shown_to")
    )
    with pytest.raises(SiteFileError, match="privacy: this table is missing"):
        read(path)


def test_a_formula_that_is_listed_is_compared_without_spaces_and_stars_are_no_wildcards(tmp_path):
    found = read(site(tmp_path, studies={"formulas": ["ill ~ age*dose + (1 | site)"]}))
    assert found.allows_formula("ill ~ age * dose + (1|site)")
    assert not found.allows_formula("ill ~ age + income + dose + (1 | site)")


def test_names_of_studies_may_have_wildcards(tmp_path):
    found = read(site(tmp_path, studies={"names": ["heart-*"]}))
    assert found.allows_name("heart-2026")
    assert not found.allows_name("lung")
