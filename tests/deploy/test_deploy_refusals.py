"""What is refused before the first round: in words, in the audit log, and in the study's status."""

import json
import warnings

import numpy as np
import pytest

import covey
from covey.core import protocol
from covey.core.protocol import SERVER, Envelope, Kind
from covey.core.wire import WireError
from covey.deploy import audit, status
from covey.deploy.approval import Approvals
from covey.deploy.audit import AuditLog
from covey.deploy.greeting import StudyRefusedError
from covey.deploy.server import conduct
from covey.deploy.site import open_handler
from covey.deploy.study import of_formula, of_tables
from covey.engines.transport import MemoryTransport
from site_folders import table_of, write_site

FORMULA = "ill ~ age + sex + (1 | hospital)"
STUDY = of_formula("heart", FORMULA)
RUN = {
    "columns": {"features": ["age", "dose"], "outcome": "gain"},
    "model": {"name": "linear"},
    "method": {"name": "fedavg"},
    "run": {"rounds": 2, "seed": 1},
}


def tables(**others):
    return {"basel": table_of(1), "bern": table_of(2)} | others


class Sites:
    """Sites in folders, and a server that greets them."""

    def __init__(self, folder, given, **each):
        self.folder = folder
        self.paths = {
            name: write_site(folder / name, name, table, each.get(name))
            for name, table in given.items()
        }
        self.handlers = {name: open_handler(path) for name, path in self.paths.items()}

    def conduct(self, study=STUDY, folder="run", **options):
        given = {"sites": list(self.paths), "progress": False} | options
        return conduct(study, MemoryTransport(self.handlers), self.folder / folder, **given)

    def log(self, name):
        return list(AuditLog(self.folder / name / "covey-site" / "audit.jsonl").lines())

    def assert_refused(self, name, reason, words):
        """The last line of the log, and the status."""
        last = [line for line in self.log(name) if line["event"] == "refused"][-1]
        assert last["reason"] == reason
        assert words in last["what"]
        found = status.read(self.folder / "run")
        assert found.stage == "failed"
        assert found.sites[name].state == "refused"
        assert found.sites[name].why in found.why


REFUSALS = [
    ({"studies": {"methods": ["fald"]}}, "method", "'marginal' is not allowed at bern"),
    ({"studies": {"names": ["lung"]}}, "study", "no study called 'heart'"),
    ({"studies": {"formulas": ["ill ~ age"]}}, "formula", "is not allowed at bern"),
    ({"studies": {"approve": "ask"}}, "approval", "waits for the approval"),
    ({"data": {"columns": ["age", "dose"]}}, "formula", "'sex' is not open"),
    ({"limits": {"min_rows": 61}}, "rows", "limits.min_rows is 61"),
]


@pytest.mark.parametrize(("changes", "reason", "words"), REFUSALS, ids=lambda one: str(one)[:40])
def test_what_the_owner_does_not_allow(tmp_path, changes, reason, words):
    sites = Sites(tmp_path, tables(), bern=changes)
    with pytest.raises(StudyRefusedError, match="1 of 2 sites take part in 'heart'") as error:
        sites.conduct()
    assert "bern: " in str(error.value)
    sites.assert_refused("bern", reason, words)
    assert [line["kind"] for line in sites.log("basel") if line["event"] == "sent"] == ["hello"]


def test_a_table_that_is_gone_is_named_in_the_log_alone(tmp_path):
    sites = Sites(tmp_path, tables())
    (tmp_path / "bern" / "table.csv").unlink()
    with pytest.raises(StudyRefusedError, match="table of 'bern' cannot be read") as error:
        sites.conduct()
    assert "table.csv" not in str(error.value)
    sites.assert_refused("bern", "table", "table.csv")


def test_a_study_starts_once_every_owner_has_approved_it(tmp_path):
    ask = {"studies": {"approve": "ask"}}
    sites = Sites(tmp_path, tables(), basel=ask, bern=ask)
    with pytest.raises(StudyRefusedError, match="covey site approve heart"):
        sites.conduct()
    for name in sites.paths:
        Approvals(tmp_path / name / "covey-site").approve("heart", digest=STUDY.digest)
    changed = of_formula("heart", FORMULA, seed=1)
    with pytest.raises(StudyRefusedError, match="a changed study needs another name"):
        sites.conduct(changed)
    sites.assert_refused("bern", "study", "and now comes with")


def test_a_site_with_too_few_rows_is_left_out_and_the_study_says_so(tmp_path, monkeypatch):
    sites = Sites(tmp_path, tables(chur=table_of(3, 12)))
    with pytest.raises(StudyRefusedError, match="chur has fewer than 20 usable rows"):
        sites.conduct()

    class StopHereError(Exception):
        pass

    def stop(*_, **__):
        raise StopHereError

    monkeypatch.setattr("covey.deploy.server.run_between_sites", stop)
    with pytest.raises(StopHereError):
        sites.conduct(folder="second", least=2)
    found = status.read(tmp_path / "second")
    assert found.sites["chur"].state == "left out"
    assert "fewer than 20" in found.sites["chur"].why
    assert found.sites["basel"].state == "answered"
    agreed = json.loads((tmp_path / "second" / "study" / "agreed.json").read_text())
    assert list(agreed["said"]) == ["basel", "bern"]
    assert "chur" in agreed["left_out"]


