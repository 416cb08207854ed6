"""The count of clients that run side by side."""

from typing import Literal

import numpy as np

from covey.core import tree
from covey.data.federated import FederatedData
from covey.engines.setup import Setup

CHUNK_NUMBERS = 500_000  # row values of a chunk that stay in cache; measured
LARGE_UPLOAD = 50_000  # values; above, clients run one by one


def chunk_of(
    asked: int | Literal["auto"], setup: Setup, data: FederatedData, workers: int = 1
) -> int:
    """Clients of a chunk. No value depends on it.

    Args:
        asked: The requested count; "auto" chooses by the size of rows, states and uploads.
        setup: The run.
        data: Its rows.
        workers: Devices or actors that share the cohort.

    Returns:
        At least 1 and at most the cohort, or its share where chosen by "auto".
    """
    slots = setup.sampler.slots
    if asked != "auto":
        if asked < 1:
            raise ValueError(f"chunk must be at least 1 or 'auto', got {asked}")
        return min(asked, slots)
    shapes = setup.shapes
    if tree.size(shapes.up) > LARGE_UPLOAD or tree.size(shapes.node) > LARGE_UPLOAD:
        return 1
    per_row = tree.size(data.spec.rows)
    rows = (data.spec.examples or 0) / data.clients
    per_client = max(rows * per_row, 1.0)
    wished = int(2 ** np.clip(np.round(np.log2(CHUNK_NUMBERS / per_client)), 0, 7))
    return min(wished, -(-slots // workers))
