"""Changed messages with right checksums, to every handler of a site: an answer, a refusal or a
WireError, and nothing else.
"""

import random
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from coordinator import Coordinator
from covey.core import outline, protocol
from covey.core.algorithm import Approximation, Posterior
from covey.core.protocol import Kind
from covey.core.wire import WireError
from covey.deploy import fit_part
from covey.deploy.audit import AuditLog
from covey.deploy.site import open_handler
from covey.deploy.study import of_formula
from covey.engines.messages import pack_down, pack_question
from site_folders import table_of, write_site

JUNK = (None, True, -1, 0, 3.5, 2**70, "", "x", "name", [], {}, [[1]], {"a": []}, [None, "x"])


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A coordinator in the fit of a formula that has begun; programs that compile quickly."""

    def gains(key, sent, data):
        return jnp.sum(sent) * jnp.sum(data.rows.y)

    posterior = Posterior(shared=Approximation(None, None, queries={"gains": gains}))
    method = covey.fedavg(covey.models.linear())._replace(posterior=posterior)
    monkeypatch.setattr(fit_part, "method_of", lambda *_: method)
    monkeypatch.setattr(fit_part.FitPart, "decline", lambda *_: None)
    monkeypatch.setattr(fit_part.FitPart, "most_answers", None)
    monkeypatch.setattr(AuditLog, "write", lambda *_, **__: None)  # waits for the disk
    shown = {"metrics": {"shown_to": "server"}, "limits": {"most_rounds": 10**6}}
    path = write_site(tmp_path / "bern", "bern", table_of(1), shown)
    with open_handler(path) as handler:
        found = coordinator_of(handler, "a")
        sent, send = {}, found.step

        def noted(step, content):
            sent[step] = content
            return send(step, content)

        found.step, found.sent = noted, sent
        found.begin_fit()
        found.step = send
        found.agreeing, found.starting = (coordinator_of(handler, name) for name in "bc")
        for one in (found.agreeing, found.starting):
            one.describe()
        found.starting.step("agree", sent["agree"])
        yield found


def coordinator_of(handler, name):
    study = of_formula(name, "gain ~ age + sex + (1 | hospital)", missing="impute")
    return Coordinator(handler, study, "bern", ["basel", "bern"])


def set_back(server):
    """Two studies stay where they are: one is described, the other agreed on."""
    for one, fields in (
        (server.agreeing, {"agreed": None, "is_agreed": False}),
        (server.starting, {"started": None}),
    ):
        study = server.handler._studies.get(one.study.name)
        if study is not None and (study.setup.is_agreed or study.setup.started):
            if study.member is not None:
                study.close()
            study._keep(study.setup._replace(**fields))


def steps(server):
    """Contents of the steps, as values."""
    about = {"server": server.server, "version": covey.__version__}
    return [about | {"step": step, "content": one} for step, one in server.sent.items()] + [
        about | {"step": "result", "content": {"columns": [], "terms": []}}
    ]


def bodies(server):
    """Good bodies of the other messages, by kind."""
    shapes = server.handler._studies["a"].member.workshop.programs(b"").shapes.down
    down = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    content = outline.pack(down)
    split = protocol.pack_text("train")
    return {
        Kind.ROUND: pack_down(down),
        Kind.ACKNOWLEDGE: b"",
        Kind.QUERY: pack_question("gains", 0, outline.pack(np.zeros(3))),
        Kind.EVALUATE: protocol.join([split, content]),
        Kind.STOP: content,
        Kind.PREPARE: content,
    }


def mutated_value(source, value):
    """A value of JSON with a part that is something else, or gone."""
    if source.random() < 0.15 or not isinstance(value, (list, dict)) or not value:
        return source.choice(JUNK)
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = source.choice(list(keys))
    changed = value.copy()
    if source.random() < 0.1:
        del changed[key]
    else:
        changed[key] = mutated_value(source, value[key])
    return changed


def mutated_bytes(source, body):
    """Some bytes that are others, or cut off."""
    changed = bytearray(body + bytes(source.random() < 0.1))
    for _ in range(source.randint(0, 3)):
        if changed:
            at = source.randrange(len(changed))
            changed[at] = source.choice([0, 1, 127, 255, changed[at] ^ 1, source.randrange(256)])
    return bytes(
        changed[: source.randrange(len(changed) + 1)] if source.random() < 0.1 else changed
    )


def assert_survives(server, count):
    source, outcomes = random.Random(3), Counter()
    known, texts = bodies(server), steps(server)
    for at in range(count):
        if source.random() < 0.4:
            kind, value = Kind.HELLO, source.choice(texts)
            name = value["step"]
            others = {"agree": server.agreeing, "start": server.starting}
            to = others.get(name, server) if source.random() < 0.8 else server
            try:
                told = mutated_value(source, value) if source.random() < 0.8 else value
                body = protocol.pack_text(told)
            except ValueError:
                continue
        else:
            kind, to = source.choice(list(known)), server
            name, body = kind.name, mutated_bytes(source, known[kind])
        epoch = 2 + at if source.random() < 0.9 else 1
        message = to.message(kind, body, epoch=epoch, round_=source.randrange(3))
        try:
            reply, _ = protocol.open_envelope(server.handler(message))
            outcomes[name, reply.kind.name] += 1
        except WireError:
            outcomes[name, "UNREADABLE"] += 1
        set_back(server)
    for name in ["describe", "agree", "start", "result", *(kind.name for kind in known)]:
        assert outcomes[name, "REFUSAL"] > 0, outcomes
    for name in ("describe", "agree", "start", "ROUND", "ACKNOWLEDGE", "QUERY", "EVALUATE", "STOP"):
        assert outcomes[name, "ANSWER"] > 0, outcomes
    assert not [name for name, outcome in outcomes if outcome == "UNREADABLE"]
    return outcomes


def test_changed_messages_to_every_handler(server):
    assert_survives(server, 500)


@pytest.mark.slow
def test_changed_messages_to_every_handler_at_length(server):
    assert_survives(server, 20_000)