def test_columns_and_levels_that_do_not_fit_are_named_by_site_before_the_first_round(tmp_path):
    other = table_of(3)
    cases = {
        "lacks the column 'sex'": other.drop(columns="sex"),
        "column 'sex' has words at basel, bern": other.assign(sex=np.arange(60) % 2),
        "level 'F' at chur and 'f' at basel": other.assign(sex=["F", "m"] * 30),
        "the column 'age' of the table of 'chur'": other.assign(age=["x"] + [str(4)] * 59),
    }
    for at, (words, table) in enumerate(cases.items()):
        sites = Sites(tmp_path / str(at), tables(chur=table))
        with pytest.raises(ValueError, match=words) as error:
            sites.conduct()
        assert "chur" in str(error.value)
        found = status.read(tmp_path / str(at) / "run")
        assert (found.stage, found.round) == ("failed", 0)
        assert words in found.why
        sent = [line["kind"] for line in sites.log("basel") if line["event"] == "sent"]
        assert sent == ["hello"]  # its description, and nothing else


def test_columns_of_a_configuration_are_compared_as_well(tmp_path):
    other = table_of(3)
    cases = {
        "the table of 'chur' lacks the column 'dose'": other.drop(columns="dose"),
        "column 'dose' of 'chur' has words": other.assign(dose="much"),
        "the column 'age' of the table of 'chur' has missing values": other.assign(
            age=np.where(np.arange(60) < 9, np.nan, 50.0)
        ),
        "the column 'age' of the table of 'chur'": other.assign(age=["x"] + [str(4)] * 59),
    }
    for at, (words, table) in enumerate(cases.items()):
        sites = Sites(tmp_path / str(at), tables(chur=table))
        with pytest.raises(ValueError, match=words):
            sites.conduct(of_tables("a", RUN))
        assert status.read(tmp_path / str(at) / "run").stage == "failed"


def test_labels_that_are_none_are_refused_at_the_site(tmp_path):
    columns = {**RUN["columns"], "classes": 2}
    sites = Sites(tmp_path, tables())
    with pytest.raises(StudyRefusedError, match="other than the labels 0 to 1"):
        sites.conduct(of_tables("a", {**RUN, "columns": columns, "model": {"name": "logistic"}}))
    last = sites.log("bern")[-1]
    assert "line 2" in last["what"]


def hello(study, site, content, *, server="s", step="describe", digest=None):
    """A greeting as a server seals it."""
    envelope = Envelope(
        Kind.HELLO, study.name, digest or study.digest, 1, 0, SERVER, site, protocol.NEVER
    )
    body = {"step": step, "server": server, "version": covey.__version__, "content": content}
    return protocol.seal(envelope, protocol.pack_text(body))


def answer_to(handler, message):
    envelope, body = protocol.open_envelope(handler(message))
    if envelope.kind == Kind.REFUSAL:
        return protocol.unpack_refusal(body).text
    return protocol.unpack_text(body)


def test_greetings_that_are_not_what_they_should_be(tmp_path):
    sites = Sites(tmp_path, tables())
    bern, good = sites.handlers["bern"], {"study": STUDY.text, "sites": ["basel", "bern"]}
    wrong = {
        "there is no step": hello(STUDY, "bern", good, step="dance"),
        "a greeting needs a study": hello(STUDY, "bern", {"study": 3}),
        "is not for bern": hello(STUDY, "bern", {**good, "sites": ["basel"]}),
        "not the one that the message names": hello(STUDY, "bern", good, digest="ab" * 32),
        "the study cannot be used": hello(STUDY, "bern", {**good, "study": "{}"}),
        "and this is 'bern'": hello(STUDY, "basel", good),
        "has not been greeted": hello(STUDY, "bern", {}, step="agree"),
    }
    for words, message in wrong.items():
        assert words in answer_to(bern, message)
    assert answer_to(bern, hello(STUDY, "bern", good))["site"] == "bern"
    assert "design cannot be read" in answer_to(bern, hello(STUDY, "bern", {}, step="agree"))
    assert "not been agreed" in answer_to(bern, hello(STUDY, "bern", {}, step="start"))
    by_another = hello(STUDY, "bern", {}, step="agree", server="t")
    assert "by another server" in answer_to(bern, by_another)
    envelope = Envelope(Kind.ROUND, "heart", STUDY.digest, 1, 0, SERVER, "bern", protocol.NEVER)
    assert "not been started" in answer_to(bern, protocol.seal(envelope))
    changed = envelope._replace(digest="ab" * 32)
    assert "a changed study needs another name" in answer_to(bern, protocol.seal(changed))
    assert all(line["event"] in ("refused", "sent", "approved") for line in sites.log("bern"))
    assert sum(line["event"] == "refused" for line in sites.log("bern")) == 12


