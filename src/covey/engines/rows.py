"""Where the rows of a simulation lie: on the device, all at once, or on the host, gathered for the clients at hand."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from covey.core.shard import Shard
from covey.data.federated import FederatedData
from covey.engines.round import grid


class View(NamedTuple):
    """Rows that hold those of some clients, and where each client's begin and how many there are."""

    rows: PyTree
    starts: np.ndarray
    counts: np.ndarray


class DeviceRows:
    """All rows on the device; a view of some clients is a view of everything."""

    def __init__(self, data: FederatedData):
        self.data = data
        self.rows = jax.tree.map(jnp.asarray, data.rows)

    def view(self, positions: np.ndarray, part: str) -> View:
        """Rows of one part of the clients at `positions`."""
        starts = self.data.starts(part)[positions].astype(np.int32)
        return View(self.rows, starts, self.data.counts(part)[positions].astype(np.int32))


class HostRows:
    """Rows stay where they are, memory-mapped perhaps; those of the clients at hand are copied."""

    def __init__(self, data: FederatedData):
        self.data = data

    def view(self, positions: np.ndarray, part: str) -> View:
        """Rows of one part of the clients at `positions`, one client after the other, padded to one of few lengths."""
        counts = self.data.counts(part)[positions]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        starts = ends - counts
        # Row r of the copy belongs to the client whose range holds r; it came from that client's start in the storage.
        index = np.repeat(self.data.starts(part)[positions] - starts, counts) + np.arange(total)
        index = np.concatenate([index, np.zeros(grid(max(total, 1)) - total, index.dtype)])
        rows = jax.tree.map(lambda leaf: np.take(leaf, index, axis=0), self.data.rows)
        return View(rows, starts.astype(np.int32), counts.astype(np.int32))


def rows_of(data: FederatedData, storage: str, device_limit: int) -> DeviceRows | HostRows:
    """Storage as asked for; "auto" puts rows on the device where they take at most `device_limit` bytes and are not a memory map."""
    leaves = jax.tree.leaves(data.rows)
    if storage not in ("auto", "device", "host"):
        raise ValueError(f"storage must be 'auto', 'device' or 'host', got {storage!r}")
    if storage == "auto":
        small = sum(leaf.nbytes for leaf in leaves) <= device_limit
        storage = "device" if small and not any(isinstance(leaf, np.memmap) for leaf in leaves) else "host"
    if storage == "device" and len(leaves[0]) >= 2**31:
        raise ValueError(f"{len(leaves[0])} rows are more than an index on the device can count; use storage='host'")
    return DeviceRows(data) if storage == "device" else HostRows(data)


def shard_of(view: View, capacity: int) -> Shard:
    """A view as the stacked shards of its clients."""
    return Shard(view.rows, jnp.asarray(view.starts), jnp.asarray(view.counts), capacity)
