"""The acknowledgement rule: a site's memory moves only by what the server accepted."""

import random
import zlib
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import linear_gaussian

from covey.channel import dithering
from covey.core import outline
from covey.core.algorithm import Algorithm, Empty, Local
from covey.core.metrics import Mean
from covey.core.node import Sent
from covey.core.protocol import (
    NEVER,
    SERVER,
    Envelope,
    Kind,
    Reason,
    Stamp,
    join,
    open_envelope,
    pack_text,
    seal,
    token,
    unpack_refusal,
    unpack_text,
)
from covey.core.shard import Rows, Spec, whole
from covey.core.wire import WireError
from covey.engines.loop import Loop, LoopState
from covey.engines.messages import Answer, pack_answer, pack_down, unpack_answer
from covey.engines.setup import agreement_of
from covey.engines.site import Site
from covey.engines.site_memory import Memory
from covey.engines.site_programs import Programs, Ready
from covey.engines.site_store import MemoryStore, SqliteStore, StoreError


class Info(NamedTuple):
    visits: jax.Array


def counting() -> Algorithm:
    """A client remembers how often it was heard, and sends that number."""
    return Algorithm(
        name="counting",
        init=lambda key, spec: jnp.zeros(()),
        init_client=lambda key, down, data: jnp.zeros(()),
        broadcast=lambda state: state,
        client=lambda key, down, state, data: Local(state + 1 + 0 * down, state, Info(state)),
        commit=lambda pending, sent: sent,
        server=lambda key, state, aggregate: (state + aggregate.plain, Empty()),
        evaluate=lambda key, down, state, data: {"visits": Mean(state + 0 * down, jnp.ones(()))},
        predict=lambda key, down, state, x: state,
        adapt=lambda key, down, data: jnp.float32(-1.0),
    )


STUDY, DIGEST = "study", "00" * 32
ROW = Rows(jax.ShapeDtypeStruct((2,), np.float32), jax.ShapeDtypeStruct((), np.float32))
LIKE = Answer(Sent(np.float32(0), None), Info(np.float32(0)))


@pytest.fixture(scope="module")
def programs():
    return Ready(Programs(agreement_of(counting(), Spec(ROW), seed=0, channel=None)))


@pytest.fixture
def make(programs):
    def made(**options):
        data = whole(Rows(np.ones((4, 2), np.float32), np.zeros(4, np.float32)))
        splits = {"train": data, "validation": data, "test": data}
        return Site("a", 7, programs, splits, study=STUDY, digest=DIGEST, **options)

    return made


@pytest.fixture
def site(make):
    return make()


def request(round_, accepted=None, *, epoch=1, down=0.0, kind=Kind.ROUND, body=None, **changes):
    stamp = NEVER if accepted is None else Stamp(1, accepted)
    envelope = Envelope(kind, STUDY, DIGEST, epoch, round_, SERVER, "a", stamp)
    packed = pack_down(np.float32(down)) if body is None else body
    return seal(envelope._replace(**changes), packed)


def send(site, round_, accepted=None, **changes):
    """The number that the site sends, or why it refuses."""
    message = request(round_, accepted, **changes)
    envelope, body = open_envelope(site.handle(message))
    assert envelope.answers == token(message)
    if envelope.kind == Kind.REFUSAL:
        return unpack_refusal(body).reason
    return float(unpack_answer(body, LIKE).sent.payload)


def test_an_accepted_upload_moves_the_memory_and_a_lost_one_does_not(site):
    assert send(site, 0) == 1
    assert send(site, 1, 0) == 2  # round 0 was accepted
    assert send(site, 2, 0) == 2  # round 1 was lost: the same step again
    assert send(site, 5, 2) == 3  # rounds 3 and 4 without this site
    site.handle(request(6, 5, kind=Kind.ACKNOWLEDGE, body=b""))
    assert float(site.node.state) == 3


