"""One client as it is deployed: it owns its rows and its node, and knows nothing but the messages
it gets.

A message in, an answer out, and between them one transaction of the site's store: see
`site_memory` for what a site remembers and the rule of acknowledgement.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from covey.core import outline, protocol, wire
from covey.core.algorithm import Message, State, no_posterior
from covey.core.keys import Stream, key_for, message_key
from covey.core.metrics import Metric
from covey.core.node import Node
from covey.core.protocol import SERVER, Envelope, Kind, Reason, Refusal
from covey.core.shard import Shard
from covey.core.trimming import WHOLE, Used
from covey.core.wire import WireError
from covey.data.division import Split
from covey.engines.messages import Answer, pack_answer, unpack_down, unpack_question
from covey.engines.site_memory import Answered, Memory, RefusedError, check_epoch, repeated, settled
from covey.engines.site_programs import Asked, Programs, Queries, Ready, Workshop
from covey.engines.site_store import MemoryStore, Store, StoreError

# What a site may report beside its uploads: scalars of a round, or the metrics of an evaluation.
What: TypeAlias = Literal["info", "metrics"]
# (what, values) -> the values to report, of the same shapes; None to keep them
Report: TypeAlias = Callable[[What, PyTree], PyTree | None]
# (name, number, content of a question) -> why the site does not answer it; None where it does
Decline: TypeAlias = Callable[[str, int, PyTree], str | None]


# What a program may raise when it is traced for arrays of other shapes than it was written for.
MISFITS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Site:
    """One client of a study.

    Args:
        name: Name of the site, under which the server knows it.
        client_id: Its stable integer in the study.
        workshop: The method, as a `Workshop`, or `Ready` programs that sites share.
        data: The rows of each split.
        study: Name of the study.
        digest: Digest of its configuration; messages of another one are refused.
        store: Store of the site's memory. Default: in memory.
        secret: Secret key of the random values of its uploads: minibatches, noise, rounding. A
            deployed site makes its own (`core.keys.secret_key`) and shows it to nobody: privacy
            rests on it. None takes the run's root, which the server knows; then a run can be
            repeated, and is simulated.
        report: Filter of the values reported beside uploads: (what, values) -> values to report, or
            None to keep them. Default: everything that the method reports.
        decline: Gives the reason not to answer a question, or None. Default: the site answers all
            questions of the method.
        hello: Answer to a greeting, as JSON. Default: nothing.
        most_bytes: Bytes that a message to the site may have.
    """

    def __init__(
        self,
        name: str,
        client_id: int,
        workshop: Workshop | Ready,
        data: Mapping[str, Shard],
        *,
        study: str,
        digest: str,
        store: Store | None = None,
        secret: Key[Array, ""] | None = None,
        report: Report | None = None,
        decline: Decline | None = None,
        hello: Mapping[str, Any] | None = None,
        most_bytes: int = protocol.MOST_BYTES,
    ):
        self.name, self.client_id, self.workshop, self.data = name, client_id, workshop, data
        self.study, self.digest, self.most_bytes = study, digest, most_bytes
        self.store = MemoryStore() if store is None else store
        self._secret, self._report, self._decline = secret, report, decline
        self._hello = dict(hello or {})

    def handle(self, message: bytes) -> bytes:
        """Answer a message.

        Args:
            message: The bytes of the message.

        Returns:
            The answer, or a refusal that says why there is none. What the site remembers is in its
            store when this returns.

        Raises:
            WireError: The bytes are no message, or its body is not what it should be. The site's
                memory has not changed.
        """
        envelope, body = protocol.open_envelope(message, most=self.most_bytes)
        try:
            self._check_address(envelope)
            return self._handled(message, envelope, body)
        except RefusedError as error:
            return refused(message, envelope, error.refusal)
        except StoreError as error:
            return refused(message, envelope, Refusal(Reason.FAILED, f"not stored: {error}"))

    def _handled(self, message: bytes, envelope: Envelope, body: bytes) -> bytes:
        if envelope.kind == Kind.HELLO:
            return self._greeted(message, envelope, body)
        memory = self.store.load()
        check_epoch(memory, envelope)
        if envelope.kind == Kind.QUERY:
            return self._query(memory, message, envelope, body)
        if envelope.kind == Kind.PREPARE:
            fresh, reply = self._prepared(memory, message, envelope, body)
        else:
            stored = repeated(memory, envelope, message)
            if stored is not None:
                return stored
            fresh, reply = self._answered(settled(memory, envelope), message, envelope, body)
        if fresh != memory:
            self.store.save(fresh)
        return reply

    def _answered(
        self, memory: Memory, message: bytes, envelope: Envelope, body: bytes
    ) -> tuple[Memory, bytes]:
        """The memory after a message to a site that is settled, and the answer."""
        match envelope.kind:
            case Kind.ROUND:
                return self._round(memory, message, envelope, body)
            case Kind.EVALUATE:
                return memory, self._evaluated(memory, message, envelope, body)
            case Kind.STOP:
                self._unpacked(memory, body)
                memory = memory._replace(published=body, finished=envelope.round)
            case _:
                _need_empty(body)
        return memory, protocol.seal(envelope.answer(message))

    def _check_address(self, envelope: Envelope) -> None:
        """A refusal of a message for others, of another study, or that is no request."""
        if envelope.is_answer:
            raise WireError("a site answers, and is not answered")
        if envelope.receiver != self.name or envelope.sender != SERVER:
            raise RefusedError(
                Reason.MISDIRECTED,
                f"site {self.name!r} got a message from {envelope.sender!r} to "
                f"{envelope.receiver!r}; it takes messages of {SERVER!r} alone",
            )
        if envelope.study != self.study or envelope.digest != self.digest:
            raise RefusedError(
                Reason.MISDIRECTED,
                f"site {self.name!r} takes part in study {self.study!r} with configuration "
                f"{self.digest[:12]}, and got a message of {envelope.study!r} with "
                f"{envelope.digest[:12]}",
            )

    def _greeted(self, message: bytes, envelope: Envelope, body: bytes) -> bytes:
        protocol.unpack_text(body)
        said = {"epoch": self.store.load().epoch, **self._hello}
        return protocol.seal(envelope.answer(message), protocol.pack_text(said))

    def _round(
        self, memory: Memory, message: bytes, envelope: Envelope, body: bytes
    ) -> tuple[Memory, bytes]:
        """Compute an upload; the node that it leads to is pending."""
        programs, data = self._programs(memory), self.data["train"]
        down = unpack_down(body, programs.shapes.down)
        held = memory.node
        root = self._root(programs, message, held or b"")
        if held is None:
            node = programs.first_node(root, self.client_id, down, data)
        else:
            node = wire.unpack(held, programs.shapes.node)
        answer, new, finite = programs.node_round(
            root, envelope.round, self.client_id, down, node, data
        )
        stamp, seen = protocol.Stamp(envelope.epoch, envelope.round), protocol.token(message)
        if not finite:
            text = f"site {self.name!r} has values that are not finite in {stamp}"
            reply = refused(message, envelope, Refusal(Reason.DIVERGED, text))
            return memory._replace(answered=Answered(stamp, seen, reply, None)), reply
        reply = self._reply(message, envelope, answer, programs.used(down))
        last = Answered(stamp, seen, reply, wire.pack(jax.device_get(new)))
        return memory._replace(answered=last, pending=True), reply

    def _query(self, memory: Memory, message: bytes, envelope: Envelope, body: bytes) -> bytes:
        """The site's term of a sum. Nothing is remembered."""
        name, index, content = unpack_question(body)
        queries = self._queries(memory)
        if name not in queries.queries:
            raise RefusedError(
                Reason.UNKNOWN,
                f"site {self.name!r} knows no query {name!r:.100}; there are "
                f"{', '.join(queries.queries) or 'none'}",
            )
        asked = Asked(jnp.int32(index), self._unpacked(memory, content))
        why = None if self._decline is None else self._decline(name, index, asked.content)
        if why is not None:
            raise RefusedError(Reason.DECLINED, why)
        root = self._root(queries, message, b"")
        with _fitting(f"the query {name!r}"):
            answer, finite = queries.answer(name, root, self.client_id, asked, self.data["train"])
        if not finite:
            text = f"site {self.name!r} answers {name!r} with values that are not finite"
            return refused(message, envelope, Refusal(Reason.DIVERGED, text))
        return self._reply(message, envelope, answer)

    def _evaluated(self, memory: Memory, message: bytes, envelope: Envelope, body: bytes) -> bytes:
        text, content = protocol.split(body, 2)
        split = protocol.unpack_text(text)
        if not isinstance(split, str) or split not in self.data:
            raise RefusedError(Reason.UNKNOWN, f"there is no split {split!r:.100}")
        down = self._unpacked(memory, content)
        with _fitting("an evaluation"):
            metrics = jax.device_get(self._measured(memory, envelope.round, down, split))
        if self._report is not None:
            metrics = self._report("metrics", metrics)
        if metrics is None:
            raise RefusedError(Reason.DECLINED, f"site {self.name!r} keeps its metrics to itself")
        return protocol.seal(envelope.answer(message), wire.pack(metrics))

    def _prepared(
        self, memory: Memory, message: bytes, envelope: Envelope, body: bytes
    ) -> tuple[Memory, bytes]:
        if not self.workshop.needs_preparation:
            raise RefusedError(Reason.UNKNOWN, "the method of this study needs no preparation")
        with _fitting("the preparation"):
            self.workshop.programs(body)
        fresh = memory._replace(prepared=body, prepared_in=envelope.epoch)
        return fresh, protocol.seal(envelope.answer(message))

    def _reply(
        self, message: bytes, envelope: Envelope, answer: Answer, used: Used = WHOLE
    ) -> bytes:
        answer = jax.device_get(answer)
        if self._report is not None and jax.tree.leaves(answer.info):
            answer = answer._replace(info=self._report("info", answer.info))
        return protocol.seal(envelope.answer(message), pack_answer(answer, used))

    def _root(self, programs: Programs | Queries, message: bytes, node: bytes) -> Key[Array, ""]:
        """The random key of an answer."""
        return programs.root if self._secret is None else message_key(self._secret, message, node)

    def _programs(self, memory: Memory) -> Programs:
        if self.workshop.needs_preparation and not memory.prepared:
            raise RefusedError(
                Reason.MISSING,
                "the method has to be prepared first, and the site has not received its result",
            )
        return self.workshop.programs(memory.prepared)

    def _queries(self, memory: Memory) -> Queries:
        if self.workshop.needs_preparation and not memory.prepared:
            return self.workshop.preparation
        return self._programs(memory).queries

    def _unpacked(self, memory: Memory, content: bytes) -> PyTree:
        """A tree that carries its own outline."""
        unprepared = self.workshop.needs_preparation and not memory.prepared
        return outline.unpack(content, () if unprepared else self._programs(memory).known)

    @property
    def node(self) -> Node | None:
        """The site's node after its last accepted upload; None before the first was accepted."""
        memory = self.store.load()
        held = memory.node
        return None if held is None else wire.unpack(held, self._programs(memory).shapes.node)

    def settle(self, envelope: Envelope) -> None:
        """Commit or drop the pending node, as a message with this envelope would."""
        memory = self.store.load()
        fresh = settled(memory, envelope)
        if fresh != memory:
            self.store.save(fresh)

    def published(self) -> tuple[int, Message] | None:
        """The last round and the state to predict with after it; None while the study runs."""
        memory = self.store.load()
        if memory.finished < 0:
            return None
        return memory.finished, self._unpacked(memory, memory.published)

    def evaluate(
        self, t: int, down: Message, split: Split, draws: int | None = None
    ) -> dict[str, Metric]:
        """Metrics on one split of the site's own rows; predictions average over `draws` draws."""
        return self._measured(self.store.load(), t, down, split, draws)

    def predict(self, t: int, down: Message, x: PyTree, draws: int | None = None) -> PyTree:
        """The predictive distribution for new rows, averaged over `draws` draws."""
        memory = self.store.load()
        programs = self._programs(memory).over(draws)
        key = key_for(programs.root, Stream.PREDICT, t, self.client_id)
        state = self._state(memory, programs, t, down)
        return programs.predict(key, down, state, jax.tree.map(jnp.asarray, x))

    def draws(self, t: int, down: Message, count: int, chain: int) -> PyTree:
        """Posterior draws, on the leading axis."""
        programs = self._programs(self.store.load())
        if programs.draws is None:
            raise ValueError(no_posterior(programs.algorithm, "client"))
        key = jax.random.fold_in(key_for(programs.root, Stream.DRAWS, t, self.client_id), chain)
        return programs.draws(key, down, self.state(t, down), self.data["train"], count)

    def state(self, t: int, down: Message) -> State:
        """The state that the site predicts with: its own, brought up to date by the method; or one
        adapted from the broadcast.
        """
        memory = self.store.load()
        return self._state(memory, self._programs(memory), t, down)

    def _measured(
        self, memory: Memory, t: int, down: Message, split: str, draws: int | None = None
    ) -> dict[str, Metric]:
        programs = self._programs(memory).over(draws)
        key = key_for(programs.root, Stream.EVALUATE, t, self.client_id)
        state = self._state(memory, programs, t, down)
        return programs.evaluate(key, down, state, self.data[split])

    def _state(self, memory: Memory, programs: Programs, t: int, down: Message) -> State:
        data, held = self.data["train"], memory.node
        key = key_for(programs.root, Stream.ADAPT, t, self.client_id)
        if held is None or programs.algorithm.hooks.adapt_before_evaluation:
            return programs.adapt(key, down, data)
        state = wire.unpack(held, programs.shapes.node).state
        return state if programs.refresh is None else programs.refresh(key, down, state, data)


def refused(message: bytes, envelope: Envelope, refusal: Refusal) -> bytes:
    """A refusal of a message with this envelope."""
    return protocol.seal(envelope.answer(message, Kind.REFUSAL), protocol.pack_refusal(refusal))


@contextmanager
def _fitting(what: str) -> Iterator[None]:
    """A context: arrays with an outline of their own may not suit the method."""
    try:
        yield
    except MISFITS as error:
        raise WireError(f"the content does not fit {what}: {error}") from error


def _need_empty(body: bytes) -> None:
    if body:
        raise WireError(f"the message should have no body, and has one of {len(body)} bytes")
