"""The search of settings, with a scorer that knows the answer."""

import math

import numpy as np
import pytest

from reproductions.search import Plan, Setting, Trial, fair_search, search_rows

PLAN = Plan(0.01, 1.0, 4, search_seeds=(7, 8), scored_seeds=(1, 2, 3))


class Scorer:
    """Best at one rate and own value; remembers all that it was asked."""

    def __init__(self, rate, own=None, diverges_above=math.inf):
        self.rate, self.own, self.limit, self.asked = rate, own, diverges_above, []

    def __call__(self, method, setting, seed, split):
        self.asked.append((method, setting, seed, split))
        if setting.rate > self.limit:
            return math.nan
        off = 0.0 if setting.own is None else abs(setting.own - self.own)
        return 80 - abs(math.log(setting.rate / self.rate)) - off + 0.01 * seed


def search(scorer, methods, plan=PLAN):
    return fair_search(methods, scorer, plan, lambda line: None)


def test_every_method_has_the_same_number_of_settings():
    found = search(Scorer(0.1, 2.0), {"own": (1.0, 2.0), "plain": ()})
    assert [len(one.trials) for one in found.values()] == [8, 8]
    rates = sorted({trial.setting.rate for trial in found["own"].trials})
    np.testing.assert_allclose(np.diff(np.log10(rates)), 2 / 3)
    finer = sorted({trial.setting.rate for trial in found["plain"].trials})
    np.testing.assert_allclose(np.diff(np.log10(finer)), 2 / 7)
    assert found["own"].best.own == 2.0
    assert found["plain"].best.own is None
    assert not any(one.at_edge for one in found.values())


def test_validation_rows_of_other_seeds_choose_and_test_rows_score():
    scorer = Scorer(0.1, 2.0)
    found = search(scorer, {"own": (1.0, 2.0)})["own"]
    assert {(seed, split) for _, _, seed, split in scorer.asked} == {
        (7, "validation"),
        (8, "validation"),
        (1, "test"),
        (2, "test"),
        (3, "test"),
    }
    assert {one for _, one, _, split in scorer.asked if split == "test"} == {found.best}
    assert len(found.scores) == 3


@pytest.mark.parametrize(("best", "more"), [(0.003, 1), (1.5, 1), (4.0, 1), (0.0004, 3)])
def test_a_grid_grows_where_the_best_is_at_its_end(best, more):
    found = search(Scorer(best, 1.0), {"own": (1.0, 2.0)})["own"]
    assert not found.at_edge
    assert abs(math.log(found.best.rate / best)) < math.log(100) / 3
    assert len(found.trials) >= 8 + 2 * more


def test_a_grid_that_may_not_grow_further_says_so():
    found = search(Scorer(1e-9, 1.0), {"own": (1.0, 2.0)})["own"]
    assert found.at_edge
    assert len(found.trials) == 8 + 2 * 4
    assert "at the end of the grid" in search_rows({"own": found})[0].quantity


def test_settings_that_diverge_are_never_chosen():
    found = search(Scorer(3.0, 1.0, diverges_above=0.3), {"own": (1.0, 2.0)})["own"]
    assert found.best.rate < 0.3
    assert not found.at_edge  # the next rate was tried, and diverged
    rows = search_rows({"own": found})
    assert rows[-1].quantity == "own, settings that diverged"
    assert all(math.isfinite(row.ours) for row in rows)


def test_the_search_is_written_down():
    found = search(Scorer(0.1, 2.0), {"own": (1.0, 2.0)})
    first, *rest = search_rows(found)
    assert first.quantity == "own, test, rate 0.04642, own 2"
    assert (first.seeds, len(rest), {row.seeds for row in rest}) == (3, 8, {2})
    assert max(row.ours for row in rest) == pytest.approx(max(t.mean for t in found["own"].trials))


def test_one_diverged_seed_spoils_a_setting():
    assert Trial(Setting(0.1), (80.0, math.nan)).mean == -math.inf


@pytest.mark.parametrize(
    ("plan", "methods", "message"),
    [
        (PLAN._replace(rates=3), {"a": ()}, "at least 4 rates"),
        (PLAN._replace(lowest=0.0), {"a": ()}, "from one above 0"),
        (PLAN._replace(scored_seeds=(1, 2)), {"a": ()}, "at least 3 different seeds are scored"),
        (PLAN._replace(search_seeds=(1,)), {"a": ()}, r"seeds of both: \[1\]"),
        (PLAN._replace(search_seeds=()), {"a": ()}, "seeds that are not scored, at least one"),
        (PLAN, {"a": (1.0, 2.0, 3.0)}, "a: every method has 2 values .* got 3"),
    ],
)
def test_searches_that_are_not_fair(plan, methods, message):
    with pytest.raises(ValueError, match=message):
        search(Scorer(0.1, 1.0), methods, plan)