def test_a_repeated_broadcast_gets_the_same_answer(site):
    first = site.handle(request(3))
    assert site.handle(request(3)) == first
    assert send(site, 3, down=1.0) == Reason.ANSWERED  # another broadcast of that round
    assert send(site, 4, 3) == 2
    assert send(site, 3) == Reason.ANSWERED  # late: that upload is committed already
    assert send(site, 5, 4) == 3


def test_a_round_is_answered_once_also_after_a_restart(make, tmp_path):
    def opened():
        return SqliteStore(tmp_path / "study", study=STUDY, digest=DIGEST, site="a")

    with opened() as store:
        first = make(store=store).handle(request(3))
    with opened() as store:
        site = make(store=store)
        assert site.handle(request(3)) == first
        assert send(site, 3, down=1.0) == Reason.ANSWERED
        assert send(site, 2) == Reason.ANSWERED
        assert send(site, 4, 3) == 2
    with opened() as store:
        site = make(store=store)
        assert send(site, 3) == Reason.ANSWERED
        assert send(site, 5, 4) == 3


def test_what_is_not_stored_is_not_sent(make):
    class Full(MemoryStore):
        def save(self, memory):
            raise StoreError("the disk is full")

    site = make(store=Full())
    assert send(site, 0) == Reason.FAILED
    assert site.node is None


def test_a_first_upload_that_was_lost_leaves_no_node(site):
    send(site, 0)
    site.handle(request(1, kind=Kind.ACKNOWLEDGE, body=b""))
    assert site.node is None
    # adapted, as for a client that never took part
    assert float(site.state(1, jnp.float32(0))) == -1


def test_broken_messages_are_refused(site):
    message = bytearray(request(0, down=1.5))
    for at in range(len(message)):  # nothing is outside of the checksum
        message[at] ^= 1
        with pytest.raises(WireError):
            site.handle(bytes(message))
        message[at] ^= 1
    with pytest.raises(WireError, match="was expected"):
        site.handle(request(0, body=pack_down(np.zeros(3, np.float32))))
    with pytest.raises(WireError, match="too few"):
        site.handle(b"abc")
    with pytest.raises(WireError, match="over the cap"):
        Site("a", 7, site.workshop, site.data, study=STUDY, digest=DIGEST, most_bytes=99).handle(
            bytes(message)
        )
    assert site.store.load() == Memory()


