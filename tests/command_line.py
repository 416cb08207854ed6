"""The command line as tests use it: a configuration of four sites, and a call in this process."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from covey import cli

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


def lines(run: Path) -> list[dict]:
    """The metrics, without the time they took."""
    read = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in read]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def call(*arguments: object, answer: str | None = None) -> tuple[int, str]:
    """In this process: the exit code, and all that was printed; `answer` is typed when asked."""
    result = CliRunner().invoke(cli.app, [*map(str, arguments)], input=answer)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output
