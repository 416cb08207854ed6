"""The plain engine: one site at a time, every message as bytes, some of them lost, late or
delivered twice.

Slow and simple. It is the oracle that `simulate` is tested against, and shows what a deployment has
to do.
"""

from collections.abc import Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from covey.core import cohort as cohorts
from covey.core import faults as fates
from covey.core import protocol, wire
from covey.core.algorithm import Algorithm, Message, State, published
from covey.core.channel import Channel
from covey.core.faults import Faults, fate
from covey.core.metrics import Metric
from covey.core.protocol import Envelope, Kind, Stamp
from covey.core.shard import Shard, bucket_size
from covey.data.federated import SPLITS, FederatedData, Split
from covey.engines.gathering import Gathering
from covey.engines.messages import pack_down
from covey.engines.reception import Reception, Study, nobody, stamp_at, with_accepted
from covey.engines.record import Counts, Line, Record, as_lines
from covey.engines.rows import need_rows
from covey.engines.setup import setup_of
from covey.engines.sharing import shared
from covey.engines.site import Site
from covey.engines.site_memory import Memory
from covey.engines.site_programs import Programs, Ready, padded
from covey.engines.snapshot import Snapshot, snapshot_like, stacked_like

STUDY = Study("loop", "00" * 32)  # the study that messages of this engine name
EPOCH = 1  # sites live and die with the engine, so that there is only one


