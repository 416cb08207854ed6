"""The engine without a server: every peer keeps a state of its own, and mixes it with those of its
neighbours.

Marfoq et al. (2021), section 3.3 and algorithm 2 (D-FedEM), for any method. In a round, peer i

    computes     what a client computes from the broadcast of its own state s_i, giving an upload u_i
    hears        s_j and u_j of its neighbours; W_ij are the weights of the round's mixing matrix
    steps        s_i = server(sum_j W_ij s_j, n sum_j W_ij u_j)

that is, it takes the server's step itself, with its neighbourhood's estimate of the sum over all
clients. Where the step is linear in the sum this is the paper's: everyone steps on its own, and the
results are mixed. On the complete graph with equal weights every peer has the sum itself, and the
run is that of a server. Methods whose step is not linear in the sum are refused: the mean over
peers would not follow the method. (FedAvg's step divides by the clients' weights: on graphs that
are not complete, clients of unequal weight count as much as they weigh in their neighbourhoods;
`weighting="equal"` has no such thing.)

Who is absent in a round, by the cohort, by faults, or because its numbers are not finite, computes
nothing and keeps its state; neighbours keep for themselves the weight it would have had, which
leaves the matrix doubly stochastic. `consensus` of a round is the root mean square distance of the
peers' broadcasts to their mean.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from covey.core import cohort as cohorts
from covey.core import tree
from covey.core.algorithm import (
    Aggregate,
    Algorithm,
    Chains,
    State,
    Statistic,
    evaluate,
    published,
)
from covey.core.channel import Channel
from covey.core.faults import Faults
from covey.core.keys import Stream, key_for
from covey.core.node import Node, first_node, node_round
from covey.core.shard import Shard
from covey.data.federated import FederatedData
from covey.engines.engine import Vectorised
from covey.engines.evaluation import Evaluator
from covey.engines.record import Counts, Line, Record, Sizes, as_lines, mean_or_nan
from covey.engines.round import bucket_size, call_up, received
from covey.engines.rows import DeviceRows, shard_of
from covey.engines.setup import setup_of
from covey.engines.simulate import BLOCK
from covey.engines.snapshot import Snapshot, snapshot_like, stacked_like
from covey.topology import Topology

_REACH = 5.0  # how far beyond two uploads the step is tried


class Peer(NamedTuple):
    """What a peer keeps: its own copy of what a server would keep, and what a client keeps."""

    server: State
    own: State


class PeersState(NamedTuple):
    """Where a run stands. `server` is the mean over peers; nodes hold each peer's own."""

    round: int
    server: State
    nodes: Node
    seen: Array


class Stepped(NamedTuple):
    """A peer's state after its step, and what the step has to report."""

    state: State
    info: PyTree


class Gossip(NamedTuple):
    """Of a round: how far peers are apart, and how many messages there were."""

    consensus: Float[Array, ""]
    messages: Float[Array, ""]


