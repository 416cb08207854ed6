"""One client, one round. Every engine calls `node_round`, and only that."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array, Key, PyTree

from covey.core import tree
from covey.core.algorithm import Algorithm, Info, Message, State
from covey.core.keys import Integer, Stream, key_for
from covey.core.shard import Shard


class Channel(NamedTuple):
    """What an upload passes through on its way to the server.

    init: (shapes of an upload) -> channel state, e.g. the memory of an error feedback; Empty()
        without one.
    encode: (key, channel state, upload) -> (payload, channel state). The payload is what travels.
    decode: (payload) -> the upload as the server sees it.
    bits: (payload) -> bits on the wire; needs shapes and types only.
    omega: (shapes of an upload) -> the bound of E||C(x) - x||^2 <= omega ||x||^2; None for a
        channel that is biased.
    """

    init: Callable[[Message], State]
    encode: Callable[[Key[Array, ""], State, Message], tuple[PyTree, State]]
    decode: Callable[[PyTree], Message]
    bits: Callable[[PyTree], int] = tree.bits
    omega: Callable[[Message], float] | None = None


class Node(NamedTuple):
    """What a client keeps between rounds: the method's state and the channel's."""

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


def node_round(
    algorithm: Algorithm,
    channel: Channel,
    root: Key[Array, ""],
    t: Integer,
    client_id: Integer,
    down: Message,
    node: Node,
    data: Shard,
) -> tuple[PyTree, Node, Info]:
    """The client computes, the channel encodes, the client commits what was sent. Returns payload,
    new node, info.
    """
    local = algorithm.client(key_for(root, Stream.CLIENT, t, client_id), down, node.state, data)
    payload, channel_state = channel.encode(
        key_for(root, Stream.UPLINK, t, client_id), node.channel, local.up
    )
    state = algorithm.commit(local.pending, channel.decode(payload))
    return payload, Node(state, channel_state), local.info
