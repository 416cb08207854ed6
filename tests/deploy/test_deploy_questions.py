"""Each question and each round of a study is answered once, as its owner has approved."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from coordinator import Coordinator
from covey.algorithms.marginal.client import Points
from covey.core import outline
from covey.core.algorithm import Approximation, Posterior
from covey.core.protocol import Kind
from covey.deploy import fit_part, questions
from covey.deploy.audit import AuditLog
from covey.deploy.ledger import SiteLedger
from covey.deploy.site import open_handler
from covey.deploy.site_file import read
from covey.deploy.study import of_formula
from covey.engines.messages import pack_down, pack_question
from covey.kernels import pareto_smoothing
from site_folders import table_of, write_site

STUDY = of_formula("a", "gain ~ age + (1 | hospital)")


class Question:
    """A site in the fit of a formula, with questions that compile quickly, and a coordinator."""

    def __init__(self, folder, study=STUDY):
        self.path = write_site(folder / "bern", "bern", table_of(1))
        self.handler = open_handler(self.path)
        self.server = Coordinator(self.handler, study, "bern", ["basel", "bern"])
        self.server.begin_fit()

    def ask(self, points, name="gains", number=0, **envelope):
        content = outline.pack(Points(np.zeros(1), np.zeros(1), np.asarray(points, float)))
        body = pack_question(name, number, content)
        return self.server.send(Kind.QUERY, body, **envelope)

    def restart(self):
        self.handler.close()
        self.handler = self.server.handler = open_handler(self.path)

    @property
    def counted(self):
        site = read(self.path)
        return SiteLedger(site.site.state, site.privacy).rounds("a")

    @property
    def log(self):
        return list(AuditLog(self.path.parent / "covey-site" / "audit.jsonl").lines())


@pytest.fixture(scope="module", autouse=True)
def quick():
    def gains(key, sent, data):
        return jnp.sum(sent.points, axis=1) * jnp.sum(data.rows.y)

    queries = {"gains": gains, "leave_out": gains}
    posterior = Posterior(shared=Approximation(None, None, queries=queries))
    method = covey.fedavg(covey.models.linear())._replace(posterior=posterior)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_part, "method_of", lambda *_: method)
        yield


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    found = Question(tmp_path_factory.mktemp("asked"))
    yield found
    found.handler.close()


def test_a_question_that_comes_again_has_its_first_answer_and_another_has_none(asked):
    one, other = [[1.0, 2.0]], [[1.0, 2.5]]
    first, counted = asked.ask(one), asked.counted
    assert isinstance(first, bytes)
    assert asked.ask(one) == asked.ask(one, epoch=2) == first
    assert asked.counted == counted  # answered once, counted once
    for restarted in (False, True):
        if restarted:
            asked.restart()
        assert "question 0 of the study was answered already" in asked.ask(other, epoch=2)
        assert asked.log[-1]["reason"] == "question"
        assert asked.ask(one, epoch=2) == first
    assert asked.counted == counted
    assert asked.ask(other, number=1) != first
    assert asked.counted == counted + 1
    stored = asked.path.parent / "covey-site" / "studies" / "a" / "questions"
    assert sorted(path.name for path in stored.iterdir()) == ["0", "1"]


def test_questions_that_the_fit_does_not_ask_are_refused(asked):
    grid = [[1.0, 2.0]]
    assert "is not asked 'leave_out', number 2" in asked.ask(grid, name="leave_out", number=2)
    assert "is not asked 'gains', number 5" in asked.ask(grid, number=5)
    assert "up to 1500 points" in asked.ask(np.ones((1501, 2)), number=2)
    assert "up to 1500 points" in asked.ask(3.0, number=2)
    assert isinstance(asked.ask(np.ones((1500, 2)), number=2), bytes)


def test_a_fit_by_maximum_likelihood_asks_nothing(tmp_path):
    found = Question(tmp_path, of_formula("a", STUDY.tables["fit"]["formula"], estimate="ml"))
    assert "is not asked 'gains'" in found.ask([[1.0, 2.0]])
    found.handler.close()


def test_no_more_is_answered_than_the_fit_needs(asked, monkeypatch):
    monkeypatch.setattr(fit_part, "MOST_ROUNDS", 0)
    monkeypatch.setattr(fit_part, "MOST_ASKED", asked.counted)
    said = asked.ask([[3.0, 2.0]], number=3)
    assert f"answers at most {asked.counted} rounds and questions" in said


def test_the_bounds_are_those_of_the_method():
    draws = inspect.signature(covey.marginal).parameters["draws"].default
    most = inspect.signature(pareto_smoothing.importance_sample).parameters["most"].default
    assert (draws + draws // 2, most) == (fit_part.MOST_POINTS, fit_part.MOST_ASKED)


def test_a_run_may_ask_anew_and_the_same_question_has_the_same_answer(tmp_path):
    answers = questions.Answers(tmp_path / "questions", once=False)
    for question, answer in ((b"one", b"1"), (b"other", b"2")):
        assert answers.find(0, question) is None
        answers.keep(0, question, answer)
    assert (answers.find(0, b"one"), answers.find(0, b"other")) == (b"1", b"2")


def test_two_broadcasts_of_one_round_are_refused_and_logged(asked):
    """The second one is not answered, nor counted, in the epoch of the first."""
    down = asked.handler._studies["a"].member.workshop.programs(b"").shapes.down
    bodies = [
        pack_down(jax.tree.map(lambda leaf, x=x: np.full(leaf.shape, x, leaf.dtype), down))
        for x in (0.0, 1.0)
    ]
    first = asked.server.send(Kind.ROUND, bodies[0], epoch=3)
    counted = asked.counted
    assert isinstance(first, bytes)
    assert asked.server.send(Kind.ROUND, bodies[0], epoch=3) == first
    said = asked.server.send(Kind.ROUND, bodies[1], epoch=3)
    assert "was answered already, for another broadcast" in said
    assert (asked.log[-1]["event"], asked.log[-1]["what"]) == ("refused", said)
    assert asked.counted == counted
