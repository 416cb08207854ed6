"""One client as it would be deployed: it owns its rows and its node, and knows nothing but the
messages it gets.

The acknowledgement rule keeps a site and the server in step when messages are lost. A site holds
the last node that the server is known to have heard of, and a pending one with its round. A
broadcast names the last round in which the server accepted an upload of this site: if that is the
pending round, the pending node becomes the node; otherwise it is dropped.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree

from covey.core import tree, wire
from covey.core.algorithm import Algorithm, Message, State, evaluate, no_client_posterior
from covey.core.channel import Channel
from covey.core.keys import Stream, key_for
from covey.core.metrics import Metric
from covey.core.node import Node, first_node, node_round
from covey.core.shard import Shard
from covey.data.federated import Split
from covey.engines.messages import Answer, Header, open_body, open_header, seal
from covey.engines.round import received


class Pending(NamedTuple):
    """A node whose upload the server is not yet known to have accepted, with that upload in case it
    is asked for again.
    """

    round: int
    node: Node
    message: bytes


class Programs:
    """The compiled functions of a method. Sites of one process share them; a deployed site has its
    own.
    """

    def __init__(self, algorithm: Algorithm, channel: Channel, root: Key[Array, ""]):
        self.algorithm = algorithm
        self.root = root
        self.first_node = jax.jit(partial(first_node, algorithm, channel))
        self.node_round = jax.jit(partial(_answer, algorithm, channel))
        self.adapt = jax.jit(algorithm.adapt)
        self.refresh = None if algorithm.refresh is None else jax.jit(algorithm.refresh)
        self.evaluate = jax.jit(partial(evaluate, algorithm))
        self.predict = jax.jit(algorithm.predict)
        draws = algorithm.posterior.client
        self.draws = None if draws is None else jax.jit(draws, static_argnums=4)


class Site:
    """One client. `like` gives the shapes of the broadcasts it may be sent.

    secret: where the random numbers of its uploads come from: minibatches, noise, rounding. A
        deployed site makes one of its own (`core.keys.secret_key`) and tells nobody: privacy rests
        on it. None takes the run's root, which the server knows; then a run can be repeated, and is
        simulated.
    """

    def __init__(
        self,
        programs: Programs,
        client_id: int,
        data: dict[str, Shard],
        like: Message,
        secret: Key[Array, ""] | None = None,
    ):
        self.programs, self.client_id, self.data, self.like = programs, client_id, data, like
        self._root = programs.root if secret is None else secret
        self.node: Node | None = None
        self.pending: Pending | None = None

    def receive(self, message: bytes) -> bytes | None:
        """Answer a broadcast. A repeated one gets the same answer again, an outdated one none."""
        header = open_header(message)
        if header.client_id != self.client_id:
            raise wire.WireError(
                f"client {self.client_id} got a message for client {header.client_id}"
            )
        if self.pending is not None and header.round <= self.pending.round:
            return self.pending.message if header.round == self.pending.round else None
        down = open_body(message, self.like)
        self.settle(header.accepted)
        return self._run(header.round, down)

    def settle(self, accepted: int) -> None:
        """Keep the pending node if the server accepted its round, drop it if not."""
        if self.pending is not None:
            if self.pending.round == accepted:
                self.node = self.pending.node
            self.pending = None

    def evaluate(self, t: int, down: Message, split: Split) -> dict[str, Metric]:
        """Metrics on one split of the site's own rows."""
        key = key_for(self.programs.root, Stream.EVALUATE, t, self.client_id)
        return self.programs.evaluate(key, down, self.state(t, down), self.data[split])

    def predict(self, t: int, down: Message, x: PyTree) -> PyTree:
        """The predictive distribution for new rows."""
        key = key_for(self.programs.root, Stream.PREDICT, t, self.client_id)
        return self.programs.predict(key, down, self.state(t, down), jax.tree.map(jnp.asarray, x))

    def draws(self, t: int, down: Message, count: int, chain: int) -> PyTree:
        """Posterior draws, on the leading axis."""
        if self.programs.draws is None:
            raise ValueError(no_client_posterior(self.programs.algorithm))
        key = jax.random.fold_in(
            key_for(self.programs.root, Stream.DRAWS, t, self.client_id), chain
        )
        return self.programs.draws(key, down, self.state(t, down), self.data["train"], count)

    def state(self, t: int, down: Message) -> State:
        """What the site predicts with: the state it kept, brought up to date by the method; or one
        adapted from the broadcast.
        """
        programs, data = self.programs, self.data["train"]
        key = key_for(programs.root, Stream.ADAPT, t, self.client_id)
        if self.node is None or programs.algorithm.hooks.adapt_before_evaluation:
            return programs.adapt(key, down, data)
        if programs.refresh is None:
            return self.node.state
        return programs.refresh(key, down, self.node.state, data)

    def _run(self, t: int, down: Message) -> bytes:
        programs, data = self.programs, self.data["train"]
        node = self.node
        if node is None:
            node = programs.first_node(self._root, self.client_id, down, data)
        answer, node = programs.node_round(self._root, t, self.client_id, down, node, data)
        reply = seal(Header(self.client_id, t), answer)
        self.pending = Pending(t, node, reply)
        return reply


def padded(data: Shard, capacity: int) -> Shard:
    """A site's rows in a buffer of few possible lengths, so that sites can share compiled
    programs.
    """

    def pad(leaf):
        leaf = np.asarray(leaf)
        return jnp.asarray(np.pad(leaf, [(0, capacity - len(leaf)), *[(0, 0)] * (leaf.ndim - 1)]))

    return Shard(jax.tree.map(pad, data.rows), data.start, data.count, capacity)


def _answer(algorithm, channel, root, t, client_id, down, node, data) -> tuple[Answer, Node]:
    sent, node, info = node_round(algorithm, channel, root, t, client_id, down, node, data)
    return Answer(sent, info, tree.is_finite((*received(channel, sent), node))), node
