"""The server's side of a message: who was asked, who answered, and which uploads count.

A `Reception` is one exchange with some sites. It takes every message that comes back and keeps the
first good answer of each site that was asked; what is late, repeated or damaged is counted and
changes nothing. An answer names the message it answers, which was for one site only: sent under
another name, it is late. A `Table` has the last upload of each client that is part of the
server's state, which every message to a site names.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from covey.core import protocol
from covey.core.protocol import MOST_BYTES, NEVER, SERVER, Envelope, Kind, Reason, Refusal, Stamp
from covey.core.wire import WireError

Table = Int64[np.ndarray, "clients 2"]  # epoch and round of a stamp per client


class Study(NamedTuple):
    """The identity of a study, which every message names.

    Attributes:
        name: Name of the study.
        digest: SHA-256 of its configuration, 64 hexadecimal digits.
    """

    name: str
    digest: str

    def envelope(
        self,
        kind: Kind,
        site: str,
        epoch: int,
        round_: int,
        accepted: Stamp = NEVER,
        kept: Sequence[Stamp] = (),
    ) -> Envelope:
        """The envelope of a message to a site."""
        return Envelope(
            kind, self.name, self.digest, epoch, round_, SERVER, site, accepted, tuple(kept)
        )


class NoQuorumError(RuntimeError):
    """Too few sites answered in time. The state is as it was before."""


class Reception:
    """One exchange with some sites.

    Args:
        study: The study.
        messages: The message sent to each site, by its name.
        most_bytes: Bytes that an answer may have.

    Attributes:
        answers: The body of each answer, by the name of the site.
        refusals: Reason of each site that did not answer, by its name; the last one it gave.
        repeated: Answers that had come before.
        late: Answers to other messages: of rounds that are over.
        damaged: Fault of a message that could not be used, by the name of its site.
        bytes_up: Bytes of all that came back.
        bytes_down: Bytes of what was sent, counted by `send`.
    """

    def __init__(self, study: Study, messages: Mapping[str, bytes], most_bytes: int = MOST_BYTES):
        self.study, self.messages, self.most_bytes = study, dict(messages), most_bytes
        self.answers: dict[str, bytes] = {}
        self.refusals: dict[str, Refusal] = {}
        self.damaged: dict[str, str] = {}
        self.repeated = self.late = self.bytes_up = self.bytes_down = 0
        self._tokens = {name: protocol.token(message) for name, message in messages.items()}

    @property
    def open(self) -> dict[str, bytes]:
        """The messages to sites that have neither answered nor said that their values diverge."""
        done = self.answers.keys() | self.diverged
        return {name: sent for name, sent in self.messages.items() if name not in done}

    @property
    def diverged(self) -> set[str]:
        """The sites whose values are not finite."""
        refused = self.refusals.items()
        return {name for name, refusal in refused if refusal.reason == Reason.DIVERGED}

    @property
    def heard(self) -> int:
        """The count of sites that have answered, or reported values that are not finite."""
        return len(self.answers.keys() | self.diverged)

    def receive(self, name: str, message: bytes) -> bool:
        """Take a message that came back.

        Args:
            name: The sender, as the transport knows it.
            message: The bytes.

        Returns:
            Whether it is an answer that counts.
        """
        self.bytes_up += len(message)
        try:
            envelope, body = protocol.open_envelope(message, most=self.most_bytes)
            refusal = protocol.unpack_refusal(body) if envelope.kind == Kind.REFUSAL else None
        except WireError as error:
            self.damaged[name] = str(error)
            return False
        if name not in self.messages or not envelope.is_answer:
            self.damaged[name] = "nothing of this kind was asked of this site"
            return False
        if envelope.answers != self._tokens[name]:
            self.late += 1
            return False
        if name in self.answers:
            self.repeated += 1
            return False
        if refusal is not None:
            self.refusals[name] = refusal
            return False
        self.answers[name] = body
        self.refusals.pop(name, None)
        self.damaged.pop(name, None)
        return True

    def spoil(self, name: str, why: str) -> None:
        """Take back an answer whose body cannot be used."""
        del self.answers[name]
        self.damaged[name] = why

    def refuse(self, name: str, refusal: Refusal) -> None:
        """Take an answer for a refusal."""
        del self.answers[name]
        self.refusals[name] = refusal

    def silent(self) -> str:
        """The sites without an answer that counts, with their reasons, in words."""
        lines = []
        for name in self.messages:
            if name in self.answers:
                continue
            if name in self.refusals:
                lines.append(f"{name!r} refused: {self.refusals[name].text}")
            elif name in self.damaged:
                lines.append(f"{name!r} sent an answer that cannot be used: {self.damaged[name]}")
            else:
                lines.append(f"{name!r} did not answer in time")
        return "; ".join(lines)


def nobody(clients: int) -> Table:
    """The table of a server that has heard nobody."""
    return np.full((clients, 2), -1, np.int64)


def with_accepted(table: Table, positions: Sequence[int], stamp: Stamp) -> Table:
    """The table with a new upload of the clients at some positions."""
    new = table.copy()
    new[list(positions)] = stamp
    return new


def stamp_at(table: Table, position: int) -> Stamp:
    """The last upload of a client."""
    return Stamp(int(table[position, 0]), int(table[position, 1]))


def kept_at(tables: Sequence[Table], position: int) -> tuple[Stamp, ...]:
    """The uploads of a client that the server may go back to, each once."""
    stamps = dict.fromkeys(stamp_at(table, position) for table in tables)
    stamps.pop(NEVER, None)
    return tuple(stamps)
