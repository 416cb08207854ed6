"""Plans: every proposal keeps its budget, and not by much more than it must."""

import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.privacy import LangevinMechanism, plan, rdp, theorem

COMMON: dict = {"clients": 10, "rows": 1000, "batch_size": None, "temperature": 0.5, "clip": 2.0}


def mechanism(size: int, correlation: float, step_size: float) -> LangevinMechanism:
    return LangevinMechanism(
        step_size=step_size,
        temperature=0.5,
        correlation=correlation,
        clip=2.0,
        local_steps=10,
        rows=(1000,) * 10,
        scheme="full" if size == 10 else "uniform",
        cohort_size=None if size == 10 else size,
    )


def test_proposals_keep_the_budget_and_spend_it():
    proposals = plan(
        epsilon=2.0,
        delta=1e-5,
        rounds=[200],
        cohort_sizes=[10, 2],
        correlations=[0.0, 0.9],
        **COMMON,
    )
    assert [(one.cohort_size, one.correlation) for one in proposals] == [
        (10, 0.0),
        (10, 0.9),
        (2, 0.0),
        (2, 0.9),
    ]
    for one in proposals:
        chosen = mechanism(one.cohort_size, one.correlation, one.step_size)
        spent = rdp(chosen, rounds=200, delta=1e-5)
        assert one.spent["rdp"] == pytest.approx(spent, rel=1e-6)
        assert 1.9 < spent <= 2.0
    assert (
        proposals[0].step_size < proposals[2].step_size
    )  # fewer clients reveal less, so that steps may be longer
    assert proposals[1].step_size == pytest.approx(proposals[0].step_size * (1 - 0.81))


def test_a_plan_by_the_theorem_stays_in_its_range():
    for one in plan(
        epsilon=5.0, delta=1e-5, rounds=[20], cohort_sizes=[10], kept_by="theorem", **COMMON
    ):
        chosen = mechanism(10, one.correlation, one.step_size * (1 - 1e-9))
        assert one.spent["theorem"] == pytest.approx(
            theorem(chosen, rounds=20, delta=1e-5), rel=1e-6
        )
        assert one.spent["theorem"] <= 5.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "budget epsilon must be above 0"),
        ({"delta": 1.5}, r"delta must be in \(0, 1\)"),
        ({"clients": 0}, "clients and rows must be at least 1"),
        ({"cohort_sizes": [11]}, "a cohort of 11 of 10 clients"),
        ({"correlations": [1.0]}, "no step size keeps"),
    ],
)
def test_mistakes_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        plan(
            **(
                {"epsilon": 1.0, "delta": 1e-5, "rounds": [10], "batch_size": None}
                | {"clients": 10, "rows": 1000}
                | change
            )
        )


def test_the_command_prints_a_table_and_errors_in_a_line():
    common = [
        "privacy",
        "plan",
        "--epsilon",
        "1",
        "--delta",
        "1e-5",
        "--clients",
        "10",
        "--rows",
        "1000",
    ]
    good = CliRunner().invoke(
        app, [*common, "--rounds", "50", "--cohort-size", "5", "--correlation", "0.5"]
    )
    assert good.exit_code == 0, good.output
    expected = plan(
        epsilon=1.0,
        delta=1e-5,
        clients=10,
        rows=1000,
        rounds=[50],
        cohort_sizes=[5],
        correlations=[0.5],
    )[0]
    for text in (
        "5 of 10",
        "50",
        "0.5",
        f"{expected.step_size:.4g}",
        f"{expected.spent['rdp']:.4g}",
    ):
        assert text in good.output
    bad = CliRunner().invoke(app, [*common, "--cohort-size", "20"])
    assert bad.exit_code == 2
    assert "Traceback" not in bad.output