class LoopState(NamedTuple):
    """The state of a run. The nodes are with the sites, which move on: an old state cannot be
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
        self.programs = Ready(Programs(self.setup))
        self.gathering = Gathering(self.setup)
        self._fate = shared(_fate_of, self.setup.faults) if any(self.setup.faults) else None
        self._forget()

    def start(self) -> LoopState:
        """The state before the first round: sites that know nothing."""
        self._forget()
        return LoopState(0, self.setup.first_server())

    def _outcome(self, t: int, at: int) -> int:
        """The fate of the messages of round t to and from a site."""
        if self._fate is None:
            return fates.ARRIVES
        return int(self._fate(self.setup.root, t, self.sites[at].client_id))

    def _forget(self) -> None:
        self.sites = self._sites(self.data)
        self.accepted = nobody(self.data.clients)
        self.delayed: list[tuple[str, bytes]] = []

    def advance(self, state: LoopState, count: int) -> tuple[LoopState, list[Line]]:
        """Run `count` rounds. The new state, and one row of metrics per round."""
        lines: list[Line] = []
        for _ in range(count):
            state, record = self._round(state)
            stacked = jax.tree.map(lambda leaf: np.asarray(leaf)[None], record)
            lines += as_lines(state.round - 1, 1, stacked, self.setup.sizes, lines)
        return state, lines

    def broadcast(self, state: LoopState) -> Message:
        """The state that clients would evaluate and predict with now."""
        return published(self.algorithm, state.server)

    def evaluate(
        self,
        state: LoopState,
        split: Split = "validation",
        data: FederatedData | None = None,
        *,
        down: Message | None = None,
        draws: int | None = None,
    ) -> dict[str, Metric]:
        """Metrics of every client on one split of its rows, stacked by client. Other data are of
        clients never seen.
        """
        need_rows(self.data if data is None else data, split)
        sent = self.broadcast(state) if down is None else down
        sites = self._settled(state, data)
        each = [site.evaluate(state.round, sent, split, draws) for site in sites]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(each))

    def predict(
        self,
        state: LoopState,
        client: int,
        x: PyTree,
        data: FederatedData | None = None,
        *,
        down: Message | None = None,
        draws: int | None = None,
    ) -> PyTree:
        """The predictive distribution of the client at position `client` for new rows `x`."""
        sent = self.broadcast(state) if down is None else down
        return self._settled(state, data)[client].predict(state.round, sent, x, draws)

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
        sites, sent = self._settled(state, data), self.broadcast(state) if down is None else down
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
        return np.array([site.node is not None for site in self._settled(state, None)])

    def snapshot(self, state: LoopState) -> Snapshot:
        """The state as arrays, for a checkpoint."""
        sites = self._settled(state, None)
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
        self._forget()
        stamp = Stamp(EPOCH, max(int(snapshot.round) - 1, 0))
        for position in np.flatnonzero(snapshot.seen):
            node = jax.tree.map(lambda leaf, at=position: np.asarray(leaf[at]), snapshot.nodes)
            nodes = {stamp: wire.pack(node)}
            self.sites[position].store.save(Memory(EPOCH, stamp, MappingProxyType(nodes)))
            self.accepted[position] = stamp
        return LoopState(int(snapshot.round), jax.tree.map(jnp.asarray, snapshot.server))

    def checkpointed(self) -> None:
        """Nothing to do: a snapshot holds everything."""

    def _round(self, state: LoopState) -> tuple[LoopState, Record]:
        t, cohort = state.round, self.gathering.cohort(state.round)
        down = self.gathering.broadcast(state.server)
        body = pack_down(down)
        weights = {self.sites[at].name: weight for at, weight in cohort}
        messages = {
            self.sites[at].name: protocol.seal(self._envelope(Kind.ROUND, t, at), body)
            for at, _ in cohort
        }
        found = Reception(STUDY, messages)
        for name, late in self.delayed:  # from rounds that are over: refused, as they answer those
            found.receive(name, late)
        self.delayed = []

        outcomes = {at: self._outcome(t, at) for at in sorted(at for at, _ in cohort)}
        for at, outcome in outcomes.items():
            site = self.sites[at]
            if outcome == fates.LOST_DOWN:
                continue
            copies = 2 if outcome == fates.REPEATED else 1
            answers = [site.handle(messages[site.name]) for _ in range(copies)]
            if outcome == fates.LATE:
                self.delayed += [(site.name, answer) for answer in answers]
            elif outcome != fates.LOST_UP:
                for answer in answers:
                    found.receive(site.name, answer)

        usable = self.gathering.usable(found, weights, down)
        position = {self.sites[at].name: at for at, _ in cohort}
        diverged = [self.sites[position[name]].client_id for name in found.diverged]

        def times(kind):
            return sum(outcome == kind for outcome in outcomes.values())

        counts = Counts(
            contacted=len(cohort),
            clients=found.heard,
            lost_down=times(fates.LOST_DOWN),
            lost_up=times(fates.LOST_UP),
            late=times(fates.LATE),
            repeated=times(fates.REPEATED),
            diverged=len(diverged),
            diverged_id=max(diverged, default=-1),
        )
        heard = [(answer, weights[name]) for name, answer in usable.items()]
        server, record = self.gathering.close(t, state.server, heard, counts)
        self.accepted = with_accepted(
            self.accepted, [position[name] for name in usable], Stamp(EPOCH, t)
        )
        return LoopState(t + 1, server), record

    def _envelope(self, kind: Kind, t: int, position: int) -> Envelope:
        name, accepted = self.sites[position].name, stamp_at(self.accepted, position)
        return STUDY.envelope(kind, name, EPOCH, t, accepted)

    def _settled(self, state: LoopState, data: FederatedData | None) -> list[Site]:
        """The sites, up to date with what was accepted; or new ones for other data."""
        if data is not None:
            return self._sites(data)
        for position, site in enumerate(self.sites):
            site.settle(self._envelope(Kind.ACKNOWLEDGE, state.round, position))
        return self.sites

    def _sites(self, data: FederatedData) -> list[Site]:
        def splits(position: int) -> dict[str, Shard]:
            shards = {split: data.shard(position, split) for split in SPLITS}
            return {
                split: padded(shard, bucket_size(shard.capacity)) for split, shard in shards.items()
            }

        return [
            Site(
                str(data.ids[position]),
                int(data.ids[position]),
                self.programs,
                splits(position),
                study=STUDY.name,
                digest=STUDY.digest,
            )
            for position in range(data.clients)
        ]


def _fate_of(faults: Faults):
    """The compiled fate of a message."""
    return jax.jit(partial(fate, faults))
