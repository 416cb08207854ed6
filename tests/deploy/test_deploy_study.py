"""Studies: configuration only, with a digest."""

import json

import pytest

from covey.deploy import study as studies
from covey.deploy.study import StudyError, from_json, of_formula, of_tables, read

FORMULA = "ill ~ scale(age) + sex + (1 | hospital)"
RUN = {
    "columns": {"features": ["age", "dose"], "outcome": "gain"},
    "model": {"name": "linear"},
    "method": {"name": "fedavg"},
    "run": {"rounds": 3, "seed": 1},
}


def changed(table, **values):
    return {**RUN, table: {**RUN.get(table, {}), **values}}


def test_a_study_is_what_its_text_says_and_any_change_has_another_digest():
    one = of_formula("heart", FORMULA)
    assert from_json(one.text) == one
    digests = {
        one.digest,
        of_formula("heart-2", FORMULA).digest,
        of_formula("heart", FORMULA, seed=1).digest,
        of_formula("heart", FORMULA, missing="impute").digest,
        of_formula("heart", FORMULA, priors={"scale(age)": "normal(0, 1)"}).digest,
        of_formula("heart", FORMULA + " ").digest,
    }
    assert len(digests) == 6


def test_defaults_are_written_out_so_that_both_ways_to_say_them_are_one_study():
    short, long = of_tables("a", RUN), of_tables("a", changed("columns", test=0, standardise=False))
    assert short.digest == long.digest
    assert short.tables["method"]["epochs"] == 1
    assert from_json(short.text) == short


def test_a_study_of_a_file(tmp_path):
    path = tmp_path / "heart.toml"
    path.write_text(f'[fit]\nformula = "{FORMULA}"\n')
    assert read(path) == of_formula("heart", FORMULA)
    path.write_text('[study]\nname = "lung"\n[fit]\nformla = "y ~ x"\n')
    with pytest.raises(StudyError, match=r"heart.toml: fit.formla: unknown key .* 'formula'"):
        read(path)


def test_columns_of_a_formula_are_all_that_it_reads():
    text = "cbind(dead, alive) ~ log(age) + C(sex) + offset(log(days)) + (1 | site/ward)"
    found = of_formula("a", text, weights="w")
    assert found.outcome == ("dead", "alive")
    assert set(found.predictors) == {"age", "sex", "days", "ward", "w"}


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (changed("method", name="evil.py:attack"), "carries none"),
        (changed("model", name="/etc/x.py:make"), "carries none"),
        (changed("cohort", name="trace", path="/etc/passwd"), "cohort.path: names a file"),
        (changed("run", engine="simulate"), "run.engine: is of simulations"),
        ({**RUN, "data": {"name": "exam"}}, "sites have the data"),
        ({**RUN, "topology": {"name": "ring"}}, "a study has a server"),
        (changed("columns", features=["age", "age"]), "different columns"),
        (changed("columns", outcome="age"), "no feature"),
        (changed("columns", classes=1), "from 2"),
        (changed("columns", test=1.5), "fraction"),
        (changed("columns", test=0.5, validation=0.5), "no training rows"),
        (changed("method", epochs="many"), "method.epochs"),
        (changed("method", epochs=float("nan")), "finite"),
        (changed("run", seed=-1), "seed"),
        ({"fit": {"formula": FORMULA, "estimate": "mcmc"}}, "fit.estimate: one of posterior"),
        ({"fit": {"formula": "ill ~ __import__('os').getcwd()"}}, "not well formed"),
        ({"fit": {"formula": "ill ~ I(open('/etc/passwd'))"}}, "open"),
        ({"fit": {"formula": "ill"}}, "~"),
        ({"fit": {"formula": FORMULA, "priors": {"b": "normal"}}}, "prior"),
        ({"fit": {"formula": FORMULA}, "run": {}}, "alone"),
        ({"fit": 3}, "tables"),
    ],
)
def test_what_a_study_may_not_be(tables, words):
    with pytest.raises(StudyError) as error:
        of_tables("a", tables)
    assert words in str(error.value)


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a b", "x" * 65, 3])
def test_names_of_studies_are_plain(name):
    with pytest.raises(StudyError, match=r"study\.name"):
        of_tables(name, RUN)


def test_texts_that_are_no_study_of_this_version():
    one = of_formula("heart", FORMULA)
    content = json.loads(one.text)
    for text in ["", "3", "[]", "{}", one.text[:-1], "[" * 10_000]:
        with pytest.raises(StudyError):
            from_json(text)
    with pytest.raises(StudyError, match="format"):
        from_json(json.dumps(content | {"format": 99}))
    with pytest.raises(StudyError, match="at most"):
        from_json(" " * (studies.MOST_TEXT + 1))
    content["tables"]["fit"].pop("seed")  # as of a version with other defaults
    with pytest.raises(StudyError, match="another version"):
        from_json(json.dumps(content, sort_keys=True, separators=(",", ":")))
