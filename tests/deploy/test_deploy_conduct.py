"""A study between sites over bytes in one process, and the same in one process without sites."""

import json
import shutil
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
import pytest

import covey
from covey.cli.demonstrating import FORMULA as HEART
from covey.cli.demonstrating import hospital_tables
from covey.core import protocol
from covey.core.protocol import Kind
from covey.deploy import site_study, status
from covey.deploy.approval import Approvals
from covey.deploy.audit import AuditLog
from covey.deploy.greeting import StudyRefusedError
from covey.deploy.ledger import SiteLedger
from covey.deploy.server import conduct
from covey.deploy.site import open_handler
from covey.deploy.site_file import read
from covey.deploy.study import of_formula, of_tables
from covey.engines.reception import NoQuorumError
from covey.engines.site_programs import Workshop
from covey.engines.transport import MemoryTransport, Mishaps
from covey.runs.directory import BusyError
from site_folders import table_of, write_site

NAMES = ["basel", "bern", "chur"]
FORMULA = "gain ~ age + dose + sex + (1 | hospital)"
STUDY_RANDOMNESS = {"privacy": {"budget": "none", "randomness": "study"}}
RUN = {
    "columns": {
        "features": ["age", "dose"],
        "outcome": "gain",
        "test": 0.25,
        "standardise": True,
    },
    "model": {"name": "linear"},
    "method": {"name": "fedavg", "batch_size": 16},
    "run": {"rounds": 4, "seed": 3},
}


@pytest.fixture(scope="module", autouse=True)
def shared_programs():
    """Sites of one process share compiled programs; each of a deployed study makes its own."""
    made = {}

    class Shared(Workshop):
        def programs(self, prepared):
            key = self.method.name, repr(self._spec), self._seed, prepared
            if key not in made:
                made[key] = super().programs(prepared)
            return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_study, "Workshop", Shared)
        yield


class Study:
    """Sites in folders, their handlers, and a server."""

    def __init__(self, folder, study, tables=None, changes=None, each=None):
        self.folder, self.study = folder, study
        given = tables or {name: table_of(seed) for seed, name in enumerate(NAMES)}
        self.paths = {
            name: write_site(
                folder / name, name, table, {**(changes or {}), **(each or {}).get(name, {})}
            )
            for name, table in given.items()
        }
        self.transport = MemoryTransport({})
        self.open()

    def open(self):
        """Start every site anew, as new processes would."""
        for handler in self.transport.handlers.values():
            handler.close()
        self.transport.handlers = {n: open_handler(path) for n, path in self.paths.items()}

    def conduct(self, folder="run", **options):
        given = {"sites": list(self.paths), "progress": False} | options
        return conduct(self.study, self.transport, self.folder / folder, **given)

    def log(self, name):
        return list(AuditLog(self.folder / name / "covey-site" / "audit.jsonl").lines())

    def refusals(self, name):
        return [line["what"] for line in self.log(name) if line["event"] == "refused"]

    def status(self, folder="run"):
        return status.read(self.folder / folder)


