"""A predictive distribution against a client's rows, as metrics that merge."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from covey.core import metrics
from covey.core.metrics import Metric
from covey.core.shard import Batch, Rows, Shard, batches_of, fold_batches


class Measurable(Protocol):
    """A predictive distribution, as far as measuring it goes."""

    def measures(self, y: Any, mask: Any) -> dict[str, Metric]:
        """Metrics of the outcomes y where the mask holds."""
        ...


def measure(
    predict: Callable[[PyTree], Measurable], data: Shard, *, batch_size: int = 256
) -> dict[str, Metric]:
    """The measures of `predict(x)` over all rows of a client, in one pass; a client without rows
    has counts of zero.

    `batch_size` bounds the memory of a prediction and changes no value beyond rounding.
    """
    if batch_size < 1:
        raise ValueError(f"measure: batch_size must be at least 1, got {batch_size}")

    def of_batch(rows: Rows, mask: Bool[Array, " batch"]) -> dict[str, Metric]:
        return predict(rows.x).measures(rows.y, mask)

    # The metrics' shapes are known without computing one: they depend on the kind of predictive
    # only.
    size, _ = batches_of(data, batch_size)
    rows = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), data.rows
    )
    shapes = jax.eval_shape(of_batch, rows, jax.ShapeDtypeStruct((size,), jnp.bool_))
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def step(total: dict[str, Metric], batch: Batch) -> dict[str, Metric]:
        return metrics.add(total, of_batch(batch.rows, batch.mask))

    return fold_batches(data, batch_size, step, nothing)
