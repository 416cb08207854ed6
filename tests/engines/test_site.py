"""The acknowledgement rule: a site's memory moves only by what the server accepted."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import linear_gaussian

from covey.channel import dithering, identity
from covey.core.algorithm import Algorithm, Empty, Local
from covey.core.keys import root_key
from covey.core.metrics import Mean
from covey.core.node import Sent
from covey.core.shard import Rows, Spec, whole
from covey.core.wire import WireError
from covey.engines.loop import Loop, LoopState
from covey.engines.messages import NEVER, Answer, Header, open_body, open_header, seal
from covey.engines.setup import shapes_of
from covey.engines.site import Programs, Site


class Info(NamedTuple):
    visits: jax.Array


def counting() -> Algorithm:
    """A client remembers how often it was heard, and sends that number."""
    return Algorithm(
        name="counting",
        init=lambda key, spec: jnp.zeros(()),
        init_client=lambda key, down, data: jnp.zeros(()),
        broadcast=lambda state: state,
        client=lambda key, down, state, data: Local(state + 1, state, Info(state)),
        commit=lambda pending, sent: sent,
        server=lambda key, state, aggregate: (state + aggregate.plain, Empty()),
        evaluate=lambda key, down, state, data: {"visits": Mean(state, jnp.ones(()))},
        predict=lambda key, down, state, x: state,
        adapt=lambda key, down, data: jnp.float32(-1.0),
    )


@pytest.fixture
def site():
    data = whole(Rows(np.ones((4, 2), np.float32), np.zeros(4, np.float32)))
    rows = Rows(jax.ShapeDtypeStruct((2,), np.float32), jax.ShapeDtypeStruct((), np.float32))
    shapes = shapes_of(counting(), identity(), root_key(0), Spec(rows))
    programs = Programs(counting(), identity(), root_key(0))
    return Site(programs, 7, {"train": data, "validation": data, "test": data}, shapes.down)


def send(site, round_, accepted):
    reply = site.receive(seal(Header(7, round_, accepted), np.float32(0)))
    if reply is None:
        return None
    assert open_header(reply).client_id == 7
    like = Answer(Sent(np.float32(0), None), Info(np.float32(0)), np.bool_(True))
    return float(open_body(reply, like).sent.payload)


def test_an_accepted_upload_moves_the_memory_and_a_lost_one_does_not(site):
    assert send(site, 0, NEVER) == 1
    assert send(site, 1, 0) == 2  # round 0 was accepted
    assert send(site, 2, 0) == 2  # round 1 was lost: the same step again
    assert send(site, 5, 2) == 3  # rounds 3 and 4 without this site
    site.settle(5)
    assert float(site.node.state) == 3


def test_a_repeated_broadcast_gets_the_same_answer(site):
    message = seal(Header(7, 3, NEVER), np.float32(0))
    first = site.receive(message)
    assert site.receive(message) == first
    assert send(site, 4, 3) == 2


def test_an_outdated_broadcast_gets_none(site):
    send(site, 3, NEVER)
    assert send(site, 2, NEVER) is None
    assert send(site, 4, 3) == 2


def test_a_first_upload_that_was_lost_leaves_no_node(site):
    send(site, 0, NEVER)
    site.settle(NEVER)
    assert site.node is None
    assert (
        float(site.state(1, jnp.float32(0))) == -1
    )  # adapted, as for a client that never took part


def test_broken_and_misdirected_messages_are_refused_and_named(site):
    message = bytearray(seal(Header(7, 0, NEVER), np.float32(1.5)))
    message[-6] ^= 1
    with pytest.raises(WireError, match=r"client 7, round 0: .*changed on the way"):
        site.receive(bytes(message))
    with pytest.raises(WireError, match="client 7 got a message for client 8"):
        site.receive(seal(Header(8, 0, NEVER), np.float32(0)))
    with pytest.raises(WireError, match=r"client 7, round 0: .*was expected"):
        site.receive(seal(Header(7, 0, NEVER), np.zeros(3, np.float32)))
    with pytest.raises(WireError, match="too short"):
        site.receive(b"abc")
    assert site.node is None
    assert site.pending is None


def test_a_forged_payload_is_left_out_and_its_client_named():
    """Level 7 of 5, with a right checksum, from a site that calls its numbers finite."""
    engine = Loop(counting(), linear_gaussian().data, seed=0, channel=dithering(levels=5))
    site, shapes = engine.sites[3], engine.setup.shapes
    like = Answer(shapes.sent, shapes.client_info, np.bool_(True))

    def forge(message):
        reply = type(site).receive(site, message)
        answer = open_body(reply, like)
        payload = answer.sent.payload
        codes = payload.code._replace(codes=np.full_like(payload.code.codes, 255))
        forged = answer.sent._replace(payload=replace(payload, code=codes))
        return seal(open_header(reply), answer._replace(sent=forged))

    site.receive = forge
    state = LoopState(0, jnp.zeros(()))
    state, lines = engine.advance(state, 1)
    assert (lines[0]["clients"], lines[0]["diverged"], lines[0]["diverged_id"]) == (
        4,
        1,
        site.client_id,
    )
    assert float(state.server) == 4.0
