"""What the README shows works."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import covey
from covey.cli import app
from covey.cli.demonstrating import write_tables

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_second_example_trains():
    """With few rounds. The others, posteriors, are compiled only: they need some seconds."""
    names: dict = {"covey": covey}
    formulas, training, posterior = blocks("python")
    exec(re.sub(r"rounds=(\d+)0\b", r"rounds=\1", training), names)
    for code in (formulas, posterior):
        compile(code, "README", "exec")
    assert names["run"].round == 60
    assert names["run"].predict(names["patients"], client="va", data=names["new"]).mean.shape == (
        5,
        2,
    )


@pytest.mark.slow
def test_the_python_examples_run(tmp_path, monkeypatch):
    write_tables(tmp_path)
    (tmp_path / "new").rename(tmp_path / "rest")
    for name in ("patients.csv", "va.csv"):
        (tmp_path / "rest" / name).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for code in blocks("python"):
        exec(code, names)
    assert (tmp_path / "va.html").exists()
    assert names["fit"].effects().set_index("client")["mean"].idxmax() == "switzerland"
    assert names["run"].round == 150
    draws = {
        name: names["mixed"].posterior.client(name).draws(200, chains=1)["intercept"].mean()
        for name in ("cleveland", "switzerland")
    }
    assert draws["switzerland"] > draws["cleveland"]  # almost every patient there is ill
    intervals = names["mixed"].posterior.select(["cleveland", "switzerland"]).summary()
    assert (
        intervals.loc[("switzerland", "intercept"), "lower_90"]
        > intervals.loc[("cleveland", "intercept"), "upper_90"]
    )


def test_the_commands_exist():
    commands = set(re.findall(r"^covey ([\w-]+)", "\n".join(blocks("sh")), re.MULTILINE))
    assert commands == {
        *("fit", "predict", "add-client", "report"),
        *("run", "sweep", "posterior", "list", "reproduce", "results"),
        *("deploy", "site"),
    }
    for command in commands:
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
    for name in re.findall(r"experiments/\w+\.toml", README):
        assert (Path(__file__).parents[1] / name).exists()


def test_the_counts_of_experiments_are_those_of_the_results():
    results = (Path(__file__).parents[1] / "docs" / "RESULTS.md").read_text("utf-8")
    scales = re.findall(
        r"^\| \[[\w-]+\]\(#[\w-]+\) \| (\w+) \|.*\| (.*) \|$", results, re.MULTILINE
    )
    lost = sum("lost" in claims for _, claims in scales)
    quick = sum(scale == "quick" for scale, _ in scales)
    text = " ".join(README.split())
    assert text.count("Thirty-eight experiments") == (len(scales) == 38)
    assert f"hold in {len(scales) - lost} of them, and some claim does not in {lost}." in text
    assert f"{quick} were run at the quick scale only" in text