class Peers(Vectorised):
    """A method on federated data whose clients talk to their neighbours only.

    topology: who talks to whom; see `covey.topology`.
    chunk: peers that compute side by side.
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
        self.data = data
        self.setup = setup_of(
            algorithm,
            data,
            seed=seed,
            cohort=cohort,
            channel=channel,
            faults=faults,
            rounds=rounds,
        )
        self.mixing = jnp.asarray(topology(data.clients), float)
        shapes = self.setup.shapes
        self.bits = tree.bits(shapes.server) + self.setup.sizes.up
        self.chunk = min(chunk, data.clients)
        self.rows = DeviceRows(data)
        self.ids = jnp.asarray(data.ids, jnp.int32)
        everyone = self.rows.view(np.arange(data.clients), "train")
        capacity = bucket_size(int(max(everyone.counts, default=1)))
        self.storage = shard_of(everyone, capacity)
        self.evaluator = Evaluator(_of_peers(algorithm), self.setup.root, self.chunk)
        self.like = Node(Peer(shapes.server, shapes.node.state), shapes.node.channel)
        self.compiled = jax.jit(self._block)
        _need_linear(self)

    def start(self) -> PeersState:
        """Before the first round: all peers start from the same state."""
        server = self.setup.first_server()
        nodes = jax.tree.map(lambda s: jnp.zeros((self.data.clients, *s.shape), s.dtype), self.like)
        copies = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (self.data.clients, *leaf.shape)), server
        )
        nodes = nodes._replace(state=nodes.state._replace(server=copies))
        return PeersState(0, server, nodes, jnp.zeros(self.data.clients, bool))

    def advance(self, state: PeersState, count: int) -> tuple[PeersState, list[Line]]:
        """Run `count` rounds. The new state, and one row of metrics per round."""
        lines: list[Line] = []
        while count > 0:
            first, some = state.round, min(count, BLOCK)
            nodes, seen, (record, gossip) = self.compiled(
                first, some, state.nodes, state.seen, self.storage, self.mixing
            )
            state = PeersState(first + some, _mean(nodes.state.server), nodes, seen)
            record, gossip = jax.device_get((record, gossip))
            new = as_lines(first, some, record, Sizes(0, 0, 0, 0), lines)
            for line, consensus, messages in zip(new, *gossip, strict=False):
                line["bits_up"], line["consensus"] = int(self.bits * messages), float(consensus)
            lines += new
            count -= some
        return state, lines

    def query(self, statistic: Statistic, index: int = 0) -> PyTree:
        """An error: a sum over all clients needs somebody who adds it up."""
        raise ValueError(
            "peers without a server cannot sum over all clients, which this posterior needs; use "
            "engine='simulate'"
        )

    def _take(self, state: PeersState, positions: np.ndarray) -> Node:
        return jax.tree.map(lambda leaf: leaf[positions], state.nodes)

    def _down(self, state: PeersState) -> State:
        """The mean over peers, for unseen clients; peers predict with their own."""
        return state.server

    def snapshot(self, state: PeersState) -> Snapshot:
        """The state as arrays, for a checkpoint."""
        return Snapshot(np.int64(state.round), state.server, state.nodes, np.asarray(state.seen))

    def snapshot_like(self) -> Snapshot:
        """The shapes of a snapshot."""
        return snapshot_like(
            self.setup.shapes.server, stacked_like(self.like, self.data.clients), self.data.clients
        )

    def restore(self, snapshot: Snapshot) -> PeersState:
        """The state that a snapshot was made of."""
        arrays = jax.tree.map(jnp.asarray, (snapshot.server, snapshot.nodes, snapshot.seen))
        return PeersState(int(snapshot.round), *arrays)

    def _block(self, first, number, nodes, seen, storage, mixing):
        def body(place, carry):
            nodes, seen, records = carry
            nodes, seen, record = self._round(first + place, nodes, seen, storage, mixing)
            return (
                nodes,
                seen,
                jax.tree.map(lambda all_, one: all_.at[place].set(one), records, record),
            )

        *_, record = jax.eval_shape(self._round, first, nodes, seen, storage, mixing)
        records = jax.tree.map(lambda s: jnp.zeros((BLOCK, *s.shape), s.dtype), record)
        return jax.lax.fori_loop(0, number, body, (nodes, seen, records))

    def _round(self, t, nodes, seen, storage, mixing):
        here, counts = self._present(t)
        ups, counted, new, infos, finite = self._computed(t, nodes, seen, here, storage)
        good, bad = here & finite, here & ~finite
        weights = absent_kept(mixing[t % len(mixing)], good)
        servers = self._stepped(t, weights, nodes.state.server, ups, counted)
        kept = Node(Peer(servers.state, new.state), new.channel)
        nodes = jax.vmap(tree.where)(good, kept, nodes)
        clients = jnp.sum(good, dtype=jnp.int32)
        counts = counts._replace(
            clients=clients,
            diverged=jnp.sum(bad, dtype=jnp.int32),
            diverged_id=jnp.max(jnp.where(bad, self.ids, -1)),
        )
        record = Record(counts, _mean_of(good, infos), _mean_of(good, servers.info))
        messages = jnp.sum((weights > 0) & ~jnp.eye(len(good), dtype=bool), dtype=float)
        distance = _distance(jax.vmap(self.setup.algorithm.broadcast)(nodes.state.server))
        return nodes, seen | good, (record, Gossip(distance, messages))

    def _present(self, t) -> tuple[Bool[Array, " peers"], Counts]:
        """Who takes part in round t."""
        slots, counts = call_up(self.setup, self.setup.root, t, self.ids)
        return jnp.zeros(self.data.clients, bool).at[slots.index].max(slots.on), counts

    def _computed(self, t, nodes, seen, here, storage):
        """What everyone computes: uploads as they are heard, own states, infos, and whether all is
        finite.
        """
        algorithm, channel, root = self.setup.algorithm, self.setup.channel, self.setup.root

        def one(client_id, server, own, channel_state, known, start, count):
            data = Shard(storage.rows, start, count, storage.capacity)
            down = algorithm.broadcast(server)
            first = first_node(algorithm, channel, root, client_id, down, data)
            node = tree.where(known, Node(own, channel_state), first)
            sent, node, info = node_round(algorithm, channel, root, t, client_id, down, node, data)
            up, weight = received(channel, sent)
            return up, weight, node, info, tree.is_finite((up, weight, node))

        arguments = (
            self.ids,
            nodes.state.server,
            nodes.state.own,
            nodes.channel,
            seen,
            storage.start,
        )
        count = jnp.where(here, storage.count, 0)
        return jax.lax.map(lambda peer: one(*peer), (*arguments, count), batch_size=self.chunk)

    def _stepped(self, t, weights, servers, ups, counted):
        """The server's step of every peer, from its neighbourhood.

        Uploads count by their weights over the mean weight of all peers, not over that of the
        neighbourhood: then the mean over peers moves by the weighted mean, on any graph.
        """
        count = jnp.asarray(len(weights), float)
        key = key_for(self.setup.root, Stream.SERVER, t)
        total = count * jnp.mean(counted)

        def one(own, mine):
            weighted = tree.weighted_sum(count * mine * counted, ups)
            plain = tree.weighted_sum(count * mine, ups)
            mixed = jax.tree.map(partial(_mixed, mine), servers, own)
            aggregate = Aggregate(weighted, plain, total, count)
            return Stepped(*self.setup.algorithm.server(key, mixed, aggregate))

        return jax.lax.map(lambda peer: one(*peer), (servers, weights), batch_size=self.chunk)


def absent_kept(
    mixing: Float[Array, "peers peers"], present: Bool[Array, " peers"]
) -> Float[Array, "peers peers"]:
    """The matrix among those present: who is absent mixes with nobody, and others keep its weight
    for themselves.
    """
    between = jnp.where(present[:, None] & present & ~jnp.eye(len(mixing), dtype=bool), mixing, 0.0)
    return between + jnp.diag(1 - between.sum(1))


def _mixed(weights: Float[Array, " peers"], all_: Array, own: Array) -> Array:
    """Floats are mixed; counters and the like are a peer's own."""
    return tree.weighted_sum(weights, all_) if jnp.issubdtype(own.dtype, jnp.floating) else own


