"""A server's connection to its sites: epochs, envelopes, retries, greetings, questions."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from covey.channel.identity import identity
from covey.core import outline, protocol, tree
from covey.core.algorithm import Empty, Query
from covey.core.keys import root_key
from covey.core.node import Node, node_round
from covey.core.protocol import Kind, Reason, Stamp
from covey.core.shard import whole
from covey.core.wire import WireError
from covey.data.roster import Roster
from covey.engines.messages import Answer, pack_question, unpack_answer
from covey.engines.reception import NoQuorumError, Reception, Study
from covey.engines.record import Line
from covey.engines.setup import spec_of
from covey.engines.site_programs import Asked, query_method
from covey.engines.transport import Transport


class RoundReport(NamedTuple):
    """The outcome of one exchange, for progress and logs.

    Attributes:
        kind: Kind of the messages.
        round: The round, from 0; for other kinds, the next one.
        asked: Names of the sites that were asked.
        answered: Those that gave an answer that counts.
        refused: Reasons of refusals, by name.
        damaged: Faults of messages that could not be used, by name.
        late, repeated: Counts of answers that were late, or had come before.
        bytes_down, bytes_up: Bytes of all messages.
        seconds: Duration of the exchange.
    """

    kind: Kind
    round: int
    asked: tuple[str, ...]
    answered: tuple[str, ...]
    refused: Mapping[str, protocol.Refusal]
    damaged: Mapping[str, str]
    late: int
    repeated: int
    bytes_down: int
    bytes_up: int
    seconds: float


def milliseconds() -> int:
    """The time since 1970, from which epochs are numbered."""
    return time.time_ns() // 10**6


class Connection:
    """A server's connection to its sites: epochs, envelopes, retries.

    Args:
        transport: Carrier of the messages.
        study: Name of the study.
        digest: SHA-256 of its configuration, 64 hexadecimal digits.
        deadline: Seconds that an exchange waits for answers.
        attempts: Times that a message is sent to a site that has not answered.
        most_bytes: Bytes that an answer may have.
        clock: Gives the number of a new epoch, which is larger than those before.
        watch: Called with a report of every exchange.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        study: str,
        digest: str,
        deadline: float = 60.0,
        attempts: int = 2,
        most_bytes: int = protocol.MOST_BYTES,
        clock: Callable[[], int] = milliseconds,
        watch: Callable[[RoundReport], None] | None = None,
    ):
        if deadline <= 0 or attempts < 1:
            raise ValueError(
                f"deadline must be above 0 and attempts at least 1, got {deadline} and {attempts}"
            )
        self.transport, self.study = transport, Study(study, digest)
        self.deadline, self.attempts, self.most_bytes = deadline, attempts, most_bytes
        self.epoch, self.trusted = 0, False
        self._clock, self._watch = clock, watch

    def new_epoch(self, after: int = 0) -> None:
        """Begin an epoch that is later than `after` and all before."""
        self.epoch = max(self.epoch, after, self._clock() - 1) + 1
        self.trusted = False  # until a site has answered in it

    def exchange(
        self,
        kind: Kind,
        round_: int,
        bodies: Mapping[str, bytes],
        stamps: Callable[[str], tuple[Stamp, Sequence[Stamp]]],
        quorum: int,
        check: Callable[[Reception], object] | None = None,
    ) -> Reception:
        """Send a body to each of some sites and take the answers.

        Args:
            kind: Kind of the messages.
            round_: The round that the messages are of.
            bodies: The body for each site.
            stamps: (site) -> its last accepted upload, and those that are kept.
            quorum: Answers that are enough. Sites that are missing are asked again, with the same
                message, until this many have come.
            check: Looks into the answers, and spoils those that cannot be used, before it is
                reported who has answered.
        """
        begun = time.perf_counter()
        if not self.epoch:
            self.new_epoch()
        found = self._exchange(kind, round_, bodies, stamps, quorum)
        later = [r.epoch for r in found.refusals.values() if r.reason == Reason.SUPERSEDED]
        if later and not self.trusted:  # a server before this one had a clock that was ahead
            self.new_epoch(max(later))
            found = self._exchange(kind, round_, bodies, stamps, quorum)
        self.trusted = self.trusted or found.heard > 0
        if check is not None:
            check(found)
        if self._watch is not None:
            self._watch(_report(kind, round_, found, time.perf_counter() - begun))
        return found

    def _exchange(self, kind, round_, bodies, stamps, quorum) -> Reception:
        messages = {
            name: protocol.seal(
                self.study.envelope(kind, name, self.epoch, round_, *stamps(name)), body
            )
            for name, body in bodies.items()
        }
        reception = Reception(self.study, messages, self.most_bytes)
        for attempt in range(self.attempts):
            waiting = reception.open
            if not waiting or (attempt and reception.heard >= quorum):
                break
            reception.bytes_down += sum(map(len, waiting.values()))
            needed = max(quorum - reception.heard, 0)
            answers = self.transport.exchange(waiting, deadline=self.deadline, quorum=needed)
            for name, message in answers.items():
                reception.receive(name, message)
        return reception


