"""The body of a message between a site and the server."""

from typing import NamedTuple

from jaxtyping import PyTree

from covey.channel.identity import identity
from covey.core import protocol, trimming, wire
from covey.core.algorithm import Algorithm, Info, Message
from covey.core.channel import Channel
from covey.core.node import Sent
from covey.core.trimming import WHOLE, Used
from covey.core.wire import WireError

_MOST_QUESTIONS = 2**30  # numbers from here on are folded into keys of questions


class Answer(NamedTuple):
    """A site's message in a round.

    Attributes:
        sent: Its upload as encoded, and the weight of that.
        info: Scalars to report beside it; None where the site keeps them to itself.
    """

    sent: Sent
    info: Info | None


def used_by(algorithm: Algorithm, channel: Channel, down: Message) -> Used:
    """The entries of an upload that a round uses, by the names of its parts; parts that are not
    named are used whole. A channel that changes an upload sends all of it.
    """
    if algorithm.used is None or channel is not identity():
        return WHOLE
    return algorithm.used(down)


def pack_answer(answer: Answer, used: Used = WHOLE) -> bytes:
    """The body of an answer: the entries of the upload in use, and the report."""
    return wire.pack(_trimmed(answer, used), checksum=False)


def unpack_answer(body: bytes, like: Answer, used: Used = WHOLE) -> Answer:
    """The answer in a body, with or without a report.

    Raises:
        WireError: The body is not of these shapes.
    """
    sent = _trimmed(like, used)
    silent = sent._replace(info=None)
    if len(body) == _size(silent) != _size(sent):
        sent = silent
    answer = wire.unpack(body, sent, checksum=False)
    payload = trimming.filled(answer.sent.payload, like.sent.payload)
    return answer._replace(sent=answer.sent._replace(payload=payload))


def pack_down(down: Message) -> bytes:
    """The body of a broadcast."""
    return wire.pack(down, checksum=False)


def unpack_down(body: bytes, like: Message) -> Message:
    """The broadcast in a body.

    Raises:
        WireError: The body is not of these shapes.
    """
    return wire.unpack(body, like, checksum=False)


def pack_question(name: str, index: int, content: bytes) -> bytes:
    """The body of a question: its name and number, and what is sent with it."""
    return protocol.join([protocol.pack_text({"name": name, "index": index}), content])


def unpack_question(body: bytes) -> tuple[str, int, bytes]:
    """Name, number and content of the question in a body.

    Raises:
        WireError: The body is no question.
    """
    text, content = protocol.split(body, 2)
    match protocol.unpack_text(text):
        case {"name": str(name), "index": int(index), **rest} if not rest:
            pass
        case _:
            raise WireError("a query has a name and an index")
    if isinstance(index, bool) or not 0 <= index < _MOST_QUESTIONS:
        raise WireError(f"a query has an index below 2^30, got {index}")
    return name, index, content


def down_size(like: Message) -> int:
    """Bytes of a message that broadcasts a tree of these shapes."""
    return protocol.request_size(_size(like))


def up_size(like: Answer) -> int:
    """Bytes of a message with an answer of these shapes, all of it in use."""
    return protocol.answer_size(_size(like))


def _trimmed(answer: Answer, used: Used) -> Answer:
    payload = trimming.trimmed(answer.sent.payload, used)
    return answer._replace(sent=answer.sent._replace(payload=payload))


def _size(like: PyTree) -> int:
    return wire.size(like, checksum=False)
