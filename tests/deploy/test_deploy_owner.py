"""The owner's side: approvals, audit log, ledger, what is allowed, and small counts."""

import errno
import os
import stat

import jax
import numpy as np
import pytest

import covey
from covey.core import atomic_files
from covey.deploy import audit, fit_rows
from covey.deploy.approval import Approvals
from covey.deploy.audit import AuditLog
from covey.deploy.ledger import SiteLedger
from covey.deploy.owner_words import approval_sentences
from covey.deploy.part import Work
from covey.deploy.policy import check_study
from covey.deploy.refusal import DeclinedError
from covey.deploy.secret_key import secret_of, study_key
from covey.deploy.site import open_handler
from covey.deploy.site_file import Privacy, read
from covey.deploy.site_study import mechanism_of
from covey.deploy.site_table import digest_of, open_table
from covey.deploy.study import of_formula, of_tables
from covey.privacy.accountants import rdp, rdp_of_several
from covey.privacy.mechanism import LangevinMechanism
from site_folders import table_of, write_site

FORMULA = "ill ~ age + sex + (1 | hospital)"


def site_of(tmp_path, table=None, **changes):
    return read(write_site(tmp_path, "basel", table_of(1) if table is None else table, changes))


def test_a_new_study_waits_until_it_is_approved(tmp_path):
    approvals, study = Approvals(tmp_path), of_formula("heart", FORMULA)
    for _ in range(2):
        with pytest.raises(DeclinedError, match="covey site approve heart") as error:
            approvals.admit(study, rule="ask")
        assert error.value.reason == "approval"
    assert approvals.entries()["heart"].state == "waiting"
    with pytest.raises(ValueError, match="has the digest"):
        approvals.find("heart", digest="0000")
    with pytest.raises(ValueError, match="waiting: heart"):
        approvals.find("lung")
    shown = approvals.find("heart", digest=study.digest[:8])
    assert shown.state == "waiting"
    assert "It asks for up to 100 rounds and 5 questions" in shown.words[-1]
    entry = approvals.approve("heart", digest=shown.digest)
    assert (entry.state, entry.by, entry.digest) == ("approved", "owner", study.digest)
    assert Approvals(tmp_path).admit(study, rule="ask") is False


def test_a_changed_configuration_under_an_approved_name_is_refused(tmp_path):
    approvals = Approvals(tmp_path)
    assert approvals.admit(of_formula("heart", FORMULA), rule="listed") is True
    for rule in ("ask", "listed"):
        with pytest.raises(DeclinedError, match="needs another name"):
            approvals.admit(of_formula("heart", FORMULA, seed=1), rule=rule)
    assert approvals.entries()["heart"].digest == of_formula("heart", FORMULA).digest


def test_a_study_that_waits_may_be_corrected(tmp_path):
    approvals = Approvals(tmp_path)
    shown = []
    for seed in (0, 1):
        with pytest.raises(DeclinedError, match="waits"):
            approvals.admit(of_formula("heart", FORMULA, seed=seed), rule="ask")
        shown.append(approvals.find("heart").digest)
    with pytest.raises(ValueError, match="has changed since it was shown"):
        approvals.approve("heart", digest=shown[0])
    assert approvals.find("heart").state == "waiting"
    assert approvals.approve("heart", digest=shown[1]).state == "approved"


def test_what_a_study_says_cannot_steer_the_owners_terminal(tmp_path):
    site = site_of(tmp_path)
    study = of_formula("heart", FORMULA, family="gaussian\x1b[2K\rIt reads nothing")
    with pytest.raises(DeclinedError, match="waits"):
        Approvals(tmp_path).admit(study, rule="ask")
    said = list(approval_sentences(site, "heart", Approvals(tmp_path).find("heart")))
    assert "gaussian?[2K?It reads nothing" in said[1]
    assert all(sentence.isprintable() for sentence in said)


