"""Messages between a server and its sites: an envelope and a body, as checked bytes.

Layout of a message to a site: a head of fixed size, the names of the study, the sender and the
receiver (filled up with zeros to a multiple of 32 bytes), the body, and 4 bytes of CRC-32 of all
before. An answer has a short head instead: its kind, and the hash of the message it answers, which
stands for the study, configuration, epoch, round and site of that message. Nothing is outside of
the checksum, nothing is allocated by what a message claims about itself, and every message has
exactly one encoding: whatever opens seals to the same bytes again.

The envelope also carries the rule of acknowledgement. An upload is identified by a `Stamp`, the
epoch and the round it answers. Every message to a site names the last upload of this site that is
part of the server's state (`accepted`), and those that the server's checkpoints go back to
(`kept`). Each start of a server is a new epoch, so that no stamp is ever used twice.
"""

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

from covey.core.wire import WireError

SERVER = "server"  # the name under which a server sends
MOST_BYTES = 2**28  # of a message, unless a site or a server sets another cap
MOST_TEXT = 2**16  # bytes of a JSON text
MOST_KEPT = 2  # stamps that a server may go back to: it keeps two checkpoints
LATEST = 2**62  # above every epoch
_LAST_ROUND = 2**31 - 2
_MOST_NAME = 200  # bytes of a name
_MAGIC = b"covey\x03"
_NAMES = 32  # names are filled up to a multiple of this
_HEAD = struct.Struct("<6sBBqiqiqiqi32sHHHI")
_ANSWER = struct.Struct("<BB8s")
_ANSWER_MAGIC = 0xC3
_WORD = struct.Struct("<I")
_TOKEN = 8  # bytes


class Kind(IntEnum):
    """The purpose of a message. The values are part of the format: append, never renumber."""

    HELLO = 1  # who is there; JSON, answered in JSON
    PREPARE = 2  # what a preparation has found
    ROUND = 3  # a broadcast; answered by an upload
    ACKNOWLEDGE = 4  # nothing but the envelope
    QUERY = 5  # a named question; answered by the site's term of a sum
    EVALUATE = 6  # what to predict with; answered by metrics
    STOP = 7  # what to predict with after the last round
    ANSWER = 20
    REFUSAL = 21  # why there is no answer, as JSON


class Reason(StrEnum):
    """Why a site refuses a message."""

    SUPERSEDED = "superseded"  # the site follows a server that was started later
    ANSWERED = "answered"  # the round is over, or was answered for another broadcast
    MISSING = "missing"  # the site does not have the state that the server resumes from
    DIVERGED = "diverged"  # values are not finite
    DECLINED = "declined"  # the site's owner does not take part in this
    MISDIRECTED = "misdirected"  # another receiver, study or configuration
    UNKNOWN = "unknown"  # a query, split or kind of message that the site does not have
    FAILED = "failed"  # the site could not store or compute its answer


class Stamp(NamedTuple):
    """Which upload of a site: the epoch of the server and the round it answers."""

    epoch: int
    round: int

    def __str__(self) -> str:
        return "none" if self == NEVER else f"round {self.round} of epoch {self.epoch}"


NEVER = Stamp(-1, -1)  # no upload yet


class Envelope(NamedTuple):
    """Everything about a message but its body.

    Attributes:
        kind: The purpose of the message.
        study: Name of the study.
        digest: SHA-256 of the study's configuration, 64 hexadecimal digits.
        epoch: Which start of the server this is; later starts have larger ones.
        round: Round of a broadcast; for other kinds, the next round to be run.
        sender: Name of the sender.
        receiver: Name of the receiver.
        accepted: Downwards: the last upload of this site that is part of the server's state.
        kept: Downwards: uploads that the server may go back to, because a checkpoint has them as
            the last accepted.
        answers: Upwards: the token of the message that this one answers. It stands for all else,
            which is blank in an answer.
    """

    kind: Kind
    study: str
    digest: str
    epoch: int
    round: int
    sender: str
    receiver: str
    accepted: Stamp = NEVER
    kept: tuple[Stamp, ...] = ()
    answers: bytes = b""

    def answer(self, message: bytes, kind: Kind = Kind.ANSWER) -> "Envelope":
        """The envelope of an answer to `message`, whose envelope this is."""
        return Envelope(kind, "", "", 0, 0, "", "", answers=token(message))

    @property
    def is_answer(self) -> bool:
        """Whether the message goes to the server."""
        return self.kind in (Kind.ANSWER, Kind.REFUSAL)


class Refusal(NamedTuple):
    """Why there is no answer.

    Attributes:
        reason: The reason, for programs.
        text: The reason in words, for people.
        epoch: The epoch that the site follows, where it is superseded.
    """

    reason: Reason
    text: str
    epoch: int = 0