def greet(connection: Connection, sites: Sequence[str], question: Any = None) -> dict[str, Any]:
    """Ask sites who they are, before there is a roster.

    Args:
        connection: The connection to the sites.
        sites: Their names.
        question: The question, as JSON; its form is up to the sites' handlers.

    Returns:
        What each site said, as JSON, by its name; a `Refusal` where it refused, or where what it
        said is no JSON. Sites that did not answer are missing.
    """
    body, said = protocol.pack_text(question), {}

    def read(found: Reception) -> None:
        for name, answer in list(found.answers.items()):
            try:
                said[name] = protocol.unpack_text(answer)
            except WireError as error:
                found.spoil(name, str(error))

    bodies, nobody = dict.fromkeys(sites, body), lambda _: (protocol.NEVER, ())
    found = connection.exchange(Kind.HELLO, 0, bodies, nobody, len(sites), read)
    damaged = {
        name: protocol.Refusal(Reason.FAILED, f"its answer cannot be used: {why}")
        for name, why in found.damaged.items()
    }
    return {**damaged, **found.refusals, **said}


class Inquiry:
    """Questions to all sites of a roster, for `Questions`, and the result of a preparation.

    Args:
        connection: The connection to the sites.
        roster: The sites to ask.

    Attributes:
        known: Nodes that contents may have beyond tuples and dictionaries; see `outline`.
    """

    def __init__(self, connection: Connection, roster: Roster):
        self.connection, self.roster = connection, roster
        self.known: Sequence[Any] = ()
        self._names = [roster.name_of(at) for at in range(roster.clients)]

    def __call__(self, query: Query, name: str, asked: Asked) -> tuple[PyTree, Line]:
        """The sum of all sites' answers to a question, and a row of metrics about it.

        Raises:
            NoQuorumError: Some site did not answer: a sum without it would be another sum.
        """
        content = outline.pack(jax.device_get(asked.content), self.known)
        like, said = self._like(query, name, asked), {}

        def read(found: Reception) -> None:
            for site, answer in list(found.answers.items()):
                try:
                    said[site] = unpack_answer(answer, like).sent.payload
                except WireError as error:
                    found.spoil(site, str(error))
                    continue
                if not tree.is_finite(said[site]):
                    found.spoil(site, f"its answer to {name!r} has values that are not finite")

        found = self._ask(Kind.QUERY, pack_question(name, int(asked.index), content), read)
        self._need_all(found, f"the sum {name!r}")
        answers = [said[site] for site in self._names]
        total = jax.tree.map(lambda *terms: sum(terms), *answers)
        each = [sum(map(np.size, jax.tree.leaves(tree))) for tree in (asked.content, total)]
        line: Line = {
            "clients": len(answers),
            "diverged": 0,
            "bits_down": 32 * each[0] * len(answers),
            "bits_up": 32 * each[1] * len(answers),
            "bytes_down": found.bytes_down,
            "bytes_up": found.bytes_up,
        }
        return total, line

    def prepared(self, found: PyTree) -> None:
        """Send the result of the method's preparation to all sites.

        Raises:
            NoQuorumError: Some site has not heard it.
        """
        told = self._ask(Kind.PREPARE, outline.pack(jax.device_get(found)))
        self._need_all(told, "what the preparation found")

    def _ask(
        self, kind: Kind, body: bytes, check: Callable[[Reception], object] | None = None
    ) -> Reception:
        bodies, everyone = dict.fromkeys(self._names, body), len(self._names)
        return self.connection.exchange(
            kind, 0, bodies, lambda _: (protocol.NEVER, ()), everyone, check
        )

    def _like(self, query: Query, name: str, asked: Asked) -> Answer:
        """The shapes of a site's answer."""
        spec = spec_of(self.roster)
        method = query_method(query, asked, name)

        def answer(root, asked, rows):
            node = Node(Empty(), identity().init(Empty()))
            sent, _, info = node_round(method, identity(), root, 0, 0, asked, node, whole(rows))
            return Answer(sent, info)

        rows = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((spec.capacity, *s.shape), s.dtype), spec.rows
        )
        return jax.eval_shape(answer, root_key(0), asked, rows)

    def _need_all(self, found: Reception, what: str) -> None:
        if len(found.answers) < len(self._names):
            raise NoQuorumError(f"{what} needs all {len(self._names)} sites; {found.silent()}")


def _report(kind: Kind, round_: int, found: Reception, seconds: float) -> RoundReport:
    return RoundReport(
        kind,
        round_,
        tuple(found.messages),
        tuple(found.answers),
        dict(found.refusals),
        dict(found.damaged),
        found.late,
        found.repeated,
        found.bytes_down,
        found.bytes_up,
        seconds,
    )
