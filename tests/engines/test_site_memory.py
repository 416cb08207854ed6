"""The rule of acknowledgement, case by case."""

import pytest

from covey.core.protocol import NEVER, SERVER, Envelope, Kind, Reason, Stamp, seal, token
from covey.engines.site_memory import (
    Answered,
    Memory,
    RefusedError,
    check_epoch,
    repeated,
    settled,
)

OLD, HERE, NEXT = Stamp(1, 2), Stamp(1, 5), Stamp(1, 6)


def envelope(epoch, round_, accepted=NEVER, kept=(), kind=Kind.ROUND):
    return Envelope(kind, "s", "00" * 32, epoch, round_, SERVER, "a", accepted, kept)


MESSAGE = seal(envelope(1, 6, HERE), b"broadcast")
MEMORY = Memory(
    epoch=1,
    current=HERE,
    nodes={OLD: b"old", HERE: b"here"},
    answered=Answered(NEXT, token(MESSAGE), b"reply", b"next"),
    pending=True,
)


def refusal(function, *arguments):
    with pytest.raises(RefusedError) as caught:
        function(*arguments)
    return caught.value.refusal


def test_an_accepted_upload_is_committed():
    after = settled(MEMORY, envelope(1, 7, NEXT, (OLD,)))
    assert (after.current, after.node, after.pending) == (NEXT, b"next", False)
    assert set(after.nodes) == {OLD, NEXT}  # what no checkpoint has is dropped


def test_a_lost_upload_is_dropped():
    after = settled(MEMORY, envelope(1, 7, HERE))
    assert (after.current, after.node, after.pending) == (HERE, b"here", False)


@pytest.mark.parametrize(("accepted", "node"), [(OLD, b"old"), (NEXT, b"next"), (NEVER, None)])
def test_a_restarted_server_goes_on_from_what_it_has(accepted, node):
    after = settled(MEMORY, envelope(2, 0, accepted))
    assert (after.epoch, after.node, after.pending) == (2, node, False)


@pytest.mark.parametrize("accepted", [OLD, NEVER, Stamp(1, 4)])
def test_within_an_epoch_nothing_goes_back(accepted):
    found = refusal(settled, MEMORY, envelope(1, 7, accepted))
    assert found.reason == Reason.MISSING
    assert "round 2 of epoch 1, round 5 of epoch 1, round 6 of epoch 1" in found.text


def test_a_state_that_the_site_does_not_have_is_named():
    found = refusal(settled, MEMORY, envelope(2, 7, Stamp(1, 4)))
    assert found.reason == Reason.MISSING
    assert "continues from round 4 of epoch 1" in found.text
    found = refusal(settled, Memory(), envelope(2, 7, Stamp(1, 4)))
    assert "no state at all" in found.text


def test_an_upload_that_was_refused_cannot_be_accepted():
    diverged = MEMORY._replace(answered=MEMORY.answered._replace(node=None), pending=False)
    assert refusal(settled, diverged, envelope(1, 7, NEXT)).reason == Reason.MISSING


def test_the_same_message_gets_the_same_answer_and_others_get_none():
    assert repeated(MEMORY, envelope(1, 6, HERE), MESSAGE) == b"reply"
    other = seal(envelope(1, 6, HERE), b"another broadcast")
    assert "for another broadcast" in refusal(repeated, MEMORY, envelope(1, 6), other).text
    for late in (envelope(1, 5), envelope(1, 0), envelope(1, 6, kind=Kind.EVALUATE)):
        assert refusal(repeated, MEMORY, late, b"late").reason == Reason.ANSWERED
    assert repeated(MEMORY, envelope(1, 7, NEXT), b"new") is None
    assert repeated(MEMORY, envelope(2, 0, OLD), b"new epoch") is None


def test_the_server_that_was_started_last_is_followed():
    check_epoch(MEMORY, envelope(1, 0))
    assert refusal(check_epoch, MEMORY, envelope(0, 9))[2] == 1
    assert refusal(check_epoch, MEMORY._replace(prepared_in=4), envelope(3, 9))[2] == 4