@pytest.mark.parametrize("text", ["[{", "[]", '{"heart": 3}', '{"heart": {"state": "approved"}}'])
def test_damaged_approvals_are_told_to_the_owner_and_let_nothing_in(tmp_path, text):
    (tmp_path / "approvals.json").write_text(text)
    with pytest.raises(
        ValueError, match=r"approvals\.json is damaged .* approve the studies again"
    ):
        Approvals(tmp_path).find("heart")
    with pytest.raises(DeclinedError, match="list of approved studies is damaged") as error:
        Approvals(tmp_path).admit(of_formula("heart", FORMULA), rule="listed")
    assert str(tmp_path) not in error.value.why
    assert str(tmp_path) in error.value.detail


def test_the_audit_log_keeps_whole_lines_and_is_the_owners_alone(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    log.write("sent", study="heart", what="an upload", kind="round", round=1, bytes=10)
    with log.path.open("ab") as file:
        file.write(b'{"torn')
    log.write("refused", study="heart", what="no", kind=None)
    assert [line["event"] for line in log.lines()] == ["sent", "refused"]
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600
    assert "kind" not in list(log.lines())[1]


def test_a_full_disk_is_an_error_of_the_audit_log(tmp_path, monkeypatch):
    def full(handle, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(audit.os, "write", full)
    with pytest.raises(OSError, match="the disk is full"):
        AuditLog(tmp_path / "audit.jsonl").write("sent", study="a", what="b")


ROUND = LangevinMechanism(
    step_size=1e-6,
    temperature=1.0,
    correlation=0.0,
    clip=0.5,
    local_steps=10,
    rows=(1000, 9000),
    batch_size=200,
)
OTHER = LangevinMechanism(
    step_size=4e-6, temperature=1.0, correlation=0.0, clip=0.5, local_steps=5, rows=(1000, 500)
)


def test_rounds_of_several_studies_add_up_as_renyi_divergences():
    one, other = (rdp_of_several([(m, 50)], delta=1e-5) for m in (ROUND, OTHER))
    both = rdp_of_several([(ROUND, 50), (OTHER, 50)], delta=1e-5)
    assert max(one, other) < both < one + other
    assert rdp_of_several([(ROUND, 20), (ROUND, 30)], delta=1e-5) == pytest.approx(one)
    assert one == pytest.approx(rdp(ROUND, rounds=50, delta=1e-5))
    assert rdp_of_several([], delta=1e-5) == 0


def test_the_ledger_counts_every_study_against_one_budget_and_is_durable(tmp_path):
    enough = rdp_of_several([(ROUND, 3), (OTHER, 4)], delta=1e-5)
    privacy = Privacy(epsilon=1.0001 * enough, delta=1e-5)
    ledger = SiteLedger(tmp_path, privacy)
    ledger.need_accounting("a", "fald", ROUND)
    for _ in range(3):
        ledger.charge("a", ROUND)
    for _ in range(4):
        SiteLedger(tmp_path, privacy).charge("b", OTHER)
    with pytest.raises(DeclinedError, match="over all studies is spent: 4 rounds") as error:
        SiteLedger(tmp_path, privacy).charge("b", OTHER)
    assert error.value.reason == "budget"
    ledger = SiteLedger(tmp_path, privacy)
    assert (ledger.rounds("a"), ledger.rounds("b")) == (3, 4)
    assert ledger.spent() == pytest.approx(enough)


def test_with_a_budget_methods_that_do_not_account_are_refused(tmp_path):
    ledger = SiteLedger(tmp_path, Privacy(epsilon=1.0, delta=1e-5))
    with pytest.raises(DeclinedError, match="marginal does not account"):
        ledger.need_accounting("a", "marginal", None)
    free = SiteLedger(tmp_path, Privacy(budget="none"))
    free.need_accounting("a", "marginal", None)
    free.charge("a", None)
    with pytest.raises(DeclinedError, match="would make it inf"):  # rounds without noise count
        ledger.charge("b", ROUND)


def test_a_site_counts_its_rows_among_those_of_all_others():
    x, y = np.zeros((60, 2), np.float32), np.zeros(60, np.float32)
    data = covey.FederatedData.from_clients({"basel": (x, y)})
    linear = covey.models.linear()
    method = covey.fald(linear, step_size=1e-5, clip=1.0, local_steps=2, batch_size=16)
    found = mechanism_of(Work(method, None, data), 60, 180)
    assert (found.rows, found.scheme, found.clip, found.batch_size) == ((60, 120), "full", 1.0, 16)
    alone = mechanism_of(Work(method, None, data), 60, 60)
    assert rdp(found, rounds=5, delta=1e-5) > rdp(alone, rounds=5, delta=1e-5)  # a smaller share
    assert mechanism_of(Work(covey.fedavg(linear), None, data), 60, 180) is None


def test_a_damaged_ledger_lets_nothing_leave(tmp_path):
    (tmp_path / "ledger.json").write_text("[{")
    with pytest.raises(DeclinedError, match="cannot be read"):
        SiteLedger(tmp_path, Privacy(epsilon=1.0, delta=1e-5)).charge("a", ROUND)


RUN = {
    "columns": {"features": ["age"], "outcome": "gain"},
    "model": {"name": "linear"},
    "method": {"name": "fedavg"},
    "run": {"rounds": 30, "seed": 1},
}


@pytest.mark.parametrize(
    ("changes", "study", "reason", "words"),
    [
        ({"studies": {"names": ["lung*"]}}, of_formula("heart", FORMULA), "study", "heart"),
        ({"studies": {"methods": ["fald"]}}, of_formula("a", FORMULA), "method", "fald"),
        ({"studies": {"formulas": ["a ~ b"]}}, of_formula("a", FORMULA), "formula", FORMULA),
        ({"studies": {"formulas": [FORMULA]}}, of_tables("a", RUN), "formula", "none"),
        ({}, of_formula("a", "ill ~ name + (1 | h)"), "formula", "'name'"),
        ({}, of_formula("a", "age ~ dose"), "formula", "as an outcome"),
        ({}, of_formula("a", "gain ~ ill"), "formula", "'ill'"),
        ({"limits": {"most_rounds": 29}}, of_tables("a", RUN), "rounds", "at most 29"),
        (
            {"limits": {"most_rounds": 33}, "metrics": {"shown_to": "server"}},
            of_tables("a", {**RUN, "run": {**RUN["run"], "evaluate_every": 8}}),
            "rounds",
            "30 rounds and 4 evaluations",
        ),
        (
            {"limits": {"most_rounds": 104}},
            of_formula("a", FORMULA),
            "rounds",
            "up to 100 rounds and 5 questions",
        ),
    ],
)
def test_what_the_owner_does_not_allow_is_refused_before_a_row_is_read(
    tmp_path, changes, study, reason, words
):
    site = site_of(tmp_path, **changes)
    site.data.table.unlink()
    with pytest.raises(DeclinedError, match=r"basel|heart") as error:
        check_study(site, study)
    assert error.value.reason == reason
    assert words in error.value.why


def test_an_older_ledger_than_the_audit_log_lets_nothing_leave(tmp_path):
    budget, log = Privacy(epsilon=9.0, delta=1e-5), AuditLog(tmp_path / "audit.jsonl")
    for at in range(3):
        SiteLedger(tmp_path, budget).charge("a", ROUND)
        for _ in range(2):  # a round that is asked for twice is one answer
            log.write("sent", study="a", what="an upload", kind="round", epoch=1, round=at)
        if at == 1:
            old = (tmp_path / "ledger.json").read_bytes()
    SiteLedger(tmp_path, budget).charge("b", ROUND)
    (tmp_path / "ledger.json").write_bytes(old)
    with pytest.raises(DeclinedError, match="older than its audit log") as error:
        SiteLedger(tmp_path, budget).charge("b", ROUND)
    assert "counts 2 answers of 'a', and the audit log has 3" in error.value.detail
    (tmp_path / "ledger.json").unlink()
    with pytest.raises(DeclinedError, match="older than its audit log"):
        SiteLedger(tmp_path, budget).charge("b", ROUND)


def test_the_secret_key_is_whole_and_its_owners_alone(tmp_path, monkeypatch):
    site = site_of(tmp_path)
    state = site.site.state
    with monkeypatch.context() as patch:
        patch.setattr(atomic_files, "sync", lambda file: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="disk is full"):
            secret_of(site)
    assert not list(state.iterdir())  # nothing, or all of it
    key = secret_of(site)
    assert jax.random.key_data(secret_of(site)).tolist() == jax.random.key_data(key).tolist()
    assert [path.name for path in state.iterdir()] == ["secret.key"]
    assert stat.S_IMODE((state / "secret.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    one, other, again = (
        jax.random.key_data(study_key(site, setup)).tolist()
        for setup in ('{"table": "ab"}', '{"table": "cd"}', '{"table": "ab"}')
    )
    assert one == again
    assert one != other  # the same noise is not added to two tables
    for text in ("", "abcd", "not a key"):
        (state / "secret.key").write_text(text)
        with pytest.raises(DeclinedError, match="secret key of basel is damaged") as error:
            secret_of(site)
        assert str(state) not in error.value.why


def test_a_state_folder_that_others_can_read_is_closed_when_the_site_opens(tmp_path):
    path = write_site(tmp_path, "basel", table_of(1))
    inner = tmp_path / "covey-site" / "results" / "heart"
    inner.mkdir(parents=True)
    (inner / "predictions.csv").write_text("row\n")
    (inner / "predictions.csv").chmod(0o644)
    open_handler(path).close()
    modes = {
        one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.rglob("covey-site/**/*")
    }
    assert modes == {"results": 0o700, "heart": 0o700, "predictions.csv": 0o600}
    assert stat.S_IMODE((tmp_path / "covey-site").stat().st_mode) == 0o700


def test_approvals_and_ledger_are_their_owners_alone(tmp_path):
    Approvals(tmp_path).admit(of_formula("heart", FORMULA), rule="listed")
    SiteLedger(tmp_path, Privacy(budget="none")).charge("heart", None)
    for name in ("approvals.json", "ledger.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("changes", "study"),
    [
        ({"limits": {"most_rounds": 100}}, of_formula("a", FORMULA, estimate="ml")),
        (
            {"limits": {"most_rounds": 30}},  # evaluations are refused, and cost nothing
            of_tables("a", {**RUN, "run": {**RUN["run"], "evaluate_every": 8}}),
        ),
        (
            {"limits": {"most_rounds": 34}, "metrics": {"shown_to": "server"}},
            of_tables("a", {**RUN, "run": {**RUN["run"], "evaluate_every": 8}}),
        ),
    ],
)
def test_a_study_within_the_limit_is_not_refused(tmp_path, changes, study):
    check_study(site_of(tmp_path, **changes), study)


def test_columns_that_are_not_opened_are_not_there(tmp_path):
    site = site_of(tmp_path)
    assert "name" not in open_table(site).frame
    study = of_formula("a", "ill ~ age + (1 | name)")  # the group might be a column
    found = fit_rows.described(site, study, open_table(site))
    assert found["groups"] == {"name": "absent"}


def test_too_few_rows_decline_without_saying_how_many(tmp_path):
    site = site_of(tmp_path, table_of(1, 17))
    with pytest.raises(DeclinedError, match="fewer than 20 usable rows") as error:
        fit_rows.described(site, of_formula("a", FORMULA), open_table(site))
    assert "17" not in error.value.why
    assert "17" in error.value.detail


def test_a_bad_cell_is_told_to_the_owner_and_its_column_to_the_server(tmp_path):
    table = table_of(1).astype({"age": object})
    table.loc[7, "age"] = "Smith"
    site = site_of(tmp_path, table)
    with pytest.raises(DeclinedError, match="the column 'age' of the table of 'basel'") as error:
        fit_rows.described(site, of_formula("a", FORMULA), open_table(site))
    assert "Smith" not in error.value.why
    assert "line 9" in error.value.detail
    assert "Smith" in error.value.detail


def test_a_changed_table_has_another_digest(tmp_path):
    one = open_table(site_of(tmp_path))
    changed = one.frame.copy()
    changed.loc[3, "age"] = f"{changed.loc[3, 'age']}1"
    assert digest_of(one) == digest_of(open_table(site_of(tmp_path)))
    assert digest_of(one) != digest_of(one._replace(frame=changed))
