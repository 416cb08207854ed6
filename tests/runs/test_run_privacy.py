"""A run with a privacy budget: what it reports, what it keeps, and what it refuses."""

import json

import pytest

from covey.config import configuration
from covey.config.configuration import ConfigurationError
from covey.core import cohort
from covey.privacy import Budget, BudgetSpentError, LangevinMechanism, participation, rdp, theorem
from covey.runs.launch import run

BUDGET = Budget(delta=1e-4, epsilon=1.0)


def mechanism(plan, step_size: float = 1e-5) -> LangevinMechanism:
    scheme, size = participation(plan.sampler)
    return LangevinMechanism(
        step_size=step_size,
        temperature=1.0,
        correlation=0.0,
        clip=0.5,
        local_steps=2,
        rows=tuple(plan.counts.tolist()),
        scheme=scheme,
        cohort_size=size,
    )


@pytest.fixture(scope="module")
def private(method):
    """Not private at all: it says that it is, and a run must believe it."""
    return method._replace(privacy=mechanism)


@pytest.fixture(scope="module")
def done(private, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "private"
    return run(
        private,
        data,
        rounds=6,
        seed=3,
        cohort=cohort.uniform(2),
        privacy=BUDGET,
        progress=False,
        out=out,
    )


def test_every_round_says_what_it_revealed(done, data):
    said = done.metrics
    what = done.ledger.mechanism
    assert (what.scheme, what.cohort_size, what.rows) == ("uniform", 2, tuple(data.counts("train")))
    for accountant, name in ((rdp, "epsilon_rdp"), (theorem, "epsilon_theorem")):
        assert said[name].tolist() == [
            accountant(what, rounds=number, delta=1e-4) for number in range(1, 7)
        ]


def test_a_run_does_not_go_on_past_its_budget(done):
    left = done.ledger.left(6)
    with pytest.raises(
        BudgetSpentError, match=f"allows {left} more rounds, .* 6 rounds have spent"
    ):
        done.advance(left + 1)
    assert done.round == 6


@pytest.mark.slow
def test_a_resumed_run_goes_on_counting(done, private, data):
    out = done._directory.path
    more = run(
        private,
        data,
        rounds=8,
        seed=3,
        cohort=cohort.uniform(2),
        privacy=BUDGET,
        progress=False,
        out=out,
        resume=True,
    )
    assert more.metrics["epsilon_rdp"].iloc[-1] == rdp(more.ledger.mechanism, rounds=8, delta=1e-4)
    assert more.metrics["epsilon_rdp"].is_monotonic_increasing

    def changed(plan):
        return mechanism(plan, step_size=1.1e-5)

    with pytest.raises(ValueError, match="the checkpoint of round 8 says rdp="):
        run(
            private._replace(privacy=changed),
            data,
            rounds=9,
            seed=3,
            cohort=cohort.uniform(2),
            privacy=BUDGET,
            progress=False,
            out=out,
            resume=True,
        )
    with pytest.raises(ValueError, match=r"privacy.epsilon was 1.0 and is now 2.0"):
        run(
            private,
            data,
            rounds=9,
            seed=3,
            cohort=cohort.uniform(2),
            privacy=Budget(delta=1e-4, epsilon=2.0),
            progress=False,
            out=out,
            resume=True,
        )
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(1, 9))


def test_a_run_does_not_begin_what_it_cannot_afford(private, data, tmp_path):
    small = Budget(delta=1e-4, epsilon=0.2)
    with pytest.raises(
        BudgetSpentError, match=r"allows \d+ more .*epsilon=0.2 at delta=0.0001; 0 rounds"
    ):
        run(
            private, data, rounds=1000, seed=3, privacy=small, progress=False, out=tmp_path / "none"
        )
    assert not (tmp_path / "none").exists()


def test_a_step_outside_of_the_theorem_is_named_before_anything_runs(private, data):
    def bold(plan):
        return mechanism(plan, step_size=1.0)

    with pytest.raises(ValueError, match="must not exceed"):
        run(private._replace(privacy=bold), data, rounds=2, seed=3, privacy=BUDGET, progress=False)


def test_a_method_that_protects_nothing_has_no_budget(method, data):
    with pytest.raises(ValueError, match="fedavg protects no row"):
        run(method, data, rounds=2, seed=3, privacy=BUDGET, progress=False)


def test_cohorts_of_another_kind_count_as_everyone(data):
    counts = data.counts("train")
    assert (
        participation(cohort.full()(counts))
        == participation(cohort.bernoulli(0.5)(counts))
        == ("full", None)
    )
    assert participation(cohort.uniform(len(counts))(counts)) == ("full", None)
    assert participation(cohort.uniform(2)(counts)) == ("uniform", 2)
    assert participation(cohort.weighted(9)(counts)) == ("weighted", 9)


def test_the_table_of_a_configuration_is_checked():
    tables = {
        "data": {"name": "heart_disease"},
        "model": {"name": "logistic"},
        "method": {"name": "fedavg", "client_optimizer": {"name": "sgd", "learning_rate": 0.1}},
        "run": {"rounds": 5, "seed": 1},
    }
    assert "privacy" not in configuration.checked(tables).tables
    good = configuration.checked(
        tables | {"privacy": {"delta": 1e-5, "epsilon": 2, "accountants": ["rdp"]}}
    )
    assert Budget(**good.options["privacy"]) == Budget(delta=1e-5, epsilon=2, accountants=("rdp",))
    assert good.tables["privacy"] == {
        "delta": 1e-5,
        "epsilon": 2,
        "accountants": ["rdp"],
        "kept_by": "rdp",
        "earlier_rounds": 0,
    }
    for table, line in (
        ({"epsilon": 1.0}, r"privacy.delta is missing \(a number\)"),
        (
            {"delta": 1e-5, "epsilom": 1.0},
            "privacy.epsilom: unknown key 'epsilom'; did you mean 'epsilon'",
        ),
        (
            {"delta": 1e-5, "kept_by": "luck"},
            "privacy.kept_by: input should be 'theorem', 'rdp' or 'pld', got 'luck'",
        ),
    ):
        with pytest.raises(ConfigurationError, match=line):
            configuration.checked(tables | {"privacy": table})
