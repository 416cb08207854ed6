"""One client, one round. Every engine calls `node_round`, and only that."""

from typing import NamedTuple

import jax
from jaxtyping import Array, Float, Key, PyTree

from covey.core.algorithm import Algorithm, Info, Message, State
from covey.core.channel import Channel
from covey.core.keys import Integer, Stream, key_for
from covey.core.shard import Shard


class Node(NamedTuple):
    """A client's state between rounds: that of the method and that of the channel."""

    state: State
    channel: State


def first_node(
    algorithm: Algorithm,
    channel: Channel,
    root: Key[Array, ""],
    client_id: Integer,
    down: Message,
    data: Shard,
) -> Node:
    """The node of a client at its first round."""
    key = key_for(root, Stream.FIRST, 0, client_id)
    state = algorithm.init_client(key, down, data)
    up = jax.eval_shape(algorithm.client, key, down, state, data).up
    return Node(state, channel.init(up))


class Sent(NamedTuple):
    """A client's message in a round: its upload as encoded, and the weight of that."""

    payload: PyTree
    weight: Float[Array, ""] | None


def node_round(
    algorithm: Algorithm,
    channel: Channel,
    root: Key[Array, ""],
    t: Integer,
    client_id: Integer,
    down: Message,
    node: Node,
    data: Shard,
) -> tuple[Sent, Node, Info]:
    """The client computes, the channel encodes, the client commits what was sent."""
    local = algorithm.client(key_for(root, Stream.CLIENT, t, client_id), down, node.state, data)
    uplink = key_for(root, Stream.UPLINK, t, client_id)
    payload, channel_state = channel.encode(uplink, node.channel, local.up)
    state = algorithm.commit(local.pending, channel.decode(payload))
    return Sent(payload, local.weight), Node(state, channel_state), local.info
