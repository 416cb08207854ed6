"""Lists, reproductions, and what every command shares."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import plotly.graph_objects as go
import pytest

from command_line import call
from covey import cli
from covey.cli.consoles import show_warning
from reproductions import EXPERIMENTS
from reproductions.result import Claim, Experiment, Row


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("methods", "fedavg_plus"),
        ("models", "logistic"),
        ("data", "heart_disease"),
        ("cohorts", "bernoulli"),
        ("channels", "dithering"),
        ("topologies", "erdos_renyi"),
        ("experiments", "fedavg-drift"),
    ],
)
def test_list(kind, named):
    code, said = call("list", kind)
    assert code == 0
    assert named in said


@pytest.mark.parametrize("holds", [True, False])
def test_reproduce_exits_by_its_claims(tmp_path, monkeypatch, holds):
    def run(scale, report):
        report("half way")
        return (
            [Row("accuracy", 0.8, 0.79, 0.01, 3)],
            [Claim("at least 0.7", 0.79, 0.7, holds)],
            go.Figure(),
        )

    module = ModuleType("some_paper")
    module.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, "some_paper", module)
    monkeypatch.setitem(
        EXPERIMENTS,
        "some-paper",
        Experiment("some_paper:run", "A paper", {"quick": 5.0, "full": 7200.0}),
    )
    code, said = call("reproduce", "some-paper", "--scale", "full", "--out", tmp_path)
    assert code == (0 if holds else 1)
    assert said.index("expected to take 2 h 0 min") < said.index("half way")
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["claims"][0]["holds"] is holds
    assert written["scale"] == "full"


def test_reproduce_knows_its_experiments():
    code, said = call("reproduce", "fedavg-drif")
    assert code == 2
    assert "did you mean 'fedavg-drift'?" in said


def test_warnings_are_lines_for_people(capsys):
    show_warning(UserWarning("a checkpoint is damaged"), UserWarning, "file.py", 3)
    assert capsys.readouterr().err == "warning: a checkpoint is damaged\n"


def test_version():
    assert call("--version")[1].startswith("covey 0.")


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['covey', '--help']\n"
        "from covey import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'jax', 'numpy', 'pandas', 'plotly', 'pydantic', 'optax', 'scipy', 'xarray'} "
        "& set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "reproduce" in done.stdout


def test_an_option_of_several_commands_is_written_once():
    """Its text is in `options.py`, and no other file says the same again."""
    texts = {
        path.name: {
            ast.literal_eval(keyword.value)
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("Option", "Argument")
            for keyword in node.keywords
            if keyword.arg == "help"
        }
        for path in Path(cli.__file__).parent.glob("*.py")
    }
    said = [text for of_file in texts.values() for text in of_file]
    assert sorted(said) == sorted(set(said))
