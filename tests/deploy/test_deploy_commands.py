"""`covey site check` and `covey site approve`."""

import pytest

from command_line import call
from covey.deploy.approval import Approvals
from covey.deploy.audit import AuditLog
from covey.deploy.refusal import DeclinedError
from covey.deploy.study import of_formula
from site_folders import table_of, write_site


@pytest.fixture
def path(tmp_path):
    table = table_of(1, 60)
    table["sex"] = ["f"] * 30 + ["m"] * 28 + ["x"] * 2
    table["dose"] = [0, 1] * 30
    table.loc[:2, "age"] = None
    return write_site(tmp_path, "basel", table, {"studies": {"approve": "ask"}})


def test_check_says_what_a_study_would_see(path):
    code, said = call("site", "check", path)
    assert code == 0, said
    for part in (
        "basel has 60 rows",
        "outcome ill: words: the values no, yes, and how many rows have each",
        "sex: words: the levels f, m, and how many rows have each; few have x (2), and a formula "
        "leaves these 2 rows out",
        "age: numbers: their count, mean and variance; 3 missing, and a study that fills gaps",
        "dose: numbers: the levels 0, 1, and how many rows have each",
        "learns no count below 5",
        "The server sees it by itself",
        "A new study waits until you approve it",
        "No privacy budget is kept",
        "shown to nobody",
        "No study has come yet",
    ):
        assert part in said
    assert "name:" not in said  # a column that is not opened


def test_check_says_what_using_rare_levels_tells(path):
    path.write_text(path.read_text() + '[limits]\nrare_levels = "use"\n')
    code, said = call("site", "check", path)
    assert code == 0, said
    assert "the levels f, m, x, and how many rows have each, also the few that have x (2)" in said
    assert "the gradient and the information matrix of any upload" in said
    assert "left out" not in said


def test_check_says_where_an_outcome_keeps_the_site_out(path):
    table = table_of(1, 60).assign(ill=["yes"] * 3 + ["no"] * 57)
    table.to_csv(path.parent / "table.csv", index=False)
    said = call("site", "check", path)[1]
    assert "few have yes (3), so that you take no part where a formula has this outcome" in said


def test_check_names_columns_that_the_table_lacks(path):
    path.write_text(path.read_text().replace('"dose"', '"doses"'))
    code, said = call("site", "check", path)
    assert code == 2
    assert "lacks the column 'doses'" in said


def test_approve_shows_the_study_and_is_logged(path):
    study = of_formula("heart", "ill ~ age + (1 | hospital)")
    code, said = call("site", "approve", "heart", "--site", path)
    assert code == 2
    assert "no study has come" in said
    state = path.parent / "covey-site"
    state.mkdir()
    with pytest.raises(DeclinedError):
        Approvals(state).admit(study, rule="ask")
    assert "heart" in call("site", "check", path)[1]
    code, said = call("site", "approve", "heart", "--site", path, answer="n")
    assert code == 1
    assert "Approve this study?" in said
    assert Approvals(state).find("heart").state == "waiting"
    words = ["heart", "--site", path, "--digest", study.digest[:10]]
    code, said = call("site", "approve", *words, "--yes")
    assert code == 0, said
    assert study.digest in said
    assert "It fits ill ~ age + (1 | hospital)" in said
    assert "these leave the site" in said
    assert "at most 1000 rounds, questions and evaluations per study" in said
    assert "Approve this study?" not in said
    assert [line["event"] for line in AuditLog(state / "audit.jsonl").lines()] == ["approved"]
    assert Approvals(state).admit(study, rule="ask") is False
    code, said = call("site", "approve", *words)
    assert code == 0
    assert "approved by you since" in said
    for name in ("approvals.json", "ledger.json"):
        (state / name).write_text("[{")
        code, said = call("site", "check", path)
        assert code == 2
        assert f"{name} is damaged" in said
        (state / name).unlink()


def test_withdraw_takes_an_approval_back_until_it_is_given_again(path):
    study, state = of_formula("heart", "ill ~ age + (1 | hospital)"), path.parent / "covey-site"
    assert "no study has come" in call("site", "withdraw", "heart", "--site", path)[1]
    state.mkdir()
    approvals = Approvals(state)
    approvals.admit(study, rule="listed")
    approvals.need("heart", study.digest)
    assert "no study 'lung'" in call("site", "withdraw", "lung", "--site", path)[1]
    code, said = call("site", "withdraw", "heart", "--site", path)
    assert code == 0, said
    assert f"withdrew heart {study.digest}" in said
    for rule in ("ask", "listed"):  # no rule lets it in again
        with pytest.raises(DeclinedError, match="has withdrawn the approval of the study 'heart'"):
            approvals.admit(study, rule=rule)
    assert "heart (" in call("site", "check", path)[1]
    code, said = call("site", "approve", "heart", "--site", path, "--yes")
    assert code == 0, said
    approvals.need("heart", study.digest)
    with pytest.raises(DeclinedError, match="is not approved"):
        approvals.need("heart", "ab" * 32)
    events = [line["event"] for line in AuditLog(state / "audit.jsonl").lines()]
    assert events == ["withdrawn", "approved"]
