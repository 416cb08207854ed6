"""The reproductions of FedEM for mixtures: what they are held against, and at the quick size that
they hold.
"""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from covey.config import configuration
from covey.config.model_selection import choose_components, decided
from covey.core.metrics import Mean
from covey.datasets.loaders import load
from covey.datasets.synthetic import Mixture, mixture_of_linear
from covey.models import logistic
from covey.runs.evaluation import Evaluation
from covey.topology import ring
from reproductions import EXPERIMENTS
from reproductions import mixture_decentralised as decentralised
from reproductions import mixture_real as real
from reproductions import mixture_synthetic as synthetic

SMALL = (  # with few clients or rounds the order of the methods means little
    "mixture-digits",
    "mixture-cifar10",
    "mixture-shakespeare",
    "mixture-mocha",
)


@pytest.fixture(scope="module")
def small():
    return mixture_of_linear(2, 20, 5, 3, test_rows=400)


def test_the_oracle_is_right_as_often_as_its_own_probabilities_say(small):
    data, truth = small
    expected, rows = [], []
    for index in range(data.clients):
        x, _ = data.rows_of(index, "test")
        chance = norm.cdf(x @ truth.theta.T / synthetic.NOISE) @ truth.pi[index]
        expected.append(np.maximum(chance, 1 - chance).mean())
        rows.append(data.counts("train")[index])
    weights = np.array(rows) / np.sum(rows)
    error = 0.5 * np.sqrt(np.sum(weights**2) / 400)  # at most: labels of 400 rows a client
    found = synthetic.oracle(data, truth)
    assert found.mean == pytest.approx(100 * weights @ expected, abs=300 * error)
    turned = synthetic.oracle(
        data, Mixture(-truth.theta, truth.pi)
    )  # who takes every label for the other is as often wrong
    assert turned.mean == pytest.approx(100 - found.mean, abs=1e-3)


def test_scores_count_clients_by_their_rows(small):
    data, _ = small
    accuracy = np.linspace(0.5, 0.9, 20)[::-1]
    metrics = {"accuracy": Mean(accuracy * 400, np.full(20, 400.0))}
    found = synthetic.score(Evaluation(0, "test", data, metrics))
    counts = data.counts("train")
    assert found.mean == pytest.approx(100 * (counts @ accuracy) / counts.sum())
    assert found.decile == pytest.approx(100 * np.sort(accuracy)[1])  # the second worst of twenty


def test_rows_to_choose_by_are_no_rows_to_learn_from(small):
    data, _ = small
    divided = synthetic.with_validation(data)
    for index in range(data.clients):
        parts = [divided.rows_of(index, part).x for part in ("train", "validation")]
        np.testing.assert_array_equal(np.concatenate(parts), data.rows_of(index, "train").x)
        assert len(parts[1]) == int(0.2 * data.counts("train")[index])
    np.testing.assert_array_equal(divided.counts("test"), data.counts("test"))
    old, new = synthetic.held_out(data)
    assert (old.clients, new.clients) == (16, 4)
    assert not set(old.ids) & set(new.ids)


def test_components_are_matched_in_any_order(small):
    _, truth = small
    order = [2, 0, 1]
    cosine, error = synthetic.recovery(7 * truth.theta[order], truth.pi[:, order] + 0.01, truth)
    assert cosine == pytest.approx(1)
    assert error == pytest.approx(0.01)


def test_the_number_of_components_with_the_least_held_out_loss_is_chosen():
    losses = {1: 0.7, 2: 0.3, 3: 0.4}

    def fit(count):
        return SimpleNamespace(
            evaluate=lambda split: SimpleNamespace(pooled={"nll": losses[count], "split": split}),
            count=count,
        )

    choice = choose_components(fit, (1, 2, 3))
    assert choice.components == 2
    assert choice.nll == losses
    assert choice.runs[3].count == 3
    with pytest.raises(ValueError, match=r"at least 1, got \(0, 2\)"):
        choose_components(fit, (0, 2))
    losses[1] = np.nan  # a run that diverged is not chosen, wherever it stands
    assert choose_components(fit, (1, 2, 3)).components == 2
    losses[2] = losses[3] = np.nan
    with pytest.raises(ValueError, match="no run has a finite validation loss"):
        choose_components(fit, (1, 2, 3))


