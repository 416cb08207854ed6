"""The command line, mostly as a user meets it: in a process of its own."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest
import xarray
from rich.console import Console
from typer.testing import CliRunner

from covey import cli
from covey.config import configuration
from covey.report.tables import summary_table
from covey.runs import checkpoint
from reproductions import EXPERIMENTS
from reproductions.result import Claim, Experiment, Row

CONFIG = """
[data]
name = "table"
path = "{path}"
outcome = "y"
client = "site"
classes = 2
validation = 0.2
test = 0.2
hold_out = ["b"]

[model]
name = "logistic"

[method]
name = "fedavg"
client_optimizer = {{name = "sgd", learning_rate = 0.2}}
server_optimizer = {{name = "adam", learning_rate = 0.01}}

[cohort]
name = "bernoulli"
probability = 0.7

[run]
rounds = {rounds}
seed = 5
evaluate_every = 50
checkpoint_every = 5
"""


def write_config(folder: Path, rounds: int) -> Path:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(60, 2))
    columns = {
        "x0": x[:, 0],
        "x1": x[:, 1],
        "y": (x @ [1.0, -1.0] > 0).astype(int),
        "site": list("abcd") * 15,
    }
    pd.DataFrame(columns).to_csv(folder / "sites.csv", index=False)
    path = folder / "sites.toml"
    path.write_text(CONFIG.format(path=folder / "sites.csv", rounds=rounds))
    return path


def start(*arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-m", "covey.cli", *map(str, arguments)]
    # A suite that runs in the background ignores Ctrl-C, and its children would too.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def wait_for_round(process: subprocess.Popen, run: Path, number: int) -> None:
    """Until the run has a checkpoint of that round or a later one."""
    end = time.monotonic() + 600
    while max(checkpoint.rounds(run / "checkpoints"), default=0) < number:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "no checkpoint came"
        time.sleep(0.005)


def lines(run: Path) -> list[dict]:
    """The metrics, without the time they took."""
    read = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read]


def final_state(run: Path) -> bytes:
    found = checkpoint.newest(run / "checkpoints", at_most=10**9)
    assert found is not None
    return found.body


def call(*arguments: object) -> tuple[int, str]:
    """In this process: the exit code, and all that was printed."""
    result = CliRunner().invoke(cli.app, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("number", "killed"),
    [
        (signal.SIGINT, False),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, True, marks=pytest.mark.slow),
    ],
)
def test_killed_and_stopped_runs_end_as_if_nothing_had_happened(tmp_path, number, killed):
    """kill -9 at a random moment, resume, stop by Ctrl-C, resume: the metrics and the final state
    of a run left alone. Rounds without end until the last command, however fast the machine is.
    """
    moments = random.Random(0)
    config, run = write_config(tmp_path, 10**6), tmp_path / "run"
    reached, resumed = 0, ()

    if killed:
        process = start("run", config, "--out", run)
        wait_for_round(process, run, 5 * moments.randrange(1, 20))
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        finish(process)
        reached, resumed = max(checkpoint.rounds(run / "checkpoints")), ("--resume",)

    process = start("run", config, *resumed, "--out", run)
    wait_for_round(process, run, reached + 20)
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 130, err
    assert f"to continue: covey run {run}/config.toml --resume --out {run}" in err
    assert "stopped after round" in err
    assert "Traceback" not in err
    stopped = max(checkpoint.rounds(run / "checkpoints"))
    assert len(lines(run)) == stopped  # the checkpoint is of the last round that was run
    assert reached < stopped

    enough = ("--set", f"run.rounds={stopped + 12}")
    code, said = call("run", run / "config.toml", "--resume", "--out", run, *enough)
    assert code == 0, said
    assert f"{stopped + 12} rounds of fedavg on 3 clients" in said
    assert "held-out clients, test rows: accuracy" in said

    code, said = call("run", config, "--out", tmp_path / "whole", *enough)
    assert code == 0, said
    assert lines(run) == lines(tmp_path / "whole")
    assert final_state(run) == final_state(tmp_path / "whole")


def test_a_run_with_overrides_and_what_it_refuses(tmp_path):
    config, out = write_config(tmp_path, 50), tmp_path / "run"
    code, said = call(
        "run",
        config,
        "--out",
        out,
        "--set",
        "run.rounds=3",
        "--set",
        "method.batch_size=4",
        "--seed",
        9,
    )
    assert code == 0, said
    assert "3 rounds of fedavg" in said
    assert len(lines(out)) == 3
    assert {path.name for path in out.iterdir()} == {
        "checkpoints", "clients.parquet", "config.toml", "lock", "metrics.jsonl", "report.html",
    }  # fmt: skip
    resolved = configuration.read(out / "config.toml")
    assert (resolved.options["run"]["seed"], resolved.options["method"]["batch_size"]) == (9, 4)

    code, said = call("run", config, "--out", out)
    assert code == 2
    assert "already holds a run" in said

    code, said = call("run", config, "--out", out, "--resume")
    assert code == 2
    assert "run.seed was 9 and is now 5" in said


def test_the_posterior_of_a_finished_run(tmp_path):
    config, out = write_config(tmp_path, 2), tmp_path / "run"
    text = config.read_text()
    start, end = text.index("[method]"), text.index("[run]")
    mixed = '[method]\nname = "fedpop"\nstep_size = 0.2\ndraws = 20\n\n'
    config.write_text(
        (text[:start] + mixed + text[end:]).replace(
            '"logistic"', '"mixed_logistic"\nslopes = ["x1"]'
        )
    )
    code, said = call("run", config, "--out", out, "--set", "model.slopes=['x1', 'z']")
    assert (code, len(said.strip().splitlines()), out.exists()) == (2, 1, False)
    assert "slopes has 'z', but the columns of these data are x0, x1" in said
    assert call("run", config, "--out", out)[0] == 0

    code, said = call(
        "posterior",
        out,
        "--client",
        "c",
        "--client",
        "a",
        "--out",
        tmp_path / "new" / "summary.csv",
    )
    assert code == 0, said
    assert "fedpop after 2 rounds" in said
    written = pd.read_csv(tmp_path / "new" / "summary.csv", index_col=["client", "parameter"])
    assert written.index.tolist() == [
        (client, name) for client in "ca" for name in ("intercept", "slopes[x1]")
    ]
    lower, upper = written.loc[("c", "slopes[x1]"), ["lower_90", "upper_90"]]
    assert f"{lower:.3g} to {upper:.3g}" in said
    assert "slopes[x1]" in said

    code, said = call(
        "posterior",
        out,
        "--held-out",
        "--draws",
        200,
        "--chains",
        2,
        "--out",
        tmp_path / "draws.nc",
    )
    assert code == 0, said
    draws = xarray.load_dataset(tmp_path / "draws.nc")["slopes"]
    assert (draws.shape, draws["client"].values.tolist(), draws["slope"].values.tolist()) == (
        (2, 200, 1, 1),
        ["b"],
        ["x1"],
    )
    assert len(lines(out)) == 2  # looking does not go on

    for arguments, told in (
        ((out, "--client", "z"), "no client 'z'"),
        ((out, "--out", "draws.txt"), "draws.txt: draws are written as .nc"),
        ((out, "--probability", 90), "between 0 and 1"),
        ((tmp_path,), "holds no run"),
    ):
        code, said = call("posterior", *arguments)
        assert (code, len(said.strip().splitlines())) == (2, 1)
        assert told in said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the draws of")  # twenty of them
def test_clients_are_shown_where_the_shared_parameters_have_no_posterior(tmp_path):
    config, out = write_config(tmp_path, 1), tmp_path / "run"
    text = config.read_text()
    start, end = text.index("[method]"), text.index("[run]")
    law = '{name = "energy", fewest_clients = 1, particles = 4, steps = 1}'
    mixed = f'[method]\nname = "fedpop"\nstep_size = 0.2\ndraws = 4\neffects = {law}\n\n'
    config.write_text((text[:start] + mixed + text[end:]).replace('"logistic"', '"mixed_logistic"'))
    assert call("run", config, "--out", out)[0] == 0
    code, said = call("posterior", out, "--draws", 20)
    assert code == 0, said
    assert "known up to a constant only" in " ".join(said.split())
    assert "clients: fedpop after 1 rounds" in said
    code, said = call("posterior", out, "--shared")
    assert (code, len(said.strip().splitlines())) == (2, 1)


def test_what_a_posterior_is_asked_of():
    """Clients where the shared parameters have none; an error where nothing else was wanted."""

    class Refused:
        @property
        def shared(self):
            raise ValueError("no density")

        def select(self, names, data):
            return names

    has = SimpleNamespace(posterior=SimpleNamespace(shared=object(), client=object()))
    done = SimpleNamespace(method=has, posterior=Refused())
    assert cli._posteriors(done, None, None, shared=False) == {"clients": None}
    assert cli._posteriors(done, None, ["a"], shared=False) == {"clients": ["a"]}
    with pytest.raises(ValueError, match="no density"):
        cli._posteriors(done, None, None, shared=True)


def test_names_of_a_summary_are_not_cut():
    text = StringIO()
    name = "slopes[heart_rate_at_rest]"
    index = pd.MultiIndex.from_tuples([("b", name)], names=["client", "parameter"])
    Console(file=text, width=60).print(
        *summary_table("a run", pd.DataFrame(np.ones((1, 8)), index=index), 0.9)
    )
    lines = [
        line.split("│")[2].strip() for line in text.getvalue().splitlines() if line.startswith("│")
    ]
    assert "".join(lines) == name


@pytest.mark.filterwarnings("ignore:the draws of")  # ten of them
def test_the_posterior_of_what_all_share(tmp_path):
    config, out = write_config(tmp_path, 12), tmp_path / "run"
    text = config.read_text()
    start, end = text.index("[method]"), text.index("[run]")
    sampled = '[method]\nname = "fald"\nstep_size = 0.01\nchains = 2\nburn_in = 2\nkeep = 4\n\n'
    config.write_text(text[:start] + sampled + text[end:])
    assert call("run", config, "--out", out)[0] == 0
    code, said = call("posterior", out, "--out", tmp_path / "draws.nc")
    assert code == 0, said
    assert "fald after 12 rounds" in said
    assert "weight[x1]" in said
    drawn = xarray.load_dataset(tmp_path / "draws.nc")["weight"]
    assert (drawn.shape, drawn["column"].values.tolist()) == ((2, 10, 2), ["x0", "x1"])
    code, said = call("posterior", out, "--draws", 5)
    assert (code, len(said.strip().splitlines())) == (2, 1)
    assert "have been drawn: leave --draws and --chains away" in said


def test_a_run_without_draws_or_unfinished_has_no_posterior(tmp_path):
    config, out = write_config(tmp_path, 3), tmp_path / "run"
    assert call("run", config, "--out", out)[0] == 0
    assert "fedavg has no posterior of the shared parameters" in call("posterior", out)[1]
    (out / "config.toml").write_text(
        (out / "config.toml").read_text().replace("rounds = 3", "rounds = 9")
    )
    code, said = call("posterior", out)
    assert code == 2
    assert (
        f"is at round 3 of 9: finish it by `covey run {out}/config.toml --resume --out {out}`"
        in said
    )
    (out / "config.toml").write_text('[method]\nname = "fedavg"\n')
    assert "was started from Python" in call("posterior", out)[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--set", "method.bach_size=3"), "did you mean 'batch_size'?"),
        (("--set", "method.name=fedavgg"), "did you mean 'fedavg'?"),
        (("--set", "run.rounds=many"), "input should be a valid integer, got 'many'"),
        (("--set", "cohort.probability=2"), "probabilities must be in (0, 1]"),
        (("--set", "data.path=nowhere.csv"), "nowhere.csv"),
        (("--set", "model.name=poisson"), "poisson: these data have 2 classes"),
    ],
)
def test_a_mistake_is_told_without_a_trace(tmp_path, arguments, told):
    code, said = call("run", write_config(tmp_path, 5), "--out", tmp_path / "run", *arguments)
    assert code == 2
    assert told in said
    assert len(said.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()  # nothing was begun


def test_a_missing_file_is_named(tmp_path):
    code, said = call("run", tmp_path / "none.toml")
    assert code == 2
    assert "none.toml" in said


def test_the_trace_can_be_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("COVEY_DEBUG", "1")
    with pytest.raises(configuration.ConfigurationError):
        call("run", write_config(tmp_path, 5), "--set", "method.bach_size=3")


def test_a_learning_rate_that_is_absurd_is_refused_in_one_line(tmp_path):
    steep = "method.client_optimizer={name = 'sgd', learning_rate = 1e38}"
    code, said = call("run", write_config(tmp_path, 5), "--out", tmp_path / "run", "--set", steep)
    assert code == 2
    assert len(said.strip().splitlines()) == 1
    assert "learning_rate: must be above 0 and at most 10000" in said


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
    cli._show_warning(UserWarning("a checkpoint is damaged"), UserWarning, "file.py", 3)
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


def test_compiled_programs_are_kept_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    monkeypatch.setenv("COVEY_CACHE_DIR", str(tmp_path))
    cli._keep_compiled_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "jax")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    cli._keep_compiled_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "elsewhere"
