"""A short text that tells data apart, so that a run is not resumed on others."""

import hashlib

import jax
import numpy as np

from covey.core.mapped import release
from covey.data.federated import FederatedData
from covey.data.roster import Roster

_HASHED_BYTES = 64 * 1024**2
_HASHED_ROWS = 4096  # of data that are larger
_TOGETHER = 1 << 20  # rows of a table that are hashed at once


def data_digest(data: FederatedData | Roster) -> str:
    """A digest that tells data apart: of clients, splits and shapes, and of all rows, or of evenly
    spaced ones where they exceed 64 MB. Without the rows where they are at the sites.

    Names of clients and columns are left out: results do not depend on them.
    """
    digest = hashlib.sha256(_shapes(data).encode())
    if isinstance(data, Roster):
        for array in (data.rows, data.ids):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]
    leaves = jax.tree.leaves(data.rows)
    everything = sum(leaf.nbytes for leaf in leaves) <= _HASHED_BYTES
    total = len(leaves[0])
    chosen = (
        slice(None)
        if everything
        else np.linspace(0, total - 1, min(_HASHED_ROWS, total)).astype(np.int64)
    )
    for array in (data.bounds, data.ids, *(leaf[chosen] for leaf in leaves)):
        for at in range(0, len(array), _TOGETHER):
            digest.update(np.ascontiguousarray(array[at : at + _TOGETHER]).data)
            release(array)
    return digest.hexdigest()[:16]


def _shapes(data: FederatedData | Roster) -> str:
    shapes = ", ".join(
        f"{name}={value}"
        for name, value in data.spec._asdict().items()
        if name not in ("features", "omega", "standardised", "first_row", "capacity")
    )
    return f"Spec({shapes})"
