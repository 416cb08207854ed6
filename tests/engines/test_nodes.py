"""Client states on disk: whatever happens, either kept checkpoint can be completed and nothing from
after it remains.
"""

import jax
import numpy as np
import pytest

from covey.core import wire
from covey.core.algorithm import Empty
from covey.core.node import Node
from covey.engines import nodes
from covey.engines.nodes import DiskNodes, MemoryNodes

CLIENTS = 40
LIKE = Node(
    {"a": jax.ShapeDtypeStruct((3,), np.float32), "n": jax.ShapeDtypeStruct((), np.int32)}, Empty()
)
EVERYONE = np.arange(CLIENTS)


def change(store, rng):
    positions = rng.choice(CLIENTS, 7, replace=False)
    store.put(
        positions,
        Node(
            {"a": rng.normal(size=(7, 3)).astype(np.float32), "n": rng.integers(0, 99, 7)}, Empty()
        ),
    )


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def checkpoint(store):
    kept = wire.pack(store.snapshot())
    store.checkpointed()
    return kept


def restored(kept, folder):
    store = DiskNodes(LIKE, CLIENTS, folder)
    store.restore(wire.unpack(kept, store.like()))
    return store


@pytest.mark.parametrize("entries", [10, 1 << 20])
def test_disk_behaves_as_memory(tmp_path, monkeypatch, entries):
    monkeypatch.setattr(nodes, "_LEAST_ENTRIES", entries)  # few: the index is written anew
    disk, memory = DiskNodes(LIKE, CLIENTS, tmp_path), MemoryNodes(LIKE, CLIENTS)
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    for step in range(60):
        change(disk, one)
        change(memory, other)
        if step % 4 == 0:
            kept = checkpoint(disk)
            same(restored(kept, tmp_path).take(EVERYONE), memory.take(EVERYONE))
        same(disk.take(EVERYONE), memory.take(EVERYONE))
    assert disk.heap.used <= 3 * CLIENTS
    assert (disk.index.generation > 0) == (entries == 10)
    assert len(list(tmp_path.glob("index*"))) <= 2


@pytest.mark.parametrize(
    "crash",
    ["before the checkpoint", "index written", "checkpoint written", "after the checkpoint"],
)
@pytest.mark.parametrize("use", ["newest", "previous"])
@pytest.mark.parametrize("entries", [10, 1 << 20])
def test_a_crash_at_any_moment_can_be_resumed(tmp_path, monkeypatch, crash, use, entries):
    monkeypatch.setattr(nodes, "_LEAST_ENTRIES", entries)
    rng = np.random.default_rng(1)
    store = DiskNodes(LIKE, CLIENTS, tmp_path)
    checkpoints, truths = [], []
    for round_ in range(5):
        for _ in range(3):
            change(store, rng)
        if round_ == 4 and crash == "before the checkpoint":
            break
        truth, kept = store.take(EVERYONE), wire.pack(store.snapshot())
        if round_ == 4 and crash == "index written":
            break
        truths.append(truth)
        checkpoints.append(kept)
        if round_ == 4 and crash == "checkpoint written":
            break
        store.checkpointed()
    for _ in range(3):
        change(store, rng)
    store.snapshot()  # of which no checkpoint is made
    for _ in range(3):
        change(store, rng)
    del store

    index = -1 if use == "newest" else -2
    again = restored(checkpoints[index], tmp_path)
    same(again.take(EVERYONE), truths[index])
    for _ in range(9):  # it goes on and dies once more: what it came from is still there
        change(again, rng)
    same(restored(checkpoints[index], tmp_path).take(EVERYONE), truths[index])
    if use == "newest":
        same(restored(checkpoints[-2], tmp_path).take(EVERYONE), truths[-2])


def test_only_clients_that_took_part_are_on_disk(tmp_path):
    clients = 10**6
    large = Node({"a": jax.ShapeDtypeStruct((1000,), np.float32)}, Empty())
    store = DiskNodes(large, clients, tmp_path)
    where = np.array([999_999, 3])
    rows = Node({"a": np.ones((2, 1000), np.float32) * np.array([[1], [2]])}, Empty())
    store.put(where, rows)
    kept = checkpoint(store)
    assert len(kept) < 100
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5e6
    assert np.flatnonzero(store.seen()).tolist() == [3, 999_999]
    again = DiskNodes(large, clients, tmp_path)
    again.restore(wire.unpack(kept, again.like()))
    found = again.take(np.array([3, 5, 999_999])).state["a"][:, 0]
    assert found.tolist() == [2, 0, 1]


@pytest.mark.parametrize("name", ["leaf0.bin", "index0.bin"])
def test_files_that_do_not_hold_the_checkpoint_are_refused(tmp_path, name):
    store = DiskNodes(LIKE, CLIENTS, tmp_path)
    change(store, np.random.default_rng(0))
    kept = checkpoint(store)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=rf"{name} has fewer client states than the checkpoint"):
        restored(kept, tmp_path)


def test_states_of_more_clients_are_refused(tmp_path):
    store = DiskNodes(LIKE, CLIENTS, tmp_path)
    change(store, np.random.default_rng(0))
    kept = checkpoint(store)
    fewer = DiskNodes(LIKE, 2, tmp_path)
    with pytest.raises(ValueError, match="of another run"):
        fewer.restore(wire.unpack(kept, fewer.like()))
