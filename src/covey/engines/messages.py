"""What travels in the body of a message between a site and the server."""

from typing import NamedTuple

from jaxtyping import PyTree

from covey.core import protocol, wire
from covey.core.algorithm import Info, Message
from covey.core.node import Sent


class Answer(NamedTuple):
    """What a site sends in a round.

    Attributes:
        sent: Its upload as encoded, and what that counts for.
        info: Scalars to report beside it; None where the site keeps them to itself.
    """

    sent: Sent
    info: Info | None


def pack_answer(answer: Answer) -> bytes:
    """The body of an answer: the upload, and what is reported."""
    return wire.pack(answer, checksum=False)


def unpack_answer(body: bytes, like: Answer) -> Answer:
    """The answer in a body, with or without a report.

    Raises:
        WireError: The body is not of these shapes.
    """
    silent = like._replace(info=None)
    if len(body) == _size(silent) != _size(like):
        return wire.unpack(body, silent, checksum=False)
    return wire.unpack(body, like, checksum=False)


def pack_down(down: Message) -> bytes:
    """The body of a broadcast."""
    return wire.pack(down, checksum=False)


def unpack_down(body: bytes, like: Message) -> Message:
    """The broadcast in a body.

    Raises:
        WireError: The body is not of these shapes.
    """
    return wire.unpack(body, like, checksum=False)


def down_size(like: Message) -> int:
    """Bytes of a message that broadcasts a tree of these shapes."""
    return protocol.request_size(_size(like))


def up_size(like: Answer) -> int:
    """Bytes of a message with an answer of these shapes."""
    return protocol.answer_size(_size(like))


def _size(like: PyTree) -> int:
    return wire.size(like, checksum=False)
