"""The engine without a server: peers take steps alone and mix their states with neighbours."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from covey.core import cohort as cohorts
from covey.core import tree
from covey.core.algorithm import (
    Algorithm,
    Chains,
    Info,
    State,
    evaluate,
    published,
)
from covey.core.channel import Channel
from covey.core.faults import Faults
from covey.core.keys import Stream, key_for
from covey.core.node import Node, first_node, node_round
from covey.core.shard import Shard
from covey.data.federated import FederatedData
from covey.engines import gossip
from covey.engines.engine import EngineState, Vectorised
from covey.engines.evaluation import Evaluator
from covey.engines.linearity import need_linear
from covey.engines.peer_weights import alone, total_weight, typical_weight
from covey.engines.record import Counts, Line, Record, Sizes, as_lines, mean_or_nan
from covey.engines.round import bucket_size, call_up, received, repeated
from covey.engines.rows import DeviceRows, shard_of
from covey.engines.setup import setup_of
from covey.engines.snapshot import Snapshot, snapshot_like, stacked_like
from covey.topology import Topology


class Peer(NamedTuple):
    """A peer's node: its copy of the server's state, and the node of its client."""

    server: State
    own: State


class Stepped(NamedTuple):
    """A peer after its own step: its node, its report, and whether all is finite."""

    node: Node
    client_info: Info
    server_info: Info
    finite: Bool[Array, "*peers"]


class Exchange(NamedTuple):
    """The distance between peers after a round, and the count of their messages."""

    consensus: Float[Array, "*rounds"]
    messages: Int[Array, "*rounds"]


class Peers(Vectorised):
    """A method on federated data between peers, without a server.

    In a round every peer i that takes part computes the upload u_i that a client computes from the
    broadcast of its own state s_i, takes the server's step alone, as if all n peers had sent what
    it has, and mixes the result with its neighbours:

        s_i' = step(s_i, n r_i (m_i / m) u_i),    s_i <- sum_j W_ij s_j'

    m_i is the weight of its upload (its rows, say) and m the mean weight of all peers. r_i is its
    inverse participation probability relative to that of peers who take part on average: 1 unless
    probabilities differ. W is the topology's mixing matrix; it is applied `gossip_steps` times per
    round. If everyone takes part, the mean over peers therefore moves by the weighted mean of the
    changes, on any graph. If a share p takes part, it moves by p times that in expectation, as
    absent peers stay where they are. On the complete graph with everyone present this is the
    server's run; for a mixture with equal weights it is D-FedEM, step then mix.

    Only states are sent, and of these the floats: counters advance with the round for everyone. A
    lossy channel compresses differences to public copies of the states (`covey.engines.gossip`).
    `bits_up` and `bytes_up` count one message per neighbour and gossip step. `consensus` is the
    root mean square distance of the peers' broadcasts to their mean. The report of the server's
    step is here the mean over peers of their own steps.

    Absent peers, by the cohort, by faults, or because values are not finite, compute nothing and
    keep their states. Methods whose step is not linear in the sum are refused, as the mean over
    peers would not follow the method. A peer with k times the mean weight steps k times as far
    before it mixes; where weights differ much, use `weighting="equal"` or more gossip steps.

    Args:
        algorithm: The method.
        data: The clients' rows; clients are the peers.
        topology: Graph of the peers, from `covey.topology`, and its gossip steps per round.
        seed: Seed of everything random.
        cohort: Scheme of the cohorts. Default: all peers in every round.
        channel: Channel of the states that peers send. Default: nothing changes them.
        faults: Probabilities of lost, late and repeated messages; the peer concerned misses the
            round. Default: none.
        rounds: Planned rounds, for methods that check it.
        chunk: Peers that compute side by side; fewer need less memory.

    Example:
        >>> import covey, numpy as np
        >>> from covey.engines.peers import Peers
        >>> x, site = np.linspace(-1, 1, 24)[:, None], np.repeat(list("abcd"), 6)
        >>> data = covey.FederatedData.from_arrays(x, 2 * x[:, 0], site)
        >>> method = covey.fedavg(covey.models.linear(), batch_size=None)
        >>> ring = covey.topology.ring(gossip_steps=2)
        >>> engine = Peers(method, data, topology=ring, seed=0)
        >>> state, metrics = engine.advance(engine.start(), 3)
        >>> metrics[-1]["bits_up"]  # two floats to two neighbours, twice, from four peers
        1024

    Reference: Marfoq et al. (2021), Federated multi-task learning under a mixture of
    distributions, section 3.3 and algorithm 2.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        data: FederatedData,
        *,
        topology: Topology,
        seed: int,
        cohort: cohorts.Scheme | None = None,
        channel: Channel | None = None,
        faults: Faults | None = None,
        rounds: int | None = None,
        chunk: int = 32,
    ):
        _check(algorithm, topology)
        self.data = data
        # Uploads stay where they are computed: the channel is for the states that peers send.
        self.setup = setup_of(
            algorithm, data, seed=seed, cohort=cohort, channel=None, faults=faults, rounds=rounds
        )
        shapes = self.setup.shapes
        self.mixing = jnp.asarray(topology(data.clients), float)
        message, _ = gossip.floats_and_rest(shapes.server)
        self.gossip = gossip.gossip_of(topology, len(self.mixing), channel, message)
        self.chunk = min(chunk, data.clients)
        self.rows = DeviceRows(data)
        self.ids = jnp.asarray(data.ids, jnp.int32)
        everyone = self.rows.view(np.arange(data.clients), "train")
        self.storage = shard_of(everyone, bucket_size(int(max(everyone.counts, default=1))))
        self.evaluator = Evaluator(_of_peers(algorithm), self.setup.root, self.chunk)
        copies = gossip.first_copies(self.gossip, message)
        self.like = Node(Peer(shapes.server, shapes.node.state), copies)
        need_linear(self.setup, self.storage)
        self.total = total_weight(self.setup, self.storage)
        self.typical = typical_weight(self.setup)
        self.compiled = jax.jit(self._block)

    def start(self) -> EngineState:
        """The state before the first round: all peers start from the same state."""
        clients, server = self.data.clients, self.setup.first_server()
        nodes = jax.tree.map(lambda s: jnp.zeros((clients, *s.shape), s.dtype), self.like)
        states = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape)), server)
        copies = gossip.first_copies(self.gossip, gossip.floats_and_rest(states)[0])
        nodes = Node(nodes.state._replace(server=states), copies)
        return EngineState(0, server, nodes, jnp.zeros(clients, bool))

    def snapshot(self, state: EngineState) -> Snapshot:
        """The state as arrays, for a checkpoint."""
        return Snapshot(np.int64(state.round), state.server, state.nodes, np.asarray(state.seen))

    def snapshot_like(self) -> Snapshot:
        """The shapes of a snapshot."""
        clients = self.data.clients
        return snapshot_like(self.setup.shapes.server, stacked_like(self.like, clients), clients)

    def restore(self, snapshot: Snapshot) -> EngineState:
        """The state that a snapshot was made of."""
        arrays = jax.tree.map(jnp.asarray, (snapshot.server, snapshot.nodes, snapshot.seen))
        return EngineState(int(snapshot.round), *arrays)

    def _take(self, state: EngineState, positions: np.ndarray) -> Node:
        return jax.tree.map(lambda leaf: leaf[positions], state.nodes)

    def _down(self, state: EngineState) -> State:
        """The mean over peers, for unseen clients; peers predict with their own."""
        return state.server

    def _block_of(self, state: EngineState, count: int) -> tuple[EngineState, Any]:
        (nodes, seen), record = self.compiled(
            state.round, count, state.nodes, state.seen, self.storage, self.mixing
        )
        return EngineState(state.round + count, _mean(nodes.state.server), nodes, seen), record

    def _block(self, first, count, nodes, seen, storage, mixing):
        def one_round(t, nodes, seen):
            return self._round(t, nodes, seen, storage, mixing)

        return repeated(one_round, first, count, (nodes, seen))

    def _lines(self, first: int, count: int, record: Any, before: Sequence[Line]) -> list[Line]:
        of_clients, exchange = record
        lines = as_lines(first, count, of_clients, Sizes(0, 0, 0, 0), before)
        for line, consensus, messages in zip(lines, *exchange, strict=False):
            line["bits_up"] = self.gossip.bits * int(messages)
            line["bytes_up"] = self.gossip.bytes * int(messages)
            line["consensus"] = float(consensus)
        return lines

    def _round(self, t, nodes, seen, storage, mixing):
        here, shares, counts = self._present(t)
        stepped = self._stepped(t, nodes, seen, here, shares, storage)
        good, bad = here & stepped.finite, here & ~stepped.finite
        nodes, messages = self._mixed(
            t, jax.vmap(tree.where)(good, stepped.node, nodes), good, mixing
        )
        counts = counts._replace(
            clients=jnp.sum(good, dtype=jnp.int32),
            diverged=jnp.sum(bad, dtype=jnp.int32),
            diverged_id=jnp.max(jnp.where(bad, self.ids, -1)),
        )
        infos = (_mean_of(good, info) for info in (stepped.client_info, stepped.server_info))
        downs = jax.vmap(self.setup.algorithm.broadcast)(nodes.state.server)
        exchange = Exchange(gossip.consensus_distance(downs), messages)
        return nodes, seen | good, (Record(counts, *infos), exchange)

    def _present(self, t) -> tuple[Bool[Array, " peers"], Float[Array, " peers"], Counts]:
        """The participants of round t, and the weights r_i that correct for rare participation."""
        slots, counts = call_up(self.setup, self.setup.root, t, self.ids)
        here = jnp.zeros(self.data.clients, bool).at[slots.index].max(slots.on)
        weights = jnp.zeros(self.data.clients).at[slots.index].add(slots.weight * slots.on)
        return here, weights / self.typical, counts

    def _stepped(self, t, nodes, seen, here, shares, storage) -> Stepped:
        """Every peer's computation, and its own step."""
        algorithm, channel, root = self.setup.algorithm, self.setup.channel, self.setup.root
        key = key_for(root, Stream.SERVER, t)

        def one(client_id, node, known, share, start, count):
            data = Shard(storage.rows, start, count, storage.capacity)
            down = algorithm.broadcast(node.state.server)
            first = first_node(algorithm, channel, root, client_id, down, data)
            client = first._replace(state=tree.where(known, node.state.own, first.state))
            sent, client, info = node_round(
                algorithm, channel, root, t, client_id, down, client, data
            )
            up, weight = received(channel, sent)
            sums = alone(up, share * weight, len(here), self.total)
            server, server_info = algorithm.server(key, node.state.server, sums)
            new = node._replace(state=Peer(server, client.state))
            return Stepped(new, info, server_info, tree.is_finite((up, weight, new)))

        count = jnp.where(here, storage.count, 0)
        arguments = (self.ids, nodes, seen, shares, storage.start, count)
        return jax.lax.map(lambda peer: one(*peer), arguments, batch_size=self.chunk)

    def _mixed(self, t, nodes: Node, good, mixing) -> tuple[Node, Int[Array, ""]]:
        """Peers after the round's exchanges, and the count of messages."""
        floats, rest = gossip.floats_and_rest(nodes.state.server)
        mixed = gossip.mix(
            self.gossip, mixing, self.setup.root, t, self.ids, good, floats, nodes.channel
        )
        # The round is the same for all: who was absent counts it too.
        rest = jax.tree.map(
            lambda leaf: jnp.where(jnp.any(good), leaf[jnp.argmax(good)], leaf), rest
        )
        server = gossip.joined(mixed.states, rest)
        return Node(nodes.state._replace(server=server), mixed.copies), mixed.messages


