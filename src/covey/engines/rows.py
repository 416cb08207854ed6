"""The storage of a simulation's rows: on the device, all at once, or on the host, gathered for the
clients at hand.
"""

from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from covey.core.mapped import RandomReads, location, release
from covey.core.shard import Shard
from covey.data.federated import FederatedData, Split
from covey.data.roster import Roster
from covey.engines.round import bucket_size

DEVICE_LIMIT = 2 * 1024**3  # bytes of rows that "auto" keeps on the device
MAPPED_LIMIT = 2 * 1024**3  # bytes of rows above which files are read, and not mapped
Storage: TypeAlias = Literal["auto", "device", "host"]


class View(NamedTuple):
    """Rows that hold those of some clients, and where each client's begin and how many there
    are.
    """

    rows: PyTree
    starts: np.ndarray
    counts: np.ndarray


class _Ranges:
    """Starts and counts of each client's rows, by split; made once, as a million
    clients take milliseconds. They are 12 bytes per client, in memory.
    """

    def __init__(self, data: FederatedData):
        self.data = data
        self.made: dict[Split, tuple[np.ndarray, np.ndarray]] = {}

    def ranges(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Starts and counts of one split."""
        if split not in self.made:
            counts = self.data.counts(split).astype(np.int32)
            self.made[split] = np.array(self.data.starts(split)), counts
            release(self.data.bounds)
        return self.made[split]


class DeviceRows(_Ranges):
    """All rows on the device; a view of some clients is a view of everything."""

    def __init__(self, data: FederatedData):
        super().__init__(data)
        self.rows = jax.tree.map(jnp.asarray, _some(data.rows))

    def view(self, positions: np.ndarray, split: Split) -> View:
        """Rows of one split of the clients at `positions`."""
        starts, counts = self.ranges(split)
        return View(
            self.rows, starts[positions].astype(np.int32), counts[positions].astype(np.int32)
        )


class HostRows(_Ranges):
    """Rows stay where they are, memory-mapped perhaps; those of the clients at hand are copied.

    Of memory-mapped rows of more than `MAPPED_LIMIT` bytes, no pages come into this process.
    """

    def __init__(self, data: FederatedData):
        super().__init__(data)
        many = sum(leaf.nbytes for leaf in jax.tree.leaves(data.rows)) > MAPPED_LIMIT

        def source(leaf: np.ndarray) -> np.ndarray | RandomReads:
            where = location(leaf) if many else None
            return leaf if where is None else RandomReads(leaf, where)

        self.sources = jax.tree.map(source, _some(data.rows))

    def view(self, positions: np.ndarray, split: Split) -> View:
        """Rows of one split of the clients at `positions`, one client after the other, padded to
        one of few lengths.
        """
        all_starts, all_counts = self.ranges(split)
        counts = all_counts[positions]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        starts = ends - counts
        # Row r of the copy belongs to the client whose range holds r; it came from that client's
        # start in the storage.
        index = np.repeat(all_starts[positions] - starts, counts) + np.arange(total)
        index = np.concatenate([index, np.zeros(bucket_size(max(total, 1)) - total, index.dtype)])

        def copied(source: np.ndarray | RandomReads) -> np.ndarray:
            if isinstance(source, RandomReads):
                return source.read(all_starts[positions], counts, len(index))
            return np.take(source, index, axis=0)

        rows = jax.tree.map(copied, self.sources)
        return View(rows, starts.astype(np.int32), counts.astype(np.int32))


def chosen(data: FederatedData, storage: Storage) -> Literal["device", "host"]:
    """The requested storage. "auto": on the device, unless the rows take more than `DEVICE_LIMIT`
    bytes or are a memory map.
    """
    leaves = jax.tree.leaves(data.rows)
    if storage not in ("auto", "device", "host"):
        raise ValueError(f"storage must be 'auto', 'device' or 'host', got {storage!r}")
    if storage == "auto":
        small = sum(leaf.nbytes for leaf in leaves) <= DEVICE_LIMIT
        return (
            "device"
            if small and not any(isinstance(leaf, np.memmap) for leaf in leaves)
            else "host"
        )
    if storage == "device" and len(leaves[0]) >= 2**31:
        raise ValueError(
            f"{len(leaves[0])} rows are more than an index on the device can count; use "
            "storage='host'"
        )
    return storage


def rows_of(data: FederatedData, storage: Storage = "auto") -> DeviceRows | HostRows:
    """The rows in their storage."""
    return DeviceRows(data) if chosen(data, storage) == "device" else HostRows(data)


def _some(rows: PyTree) -> PyTree:
    """Rows to gather from: one blank row, which no client owns, where there are none at all."""
    if len(jax.tree.leaves(rows)[0]):
        return rows
    return jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape[1:]), leaf.dtype), rows)


def need_rows(data: FederatedData | Roster, split: Split) -> None:
    """An error where no client has rows of the split."""
    if not data.counts(split).any():
        raise ValueError(
            f"the data have no {split} rows: split them first, e.g. data.split(validation=0.2, "
            "test=0.2, seed=0)"
        )


def shard_of(view: View, capacity: int) -> Shard:
    """A view as the stacked shards of its clients."""
    return Shard(view.rows, jnp.asarray(view.starts), jnp.asarray(view.counts), capacity)
