"""What a malicious or broken site says is refused by the server, which names the site."""

import json

import jax
import numpy as np
import pytest
from methods import remembering
from problems import linear_gaussian

from covey.core import protocol, wire
from covey.core.protocol import Kind
from covey.deploy import status
from covey.deploy.greeting import StudyRefusedError
from covey.deploy.plan import BadAnswerError
from covey.deploy.server import conduct
from covey.deploy.site import open_handler
from covey.deploy.study import Study, of_formula, of_tables
from covey.engines.messages import pack_answer, unpack_answer
from covey.engines.reception import NoQuorumError
from covey.engines.transport import MemoryTransport
from site_folders import table_of, write_site
from sites import World

FIT = of_formula("a", "ill ~ scale(age) + sex + (1 | hospital)", missing="impute")
RUN = of_tables(
    "a",
    {
        "columns": {"features": ["age", "dose"], "outcome": "gain", "standardise": True},
        "model": {"name": "linear"},
        "method": {"name": "fedavg"},
        "run": {"rounds": 1, "seed": 1},
    },
)


@pytest.fixture
def handlers(tmp_path):
    paths = [write_site(tmp_path / name, name, table_of(1)) for name in ("basel", "bern")]
    return {path.parent.name: open_handler(path) for path in paths}


def changed(tree, where, value):
    """A tree of plain values with another one at some place."""
    if not where:
        return value
    key, rest = where[0], where[1:]
    if isinstance(tree, list):
        return [changed(one, rest, value) if at == key else one for at, one in enumerate(tree)]
    return {**tree, key: changed(tree.get(key), rest, value)}


def conducted(handlers, folder, study, step, lie):
    """A study in which bern lies in one step."""

    def lying(message):
        reply = handlers["bern"](message)
        envelope, body = protocol.open_envelope(message)
        if envelope.kind != Kind.HELLO or protocol.unpack_text(body)["step"] != step:
            return reply
        opened, said = protocol.open_envelope(reply)
        found = lie(json.loads(said))
        return protocol.seal(
            opened, found if isinstance(found, bytes) else json.dumps(found).encode()
        )

    transport = MemoryTransport({**handlers, "bern": lying})
    conduct(study, transport, folder / "run", sites=["basel", "bern"], progress=False)


def _named(value):
    return value.kind if isinstance(value, Study) else str(value)[:40]


DESCRIPTIONS = [
    (FIT, [], [1, 2]),
    (FIT, ["rows"], -3),
    (FIT, ["missing", "age"], -1),
    (FIT, ["kinds", "name"], "text"),
    (FIT, ["kinds", "sex"], "image"),
    (FIT, ["levels", "sex"], [["f", 0], [3, 0]]),
    (FIT, ["levels", "sex"], [["f", 0], ["f", 0]]),
    (FIT, ["levels", "ward"], [["north", 0], ["south", 0]]),
    (FIT, ["moments", "scale(age)", 2], -1.0),
    (FIT, ["moments", "scale(age)", 0], -60.0),
    (FIT, ["moments", "scale(age)", 1], 1e300),
    (FIT, ["moments", "income"], [1.0, 1.0, 1.0]),
    (FIT, ["outcome"], {}),
    (FIT, ["outcome", "values"], ["no", 3]),
    (FIT, ["outcome", "values"], 7),
    (FIT, ["outcome", "categories"], ["yes"]),
    (FIT, ["groups"], {}),
    (RUN, [], None),
    (RUN, ["kinds"], {}),
    (RUN, ["sums"], None),
    (RUN, ["sums", 0], [60]),
    (RUN, ["sums", 0], [-60, 60]),
    (RUN, ["sums", 2], [1.0, 1.0]),
]


@pytest.mark.parametrize(("study", "where", "value"), DESCRIPTIONS, ids=_named)
def test_a_description_that_cannot_be(handlers, tmp_path, study, where, value):
    with pytest.raises(BadAnswerError, match="site 'bern'"):
        conducted(
            handlers,
            tmp_path,
            study,
            "describe",
            lambda one: changed(one, where, value),
        )
    found = status.read(tmp_path / "run")
    assert (found.stage, found.sites["bern"].state) == ("failed", "damaged")
    assert found.sites["basel"].state == "answered"


