"""The curvature of an energy, by products of its Hessian with vectors: no matrix is formed."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from optax.tree_utils import tree_norm, tree_random_like

_POWER_STEPS = 30
_BATCH = 16  # columns that are multiplied side by side


def curvature_times(
    gradient: Callable[[Float[Array, " d"]], Float[Array, " d"]],
    at: Float[Array, " d"],
    columns: Float[Array, "d columns"],
) -> Float[Array, "d columns"]:
    """The Hessian of an energy at a point, times some columns, given the energy's gradient.

    Example:
        >>> curvature_times(lambda z: z**3, jnp.array([1.0, 2.0]), jnp.eye(2)).tolist()
        [[3.0, 0.0], [0.0, 12.0]]
    """
    push = partial(jax.jvp, gradient, (at,))
    size = min(_BATCH, columns.shape[1])
    return jax.lax.map(lambda column: push((column,))[1], columns.T, batch_size=size).T


def largest_curvature(gradient: Callable[[PyTree], PyTree], at: PyTree) -> float:
    """The largest eigenvalue in size of the Hessian, by power iteration.

    Gradient and Langevin steps longer than 2 over it diverge.

    Args:
        gradient: (parameters) -> gradient of the energy.
        at: Point of the Hessian.

    Example:
        >>> round(largest_curvature(lambda z: jnp.array([3.0, 1.0]) * z, jnp.zeros(2)), 4)
        3.0
    """

    def climb(_, carry):
        direction, _ = carry
        pushed = jax.jvp(gradient, (at,), (direction,))[1]
        size = tree_norm(pushed)
        return jax.tree.map(lambda leaf: leaf / jnp.where(size > 0, size, 1.0), pushed), size

    def search():
        start = tree_random_like(jax.random.key(0, impl="threefry2x32"), at)
        norm = tree_norm(start)
        begin = jax.tree.map(lambda leaf: leaf / norm, start), jnp.zeros_like(norm)
        return jax.lax.fori_loop(0, _POWER_STEPS, climb, begin)[1]

    return float(jax.jit(search)())