def _check(algorithm: Algorithm, topology: object) -> None:
    """An error for a method that needs a server, and for a wrong type of topology."""
    if not isinstance(topology, Topology):
        raise TypeError(
            "a topology from covey.topology is needed, e.g. covey.topology.ring(), got "
            f"{topology!r}"
        )
    if why := algorithm.hooks.needs_server:
        raise ValueError(f"{algorithm.name} cannot run between peers: {why}")
    if algorithm.hooks.adapt_before_evaluation:
        raise ValueError(
            f"{algorithm.name} fine-tunes what a server sends and cannot run between peers; "
            "use engine='simulate'"
        )
    if isinstance(algorithm.posterior.shared, Chains):
        raise ValueError(
            f"{algorithm.name} samples with a server and cannot run between peers; use "
            "engine='simulate'"
        )


def _mean(stacked: PyTree) -> PyTree:
    """The mean over peers; counters are the same for all."""
    floats, rest = gossip.floats_and_rest(stacked)
    return gossip.joined(
        jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), floats),
        jax.tree.map(lambda leaf: leaf[0], rest),
    )


def _mean_of(good: Bool[Array, " peers"], infos: PyTree) -> PyTree:
    totals = tree.weighted_sum(
        good.astype(float), jax.tree.map(lambda leaf: leaf.astype(float), infos)
    )
    return jax.tree.map(lambda total: mean_or_nan(total, jnp.sum(good)), totals)


def _of_peers(algorithm: Algorithm) -> Algorithm:
    """The method as peers evaluate it, each with its own state; unseen clients get the mean."""
    draws, refresh = algorithm.posterior.client, algorithm.refresh
    averaged = algorithm.posterior.averaged_over

    def down(peer):
        return published(algorithm, peer.server)

    return algorithm._replace(
        evaluate=lambda key, _, peer, data: evaluate(algorithm, key, down(peer), peer.own, data),
        predict=lambda key, _, peer, x: algorithm.predict(key, down(peer), peer.own, x),
        adapt=lambda key, server, data: Peer(
            server, algorithm.adapt(key, published(algorithm, server), data)
        ),
        refresh=None
        if refresh is None
        else lambda key, _, peer, data: peer._replace(own=refresh(key, down(peer), peer.own, data)),
        posterior=algorithm.posterior._replace(
            client=None
            if draws is None
            else lambda key, _, peer, data, count: draws(key, down(peer), peer.own, data, count),
            averaged_over=None if averaged is None else lambda count: _of_peers(averaged(count)),
        ),
    )
