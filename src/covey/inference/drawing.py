"""Helpers of all posteriors: the origin of draws, checked counts, traces, summaries."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np
import pandas as pd
from jaxtyping import PyTree

from covey.core.shard import Axis

if TYPE_CHECKING:
    import xarray

# An attribute of traces: the chains are not independent where only some clients take part.
SHARED_ROUNDS = {"chains": "through the same rounds"}


class Origin(NamedTuple):
    """The origin of draws, as a trace records it, and labels along their arrays."""

    attributes: dict[str, str | int]
    axes: Mapping[str, Axis]


def check_probability(probability: float) -> None:
    """An error for a value that is not strictly between 0 and 1."""
    if not 0 < probability < 1:
        raise ValueError(f"probability must be between 0 and 1, e.g. 0.9, got {probability:g}")


def trace_of(drawn: PyTree, origin: Origin) -> "xarray.DataTree":
    """Draws (chains, draws, ...) of no client as ArviZ takes them."""
    from covey.inference.trace import as_tree  # ArviZ takes seconds to import

    one = jax.tree.map(lambda leaf: leaf[None], drawn)
    return as_tree(one, None, origin.attributes, origin.axes)


def summary_of(tree: "xarray.DataTree", probability: float) -> pd.DataFrame:
    """The table of a trace; see `covey.inference.trace.summarise`."""
    from covey.inference.trace import summarise

    return summarise(tree, probability=probability)


def check_count(count: int, name: str, *, least: int = 1) -> None:
    """An error for an argument `name` that is not a whole number of at least `least`."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer):
        raise ValueError(f"posterior: {name} must be a whole number, got {count!r}")
    if count < least:
        raise ValueError(f"posterior: {name} must be at least {least}, got {count}")