def token(message: bytes) -> bytes:
    """The token by which an answer names its message: 8 bytes of the message's SHA-256."""
    return hashlib.sha256(message).digest()[:_TOKEN]


def seal(envelope: Envelope, body: bytes = b"") -> bytes:
    """A message.

    Args:
        envelope: Sender, receiver and kind of the message.
        body: The content, e.g. by `wire.pack`.

    Returns:
        The bytes.

    Raises:
        ValueError: The envelope has values that no message may have.

    Example:
        >>> hello = Envelope(Kind.HELLO, "heart", "ab" * 32, 7, 0, "server", "va")
        >>> envelope, body = open_envelope(seal(hello, b"{}"))
        >>> envelope == hello, body
        (True, b'{}')
    """
    start = _answer_head(envelope) if envelope.is_answer else _request_head(envelope, len(body))
    checksum = zlib.crc32(body, zlib.crc32(start))
    return b"".join([start, body, _WORD.pack(checksum)])


def _answer_head(envelope: Envelope) -> bytes:
    if envelope != Envelope(envelope.kind, "", "", 0, 0, "", "", answers=envelope.answers):
        raise ValueError("all of an answer's envelope but its kind and token is blank")
    if len(envelope.answers) != _TOKEN:
        raise ValueError(f"a token has {_TOKEN} bytes, got {len(envelope.answers)}")
    return _ANSWER.pack(_ANSWER_MAGIC, envelope.kind, envelope.answers)


def _request_head(envelope: Envelope, body: int) -> bytes:
    if len(envelope.kept) > MOST_KEPT:
        raise ValueError(f"a server may keep {MOST_KEPT} stamps, got {len(envelope.kept)}")
    if envelope.answers:
        raise ValueError("only an answer names the message that it answers")
    try:
        return _packed_head(envelope, body)
    except struct.error as error:
        raise ValueError(f"an impossible value in an envelope: {error}") from error


def _packed_head(envelope: Envelope, body: int) -> bytes:
    encoded = [name.encode() for name in (envelope.study, envelope.sender, envelope.receiver)]
    kept = [*envelope.kept, *[NEVER] * (MOST_KEPT - len(envelope.kept))]
    head = _HEAD.pack(
        _MAGIC,
        envelope.kind,
        len(envelope.kept),
        envelope.epoch,
        envelope.round,
        *envelope.accepted,
        *kept[0],
        *kept[1],
        _digest(envelope.digest),
        *map(len, encoded),
        body,
    )
    joined = b"".join(encoded)
    names = joined + bytes(-len(joined) % _NAMES)
    if _opened(head, names) != envelope:  # what cannot be opened is not sent
        raise ValueError(f"a digest has 64 hexadecimal digits, got {envelope.digest!r}")
    return head + names


def open_envelope(message: bytes, *, most: int = MOST_BYTES) -> tuple[Envelope, bytes]:
    """Check a message and take it apart.

    Args:
        message: The bytes.
        most: Bytes that a message may have; a longer one is refused before it is looked at.

    Returns:
        The envelope and the body.

    Raises:
        WireError: The bytes are not a message, were cut short or changed, or are too many.
    """
    if len(message) > most:
        raise WireError(f"a message of {len(message)} bytes is over the cap of {most}")
    if len(message) < _ANSWER.size + _WORD.size:
        raise WireError(f"{len(message)} bytes are too few for a message")
    view = memoryview(message)
    if zlib.crc32(view[: -_WORD.size]) != _WORD.unpack(view[-_WORD.size :])[0]:
        raise WireError(
            f"the checksum of {len(message)} bytes does not match: they were cut short or changed "
            "on the way"
        )
    if message[0] == _ANSWER_MAGIC:
        _, kind, answers = _ANSWER.unpack_from(view)
        if kind not in (Kind.ANSWER, Kind.REFUSAL):
            raise WireError(f"an answer of the unknown kind {kind}")
        envelope = Envelope(Kind(kind), "", "", 0, 0, "", "", answers=answers)
        return envelope, bytes(view[_ANSWER.size : -_WORD.size])
    if len(message) < _HEAD.size + _WORD.size or view[: len(_MAGIC)] != _MAGIC:
        raise WireError("the bytes are not a message of this version of the protocol")
    lengths = _HEAD.unpack_from(view)[-4:]
    names = sum(lengths[:3])
    start = _HEAD.size + names + -names % _NAMES
    if start + lengths[3] + _WORD.size != len(message):
        raise WireError("the lengths in the message do not add up to its own")
    envelope = _opened(bytes(view[: _HEAD.size]), bytes(view[_HEAD.size : start]))
    return envelope, bytes(view[start : -_WORD.size])


