"""Measures of predictions against a client's rows, as metrics that merge over clients."""

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
    """Measures of a client's predictions over all of its rows, in one pass.

    Args:
        predict: (x) -> the predictive distribution of the outcomes of some rows.
        data: The client's rows; without any, the metrics have counts of zero.
        batch_size: Rows predicted at once. It bounds the memory and changes no value beyond
            rounding. Default: 256.

    Returns:
        Metrics by name: accuracy, nll, brier and ece of labels; nll and mse of other outcomes.

    Example:
        >>> import jax.numpy as jnp
        >>> from covey.core.shard import whole
        >>> from covey.models.predictive import Normal
        >>> data = whole(Rows(jnp.zeros((2, 1)), jnp.array([1.0, 3.0])))
        >>> found = measure(lambda x: Normal(jnp.ones(len(x)), jnp.ones(len(x))), data)
        >>> float(found["mse"].value())
        2.0
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
