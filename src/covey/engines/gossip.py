"""Exchanges of the peers' states: plain mixing, or CHOCO-gossip through a lossy channel."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from covey.channel.identity import identity
from covey.core import tree
from covey.core.algorithm import Empty, Message, State
from covey.core.channel import Channel
from covey.core.keys import Integer, Stream, key_for
from covey.engines.messages import down_size
from covey.topology import Topology


class Gossip(NamedTuple):
    """The settings of the peers' exchanges; `gossip_of` makes them.

    Attributes:
        steps: Exchanges per round.
        channel: Channel of the messages.
        lossy: Whether the channel loses anything. Then differences to public copies are sent.
        scale: Factor of a decoded difference.
        step_size: Step size towards the neighbours' copies (gamma); 1 without loss.
        bits: Bits of the values in one message.
        bytes: Bytes of one whole message, with its header and checksum.
    """

    steps: int
    channel: Channel
    lossy: bool
    scale: float
    step_size: float
    bits: int
    bytes: int


class Mixed(NamedTuple):
    """The result of a round's exchanges: states, public copies, and how many messages were sent."""

    states: PyTree
    copies: PyTree
    messages: Int[Array, ""]


def gossip_of(topology: Topology, matrices: int, channel: Channel | None, like: Message) -> Gossip:
    """Prepare the exchange of states, and check that the channel fits it.

    A channel that loses nothing mixes plainly. Through a lossy one peers send compressed
    differences, of which a share delta arrives. An unbiased channel with variance bound omega
    delivers delta = 1 / (1 + omega) once it is scaled by that factor. For a biased one (top-k)
    delta is measured on equal entries, its worst case: k / d. The step towards the neighbours is
    gamma = delta / (2 - delta): if each entry arrives with probability delta, a peer has moved by
    gamma T of its distance after the T rounds until the next arrival, and this gamma makes
    E(1 - gamma T)^2 least. For small delta, twice this gamma is where peers stop converging.

    Args:
        topology: Graph of the peers, and its gossip steps per round.
        matrices: Count of mixing matrices that the topology uses in turn.
        channel: Channel of the messages; None changes nothing.
        like: Shapes of a message: the floats of a peer's state.

    Returns:
        The exchange, for `mix`.

    Reference: Koloskova, Stich and Jaggi (2019), Decentralized stochastic optimization and gossip
    algorithms with compressed communication, sections 3.3 and 3.5.
    """
    given = identity() if channel is None else channel
    try:
        payload = jax.eval_shape(lambda message: _encode(given, jax.random.key(0), message), like)
    except ValueError as error:
        raise ValueError(
            f"between peers the channel compresses the states that neighbours send, not uploads: "
            f"{error}"
        ) from error
    delivered = _delivered(given, like)
    if delivered < 1 and matrices > 1:
        raise ValueError(
            f"a lossy channel needs neighbours that stay the same, as they keep copies of each "
            f"other's state; this topology changes between {matrices} graphs: use one graph, or "
            "no channel"
        )
    return Gossip(
        steps=topology.gossip_steps,
        channel=given,
        lossy=delivered < 1,
        scale=1.0 if given.omega is None else delivered,
        step_size=delivered / (2 - delivered),
        bits=given.bits(payload),
        bytes=down_size(payload),
    )


def first_copies(gossip: Gossip, states: PyTree) -> PyTree:
    """The public copies before the first round: all peers know the common start."""
    return states if gossip.lossy else Empty()