def request_size(body: int) -> int:
    """Bytes of a message to a site with a body of `body` bytes, and names of 32 bytes in all."""
    return _HEAD.size + _NAMES + body + _WORD.size


def answer_size(body: int) -> int:
    """Bytes of an answer with a body of `body` bytes."""
    return _ANSWER.size + body + _WORD.size


def pack_text(value: Any) -> bytes:
    """A JSON value as bytes.

    Raises:
        ValueError: The text would have more than `MOST_TEXT` bytes.
    """
    body = json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False).encode()
    if len(body) > MOST_TEXT:
        raise ValueError(f"a text of {len(body)} bytes is over the cap of {MOST_TEXT}")
    return body


def unpack_text(body: bytes) -> Any:
    """The JSON value of some bytes.

    Raises:
        WireError: The bytes are not JSON, or too many.
    """
    if len(body) > MOST_TEXT:
        raise WireError(f"a text of {len(body)} bytes is over the cap of {MOST_TEXT}")
    try:
        value = json.loads(body.decode(), parse_constant=_no_constant)
        # Half a surrogate pair is not text, and 1e999 is read as infinite.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise WireError(f"the text is not JSON: {error}") from error
    return value


def pack_refusal(refusal: Refusal) -> bytes:
    """The body of a refusal."""
    return pack_text({**refusal._asdict(), "text": refusal.text[:2000]})


def unpack_refusal(body: bytes) -> Refusal:
    """The refusal of a body.

    Raises:
        WireError: It is not a refusal.
    """
    value = unpack_text(body)
    if not isinstance(value, dict) or set(value) != set(Refusal._fields):
        raise WireError("a refusal has a reason, a text and an epoch")
    reason, text, epoch = (value[name] for name in Refusal._fields)
    if reason not in list(Reason) or not isinstance(text, str):
        raise WireError(f"a refusal for the unknown reason {reason!r}")
    if not isinstance(epoch, int) or isinstance(epoch, bool) or not 0 <= epoch < LATEST:
        raise WireError(f"a refusal with the impossible epoch {epoch!r}")
    return Refusal(Reason(reason), text, epoch)


def join(parts: Sequence[bytes]) -> bytes:
    """Several bodies in one."""
    return b"".join([*(_WORD.pack(len(part)) for part in parts), *parts])


def split(body: bytes, count: int) -> list[bytes]:
    """The `count` bodies that `join` made one of.

    Raises:
        WireError: The count of bodies is another.
    """
    at = count * _WORD.size
    if len(body) < at:
        raise WireError(f"a body of {len(body)} bytes has not {count} parts")
    parts = []
    for (length,) in _WORD.iter_unpack(body[:at]):
        parts.append(body[at : at + length])
        at += length
    if at != len(body):
        raise WireError(f"{count} parts of {at} bytes do not make up a body of {len(body)}")
    return parts


def _opened(head: bytes, names: bytes) -> Envelope:
    """The envelope of a head and names, each checked."""
    _, kind, many, epoch, round_, *rest = _HEAD.unpack(head)
    stamps = [Stamp(*rest[at : at + 2]) for at in (0, 2, 4)]
    digest, *lengths = rest[6:-1]
    if kind not in list(Kind) or kind in (Kind.ANSWER, Kind.REFUSAL):
        raise WireError(f"a message of the unknown kind {kind}")
    if not (0 <= epoch < LATEST and 0 <= round_ <= _LAST_ROUND):
        raise WireError(f"a message of the impossible round {round_} of epoch {epoch}")
    for stamp in stamps:
        possible = 0 <= stamp.epoch < LATEST and 0 <= stamp.round <= _LAST_ROUND
        if stamp != NEVER and not possible:
            raise WireError(f"a message with the impossible stamp {tuple(stamp)}")
    accepted, *kept = stamps
    if many > MOST_KEPT or any(stamp != NEVER for stamp in kept[many:]):
        raise WireError(f"a message that keeps {many} stamps and names others")
    ends = [lengths[0], sum(lengths[:2]), sum(lengths)]
    if names[ends[2] :] != bytes(-ends[2] % _NAMES):
        raise WireError("the names are not filled up with zeros")
    study, sender, receiver = (
        _name(names[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)
    )
    return Envelope(
        Kind(kind),
        study,
        digest.hex(),
        epoch,
        round_,
        sender,
        receiver,
        accepted,
        tuple(kept[:many]),
    )


def _digest(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise ValueError(f"a digest has 64 hexadecimal digits, got {text!r}") from error


def _name(raw: bytes) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError as error:
        raise WireError("a name is not UTF-8") from error
    if not (0 < len(raw) <= _MOST_NAME and name.isprintable()):
        raise WireError(
            f"a name has 1 to {_MOST_NAME} bytes of printable characters, got {name!r:.100}"
        )
    return name


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number")
