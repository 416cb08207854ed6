"""What the README shows works."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.cli import app

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_first_example_trains():
    """With few rounds. The second one, a posterior, is compiled only: it needs a few seconds."""
    names: dict = {}
    first, second = blocks("python")
    exec(re.sub(r"rounds=(\d+)0\b", r"rounds=\1", first), names)
    compile(second, "README", "exec")
    assert names["run"].round == 60
    assert names["run"].predict(names["patients"], client="va", data=names["new"]).mean.shape == (
        5,
        2,
    )


@pytest.mark.slow
def test_the_python_examples_run():
    names: dict = {}
    for code in blocks("python"):
        exec(code, names)
    assert names["run"].round == 150
    draws = {
        name: names["fit"].posterior.client(name).draws(200, chains=1)["intercept"].mean()
        for name in ("cleveland", "switzerland")
    }
    assert draws["switzerland"] > draws["cleveland"]  # almost every patient there is ill
    intervals = names["fit"].posterior.select(["cleveland", "switzerland"]).summary()
    assert (
        intervals.loc[("switzerland", "intercept"), "lower_90"]
        > intervals.loc[("cleveland", "intercept"), "upper_90"]
    )


def test_the_commands_exist():
    commands = set(re.findall(r"^covey (\w+)", "\n".join(blocks("sh")), re.MULTILINE))
    assert commands == {"run", "posterior", "list", "reproduce", "results"}
    for command in commands:
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0
    for name in re.findall(r"experiments/\w+\.toml", README):
        assert (Path(__file__).parents[1] / name).exists()
