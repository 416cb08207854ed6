"""Client states on disk: whatever happens, either kept checkpoint can be completed and nothing from
after it remains.
"""

import jax
import numpy as np
import pytest

from covey.core import wire
from covey.core.algorithm import Empty
from covey.core.node import Node
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


def test_disk_behaves_as_memory(tmp_path):
    disk, memory = DiskNodes(LIKE, CLIENTS, tmp_path), MemoryNodes(LIKE, CLIENTS)
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    for step in range(30):
        change(disk, one)
        change(memory, other)
        if step % 4 == 0:
            disk.snapshot()
            disk.checkpointed()
        same(disk.take(EVERYONE), memory.take(EVERYONE))


@pytest.mark.parametrize(
    "crash",
    ["before the checkpoint", "checkpoint written", "files half written", "after the checkpoint"],
)
@pytest.mark.parametrize("use", ["newest", "previous"])
def test_a_crash_at_any_moment_can_be_resumed(tmp_path, crash, use):
    rng = np.random.default_rng(1)
    store = DiskNodes(LIKE, CLIENTS, tmp_path)
    checkpoints, truths = [], []
    for number in range(5):
        for _ in range(3):
            change(store, rng)
        if number == 4 and crash == "before the checkpoint":
            break
        truths.append(store.take(EVERYONE))
        checkpoints.append(wire.pack(store.snapshot()))
        if number == 4 and crash == "checkpoint written":
            break
        if number == 4 and crash == "files half written":
            positions, leaves = store.previous.entries()
            store.files[0][positions[:5]] = leaves[0][:5]
            break
        store.checkpointed()
    for _ in range(3):
        change(store, rng)
    del store

    place = -1 if use == "newest" else -2
    again = DiskNodes(LIKE, CLIENTS, tmp_path)
    again.restore(wire.unpack(checkpoints[place], again.like()))
    same(again.take(EVERYONE), truths[place])


def test_files_of_another_run_are_refused(tmp_path):
    DiskNodes(LIKE, CLIENTS, tmp_path).take(EVERYONE)
    with pytest.raises(ValueError, match="another run"):
        DiskNodes(LIKE, CLIENTS + 1, tmp_path).take(EVERYONE)
