"""The simulation engine: many clients at once, whole rounds inside one jit.

The clients of a cohort are sorted by their rows and cut into chunks; a chunk is vectorised, and its
batch loops run to the longest client of the chunk. With the rows on the device, many rounds run in
one compiled loop. Otherwise the rows of each cohort are gathered on the host, and chunks pass
through the same function one dispatch each. Where the process has several devices, chunks are
dealt out to all of them.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PyTree

from covey.core import cohort as cohorts
from covey.core import tree
from covey.core.algorithm import Algorithm, State
from covey.core.channel import Channel
from covey.core.faults import Faults
from covey.core.mapped import release
from covey.core.node import Node
from covey.core.shard import Shard
from covey.data.federated import FederatedData
from covey.engines import round as rounds
from covey.engines.chunks import chunk_of
from covey.engines.devices import mesh_of, replicated, spread_band
from covey.engines.engine import EngineState, Vectorised
from covey.engines.evaluation import Evaluator
from covey.engines.nodes import DiskNodes, MemoryNodes
from covey.engines.programs import RoundParts, chunk_parts, round_parts
from covey.engines.rows import DeviceRows, Storage, rows_of
from covey.engines.setup import setup_of
from covey.engines.sharing import shared
from covey.engines.snapshot import Snapshot, snapshot_like, stacked_like
from covey.engines.streamed import HostClients, call_up_of, close_round_of


class Simulation(Vectorised):
    """A method on federated data, simulated.

    chunk: clients that run side by side; "auto" chooses by the size of rows and upload.
    storage: where rows lie, "device", "host", or "auto".
    node_directory: store client states memory-mapped there (with rows on the host); None keeps them
        in memory.
    devices: devices that chunks are dealt out to; None: all local ones.
    """

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
        chunk: int | Literal["auto"] = "auto",
        storage: Storage = "auto",
        node_directory: Path | None = None,
        devices: Sequence[Any] | None = None,
    ):
        self.data, self.seed = data, seed
        self.devices = jax.local_devices() if devices is None else list(devices)
        self.setup = setup_of(
            algorithm,
            data,
            seed=seed,
            cohort=cohort,
            channel=channel,
            faults=faults,
            rounds=rounds,
        )
        self.rows = rows_of(data, storage)
        self.ids = jnp.asarray(data.ids, jnp.int32)
        release(data.ids)
        self.chunk = chunk_of(chunk, self.setup, data, len(self.devices))
        self.evaluator = Evaluator(algorithm, self.setup.root, self.chunk)
        if isinstance(self.rows, DeviceRows):
            self.driver = _Resident(self) if len(self.devices) == 1 else _Spread(self)
        else:
            self.driver = _Streamed(self, node_directory)

    def start(self) -> EngineState:
        """The state before the first round."""
        return self.driver.start(self.setup.first_server())

    def _block_of(self, state: EngineState, count: int) -> tuple[EngineState, rounds.Record]:
        return self.driver.block(state, count)

    def _take(self, state: EngineState, positions: np.ndarray) -> Node:
        return self.driver.take(state, positions)

    def snapshot(self, state: EngineState) -> Snapshot:
        """The state as arrays, for a checkpoint."""
        return Snapshot(
            np.int64(state.round),
            state.server,
            self.driver.snapshot(state),
            np.asarray(state.seen)[: self.driver.counted],
        )

    def snapshot_like(self) -> Snapshot:
        """The shapes of a snapshot."""
        return snapshot_like(self.setup.shapes.server, self.driver.like(), self.driver.counted)

    def restore(self, snapshot: Snapshot) -> EngineState:
        """The state that a snapshot was made of."""
        server = jax.tree.map(jnp.asarray, snapshot.server)
        return self.driver.restore(int(snapshot.round), server, snapshot.nodes, snapshot.seen)

    def checkpointed(self) -> None:
        """To be called once the newest snapshot is safely on disk."""
        self.driver.checkpointed()


class _Resident:
    """Rows and nodes on the device; a block of rounds is one compiled loop."""

    def __init__(self, engine: Simulation):
        self.engine = engine
        self.counted = engine.data.clients  # of whom a snapshot says whether they took part
        counts = engine.data.counts("train")
        bands = tuple(rounds.bands_of(counts, engine.setup.sampler.slots, engine.chunk))
        everyone = np.arange(engine.data.clients)
        view = engine.rows.view(everyone, "train")
        self.storage = Shard(view.rows, jnp.asarray(view.starts), jnp.asarray(view.counts), 0)
        self.compiled = self._program(round_parts(engine.setup), engine.chunk, bands)

    def _program(self, parts: RoundParts, chunk: int, bands: tuple[rounds.Band, ...]):
        return shared(_block_of, parts, chunk, bands)

    def start(self, server: State) -> EngineState:
        clients = self.engine.data.clients
        nodes = jax.tree.map(
            lambda s: jnp.zeros((clients, *s.shape), s.dtype), self.engine.setup.shapes.node
        )
        return EngineState(0, server, nodes, jnp.zeros(clients, bool))

    def block(self, state: EngineState, count: int) -> tuple[EngineState, rounds.Record]:
        server, nodes, seen, record = self.compiled(
            self.engine.setup.root,
            state.round,
            count,
            state.server,
            state.nodes,
            state.seen,
            self.storage,
            self.engine.ids,
        )
        return EngineState(state.round + count, server, nodes, seen), record

    def take(self, state: EngineState, positions: np.ndarray) -> Node:
        return jax.tree.map(lambda leaf: leaf[positions], state.nodes)

    def snapshot(self, state: EngineState) -> PyTree:
        return state.nodes

    def like(self) -> PyTree:
        return stacked_like(self.engine.setup.shapes.node, self.engine.data.clients)

    def restore(self, round_: int, server: State, nodes: PyTree, seen: np.ndarray) -> EngineState:
        return EngineState(round_, server, jax.tree.map(jnp.asarray, nodes), jnp.asarray(seen))

    def checkpointed(self) -> None:
        pass


class _Spread(_Resident):
    """Rows and nodes on every device; the chunks of a band are dealt out to all of them."""

    def __init__(self, engine: Simulation):
        self.mesh = mesh_of(engine.devices)
        super().__init__(engine)
        self.storage = replicated(self.mesh, self.storage)

    def _program(self, parts: RoundParts, chunk: int, bands: tuple[rounds.Band, ...]):
        return shared(_block_of, parts, chunk, bands, self.mesh)

    def block(self, state: EngineState, count: int) -> tuple[EngineState, rounds.Record]:
        everywhere = replicated(self.mesh, (state.server, state.nodes, state.seen))
        state, record = super().block(EngineState(state.round, *everywhere), count)
        # Evaluation runs on one device: its arguments have to be there.
        return state._replace(server=jax.device_put(state.server, self.mesh.devices[0])), record

    def take(self, state: EngineState, positions: np.ndarray) -> Node:
        return jax.device_put(super().take(state, positions), self.mesh.devices[0])


def _block_of(
    parts: RoundParts, chunk: int, bands: tuple[rounds.Band, ...], mesh: Mesh | None = None
):
    """The compiled rounds of clients whose rows and nodes are on the device, or on all of some."""

    def block(root, first, count, server, nodes, seen, storage, ids):
        def one_round(t, server, nodes, seen):
            return _round(parts, chunk, bands, mesh, root, t, server, nodes, seen, storage, ids)

        carry, record = rounds.repeated(one_round, first, count, (server, nodes, seen))
        return *carry, record

    return jax.jit(block)


def _round(parts: RoundParts, chunk: int, bands, mesh, root, t, server, nodes, seen, storage, ids):
    down = parts.algorithm.broadcast(server)
    slots, counts = rounds.call_up(parts, root, t, ids)
    slots = _sorted(slots, storage.count, bands, chunk)

    def run_chunk(carry, slots, capacity):
        tally, nodes, seen = carry
        mine = Shard(storage.rows, storage.start[slots.index], storage.count[slots.index], capacity)
        old, known = tree.take(nodes, slots.index), seen[slots.index]
        tally, new, good = rounds.chunk_round(parts, root, t, down, slots, old, known, mine, tally)
        return (
            tally,
            tree.put(nodes, slots.index, new, good),
            tree.put(seen, slots.index, jnp.ones_like(good), good),
        )

    def run_if_any(carry, slots, capacity):
        return jax.lax.cond(
            jnp.any(slots.on),
            partial(run_chunk, capacity=capacity),
            lambda carry, _: carry,
            carry,
            slots,
        ), None

    carry = (rounds.empty_tally(parts.shapes), nodes, seen)
    for band in bands:
        part = jax.tree.map(
            lambda leaf, band=band: leaf[band.first : band.first + band.chunks * chunk].reshape(
                band.chunks, chunk
            ),
            slots,
        )
        if mesh is None:
            carry, _ = jax.lax.scan(partial(run_if_any, capacity=band.capacity), carry, part)
        else:
            sent = (root, t, down, storage.rows, storage.start, storage.count)
            carry = spread_band(parts, mesh, band.capacity, part, carry, sent)
    tally, nodes, seen = carry
    server, record = rounds.close_round(parts, root, t, server, tally, counts)
    return server, nodes, seen, record


def _sorted(
    slots: rounds.Slots, counts: jax.Array, bands: tuple[rounds.Band, ...], chunk: int
) -> rounds.Slots:
    """Clients that run, largest first, then empty slots up to whole chunks."""
    work = jnp.where(slots.on, counts[slots.index] + 1, 0)
    order = jnp.argsort(-work)
    total = bands[-1].first + bands[-1].chunks * chunk
    slots = tree.take(slots, order)
    return jax.tree.map(lambda leaf: jnp.pad(leaf, (0, total - leaf.shape[0])), slots)


class _Streamed:
    """Rows and nodes on the host; the rows of a cohort are gathered, its chunks dispatched one by
    one.

    Nodes, and who has taken part, move on in place. On disk, the nodes say who that is.
    """

    def __init__(self, engine: Simulation, node_directory: Path | None):
        self.engine = engine
        like, clients = engine.setup.shapes.node, engine.data.clients
        self.store = (
            MemoryNodes(like, clients)
            if node_directory is None
            else DiskNodes(like, clients, node_directory)
        )
        self.counted = clients if node_directory is None else 0
        parts = round_parts(engine.setup)
        setup = engine.setup
        of_chunks = chunk_parts(setup.algorithm, setup.channel, setup.shapes)
        self.clients = HostClients(
            of_chunks, setup.root, engine.rows, self.store, engine.chunk, engine.devices
        )
        self.call_up = shared(call_up_of, parts)
        self.close_round = shared(close_round_of, parts)
        self.broadcast = shared(jax.jit, engine.setup.algorithm.broadcast)

    def start(self, server: State) -> EngineState:
        self.store.clear()
        return EngineState(0, server, None, np.zeros(self.engine.data.clients, bool))

    def block(self, state: EngineState, count: int) -> tuple[EngineState, rounds.Record]:
        seen, server, records = np.asarray(state.seen), state.server, []
        for t in range(state.round, state.round + count):
            server, record = self._round(t, server, seen)
            records.append(record)
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *jax.device_get(records))
        return EngineState(state.round + count, server, None, seen), stacked

    def _round(self, t: int, server: State, seen: np.ndarray) -> tuple[State, rounds.Record]:
        root = self.engine.setup.root
        down = self.broadcast(server)
        slots, counts = self.call_up(root, t, self.engine.ids)
        tally = self.clients.round(t, down, jax.device_get(slots), seen)
        return self.close_round(root, t, server, tally, counts)

    def take(self, state: EngineState, positions: np.ndarray) -> Node:
        return self.store.take(positions)

    def snapshot(self, state: EngineState) -> PyTree:
        return self.store.snapshot()

    def like(self) -> PyTree:
        return self.store.like()

    def restore(self, round_: int, server: State, nodes: PyTree, seen: np.ndarray) -> EngineState:
        self.store.restore(nodes)
        took_part = self.store.seen() if isinstance(self.store, DiskNodes) else np.array(seen)
        return EngineState(round_, server, None, took_part)

    def checkpointed(self) -> None:
        self.store.checkpointed()