def _mean(stacked: PyTree) -> PyTree:
    """The mean over peers; of what cannot be averaged, the most advanced."""
    return jax.tree.map(
        lambda leaf: (
            jnp.mean(leaf, axis=0)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
            else jnp.max(leaf, axis=0)
        ),
        stacked,
    )


def _mean_of(good: Bool[Array, " peers"], infos: PyTree) -> PyTree:
    totals = tree.weighted_sum(
        good.astype(float), jax.tree.map(lambda leaf: leaf.astype(float), infos)
    )
    return jax.tree.map(lambda total: mean_or_nan(total, jnp.sum(good)), totals)


def _distance(stacked: PyTree) -> Float[Array, ""]:
    """The root mean square over peers of the distance to their mean."""
    floats = [leaf for leaf in jax.tree.leaves(stacked) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    squares = [jnp.sum((leaf - jnp.mean(leaf, axis=0)) ** 2) / leaf.shape[0] for leaf in floats]
    return jnp.sqrt(jnp.sum(jnp.stack(squares))) if squares else jnp.zeros(())


def _of_peers(algorithm: Algorithm) -> Algorithm:
    """The method as peers evaluate it: what a client would be sent, a peer has. Newcomers are given
    a state to start from.
    """
    draws, refresh = algorithm.posterior.client, algorithm.refresh

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
            else lambda key, _, peer, data, count: draws(key, down(peer), peer.own, data, count)
        ),
    )


def _need_linear(engine: Peers) -> None:
    """A ValueError for a method whose server's step is not linear in the sum of the uploads.

    Seen at three points on a line through the uploads of two clients, cut to as many rows so that
    they weigh the same.
    """
    algorithm, channel, data = engine.setup.algorithm, engine.setup.channel, engine.data
    if data.clients < 2:
        return
    rows = int(data.counts("train")[:2].min())
    number = jnp.asarray(data.clients, float)

    @jax.jit
    def ends(server, storage):
        down = algorithm.broadcast(server)

        def upload(place):
            shard = Shard(storage.rows, storage.start[place], jnp.int32(rows), storage.capacity)
            node = first_node(algorithm, channel, engine.setup.root, engine.ids[place], down, shard)
            sent, *_ = node_round(
                algorithm, channel, engine.setup.root, 0, engine.ids[place], down, node, shard
            )
            return channel.decode(sent.payload)

        def stepped(at):
            total = jax.tree.map(lambda a, b: number * (a + at * (b - a)), upload(0), upload(1))
            new, _ = algorithm.server(
                key_for(engine.setup.root, Stream.SERVER, 0),
                server,
                Aggregate(total, total, number, number),
            )
            return new

        return stepped(-_REACH), stepped(0.0), stepped(_REACH)

    low, middle, high = ends(engine.setup.first_server(), engine.storage)
    for (path, a), b, c in zip(
        jax.tree_util.tree_leaves_with_path(low),
        jax.tree.leaves(middle),
        jax.tree.leaves(high),
        strict=True,
    ):
        if jnp.issubdtype(a.dtype, jnp.floating) and bool(
            jnp.any(jnp.abs(b - (a + c) / 2) > 1e-3 * _length(a, b, c))
        ):
            raise ValueError(
                f"{algorithm.name} cannot run between peers: its server's step is not linear in the sum of the uploads "
                f"({jax.tree_util.keystr(path)}), so that mixing with neighbours would not follow it; give the server a linear "
                "optimiser such as SGD, or use engine='simulate'"
            )


def _length(low: Array, middle: Array, high: Array) -> Float[Array, ""]:
    """How large the numbers of a leaf are that are compared."""
    return jnp.max(jnp.abs(jnp.stack([low, middle, high]))) + jnp.finfo(low.dtype).tiny
