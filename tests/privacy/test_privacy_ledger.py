"""The ledger: what was spent, what is left, and a budget that holds."""

from dataclasses import replace

import pytest

from covey.privacy import Budget, BudgetSpentError, LangevinMechanism, Ledger, rdp, theorem

ROUND = LangevinMechanism(
    step_size=1e-6,
    temperature=1.0,
    correlation=0.0,
    clip=0.5,
    local_steps=10,
    rows=(1000,) * 10,
    batch_size=200,
    scheme="uniform",
    cohort_size=5,
)
LEDGER = Ledger(ROUND, Budget(delta=1e-5, epsilon=1.0))


def changed(mechanism: LangevinMechanism = ROUND, **budget: object) -> Ledger:
    return Ledger(mechanism, replace(LEDGER.budget, **budget))


def test_it_reports_what_each_accountant_says():
    assert LEDGER.spent(7) == {
        "theorem": theorem(ROUND, rounds=7, delta=1e-5),
        "rdp": rdp(ROUND, rounds=7, delta=1e-5),
    }
    assert LEDGER.metrics(7) == {
        f"epsilon_{name}": value for name, value in LEDGER.spent(7).items()
    }
    assert LEDGER.spent(0) == {"theorem": 0.0, "rdp": 0.0}
    assert LEDGER.next_cost(7) == pytest.approx(
        rdp(ROUND, rounds=8, delta=1e-5) - rdp(ROUND, rounds=7, delta=1e-5)
    )


def test_the_budget_is_met_and_not_passed():
    permitted = LEDGER.permitted()
    assert permitted is not None
    assert permitted > 10
    assert (
        rdp(ROUND, rounds=permitted, delta=1e-5)
        <= 1.0
        < rdp(ROUND, rounds=permitted + 1, delta=1e-5)
    )
    LEDGER.check(permitted)
    with pytest.raises(
        BudgetSpentError, match=f"allows {permitted - 4} more rounds, {permitted - 3} were"
    ):
        LEDGER.check(permitted + 1, done=4)
    with pytest.raises(BudgetSpentError, match="allows 0 more rounds, 1 were asked for"):
        LEDGER.check(permitted + 1, done=permitted)
    assert LEDGER.left(permitted + 3) == 0


def test_earlier_rounds_count():
    tuned = changed(earlier_rounds=20)
    assert tuned.spent(5) == LEDGER.spent(25)
    assert (tuned.permitted() or 0) + 20 == LEDGER.permitted()


def test_a_budget_by_the_theorem_ends_sooner_and_needs_its_range():
    by_theorem = changed(kept_by="theorem")
    assert 0 < (by_theorem.permitted() or 0) < (LEDGER.permitted() or 0)
    outside = changed(replace(ROUND, step_size=1.0))
    with pytest.raises(ValueError, match="must not exceed"):
        outside.check(1)
    changed(outside.mechanism, accountants=("rdp",), epsilon=None).check(1)


def test_pld_lines_are_of_the_next_round_number():
    poisson = changed(replace(ROUND, sampling="poisson"), accountants=("pld", "rdp"))
    assert (
        poisson.metrics(123)["epsilon_pld"] == poisson.spent(130)["pld"] > poisson.spent(123)["pld"]
    )
    assert poisson.metrics(12)["epsilon_pld"] == poisson.spent(12)["pld"]


def test_its_record_is_plain_values_that_are_compared():
    record = LEDGER.record(9)
    assert set(record) == {"rounds", "theorem", "rdp"}
    assert all(type(value) is float for value in record.values())
    LEDGER.compare(record, 9)
    with pytest.raises(ValueError, match="says rdp="):
        changed(replace(ROUND, local_steps=11), accountants=("rdp",)).compare(
            {"rounds": 9.0, "rdp": record["rdp"]}, 9
        )
    with pytest.raises(ValueError, match=r"says rounds=9.0 of its privacy, the ledger 10.0"):
        changed(earlier_rounds=1, accountants=("rdp",)).compare(
            {"rounds": 9.0, "rdp": rdp(ROUND, rounds=10, delta=1e-5)}, 9
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": 0.0}, r"delta must be in \(0, 1\)"),
        ({"epsilon": 0.0}, "budget epsilon must be above 0"),
        ({"kept_by": "pld"}, "kept_by='pld' is not one of the accountants theorem, rdp"),
        ({"earlier_rounds": -1}, "earlier_rounds must be at least 0"),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        changed(**change)
