"""The experiment on FA-LD's privacy: its parts, and its claims at the quick scale."""

import numpy as np
import pytest
from problems import linear_gaussian

from covey.core import cohort
from covey.core.algorithm import Plan
from covey.privacy import theorem
from reproductions import EXPERIMENTS
from reproductions.fald_privacy import (
    DELTA,
    PLAIN,
    SETTINGS,
    SIZES,
    Course,
    claims_of,
    method_of,
    permitted_step,
    rows_of,
)

SIZE = SIZES["quick"]


def courses(spoil: str = "") -> dict:
    """Made-up courses in which everything goes as it should, or one thing does not."""
    rounds = np.arange(1.0, SIZE.rounds[-1] + 1)
    made = {}
    for setting in SETTINGS:
        size = setting.clients if spoil != "size" else 10
        rho = setting.correlation if spoil != "rho" else 0.0
        epsilon = (
            np.sqrt(rounds if spoil != "rounds" else 0 * rounds + 1) * size / np.sqrt(1 - rho**2)
        )
        rdp = 0.1 * epsilon if spoil != "rdp" else 2 * epsilon
        made[setting] = Course(
            {"theorem": epsilon, "rdp": rdp},
            np.array([0.5, 0.6, 0.4 if spoil == "accuracy" else 0.7]),
        )
    return made


@pytest.mark.parametrize("spoil", ["", "size", "rho", "rounds", "rdp", "accuracy"])
def test_claims_hold_where_they_should_and_only_there(spoil):
    assert all(claim.holds for claim in claims_of(courses(spoil), SIZE)) == (not spoil)


def test_rows_are_of_every_setting_and_of_the_plain_one_on_its_way():
    rows = rows_of({setting: [one, one] for setting, one in courses().items()}, SIZE)
    assert len(rows) == 3 * (len(SETTINGS) - 1 + len(SIZE.rounds))
    assert (
        rows[1].quantity
        == f"epsilon by rdp, rho {PLAIN.correlation:g}, 10 of 10 clients, 10 rounds"
    )
    assert rows[1].ours == pytest.approx(np.sqrt(10))
    assert rows[2].seeds == 2


def test_the_step_is_permitted_to_every_setting_and_one_more_tenth_is_not():
    data = linear_gaussian(sizes=(600,) * 10).data
    step, counts = permitted_step(data, SIZE), data.counts("train")
    refused = 0
    for setting in SETTINGS:
        for scale, expected in ((1.0, True), (1.12, False)):
            mechanism = method_of(setting, scale * step, SIZE).privacy
            assert mechanism is not None
            try:
                theorem(
                    mechanism(Plan(counts, cohort.uniform(setting.clients)(counts))),
                    rounds=SIZE.rounds[-1],
                    delta=DELTA,
                )
            except ValueError:
                assert not expected
                refused += 1
    assert refused


@pytest.mark.slow
def test_every_claim_holds_at_the_quick_scale(data_dir):
    _, claims, _ = EXPERIMENTS["fald-privacy"].load()("quick", lambda line: None)
    assert not [claim for claim in claims if not claim.holds]
