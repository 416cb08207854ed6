"""The engine between organisations: a server that knows a roster, and sites that keep their rows.

Messages travel over any `Transport`. Each start of the server is an epoch of its own. A round is
closed once its deadline has passed and a quorum has answered; only then does the server's state
move, together with the table of accepted uploads, so that what the server has summed up and what
the sites have committed never part. A server that is restarted from a checkpoint names the uploads
that are in it, and every site goes back to its node of that time.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from covey.core import outline, protocol, wire
from covey.core.algorithm import Algorithm, Message, State, evaluate, published
from covey.core.channel import Channel
from covey.core.cohort import Scheme
from covey.core.metrics import Metric
from covey.core.protocol import Kind, Reason, Stamp
from covey.core.shard import Shard
from covey.core.wire import WireError
from covey.data.division import Split
from covey.data.federated import FederatedData
from covey.data.roster import Roster
from covey.engines.connection import Connection
from covey.engines.gathering import Gathering
from covey.engines.messages import Answer, pack_down
from covey.engines.reception import (
    NoQuorumError,
    Reception,
    Table,
    kept_at,
    nobody,
    stamp_at,
    with_accepted,
)
from covey.engines.record import Counts, Diverged, Line, as_line
from covey.engines.rows import need_rows
from covey.engines.setup import setup_of
from covey.engines.site_programs import known_nodes


class SitesState(NamedTuple):
    """The state of a run between sites. The nodes are with the sites.

    Attributes:
        round: Rounds so far.
        server: The server's state.
        accepted: The last upload of each site that is part of it.
    """

    round: int
    server: State
    accepted: Table


class SitesSnapshot(NamedTuple):
    """The content of a checkpoint: the state, its epoch, and the uploads of the one before."""

    round: Any
    server: State
    epoch: Any
    accepted: Any
    before: Any


class Sites:
    """A method between sites.

    Args:
        algorithm: The method, prepared.
        roster: The sites that take part.
        connection: The connection to the sites, which have their names in the roster.
        seed: Seed of everything that the server draws, and of sites without a secret.
        cohort: Sampler of the clients of a round. Default: all clients in every round.
        channel: Codec of the uploads. Default: none.
        rounds: Number of planned rounds; None where that is open.
        quorum: Sites that must answer before a round is closed; of a smaller cohort, all. Default:
            all of the cohort.
        gathering: The server's compiled functions, where another engine has them already.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        roster: Roster,
        connection: Connection,
        *,
        seed: int,
        cohort: Scheme | None = None,
        channel: Channel | None = None,
        rounds: int | None = None,
        quorum: int | None = None,
        gathering: Gathering | None = None,
    ):
        if quorum is not None and not 1 <= quorum <= roster.clients:
            raise ValueError(f"quorum must be in 1..{roster.clients}, got {quorum}")
        self.algorithm, self.roster, self.connection = algorithm, roster, connection
        self.quorum, self.names = quorum, [roster.name_of(at) for at in range(roster.clients)]
        if gathering is None:
            gathering = Gathering(
                setup_of(
                    algorithm,
                    roster,
                    seed=seed,
                    cohort=cohort,
                    channel=channel,
                    faults=None,
                    rounds=rounds,
                )
            )
        self.gathering, self.setup = gathering, gathering.setup
        self.known = known_nodes(self.setup.shapes)
        self._position = {name: at for at, name in enumerate(self.names)}
        self._saved: tuple[Table, ...] = ()  # of the checkpoints on disk, newest first
        self._about_to_save: Table | None = None
        self._sent = -1  # the last round whose broadcast was sent in this epoch
        self._told: set[str] = set()

    def start(self) -> SitesState:
        """The state before the first round, in a new epoch: sites start anew."""
        self._begin_epoch()
        self._saved, self._about_to_save = (), None
        return SitesState(0, self.gathering.start(), nobody(self.roster.clients))

    def advance(self, state: SitesState, count: int) -> tuple[SitesState, list[Line]]:
        """Run up to `count` rounds; the new state, and one row of metrics per round.

        Where a round fails after others, those are returned: the next call fails for the same
        reason, with nothing lost.
        """
        lines: list[Line] = []
        for _ in range(count):
            try:
                state, line = self._round(state)
            except (NoQuorumError, Diverged):
                if not lines:
                    raise
                break
            lines.append(line)
        return state, lines

    def broadcast(self, state: SitesState) -> Message:
        """The state that clients would evaluate and predict with now."""
        return published(self.algorithm, state.server)

    def evaluate(
        self,
        state: SitesState,
        split: Split = "validation",
        data: FederatedData | None = None,
        *,
        down: Message | None = None,
        draws: int | None = None,
    ) -> dict[str, Metric]:
        """Metrics of every site on one split of its rows, stacked by site. A site that does not
        answer, or keeps its metrics, counts no rows.
        """
        need_rows(self.roster.replaced_by(data), split)
        if draws is not None:
            raise ValueError(
                "sites evaluate as the study says: leave draws= out, and set it in the method"
            )
        sent = self.broadcast(state) if down is None else down
        body = protocol.join([protocol.pack_text(split), self._described(sent)])
        like = self._metrics_like(sent)
        blank = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), like)
        each = [blank] * self.roster.clients

        def read(found: Reception) -> None:
            for name, answer in list(found.answers.items()):
                try:
                    measured = wire.unpack(answer, like)
                except WireError as error:
                    found.spoil(name, str(error))
                    continue
                if all(_is_count(metric.count) for metric in measured.values()):
                    each[self.roster.position_of(name)] = measured
                else:
                    found.spoil(name, "its metrics are of a number of rows that cannot be")

        found = self._ask_all(Kind.EVALUATE, state, body, quorum=0, check=read)
        self._tell(found, quiet=(Reason.DECLINED,))
        return jax.tree.map(lambda *leaves: np.stack(leaves), *each)

    def predict(
        self,
        state: SitesState,
        client: int,
        x: PyTree,
        data: FederatedData | None = None,
        *,
        down: Message | None = None,
        draws: int | None = None,
    ) -> NoReturn:
        """An error: each site predicts for itself."""
        self._at_the_site("predictions", client)

    def draws(
        self,
        state: SitesState,
        clients: np.ndarray,
        count: int,
        data: FederatedData | None = None,
        chains: Sequence[int] = (0,),
        *,
        down: Message | None = None,
    ) -> NoReturn:
        """An error: each site draws for itself."""
        self._at_the_site("posterior draws", int(clients[0]))

    def seen(self, state: SitesState) -> np.ndarray:
        """By client: whether it has taken part so far."""
        return state.accepted[:, 0] >= 0

    def snapshot(self, state: SitesState) -> SitesSnapshot:
        """The state as arrays, for a checkpoint."""
        self._about_to_save = state.accepted
        before = self._saved[0] if self._saved else nobody(self.roster.clients)
        return SitesSnapshot(
            np.int64(state.round),
            state.server,
            np.int64(self.connection.epoch),
            state.accepted,
            before,
        )

    def snapshot_like(self) -> SitesSnapshot:
        """The shapes of a snapshot."""
        scalar = jax.ShapeDtypeStruct((), np.int64)
        table = jax.ShapeDtypeStruct((self.roster.clients, 2), np.int64)
        return SitesSnapshot(scalar, self.setup.shapes.server, scalar, table, table)

    def restore(self, snapshot: SitesSnapshot) -> SitesState:
        """The state that a snapshot was made of, in a new epoch: sites go back to it."""
        self._begin_epoch(int(snapshot.epoch))
        accepted, before = (np.array(table) for table in (snapshot.accepted, snapshot.before))
        self._saved, self._about_to_save = (accepted, before), None
        server = jax.tree.map(jnp.asarray, snapshot.server)
        return SitesState(int(snapshot.round), server, accepted)

    def checkpointed(self) -> None:
        """The newest snapshot is on disk: sites keep their nodes of that time from now on."""
        if self._about_to_save is not None:
            self._saved = (self._about_to_save, *self._saved)[: protocol.MOST_KEPT]
            self._about_to_save = None

    def acknowledge(self, state: SitesState) -> tuple[str, ...]:
        """Tell all sites which of their uploads the server has accepted, without asking anything.

        Returns:
            The names of the sites that were not reached. They will with the next message.
        """
        return tuple(self._ask_all(Kind.ACKNOWLEDGE, state, b"", len(self.names)).open)

    def finish(self, state: SitesState, down: Message | None = None) -> tuple[str, ...]:
        """Tell all sites that the study has ended, and send the state to predict with.

        Returns:
            The names of the sites that were not reached.
        """
        sent = self.broadcast(state) if down is None else down
        found = self._ask_all(Kind.STOP, state, self._described(sent), len(self.names))
        return tuple(found.open)

    def _round(self, state: SitesState) -> tuple[SitesState, Line]:
        t = state.round
        if t <= self._sent:  # this round failed, or the state is an old one: sites go back to it
            self._begin_epoch()
        self._sent = t
        weights = {self.names[at]: weight for at, weight in self.gathering.cohort(t)}
        down = self.gathering.broadcast(state.server)
        needed = len(weights) if self.quorum is None else min(self.quorum, len(weights))
        usable: dict[str, Answer] = {}
        trained = self.roster.counts("train")
        rows = {name: int(trained[self._position[name]]) for name in weights}

        def read(found: Reception) -> None:
            usable.update(self.gathering.usable(found, weights, down, rows))

        bodies = dict.fromkeys(weights, pack_down(down))
        found = self.connection.exchange(Kind.ROUND, t, bodies, self._stamps(state), needed, read)
        self._tell(found, quiet=(Reason.DIVERGED,))
        if found.heard < needed:
            raise NoQuorumError(
                f"round {t + 1}: {found.heard} of {len(weights)} sites answered, and {needed} are "
                f"needed; {found.silent()}"
            )
        diverged = [int(self.roster.ids[self._position[name]]) for name in found.diverged]
        counts = Counts(
            contacted=len(weights),
            clients=found.heard,
            lost_down=len(weights) - found.heard,
            lost_up=0,
            late=found.late,
            repeated=found.repeated,
            diverged=len(diverged),
            diverged_id=max(diverged, default=-1),
        )
        heard = [(answer, weights[name]) for name, answer in usable.items()]
        server, record = self.gathering.close(t, state.server, heard, counts)
        line = as_line(t + 1, jax.tree.map(np.asarray, record), self.setup.sizes)
        line |= {
            "bytes_down": found.bytes_down,
            "bytes_up": found.bytes_up,
            "refused": len(found.refusals) - len(found.diverged),
        }
        positions = [self._position[name] for name in usable]
        accepted = with_accepted(state.accepted, positions, Stamp(self.connection.epoch, t))
        return SitesState(t + 1, server, accepted), line

    def _ask_all(
        self,
        kind: Kind,
        state: SitesState,
        body: bytes,
        quorum: int,
        check: Callable[[Reception], object] | None = None,
    ) -> Reception:
        bodies, stamps = dict.fromkeys(self.names, body), self._stamps(state)
        return self.connection.exchange(kind, state.round, bodies, stamps, quorum, check)

    def _stamps(self, state: SitesState) -> Callable[[str], tuple[Stamp, Sequence[Stamp]]]:
        def stamps(name: str) -> tuple[Stamp, Sequence[Stamp]]:
            at = self._position[name]
            return stamp_at(state.accepted, at), kept_at(self._saved, at)

        return stamps

    def _begin_epoch(self, after: int = 0) -> None:
        self.connection.new_epoch(after)
        self._sent = -1

    def _described(self, sent: Message) -> bytes:
        return outline.pack(jax.device_get(sent), self.known)

    def _metrics_like(self, down: Message) -> dict[str, Metric]:
        """The shapes of a site's metrics."""
        algorithm, spec = self.algorithm, self.setup.spec

        def measured(key, down, rows):
            data = Shard(rows, jnp.int32(0), jnp.int32(1), spec.capacity)
            return evaluate(algorithm, key, down, algorithm.adapt(key, down, data), data)

        rows = jax.tree.map(
            lambda s: jax.ShapeDtypeStruct((spec.capacity, *s.shape), s.dtype), spec.rows
        )
        return jax.eval_shape(measured, self.setup.root, down, rows)

    def _tell(self, found: Reception, quiet: Sequence[Reason]) -> None:
        """Warn once per site of its refusals and of answers that cannot be used."""
        refused = {
            name: f"refuses to answer: {refusal.text}"
            for name, refusal in found.refusals.items()
            if refusal.reason not in quiet
        }
        damaged = {
            name: f"sent an answer that cannot be used: {why}"
            for name, why in found.damaged.items()
        }
        for name, text in {**refused, **damaged}.items():
            if name not in self._told:
                self._told.add(name)
                warnings.warn(f"site {name!r} {text}", stacklevel=4)

    def _at_the_site(self, what: str, client: int) -> NoReturn:
        raise ValueError(
            f"{what} of {self.names[client]!r} are made at the site, from rows and a state that "
            "only the site has: each site has its own results"
        )


def _is_count(values: np.ndarray) -> bool:
    return bool(np.all(np.isfinite(values) & (values >= 0)))
