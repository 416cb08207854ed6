"""A small federation that every test of a run shares."""

from pathlib import Path

import numpy as np
import optax
import pandas as pd
import pytest

from covey.algorithms.fedavg import fedavg
from covey.core.algorithm import Algorithm
from covey.data.federated import FederatedData
from covey.models import logistic

CONFIG = """
[data]
name = "table"
path = "{path}"
outcome = "y"
client = "site"
classes = 2
validation = 0.2
test = 0.2

[model]
name = "logistic"

[method]
name = "fedavg"
client_optimizer = {{name = "sgd", learning_rate = 0.2}}
server_optimizer = {{name = "adam", learning_rate = 0.01}}
batch_size = 8

[cohort]
name = "uniform"
size = 3

[run]
rounds = {rounds}
seed = 5
evaluate_every = 10
checkpoint_every = 4
"""


def frame() -> pd.DataFrame:
    """Rows of five sites of unequal size, whose labels lean differently."""
    generator = np.random.default_rng(0)
    site = np.repeat(np.arange(5), [20, 30, 40, 50, 60])
    x = generator.normal(size=(200, 3))
    chance = 1 / (1 + np.exp(-(x @ [1.0, -2.0, 0.5] + 0.4 * site - 0.5)))
    columns = {f"x{number}": x[:, number] for number in range(3)}
    names = [f"site{number}" for number in site]
    return pd.DataFrame(
        {**columns, "y": (generator.uniform(size=200) < chance).astype(int), "site": names}
    )


@pytest.fixture(scope="session")
def data() -> FederatedData:
    table = FederatedData.from_table(frame(), outcome="y", client="site", classes=2)
    return table.split(0.2, 0.2, seed=1)


@pytest.fixture(scope="session")
def method() -> Algorithm:
    return fedavg(
        logistic(), client_optimizer=optax.sgd(0.2), server_optimizer=optax.adam(0.01), batch_size=8
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of 30 rounds on a CSV file."""
    return write_config(tmp_path, 30)


def write_config(folder: Path, rounds: int) -> Path:
    frame().to_csv(folder / "sites.csv", index=False)
    path = folder / "sites.toml"
    path.write_text(CONFIG.format(path=folder / "sites.csv", rounds=rounds))
    return path
