"""Messages between a site and the server: a header and a tree of arrays, as checked bytes."""

import struct
from typing import NamedTuple

from jaxtyping import Array, Bool, PyTree

from covey.core import wire
from covey.core.algorithm import Info
from covey.core.node import Sent

NEVER = -1  # the round before the first
_HEADER = struct.Struct("<iii")


class Header(NamedTuple):
    """Before every message: whom it is to or from, its round, and (downwards) the last round
    accepted from this site.
    """

    client_id: int
    round: int
    accepted: int = NEVER


class Answer(NamedTuple):
    """What a site sends: its upload as encoded, scalars to report, and whether its values are
    finite.
    """

    sent: Sent
    info: Info
    finite: Bool[Array, ""]


def seal(header: Header, body: PyTree) -> bytes:
    """A message."""
    return _HEADER.pack(*header) + wire.pack(body)


def open_header(message: bytes) -> Header:
    """The header of a message."""
    if len(message) < _HEADER.size:
        raise wire.WireError(f"a message of {len(message)} bytes is too short")
    return Header(*_HEADER.unpack_from(message))


def open_body(message: bytes, like: PyTree) -> PyTree:
    """The body of a message, checked against what it should look like."""
    header = open_header(message)
    try:
        return wire.unpack(message[_HEADER.size :], like)
    except wire.WireError as error:
        raise wire.WireError(f"client {header.client_id}, round {header.round}: {error}") from error


def message_size(like: PyTree) -> int:
    """Bytes of a message with a body of these shapes."""
    return _HEADER.size + wire.size(like)