@pytest.mark.slow
def test_a_configuration_may_leave_the_number_to_the_data(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    site = np.repeat(list("abcd"), 100)
    # Two kinds of sites with opposite labels: one component cannot serve both.
    label = (x[:, 0] * np.where(site < "c", 1, -1) > 0).astype(int)
    pd.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "y": label, "site": site}).to_csv(
        tmp_path / "sites.csv", index=False
    )
    tables = {
        "data": {
            "name": "table",
            "path": str(tmp_path / "sites.csv"),
            "outcome": "y",
            "client": "site",
            "validation": 0.3,
        },
        "model": {"name": "logistic"},
        "method": {
            "name": "mixture",
            "components": "auto",
            "client_optimizer": {"name": "sgd", "learning_rate": 1.0},
        },
        "run": {"rounds": 30, "seed": 1},
    }
    tables["data"]["classes"] = 2
    settings, told = configuration.checked(tables), []
    found = decided(settings, tmp_path / "run", resume=False, report=told.append)
    count = found.tables["method"]["components"]
    assert count >= 2
    assert told[-1].startswith(f"{count} components are best")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("[method]\ncomponents = 4\n")
    again = decided(settings, tmp_path / "run", resume=True, report=told.append)
    assert again.options["method"]["components"] == 4
    tables["data"]["validation"] = 0.0
    with pytest.raises(ValueError, match="chooses by validation rows and there are none"):
        decided(configuration.checked(tables), tmp_path, resume=False, report=told.append)


def test_rates_are_chosen_on_validation_rows_and_scored_on_test_rows(monkeypatch):
    seen = []

    def best(method, data, size, seed):
        seen.append((method.name, seed))
        accuracy = np.full(
            4, 0.9 if seed == real.FIRST_SEED and len(seen) == 2 else 0.5
        )  # the second rate of the first method
        metrics = {"accuracy": Mean(accuracy * 100, np.full(4, 100.0))}
        return float(accuracy[0]), Evaluation(0, "test", data, metrics)

    monkeypatch.setattr(real, "best", best)
    data = mixture_of_linear(2, 4, 3, 2, test_rows=10)[0]
    problem = real.Problem("digits", lambda clients, seed: data, logistic(), (0.1, 0.3))
    size = real.Size(2, 4, 2, 1, 2, ("FedEM", "FedAvg"))
    rows, claims, _ = real.table({problem: size}, lambda line: None)
    names = ["mixture", "mixture", "fedavg", "fedavg"]
    assert [name for name, _ in seen] == [
        *names,
        "mixture",
        "fedavg",
    ]  # chosen at the first seed alone
    found = {one.quantity: one.ours for one in rows}
    assert found["accuracy, FedEM, digits"] == pytest.approx(70)
    assert [round(claim.value) for claim in claims] == [20, 20]
    for name in real.METHODS:
        assert real.method_of(name, 0.1, problem).name


def test_the_contraction_of_a_round_is_that_of_all_its_gossip_steps():
    slowest = (1 + 2 * np.cos(2 * np.pi / 8)) / 3  # the second eigenvalue of a ring of eight
    assert decentralised.per_round(ring(), 8) == pytest.approx(slowest)
    assert decentralised.per_round(ring(gossip_steps=3), 8) == pytest.approx(slowest**3)
    assert set(decentralised.NEAR) < set(decentralised.GRAPHS)


@pytest.mark.slow
def test_the_writers_are_those_who_wrote_most(data_dir):
    data = real.writers(5, 0)
    rows = sum(data.counts(part) for part in ("train", "validation", "test"))
    everyone = load("mnist", split="train", by="writer").counts("train")
    assert sorted(rows) == sorted(np.sort(everyone)[-5:])
    np.testing.assert_allclose(data.counts("test") / rows, 0.2, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in EXPERIMENTS if name.startswith("mixture-") and name not in SMALL]
)
def test_every_claim_holds(name):
    _, claims, _ = EXPERIMENTS[name].load()("quick", lambda line: None)
    assert all(claim.holds for claim in claims), claims