def mix(
    gossip: Gossip,
    mixing: Float[Array, "matrices peers peers"],
    root: Key[Array, ""],
    t: Integer,
    ids: Int[Array, " peers"],
    present: Bool[Array, " peers"],
    states: PyTree,
    copies: PyTree,
) -> Mixed:
    """The exchanges of a round among those present.

    Without loss, s_i <- sum_j W_ij s_j. Through a lossy channel C, with public copies x_i of every
    peer's state that its neighbours keep (CHOCO-gossip):

        q_i = C(s_i - x_i),   x_i <- x_i + scale q_i,   s_i <- s_i + gamma sum_j W_ij (x_j - x_i)

    so that what is lost of a difference is part of the next one. Either way the mean over peers
    stays as it is. Messages to an absent neighbour wait for it where copies have to stay alike;
    without loss it is sent none.

    Args:
        gossip: Settings of the exchanges.
        mixing: Mixing matrices, one per exchange, used in turn.
        root: The key of the run.
        t: The round.
        ids: Ids of the peers.
        present: Participants of the round.
        states: Floats of the peers' states, stacked.
        copies: Public copies of these; empty without loss.

    Returns:
        The new states and copies, and how many messages were sent: one per exchange from each
        present peer to each neighbour.
    """

    def exchange(index, at):
        graph = mixing[(t * gossip.steps + index) % len(mixing)]
        weights = absent_kept(graph, present)
        if not gossip.lossy:
            sent = _neighbours(weights)
            return Mixed(_averaged(weights, at.states), at.copies, at.messages + jnp.sum(sent))

        def heard(client_id, state, copy):
            key = jax.random.fold_in(key_for(root, Stream.UPLINK, t, client_id), index)
            difference = jax.tree.map(jnp.subtract, state, copy)
            decoded = gossip.channel.decode(_encode(gossip.channel, key, difference))
            return jax.tree.map(lambda x, q: x + gossip.scale * q, copy, decoded)

        updated = jax.vmap(heard)(ids, at.states, at.copies)
        copies = jax.vmap(tree.where)(present, updated, at.copies)
        states = jax.tree.map(
            lambda s, x, mean: s + gossip.step_size * (mean - x),
            at.states,
            copies,
            _averaged(weights, copies),
        )
        sent = _neighbours(graph) & present[:, None]
        return Mixed(states, copies, at.messages + jnp.sum(sent))

    return jax.lax.fori_loop(0, gossip.steps, exchange, Mixed(states, copies, jnp.int32(0)))


def absent_kept(
    mixing: Float[Array, "peers peers"], present: Bool[Array, " peers"]
) -> Float[Array, "peers peers"]:
    """The mixing matrix among those present.

    Absent peers mix with nobody, and their neighbours keep the weight for themselves, which leaves
    the matrix doubly stochastic.
    """
    between = jnp.where(present[:, None] & present & _neighbours(mixing), mixing, 0.0)
    return between + jnp.diag(1 - between.sum(1))


def floats_and_rest(state: State) -> tuple[PyTree, PyTree]:
    """The floats of a state, which peers mix, and its counters and the like, which they share."""
    return eqx.partition(state, _is_float)


def joined(floats: PyTree, rest: PyTree) -> State:
    """A state from its two parts."""
    return eqx.combine(floats, rest)


def consensus_distance(stacked: PyTree) -> Float[Array, ""]:
    """The root mean square over peers of the distance to their mean."""
    leaves = jax.tree.leaves(floats_and_rest(stacked)[0])
    squares = [jnp.sum((leaf - jnp.mean(leaf, axis=0)) ** 2) / leaf.shape[0] for leaf in leaves]
    return jnp.sqrt(jnp.sum(jnp.stack(squares))) if squares else jnp.zeros(())


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)


def _neighbours(mixing: Float[Array, "peers peers"]) -> Bool[Array, "peers peers"]:
    return (mixing > 0) & ~jnp.eye(len(mixing), dtype=bool)


def _averaged(weights: Float[Array, "peers peers"], stacked: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.tensordot(weights.astype(leaf.dtype), leaf, 1), stacked)


def _encode(channel: Channel, key: Key[Array, ""], message: Message) -> PyTree:
    """A payload without the channel's memory: the copies remember what was not sent."""
    return channel.encode(key, channel.init(message), message)[0]


def _delivered(channel: Channel, like: Message) -> float:
    """The share of a message that arrives, delta with E||Q(x) - x||^2 <= (1 - delta) ||x||^2."""
    if not tree.size(like):
        return 1.0
    if channel.omega is not None:
        return 1 / (1 + float(channel.omega(like)))
    ones = jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), like)
    decoded = channel.decode(_encode(channel, jax.random.key(0), ones))
    errors = jax.tree.map(lambda a, b: float(jnp.sum((a - b) ** 2)), decoded, ones)
    delivered = 1 - sum(jax.tree.leaves(errors)) / tree.size(like)
    if not delivered > 0:
        raise ValueError(
            "this channel delivers nothing of a message of equal entries; peers would never come "
            "together: use one that loses less"
        )
    return delivered
