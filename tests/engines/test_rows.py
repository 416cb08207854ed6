"""Rows of clients in large files: read with system calls, equal to those in memory."""

import os

import numpy as np
import pytest

from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.engines import rows as module
from covey.engines.rows import HostRows

COUNTS = [3, 0, 5, 1, 4]


@pytest.fixture
def mapped(tmp_path, monkeypatch):
    """The same clients with rows in memory and in files that count as large."""
    random = np.random.default_rng(0)
    rows = Rows(random.normal(size=(13, 2)).astype(np.float32), random.integers(0, 2, 13))
    data = FederatedData.from_rows(rows, COUNTS)
    in_memory = HostRows(data)
    data.save(tmp_path / "data")
    monkeypatch.setattr(module, "MAPPED_LIMIT", 0)
    return in_memory, HostRows(FederatedData.open(tmp_path / "data")), tmp_path / "data"


def test_rows_of_a_file_are_those_in_memory(mapped):
    in_memory, large, _ = mapped
    positions = np.array([4, 1, 0, 2])
    expected, found = (rows.view(positions, "train") for rows in (in_memory, large))
    assert not any(isinstance(source, np.ndarray) for source in large.sources)
    np.testing.assert_array_equal(found.starts, expected.starts)
    for one, other in zip(found.rows, expected.rows, strict=True):
        np.testing.assert_array_equal(one[:12], other[:12])
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        assert not one[12:].any()


def test_a_file_that_became_shorter_is_named(mapped):
    _, large, folder = mapped
    os.truncate(folder / "x.npy", 140)
    with pytest.raises(ValueError, match=r"x\.npy is shorter than when it was opened"):
        large.view(np.array([4]), "train")
