"""What the demo trains, on which hospitals, and what it reads from its runs, which are made up."""

from io import StringIO
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from covey import demo
from covey.data.federated import FederatedData

HOSPITALS = ("cleveland", "hungarian", "switzerland", demo.NEW)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    generator = np.random.default_rng(0)
    rows = {name: (generator.normal(size=(10, 2)), np.arange(10) % 2) for name in HOSPITALS}
    data = FederatedData.from_clients(rows, features=["age", "ca"], classes=2)
    monkeypatch.setattr(demo, "load", lambda name: data)


def test_four_ways_of_training_are_compared_on_every_hospital(monkeypatch):
    trained = []

    def made_up(method, data, *, rounds, seed, progress):
        trained.append((method.name, list(data.names)))

        def evaluate(other=None, *, split):
            found = data if other is None else other
            # A value that says which run it is of, and on how many rows.
            values = {"name": found.names, "test_rows": found.counts(split)}
            return SimpleNamespace(clients=pd.DataFrame(values).assign(accuracy=len(trained)))

        bits = pd.DataFrame({"bits_up": [3.0, 4.0], "bits_down": [5.0, 6.0]})
        return SimpleNamespace(metrics=bits, evaluate=evaluate)

    monkeypatch.setattr(demo, "run", made_up)
    monkeypatch.setattr(demo, "SPLITS", 2)
    lines, bits = demo.compare(Console(file=StringIO()))
    known = list(HOSPITALS[:3])
    methods = [name for name, _ in trained[:4]]
    assert methods == ["local", "fedavg", "fedpop", "fedavg"]
    assert [names for _, names in trained[:3]] == [known] * 3
    assert len(trained[3][1]) == 1  # pooled: one client, without the new hospital
    assert bits == 18
    assert len(lines) == 2 * 4 * 4
    for method in demo.METHODS:
        hospitals = lines[(lines["method"] == method) & (lines["split"] == 1)]["hospital"]
        assert hospitals.tolist() == [*known, f"{demo.NEW}*"]
    assert (lines["test_rows"] == 3).all()


def test_an_intercept_is_shown_as_patients_come_in(monkeypatch):
    def table(values, index):
        columns = ["mean", "lower_90", "upper_90", "r_hat"]
        return pd.DataFrame(np.outer(values, [1, 0.5, 2, 9]), index=index, columns=columns)

    class Part:
        def __init__(self, values, index):
            self.table = table(values, index)

        def summary(self, *, probability):
            assert probability == demo.PROBABILITY
            return self.table

    def client(name, *, data):
        assert name == demo.NEW
        return Part([data.counts("train")[0]], ["intercept"])

    pairs = pd.MultiIndex.from_product([HOSPITALS[:3], ["intercept"]], names=["c", "parameter"])
    posterior = SimpleNamespace(
        shared=Part([7.0, 1.0, 2.0], ["intercept", "weights[age]", "weights[ca]"]),
        clients=Part([1.0, 2.0, 3.0], pairs),
        client=client,
    )
    monkeypatch.setattr(demo, "run", lambda *_, **__: SimpleNamespace(posterior=posterior))
    shared, intercepts = demo.find()
    assert shared["estimate"].to_dict() == {"age": 1.0, "ca": 2.0}
    assert list(shared) == ["estimate", "low", "high"]
    new = {f"va, {count} patients": row for count, row in (("no", 0), (5, 5), (10, 10))}
    assert intercepts["estimate"].to_dict() == {
        **dict(zip(HOSPITALS[:3], (1, 2, 3), strict=True)),
        **new,
    }
