"""The comparison of samplers, in little."""

import numpy as np
import pytest

from reproductions import EXPERIMENTS
from reproductions.result import perform
from reproductions.samplers import PARAMETERS, Target, error, problem


def test_the_error_is_in_standard_deviations_per_parameter():
    rng = np.random.default_rng(0)
    root = np.diag([0.1, 1.0, 10.0, 2.0])
    target = Target(np.arange(4.0), root @ root, 1.0)
    exact = rng.normal(size=(200_000, PARAMETERS)) @ root + target.mean
    assert error(exact, target) < 0.01
    # Means one deviation off in every direction, and then draws twice as wide.
    assert error(exact + np.diag(root), target) == pytest.approx(1.0, abs=0.01)
    wide = target.mean + 2 * (exact - target.mean)
    assert error(wide, target) == pytest.approx(1.0, abs=0.01)


def test_clients_are_unequal_and_data_differ_by_seed():
    one, other = problem(0), problem(1)
    assert one.counts("train").tolist() == [20, 60, 40, 120, 60]
    assert not np.allclose(one.rows.x, other.rows.x)
    assert set(np.unique(one.rows.y)) == {0, 1}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fald. ")
def test_the_experiment_in_little(tmp_path):
    changes = {"rounds": 60, "draws": 500}
    done = perform(
        "samplers",
        EXPERIMENTS["samplers"],
        scale="quick",
        out=tmp_path,
        report=lambda line: None,
        changes=changes,
    )
    names = {row.quantity.partition(",")[0] for row in done.rows}
    assert {"FA-LD", "QLSD", "QLSD++", "FSGLD", "DG-LMC", "FedBE", "FedPA", "marginal"} <= names
    assert all(np.isfinite(row.ours) for row in done.rows)
    assert len(done.claims) == 4