def _pages(folder):
    return len(list(folder.glob("*/covey-site/results/*/report.html")))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit by maximum likelihood between three sites, and in one process."""
    folder = tmp_path_factory.mktemp("fit")
    between = Study(folder, of_formula("gains", FORMULA, estimate="ml"))
    early = []  # what is told before the sites write their own results
    found = between.conduct(found=lambda one: early.append((one, _pages(folder))))
    assert [(one is found, pages) for one, pages in early] == [(True, 0)]
    assert _pages(folder) == len(NAMES)
    tables = {name: folder / name / "table.csv" for name in NAMES}
    together = covey.fit(FORMULA, tables, estimate="ml", progress=False)
    return between, found, together


@pytest.mark.slow
def test_a_fit_between_sites_is_the_fit_in_one_process(fitted):
    _, found, together = fitted
    one, other = found.summary(), together.summary()
    assert list(one.index) == list(other.index)
    np.testing.assert_allclose(one[["mean", "sd"]], other[["mean", "sd"]], rtol=1e-4, atol=1e-6)
    assert found.priors == together.priors
    assert found.used_rows == together.used_rows


@pytest.mark.slow
def test_each_site_finds_its_own_effects_and_the_server_has_none(fitted):
    between, found, together = fitted
    expected = together.effects().set_index("client")
    assert not len(found.effects())
    assert not list((between.folder / "run").glob("**/*redictions*"))
    for name in NAMES:
        results = between.folder / name / "covey-site" / "results" / "gains"
        own = pd.read_csv(results / "effects.csv").set_index("client")
        assert list(own.index) == [name]
        values = ["mean", "sd", "q05", "q95"]
        np.testing.assert_allclose(
            own.loc[name, values].astype(float), expected.loc[name, values].astype(float), atol=2e-3
        )
        assert len(pd.read_csv(results / "predictions.csv")) == 60
        assert f"This page is of {name}" in (results / "report.html").read_text()
    with pytest.raises(ValueError, match="known there alone"):
        found.predict(table_of(9), "bern")


@pytest.mark.slow
def test_a_fit_is_a_run_directory_that_loads_again(fitted):
    between, found, _ = fitted
    folder = between.folder / "run"
    for name in ("summary.csv", "report.html", "posterior.nc", "config.toml", "metrics.jsonl"):
        assert (folder / name).exists()
    loaded = covey.load_fit(folder)
    pd.testing.assert_frame_equal(pd.DataFrame(loaded.summary()), pd.DataFrame(found.summary()))
    site = covey.load_fit(between.folder / "bern" / "covey-site" / "results" / "gains")
    assert len(site.predict(table_of(9), "bern")) == 60
    assert between.status().stage == "finished"


@pytest.mark.slow
def test_everything_that_was_sent_is_in_the_audit_log(fitted):
    between, found, _ = fitted
    lines = between.log("bern")
    kinds = [line["kind"] for line in lines if line["event"] == "sent"]
    assert kinds.count("round") == found.run.round
    assert kinds.count("hello") == 4
    assert lines[0]["event"] == "approved"
    each = [line.get("bytes", 0) for name in NAMES for line in between.log(name)]
    assert between.status().bytes_up == sum(each)


@pytest.mark.slow
def test_sites_do_not_learn_of_each_other(fitted):
    between, _, _ = fitted
    setup = json.loads(
        (between.folder / "bern" / "covey-site" / "studies" / "gains" / "setup.json").read_text()
    )
    assert setup["agreed"]["rows"] == setup["agreed"]["dropped"] == {}
    assert "chur" not in json.dumps(setup["started"])


@pytest.mark.slow
def test_the_heart_disease_model_between_four_hospitals_has_the_posterior_of_one_process(tmp_path):
    """With the same seed draws are the same, up to rounding: far inside Monte Carlo error."""
    tables = hospital_tables()
    columns = [name for name in tables["va"].columns if name != "disease"]
    opened = {
        "data": {"columns": columns, "outcome": ["disease"]},
        "limits": {"rare_levels": "use"},  # as in one process
    }
    study = of_formula("heart", HEART, missing="impute")
    found = Study(tmp_path, study, tables=tables, changes=opened).conduct()
    places = {name: tmp_path / name / "table.csv" for name in sorted(tables)}
    together = covey.fit(HEART, places, missing="impute", progress=False)
    one, other = found.summary(), together.summary()
    assert list(one.index) == list(other.index)
    values = ["mean", "sd", "q05", "q95"]
    off = (one[values] - other[values]).abs().div(other["sd"], axis=0)
    assert off.to_numpy().max() < 0.002  # the Monte Carlo error of 1900 draws is 0.023
    assert found.design.factors == together.design.factors
    assert found.priors == together.priors


def run_here(folder, names=NAMES, **changes):
    """The same run in one process."""
    columns = RUN["columns"]
    data = covey.FederatedData.from_tables(
        {name: folder / name / "table.csv" for name in names},
        outcome=columns["outcome"],
        features=columns["features"],
    )
    data = data.split(0.0, columns["test"], seed=RUN["run"]["seed"])
    data, _ = data.standardised()
    method = covey.fedavg(covey.models.linear(), batch_size=16)
    return covey.run(method, data, **RUN["run"], progress=False, **changes)


def assert_same_state(one, other, **tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **{"rtol": 1e-5, "atol": 1e-6, **tolerance}),
        one.state,
        other.state,
    )


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Every message arrives twice."""
    between = Study(tmp_path_factory.mktemp("run"), of_tables("a", RUN), changes=STUDY_RANDOMNESS)
    between.transport.mishaps = Mishaps(repeat=1.0)
    return between, between.conduct()


def test_a_message_that_comes_twice_is_counted_once(ran):
    between, _ = ran
    site = read(between.paths["bern"])
    assert SiteLedger(site.site.state, site.privacy).rounds("a") == 4
    rounds = [line["round"] for line in between.log("bern") if line.get("kind") == "round"]
    assert rounds == [0, 0, 1, 1, 2, 2, 3, 3]  # what was sent twice is two lines of the log


def test_a_run_between_sites_is_the_run_in_one_process(ran):
    between, run = ran
    assert run.round == 4
    assert_same_state(run, run_here(between.folder))


