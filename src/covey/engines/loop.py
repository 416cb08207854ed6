"""The plain engine: one site at a time, every message as bytes, some of them lost, late or
delivered twice.

Slow and simple. It is the oracle that `simulate` is tested against, and shows what a deployment has
to do.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from covey.core import cohort as cohorts
from covey.core import faults as fates
from covey.core import tree
from covey.core.algorithm import Aggregate, Algorithm, Message, State, published
from covey.core.channel import Channel
from covey.core.faults import Faults, fate
from covey.core.keys import Stream, key_for
from covey.core.metrics import Metric
from covey.data.federated import SPLITS, FederatedData, Split
from covey.engines import round as round_of
from covey.engines.messages import NEVER, Answer, Header, open_body, open_header, seal
from covey.engines.record import Counts, Line, Record, as_lines
from covey.engines.round import bucket_size
from covey.engines.rows import need_rows
from covey.engines.setup import setup_of
from covey.engines.site import Programs, Site, padded
from covey.engines.snapshot import Snapshot, snapshot_like, stacked_like


class LoopState(NamedTuple):
    """Where a run stands. The nodes are with the sites, which move on: an old state cannot be
    continued.
    """

    round: int
    server: State


class Loop:
    """A method on federated data, one client at a time."""

    def __init__(
        self,
        algorithm: Algorithm,
        data: FederatedData,
        *,
        seed: int,
        cohort: cohorts.Scheme | None = None,
        channel: Channel | None = None,
        faults: Faults | None = None,
        rounds: int | None = None,
    ):
        self.algorithm, self.data, self.seed = algorithm, data, seed
        self.setup = setup_of(
            algorithm,
            data,
            seed=seed,
            cohort=cohort,
            channel=channel,
            faults=faults,
            rounds=rounds,
        )
        self.programs = Programs(algorithm, self.setup.channel, self.setup.root)
        self.sites = self._sites(data)
        self.accepted = [NEVER] * data.clients
        self.delayed: list[bytes] = []
        self._cohort = jax.jit(self.setup.sampler.sample)
        self._fate = jax.jit(partial(fate, self.setup.faults))
        self._add = jax.jit(self._added)
        self._decodes = jax.jit(
            lambda sent: tree.is_finite(round_of.received(self.setup.channel, sent))
        )
        self._close = jax.jit(partial(round_of.close_round, self.setup))

    def start(self) -> LoopState:
        """The state before the first round: sites that know nothing."""
        self.sites = self._sites(self.data)
        self.accepted, self.delayed = [NEVER] * self.data.clients, []
        return LoopState(0, self.setup.first_server())

    def advance(self, state: LoopState, count: int) -> tuple[LoopState, list[Line]]:
        """Run `count` rounds. The new state, and one row of metrics per round."""
        lines: list[Line] = []
        for _ in range(count):
            state, record = self._round(state)
            stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], record)
            lines += as_lines(state.round - 1, 1, stacked, self.setup.sizes, lines)
        return state, lines

    def broadcast(self, state: LoopState) -> Message:
        """What clients would evaluate and predict with now."""
        return published(self.algorithm, state.server)

    def evaluate(
        self,
        state: LoopState,
        split: Split = "validation",
        data: FederatedData | None = None,
        *,
        down: Message | None = None,
    ) -> dict[str, Metric]:
        """Metrics of every client on one split of its rows, stacked by client. Other data are of
        clients never seen.
        """
        need_rows(self.data if data is None else data, split)
        sent = self.broadcast(state) if down is None else down
        each = [site.evaluate(state.round, sent, split) for site in self._settled(data)]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(each))

    def predict(
        self,
        state: LoopState,
        client: int,
        x: PyTree,
        data: FederatedData | None = None,
        *,
        down: Message | None = None,
    ) -> PyTree:
        """The predictive distribution of the client at position `client` for new rows `x`."""
        sent = self.broadcast(state) if down is None else down
        return self._settled(data)[client].predict(state.round, sent, x)

    def draws(
        self,
        state: LoopState,
        clients: np.ndarray,
        count: int,
        data: FederatedData | None = None,
        chains: Sequence[int] = (0,),
        *,
        down: Message | None = None,
    ) -> PyTree:
        """Posterior draws of the clients at some positions, as (clients, chains, count, ...); each
        chain has its own.
        """
        sites, sent = self._settled(data), self.broadcast(state) if down is None else down
        each = [
            sites[client].draws(state.round, sent, count, chain)
            for client in clients
            for chain in chains
        ]
        shape = (len(clients), len(chains))
        return jax.tree.map(
            lambda *leaves: np.stack(leaves).reshape(*shape, *leaves[0].shape),
            *jax.device_get(each),
        )

    def seen(self, state: LoopState) -> np.ndarray:
        """Which clients have taken part so far."""
        return np.array([site.node is not None for site in self._settled(None)])

    def snapshot(self, state: LoopState) -> Snapshot:
        """The state as arrays, for a checkpoint."""
        sites = self._settled(None)
        blank = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), self.setup.shapes.node)
        nodes = [blank if site.node is None else site.node for site in sites]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(nodes))
        return Snapshot(
            np.int64(state.round),
            state.server,
            stacked,
            np.array([s.node is not None for s in sites]),
        )

    def snapshot_like(self) -> Snapshot:
        """The shapes of a snapshot."""
        return snapshot_like(
            self.setup.shapes.server,
            stacked_like(self.setup.shapes.node, self.data.clients),
            self.data.clients,
        )

    def restore(self, snapshot: Snapshot) -> LoopState:
        """The state that a snapshot was made of. A late upload that was still on its way is gone;
        it would have been refused.
        """
        self.start()
        for position, site in enumerate(self.sites):
            if snapshot.seen[position]:
                site.node = jax.tree.map(
                    lambda leaf, at=position: jnp.asarray(leaf[at]), snapshot.nodes
                )
        return LoopState(int(snapshot.round), jax.tree.map(jnp.asarray, snapshot.server))

    def checkpointed(self) -> None:
        """Nothing to do: a snapshot holds everything."""

    def _round(self, state: LoopState) -> tuple[LoopState, Record]:
        t, down = state.round, self.algorithm.broadcast(state.server)
        tally = round_of.empty_tally(self.setup.shapes)
        happened = dict.fromkeys(Counts._fields, 0)
        for (
            message
        ) in self.delayed:  # from rounds that are over: refused, as the round in their header shows
            tally = self._accept(message, t, 0.0, NEVER, tally)
        self.delayed = []

        cohort = jax.device_get(self._cohort(key_for(self.setup.root, Stream.COHORT, t), t))
        for index, weight in zip(
            cohort.index[cohort.mask], cohort.weight[cohort.mask], strict=True
        ):
            site, position = self.sites[index], int(index)
            outcome = int(self._fate(self.setup.root, t, site.client_id))
            happened["contacted"] += 1
            happened["lost_down"] += outcome == fates.LOST_DOWN
            happened["lost_up"] += outcome == fates.LOST_UP
            happened["late"] += outcome == fates.LATE
            happened["repeated"] += outcome == fates.REPEATED
            if outcome == fates.LOST_DOWN:
                continue
            message = seal(Header(site.client_id, t, self.accepted[position]), down)
            answers = [site.receive(message) for _ in range(2 if outcome == fates.REPEATED else 1)]
            if outcome == fates.LATE:
                self.delayed += answers
            elif outcome != fates.LOST_UP:
                for answer in answers:
                    tally = self._accept(answer, t, float(weight), position, tally)

        counts = Counts(
            **{
                **happened,
                "clients": int(tally.aggregate.count + tally.diverged),
                "diverged_id": NEVER,
            }
        )
        server, record = self._close(self.setup.root, t, state.server, tally, counts)
        return LoopState(t + 1, server), record

    def _accept(
        self, message: bytes, t: int, weight: float, position: int, tally: round_of.Tally
    ) -> round_of.Tally:
        """Add an upload to the tally, unless its round is over, it came before, or it is not
        finite.
        """
        header = open_header(message)
        if header.round != t or self.accepted[position] == t:
            return tally
        shapes = self.setup.shapes
        like = Answer(shapes.sent, shapes.client_info, jnp.bool_(True))
        answer: Answer = open_body(message, like)
        if not (
            answer.finite and self._decodes(answer.sent)
        ):  # a site may say what it likes of its own values
            return tally._replace(
                diverged=tally.diverged + 1,
                diverged_id=jnp.maximum(tally.diverged_id, header.client_id),
            )
        self.accepted[position] = t
        return self._add(tally, answer, weight)

    def _added(
        self, tally: round_of.Tally, answer: Answer, weight: Float[Array, ""]
    ) -> round_of.Tally:
        sent, own = round_of.received(self.setup.channel, answer.sent)
        share = weight * own
        one = Aggregate(jax.tree.map(lambda leaf: share * leaf, sent), sent, share, jnp.ones(()))
        return tally._replace(
            aggregate=jax.tree.map(jnp.add, tally.aggregate, one),
            info=jax.tree.map(jnp.add, tally.info, answer.info),
        )

    def _settled(self, data: FederatedData | None) -> list[Site]:
        """The sites, up to date with what was accepted; or new ones for other data."""
        if data is not None:
            return self._sites(data)
        for site, accepted in zip(self.sites, self.accepted, strict=True):
            site.settle(accepted)
        return self.sites

    def _sites(self, data: FederatedData) -> list[Site]:
        def splits(position):
            shards = {split: data.shard(position, split) for split in SPLITS}
            return {
                split: padded(shard, bucket_size(shard.capacity)) for split, shard in shards.items()
            }

        like = self.setup.shapes.down
        return [
            Site(self.programs, int(data.ids[position]), splits(position), like)
            for position in range(data.clients)
        ]
