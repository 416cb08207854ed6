"""Gradients of single rows, clipped before they are added."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from covey.core import tree
from covey.core.shard import Batch

_VALUES_AT_ONCE = 2**22  # of gradients of single rows: 16 MB, little beside the rest of a run


def clipped_sum(
    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " batch"]],
    *,
    clip: int | float,
    rows_at_once: int | None = None,
) -> Callable[[PyTree, Batch], PyTree]:
    """The sum of gradients of a batch, each row's clipped first.

        sum over rows of  g_i min(1, C / ||g_i||_2),    the norm over all parameters together,

    g_i the gradient of minus the log-likelihood of row i. This bounds what one row does to the sum:
    C where the row becomes nothing, 2 C where it becomes another. A row whose gradient is not
    finite counts as zero: a NaN would show that the row is there.

    Args:
        log_likelihood: (parameters, rows) -> one value per row.
        clip: Largest norm of one row's gradient (C).
        rows_at_once: Rows whose gradients are in memory together. Default: as many as take 16 MB.

    Returns:
        (parameters, batch) -> the sum, a tree like the parameters.

    Example:
        >>> total = clipped_sum(lambda theta, rows: -rows @ theta, clip=1.0)  # a gradient is a row
        >>> rows = jnp.array([[3.0, 4.0], [0.1, 0.2]])
        >>> [round(v, 2) for v in total(jnp.zeros(2), Batch(rows, jnp.ones(2, bool))).tolist()]
        [0.7, 1.0]

    Reference: Abadi et al. (2016), Deep learning with differential privacy, algorithm 1.
    """
    if not clip > 0:
        raise ValueError(
            f"clip: the largest norm of a row's gradient must be above 0, got {clip:g}"
        )
    if rows_at_once is not None and rows_at_once < 1:
        raise ValueError(f"rows_at_once must be at least 1, got {rows_at_once}")

    def loss(parameters, row):
        return -log_likelihood(parameters, jax.tree.map(lambda leaf: leaf[None], row))[0]

    def of_block(parameters, batch):
        gradients = jax.vmap(jax.grad(loss), (None, 0))(parameters, batch.rows)
        norm = jnp.sqrt(sum(_squares(leaf) for leaf in jax.tree.leaves(gradients)))
        scale = jnp.where(
            batch.mask & jnp.isfinite(norm), jnp.minimum(1, clip / jnp.where(norm > 0, norm, 1)), 0
        )
        return tree.weighted_sum(scale, gradients)

    def total(parameters, batch):
        count = batch.mask.shape[0]
        size = rows_at_once or max(_VALUES_AT_ONCE // max(tree.size(parameters), 1), 1)
        if count <= size:
            return of_block(parameters, batch)
        blocks = -(-count // size)
        padded = jax.tree.map(
            lambda leaf: jnp.pad(leaf, [(0, blocks * size - count), *[(0, 0)] * (leaf.ndim - 1)]),
            batch,
        )
        stacked = jax.tree.map(lambda leaf: leaf.reshape(blocks, size, *leaf.shape[1:]), padded)
        return jax.lax.scan(
            lambda so_far, block: (
                jax.tree.map(jnp.add, so_far, of_block(parameters, block)),
                None,
            ),
            jax.tree.map(jnp.zeros_like, parameters),
            stacked,
        )[0]

    return total


def _squares(leaf: Float[Array, " rows *shape"]) -> Float[Array, " rows"]:
    return jnp.sum(jnp.square(leaf).reshape(leaf.shape[0], -1), axis=1)