@pytest.mark.parametrize(
    "changes",
    [
        {"receiver": "b"},
        {"sender": "somebody"},
        {"study": "other"},
        {"digest": "11" * 32},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_misdirected_messages_are_refused(site, changes):
    assert send(site, 0, **changes) == Reason.MISDIRECTED
    assert site.store.load() == Memory()


def test_values_that_are_not_finite_stay_at_the_site(site):
    assert send(site, 0) == 1
    assert send(site, 1, 0, down=np.nan) == Reason.DIVERGED
    assert send(site, 1, 0, down=np.nan) == Reason.DIVERGED
    assert send(site, 2, 0) == 2


def test_a_site_says_what_it_reports(make):
    kept, less = (
        make(report=report)
        for report in (lambda what, values: None, lambda what, values: Info(np.float32(5)))
    )
    answers = [
        unpack_answer(open_envelope(site.handle(request(0)))[1], LIKE) for site in (kept, less)
    ]
    assert answers[0].info is None
    assert float(answers[1].info.visits) == 5
    assert float(answers[0].sent.payload) == float(answers[1].sent.payload) == 1
    body = join([pack_text("test"), outline.pack(np.float32(0))])
    assert send(kept, 1, kind=Kind.EVALUATE, body=body) == Reason.DECLINED


def test_questions_that_a_site_does_not_know(site):
    body = join([pack_text({"name": "everything", "index": 0}), outline.pack(np.float32(0))])
    assert send(site, 0, kind=Kind.QUERY, body=body) == Reason.UNKNOWN
    body = join([pack_text(["test"]), outline.pack(np.float32(0))])
    assert send(site, 0, kind=Kind.EVALUATE, body=body) == Reason.UNKNOWN
    assert send(site, 0, kind=Kind.PREPARE, body=outline.pack(np.float32(0))) == Reason.UNKNOWN
    wrong = join([pack_text("test"), outline.pack({"x": np.zeros((2, 3))})])
    with pytest.raises(WireError, match="does not fit an evaluation"):
        site.handle(request(0, kind=Kind.EVALUATE, body=wrong))
    with pytest.raises(WireError, match="no body"):
        site.handle(request(0, kind=Kind.ACKNOWLEDGE, body=b"x"))


def test_what_to_predict_with_stays_after_the_end(site):
    send(site, 0)
    assert site.published() is None
    site.handle(request(1, 0, kind=Kind.STOP, body=outline.pack(np.float32(2.5))))
    last, down = site.published()
    assert (last, float(down), float(site.node.state)) == (1, 2.5, 1)


def test_a_greeting(make):
    site = make(hello={"rows": 4})
    message = request(0, kind=Kind.HELLO, body=b"null")
    _, body = open_envelope(site.handle(message))
    assert unpack_text(body) == {"epoch": 0, "rows": 4}


def test_a_forged_payload_is_left_out_and_its_client_named():
    """Level 7 of 5, with a right checksum, from a site that calls its values finite."""
    engine = Loop(counting(), linear_gaussian().data, seed=0, channel=dithering(levels=5))
    site, like = engine.sites[3], engine.gathering.like

    def forge(message):
        envelope, body = open_envelope(type(site).handle(site, message))
        answer = unpack_answer(body, like)
        payload = answer.sent.payload
        codes = payload.code._replace(codes=np.full_like(payload.code.codes, 255))
        sent = answer.sent._replace(payload=replace(payload, code=codes))
        return seal(envelope, pack_answer(answer._replace(sent=sent)))

    site.handle = forge
    state = LoopState(0, jnp.zeros(()))
    state, lines = engine.advance(state, 1)
    assert (lines[0]["clients"], lines[0]["diverged"], lines[0]["diverged_id"]) == (
        4,
        1,
        site.client_id,
    )
    assert float(state.server) == 4.0


def assert_survives(site, count):
    """Whatever a message says, with a right checksum: a WireError, or an answer that opens."""
    source, outcomes = random.Random(2), Counter()
    content = outline.pack(np.float32(0))
    sources = [
        request(3, 1),
        request(4, kind=Kind.ACKNOWLEDGE, body=b""),
        request(4, kind=Kind.STOP, body=content),
        request(4, kind=Kind.EVALUATE, body=join([pack_text("test"), content])),
        request(4, kind=Kind.QUERY, body=join([pack_text({"name": "x", "index": 0}), content])),
        request(0, kind=Kind.PREPARE, body=content),
        request(0, kind=Kind.HELLO, body=b"null"),
    ]
    for _ in range(count):
        message = bytearray(source.choice(sources))
        for _ in range(source.randint(1, 3)):
            at = source.randrange(len(message) - 4)
            message[at] = source.choice([0, 1, 255, message[at] ^ 1, source.randrange(256)])
        changed = bytes(message[:-4])
        changed += zlib.crc32(changed).to_bytes(4, "little")
        try:
            envelope, body = open_envelope(site.handle(changed))
        except WireError:
            outcomes["unreadable"] += 1
            continue
        assert envelope.answers == token(changed)
        if envelope.kind == Kind.REFUSAL:
            outcomes[unpack_refusal(body).reason] += 1
    assert outcomes["unreadable"] > count / 4
    assert outcomes[Reason.MISDIRECTED] > 0


def test_changed_messages_with_a_right_checksum(site):
    assert_survives(site, 300)


@pytest.mark.slow
def test_changed_messages_with_a_right_checksum_at_length(site):
    assert_survives(site, 20_000)
