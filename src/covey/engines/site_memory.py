"""A site's memory of a study, and the rule of acknowledgement, without any arithmetic.

A site holds the node that the server's state contains (`current`), a pending one, whose upload was
sent and may or may not have arrived, and those that a checkpoint of the server goes back to. Every
message names the last upload of this site that the server accepted:

* the pending one: it has arrived, and its node becomes the current node;
* the current one: the pending upload was lost or refused, and its node is dropped;
* an earlier one that the site has kept, in a new epoch: the server was restarted from a checkpoint,
  and the site goes back to it;
* one that the site does not have: it refuses, and changes nothing.

Lost, late and repeated messages, restarts of a site and restarts of the server are all one of
these cases. A round is answered once: the same message again gets the same bytes, another message
for the same round is refused.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from covey.core.protocol import NEVER, Envelope, Kind, Reason, Refusal, Stamp, token


class Answered(NamedTuple):
    """The last round that the site answered.

    Attributes:
        stamp: Epoch and round.
        token: That of the message.
        reply: The answer, in case it is asked for again.
        node: The site's node if the server accepts the upload; None where there was none to accept.
    """

    stamp: Stamp
    token: bytes
    reply: bytes
    node: bytes | None


class Memory(NamedTuple):
    """A site's memory of a study.

    Attributes:
        epoch: The largest epoch that the site has heard of.
        current: The last upload that the server accepted.
        nodes: The node after each upload that may be continued from, as bytes; `current` is one of
            them unless it is NEVER.
        answered: The last round answered; its node is pending while `pending` is true.
        pending: Whether the outcome of that upload is still open.
        prepared: Result of the method's preparation, with its outline; empty without one.
        prepared_in: The epoch of that.
        published: State to predict with after the last round, with its outline; empty before.
        finished: The round after which the study was stopped.
    """

    epoch: int = 0
    current: Stamp = NEVER
    nodes: Mapping[Stamp, bytes] = MappingProxyType({})
    answered: Answered | None = None
    pending: bool = False
    prepared: bytes = b""
    prepared_in: int = 0
    published: bytes = b""
    finished: int = -1

    @property
    def node(self) -> bytes | None:
        """The node that the next round starts from."""
        return self.nodes.get(self.current)


class RefusedError(Exception):
    """The message gets a refusal, and nothing changes."""

    def __init__(self, reason: Reason, text: str, epoch: int = 0):
        super().__init__(text)
        self.refusal = Refusal(reason, text, epoch)


def check_epoch(memory: Memory, envelope: Envelope) -> None:
    """A refusal of messages that are not of the server that was started last.

    Raises:
        RefusedError: The site has heard of a server that was started later.
    """
    newest = max(memory.epoch, memory.prepared_in)
    if envelope.epoch < newest:
        raise RefusedError(
            Reason.SUPERSEDED,
            f"the message is of epoch {envelope.epoch}, and a server that was started later has "
            f"sent messages of epoch {newest}",
            newest,
        )


def repeated(memory: Memory, envelope: Envelope, message: bytes) -> bytes | None:
    """The stored answer to a message that was answered before; None for a new message.

    Raises:
        RefusedError: The message is out of date, or another one for a round that is answered.
    """
    last = memory.answered
    if last is None or last.stamp.epoch != envelope.epoch or envelope.round > last.stamp.round:
        return None
    if last.stamp.round == envelope.round and last.token == token(message):
        return last.reply
    if last.stamp.round == envelope.round and envelope.kind == Kind.ROUND:
        raise RefusedError(
            Reason.ANSWERED, f"{last.stamp} was answered already, for another broadcast"
        )
    raise RefusedError(
        Reason.ANSWERED,
        f"the message is of round {envelope.round}, and the site has answered {last.stamp}",
    )


def settled(memory: Memory, envelope: Envelope) -> Memory:
    """The memory once it is known which upload the server accepted last.

    Raises:
        RefusedError: The site does not have the node after that upload.
    """
    accepted, nodes = envelope.accepted, dict(memory.nodes)
    last = memory.answered
    if memory.pending and last is not None and last.node is not None and last.stamp == accepted:
        nodes[accepted] = last.node
    allowed = nodes.keys() if envelope.epoch > memory.epoch else {memory.current, *_pending(memory)}
    if accepted != NEVER and accepted not in allowed:
        raise RefusedError(Reason.MISSING, _missing(memory, envelope))
    if accepted == NEVER != memory.current and envelope.epoch == memory.epoch:
        raise RefusedError(Reason.MISSING, _missing(memory, envelope))
    wanted = {accepted, *envelope.kept}
    return memory._replace(
        epoch=envelope.epoch,
        current=accepted,
        nodes=MappingProxyType({stamp: nodes[stamp] for stamp in nodes if stamp in wanted}),
        pending=False,
    )


def _pending(memory: Memory) -> tuple[Stamp, ...]:
    last = memory.answered
    return (last.stamp,) if memory.pending and last is not None and last.node is not None else ()


def _missing(memory: Memory, envelope: Envelope) -> str:
    held = [str(stamp) for stamp in [*sorted(memory.nodes), *_pending(memory)]]
    return (
        f"the server continues from {envelope.accepted} of this site, which has "
        f"{', '.join(held) or 'no state at all'}: its store is of another time than the server's "
        "checkpoint. Put back the store that belongs to it, or start the study again"
    )