def test_each_site_measures_its_own_predictions(ran):
    between, _ = ran
    expected = run_here(between.folder).evaluate().clients.set_index("name")
    for name in NAMES:
        results = between.folder / name / "covey-site" / "results" / "a"
        own = pd.read_csv(results / "metrics.csv").set_index("split")
        assert own.loc["test", "mse"] == pytest.approx(expected.loc[name, "mse"], rel=1e-4)
        assert len(pd.read_csv(results / "predictions.csv")) == 60
        assert (results / "report.html").exists()


def test_what_a_site_writes_is_its_owners_alone(ran):
    between, _ = ran
    state = between.folder / "bern" / "covey-site"
    files = [path for path in state.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert {"setup.json", "store.sqlite", "audit.jsonl", "report.html"} < {f.name for f in files}
    assert {path.name: oct(path.stat().st_mode)[-3:] for path in files} == {
        path.name: "600" for path in files
    }
    folders = [state, *(path for path in state.rglob("*") if path.is_dir())]
    assert {oct(path.stat().st_mode)[-3:] for path in folders} == {"700"}


@pytest.mark.slow
def test_metrics_are_shown_to_nobody_unless_the_owner_says_so(tmp_path):
    tables = {**RUN, "run": {"rounds": 1, "seed": 3, "evaluate_every": 1, "split": "test"}}
    shown = {"bern": {"metrics": {"shown_to": "server"}}}
    between = Study(tmp_path, of_tables("a", tables), changes=STUDY_RANDOMNESS, each=shown)
    run = between.conduct()
    seen = run.evaluation.clients.set_index("name")["mse"]
    assert seen.notna().to_dict() == {"basel": False, "bern": True, "chur": False}
    assert any("keeps its metrics" in text for text in between.refusals("basel"))
    assert not between.refusals("bern")
    for name, answers in {"basel": 1, "bern": 2}.items():  # an evaluation is an answer
        site = read(between.paths[name])
        assert SiteLedger(site.site.state, site.privacy).rounds("a") == answers


class DiesError(Exception):
    """The server is killed."""


def interrupted(transport, *, at, then):
    """The transport, with something that happens once before the messages of a round are sent."""
    exchange, open_ = transport.exchange, [True]

    def disturbed(messages, **options):
        envelope = protocol.open_envelope(next(iter(messages.values())))[0]
        if open_[0] and envelope.kind == Kind.ROUND and envelope.round == at:
            open_[0] = False
            then()
        return exchange(messages, **options)

    transport.exchange = disturbed


@pytest.mark.slow
def test_sites_that_are_restarted_go_on_where_they_were(tmp_path, ran):
    between = Study(tmp_path, of_tables("a", RUN), changes=STUDY_RANDOMNESS)
    interrupted(between.transport, at=2, then=between.open)
    assert_same_state(between.conduct(), ran[1])


def test_a_server_that_is_killed_resumes(tmp_path, ran):
    between = Study(tmp_path, of_tables("a", RUN), changes=STUDY_RANDOMNESS)

    def killed():
        raise DiesError

    interrupted(between.transport, at=2, then=killed)
    with pytest.raises(DiesError):
        between.conduct()
    assert between.status().stage == "failed"
    with pytest.raises(ValueError, match="already holds the study 'a'"):
        between.conduct()
    run = between.conduct(resume=True, sites=())
    assert_same_state(run, ran[1])
    assert [line["round"] for line in run.metrics.to_dict("records")] == [1, 2, 3, 4]


def test_a_site_with_an_older_store_is_refused_in_words(tmp_path):
    between = Study(tmp_path, of_tables("a", RUN), changes=STUDY_RANDOMNESS)
    store = tmp_path / "bern" / "covey-site" / "studies" / "a" / "store.sqlite"

    def back():
        shutil.copy(tmp_path / "old", store)
        between.open()

    interrupted(between.transport, at=3, then=back)
    # after the first round, then put back before the last
    first = between.transport.exchange

    def copying(messages, **options):
        envelope = protocol.open_envelope(next(iter(messages.values())))[0]
        if envelope.kind == Kind.ROUND and envelope.round == 1 and not (tmp_path / "old").exists():
            shutil.copy(store, tmp_path / "old")
        return first(messages, **options)

    between.transport.exchange = copying
    with (
        pytest.warns(UserWarning, match="bern"),
        pytest.raises(NoQuorumError, match="its store is"),
    ):
        between.conduct()
    assert between.status().sites["bern"].state == "refused"
    assert any("its store is of another time" in text for text in between.refusals("bern"))
    assert between.status().sites["basel"].state == "answered"


@pytest.mark.slow
def test_more_rounds_than_the_owner_allows(tmp_path):
    few = {"bern": {"limits": {"most_rounds": 4}}}
    between = Study(tmp_path, of_tables("a", RUN), changes=STUDY_RANDOMNESS, each=few)
    between.conduct()
    longer = replace(between.study, name="b", tables={**between.study.tables})
    longer.tables["run"] = {**RUN["run"], "rounds": 5}
    between.study = of_tables("b", longer.tables)
    with pytest.raises(StudyRefusedError, match=r"bern: 5 rounds were asked for, .* at most 4"):
        between.conduct("other")
    between.study = of_formula("c", FORMULA, estimate="ml")
    with pytest.raises(StudyRefusedError, match="bern: up to 100 rounds and 0 questions"):
        between.conduct("third")  # before the first round, not in the middle


FALD = {
    **RUN,
    "columns": {"features": ["age", "dose"], "outcome": "gain"},
    "method": {
        "name": "fald",
        "clip": 1.0,
        "step_size": 1e-5,
        "local_steps": 2,
        "batch_size": 16,
        "correlation": 0.0,
    },
    "run": {"rounds": 6, "seed": 3},
}


@pytest.mark.slow
def test_a_budget_over_all_studies_is_kept_by_the_site(tmp_path):
    budget = {"bern": {"privacy": {"epsilon": 1.0, "delta": 1e-5}}}
    between = Study(tmp_path, of_tables("a", FALD), each=budget)
    between.conduct()
    path = between.paths["bern"]
    site = read(path)
    ledger = SiteLedger(site.site.state, site.privacy)
    spent = ledger.spent()
    assert ledger.rounds("a") == 6
    assert spent > 0
    path.write_text(path.read_text().replace("epsilon = 1.0", f"epsilon = {1.1 * spent}"))
    between.open()
    between.study = of_tables("b", FALD)
    with pytest.warns(UserWarning, match="bern"), pytest.raises(NoQuorumError, match="is spent"):
        between.conduct("second")
    assert any("over all studies is spent" in text for text in between.refusals("bern"))
    between.study = of_formula("c", FORMULA)
    with pytest.raises(StudyRefusedError, match="marginal does not account"):
        between.conduct("third")


@pytest.mark.slow
def test_secret_noise_is_not_that_of_the_study_and_the_key_stays_at_the_site(tmp_path):
    between = Study(tmp_path, of_tables("a", FALD), each={"basel": STUDY_RANDOMNESS})
    between.conduct()
    keys = {name: tmp_path / name / "covey-site" / "secret.key" for name in NAMES}
    assert not keys["basel"].exists()
    assert keys["bern"].read_text() != keys["chur"].read_text()
    assert {oct(keys[name].stat().st_mode)[-3:] for name in ("bern", "chur")} == {"600"}


def test_a_study_that_is_withdrawn_is_refused_at_its_next_message(tmp_path, ran):
    between = Study(tmp_path, of_tables("a", RUN), changes=STUDY_RANDOMNESS)
    approvals = Approvals(tmp_path / "bern" / "covey-site")
    interrupted(between.transport, at=2, then=lambda: approvals.withdraw("a"))
    with (
        pytest.warns(UserWarning, match="'bern' refuses"),
        pytest.raises(NoQuorumError, match="'bern' refused: the site's owner has withdrawn"),
    ):
        between.conduct()
    found = between.status()
    assert (found.stage, found.sites["bern"].state) == ("failed", "refused")
    assert "has withdrawn the approval of the study 'a'" in found.sites["bern"].why
    assert [line["reason"] for line in between.log("bern") if line["event"] == "refused"] == [
        "approval"
    ] * 2
    between.open()  # nor does a restart help
    with pytest.raises(StudyRefusedError, match="has withdrawn"):
        between.conduct(resume=True, sites=())
    approvals.approve("a", digest=between.study.digest)
    assert_same_state(between.conduct(resume=True, sites=()), ran[1])


def test_an_owner_who_allows_less_is_heard_after_a_restart(tmp_path):
    between = Study(tmp_path, of_tables("a", RUN), changes=STUDY_RANDOMNESS)
    path = between.paths["bern"]

    def narrowed():
        path.write_text(path.read_text().replace('"fedavg", ', ""))
        between.open()

    interrupted(between.transport, at=2, then=narrowed)
    with (
        pytest.warns(UserWarning, match="bern"),
        pytest.raises(NoQuorumError, match="'fedavg' is not allowed at bern"),
    ):
        between.conduct()


def test_a_second_server_is_refused_by_the_sites_and_by_the_directory(tmp_path):
    between = Study(tmp_path, of_tables("a", RUN), changes=STUDY_RANDOMNESS)

    def another():
        with pytest.raises(StudyRefusedError, match="by another server"):
            between.conduct("elsewhere")
        with pytest.raises(BusyError, match="two servers cannot conduct one study"):
            between.conduct(resume=True)

    interrupted(between.transport, at=2, then=another)
    assert between.conduct().round == 4
    assert any("by another server" in text for text in between.refusals("chur"))
    assert between.status("elsewhere").stage == "failed"