SUMS = [
    (FIT, [], 3),
    (FIT, ["entry"], [1]),
    (FIT, ["entry", "rows", "train"], 59),
    (FIT, ["entry", "spec", "features"], ["scale(age)"]),
    (FIT, ["statistics"], None),
    (FIT, ["statistics", "columns", "income"], [60.0, 1.0, 1.0]),
    (FIT, ["statistics", "columns", "sex[T.m]", 2], -1.0),
    (FIT, ["statistics", "outcome", 0], 1e9),
    (RUN, ["entry"], None),
]


@pytest.mark.parametrize(("study", "where", "value"), SUMS, ids=_named)
def test_sums_of_rows_that_cannot_be(handlers, tmp_path, study, where, value):
    with pytest.raises(BadAnswerError, match="site 'bern'"):
        conducted(
            handlers,
            tmp_path,
            study,
            "agree",
            lambda one: changed(one, where, value),
        )
    assert status.read(tmp_path / "run").sites["bern"].state == "damaged"


@pytest.mark.parametrize("rows", [{"train": -1}, {"train": 2**40, "validation": 0, "test": 0}])
def test_counts_of_rows_that_cannot_be(handlers, tmp_path, rows):
    with pytest.raises(ValueError, match="'bern' gives no counts of rows"):
        conducted(
            handlers,
            tmp_path,
            RUN,
            "agree",
            lambda one: changed(one, ["entry", "rows"], rows),
        )


def test_an_answer_that_is_no_text_is_of_its_site_alone(handlers, tmp_path):
    with pytest.raises(StudyRefusedError, match="bern: its answer cannot be used: the text is not"):
        conducted(handlers, tmp_path, RUN, "describe", lambda _: b"{")
    found = status.read(tmp_path / "run").sites
    assert (found["bern"].state, found["basel"].state) == ("damaged", "answered")


@pytest.fixture
def world():
    return World(remembering(), linear_gaussian().data)


def forging(world, name, kind, forge):
    """Let a site send other bytes, with a right checksum, in answer to messages of a kind."""
    honest = world.transport.handlers[name]

    def handle(message):
        reply = honest(message)
        if protocol.open_envelope(message)[0].kind != kind:
            return reply
        envelope, body = protocol.open_envelope(reply)
        return protocol.seal(envelope, forge(body))

    world.transport.handlers[name] = handle


@pytest.mark.parametrize("weight", [-1.0, 1e9, np.inf, np.nan])
def test_an_upload_that_counts_for_more_than_its_rows_is_in_no_sum(world, weight):
    like, name = world.engine.gathering.like, world.names[2]

    def forge(body):
        answer = unpack_answer(body, like)
        return pack_answer(answer._replace(sent=answer.sent._replace(weight=np.float32(weight))))

    forging(world, name, Kind.ROUND, forge)
    state = world.engine.start()
    if np.isfinite(weight):
        with (
            pytest.warns(UserWarning, match=name),
            pytest.raises(
                NoQuorumError, match=f"'{name}' sent an answer that cannot be used: its upload"
            ),
        ):
            world.engine.advance(state, 1)
        assert name in world.reports[-1].damaged
        assert name not in world.reports[-1].answered
        return
    state, _ = world.engine.advance(state, 1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.server))
    assert name in world.reports[-1].refused


def test_metrics_of_fewer_rows_than_none_are_left_out(world):
    name, engine = world.names[1], world.engine
    state, _ = engine.advance(engine.start(), 1)
    like = engine._metrics_like(engine.broadcast(state))

    def forge(body):
        found = wire.unpack(body, like)
        return wire.pack(jax.tree.map(lambda leaf: np.full_like(leaf, -5.0), found))

    forging(world, name, Kind.EVALUATE, forge)
    with pytest.warns(UserWarning, match="a number of rows that cannot be"):
        found = engine.evaluate(state, "train")
    assert all(metric.count.min() >= 0 for metric in found.values())
    assert name in world.reports[-1].damaged