def test_bytes_that_are_no_message_or_too_many_are_refused_and_logged(tmp_path):
    sites = Sites(tmp_path, tables(), bern={"limits": {"most_bytes": 1500}})
    bern = sites.handlers["bern"]
    with pytest.raises(WireError):
        bern(b"nonsense")
    with pytest.raises(WireError, match="over the cap of 1500"):
        bern(bytes(2000))
    assert [line["bytes"] for line in sites.log("bern")] == [8, 2000]


def test_an_answer_over_the_cap_does_not_leave(tmp_path):
    """A description of many levels is longer than the owner lets out."""
    table = table_of(2, 400)
    table["sex"] = [f"a level with a long name, the {at // 5}th" for at in range(400)]
    sites = Sites(tmp_path, tables(bern=table), bern={"limits": {"most_bytes": 2000}})
    with pytest.raises(StudyRefusedError, match=r"the answer has \d+ bytes, and 2000 may leave"):
        sites.conduct()
    sites.assert_refused("bern", "message", "may leave")


def test_on_a_full_disk_nothing_leaves_and_the_refusal_says_so(tmp_path, monkeypatch):
    sites = Sites(tmp_path, tables())

    def full(self, *_, **__):
        if self.path.parent.parent.name == "bern":
            raise OSError(28, "could not write: the disk is full", str(self.path))
        return write(self, *_, **__)

    write = audit.AuditLog.write
    monkeypatch.setattr(audit.AuditLog, "write", full)
    with pytest.raises(StudyRefusedError, match="bern cannot write its state") as error:
        sites.conduct()
    assert str(tmp_path) not in str(error.value)
    found = status.read(tmp_path / "run")
    assert found.sites["bern"].state == "refused"
    assert "is its disk full?" in found.sites["bern"].why


def test_a_table_that_changed_after_the_study_began_is_refused(tmp_path):
    sites = Sites(tmp_path, tables())
    bern, good = sites.handlers["bern"], {"study": STUDY.text, "sites": ["basel", "bern"]}
    answer_to(bern, hello(STUDY, "bern", good))
    bern.close()
    table_of(5).to_csv(tmp_path / "bern" / "table.csv", index=False)
    said = answer_to(bern, hello(STUDY, "bern", {}, step="agree"))
    assert "has changed since the study began" in said


def test_sites_that_do_not_answer_are_late(tmp_path):
    sites = Sites(tmp_path, tables())
    transport = MemoryTransport(sites.handlers)
    transport.killed.add("bern")
    with pytest.raises(StudyRefusedError, match="bern: no answer in time"):
        conduct(STUDY, transport, tmp_path / "run", sites=["basel", "bern"], progress=False)
    found = status.read(tmp_path / "run").sites
    assert (found["bern"].state, found["basel"].state) == ("late", "answered")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sites": []}, "needs the names"),
        ({"sites": ["a", "a"]}, "each once"),
        ({"sites": ["../a"]}, "cannot be called"),
        ({"quorum": 0}, "quorum must be at least 1"),
        ({"least": 0}, "least must be at least 1"),
    ],
)
def test_mistakes_of_the_coordinator(tmp_path, options, words):
    given = {"sites": ["a"]} | options
    with pytest.raises(ValueError, match=words):
        conduct(STUDY, MemoryTransport({}), tmp_path / "run", **given)


def test_another_version_of_the_server_is_refused_with_both_versions(tmp_path, monkeypatch):
    sites = Sites(tmp_path, tables())
    monkeypatch.setattr("covey.deploy.greeting.version", lambda _: "9.1.0")
    words = f"bern runs Covey {covey.__version__}, and the server Covey 9.1.0"
    with pytest.raises(StudyRefusedError, match=words.replace(".", r"\.")):
        sites.conduct()
    sites.assert_refused("bern", "version", words)
    body = protocol.pack_text({"step": "describe", "server": "s", "content": None})
    envelope = Envelope(Kind.HELLO, STUDY.name, STUDY.digest, 1, 0, SERVER, "bern")
    said = answer_to(sites.handlers["bern"], protocol.seal(envelope, body))
    assert "of a version that it does not name" in said


def test_the_status_is_read_in_words(tmp_path):
    sites = Sites(tmp_path, tables(), bern={"studies": {"methods": ["fald"]}})
    with warnings.catch_warnings(), pytest.raises(StudyRefusedError):
        sites.conduct()
    said = "\n".join(status.read(tmp_path / "run").words())
    assert "heart" in said
    assert "bern: refused, 1 message missed: the method 'marginal' is not allowed" in said
    with pytest.raises(ValueError, match="holds no study"):
        status.read(tmp_path)
    (tmp_path / "run" / "study" / "status.json").write_text("{}")
    with pytest.raises(ValueError, match="is damaged"):
        status.read(tmp_path / "run")
