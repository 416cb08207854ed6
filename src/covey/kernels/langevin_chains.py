"""Langevin steps of several chains side by side, on the last axis of all arrays: with few
parameters and many chains that is where vector instructions find work.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.core import tree

_NOISE_AHEAD = 4096  # random values that a client draws at once; they should stay in cache

# (key, parameters of one chain) -> gradient of the energy, by a minibatch that the key chooses
EnergyGradient: TypeAlias = Callable[[Key[Array, ""], PyTree], PyTree]
# (scale, key) of each source of noise
Noises: TypeAlias = Sequence[tuple[float | Float[Array, ""], Key[Array, ""]]]


class Langevin(NamedTuple):
    """Settings of a client's Langevin steps.

    Attributes:
        step_size: Step size of the first step (eta).
        local_steps: Steps per round (K).
        temperature: Temperature of the target exp(-f / tau) (tau).
        decay: The step size falls as step_size / (1 + decay k), k counting steps over all rounds.
        chains: Chains that walk side by side.
    """

    step_size: float
    local_steps: int
    temperature: float = 1.0
    decay: float = 0.0
    chains: int = 1


def langevin_steps(
    settings: Langevin,
    gradient: EnergyGradient,
    choose: Key[Array, ""],
    noises: Noises,
    round_: Int[Array, ""],
    start: PyTree,
    common: Callable[[PyTree], PyTree] | None = None,
) -> PyTree:
    """K Langevin steps of every chain.

        theta <- theta - eta g(theta) + sqrt(2 eta tau) sum_j s_j xi_j

    Args:
        settings: Step sizes, steps, temperature and number of chains.
        gradient: (key, parameters of one chain) -> gradient of the energy f by a minibatch.
        choose: Key of the minibatches; each step and chain has another.
        noises: The scale s_j of each source of noise and its key.
        round_: Rounds before this one, for a step size that falls.
        start: The chains before the first step, on the last axis.
        common: (all chains) -> a term of their gradients that is added to `gradient`, computed for
            all chains at once. Default: none.

    Returns:
        The chains after the last step.

    Example:
        >>> settings = Langevin(step_size=0.1, local_steps=2, chains=3)
        >>> key = jax.random.key(0)
        >>> end = langevin_steps(
        ...     settings, lambda key, z: z, key, [(0.0, key)], jnp.int32(0), jnp.ones((1, 3))
        ... )
        >>> [round(float(z), 4) for z in end[0]]  # without noise: two steps down z^2 / 2
        [0.81, 0.81, 0.81]
    """
    size, steps = tree.size(start), settings.local_steps
    together = _steps_together(steps, size)

    def step(index, theta, noise):
        done = round_ * steps + index
        eta = settings.step_size / (1 + settings.decay * done.astype(float))
        keys = jax.random.split(jax.random.fold_in(choose, index), settings.chains)
        found = each_chain(gradient, keys, theta)
        if common is not None:
            found = jax.tree.map(jnp.add, found, common(theta))
        moved = jax.tree.map(lambda at, g: at - eta * g, theta, found)
        spread = jnp.sqrt(2 * eta * settings.temperature)
        return jax.tree.map(lambda at, xi: at + spread.astype(at.dtype) * xi, moved, noise)

    def noise_of(index):
        drawn = [
            jax.tree.map(
                lambda xi, s=scale: jnp.asarray(s, xi.dtype) * xi,
                noise_like(jax.random.fold_in(key, index), start),
            )
            for scale, key in noises
        ]
        return jax.tree.map(lambda *parts: sum(parts), *drawn)

    def some_steps(block, theta):
        indices = block * together + jnp.arange(together)
        noise = jax.vmap(noise_of)(indices)
        return jax.lax.fori_loop(
            0,
            together,
            lambda at, theta: step(indices[at], theta, jax.tree.map(lambda xi: xi[at], noise)),
            theta,
        )

    return jax.lax.fori_loop(0, steps // together, some_steps, start)


def each_chain(
    function: Callable[[Key[Array, ""], PyTree], PyTree], keys: Key[Array, " chains"], theta: PyTree
) -> PyTree:
    """A function of one chain, applied to all; chains are the last axis of theta and of the result.

    A single chain is called plainly: large matrices are slower under vmap.
    """
    if keys.shape[0] == 1:
        alone = function(keys[0], jax.tree.map(lambda leaf: leaf[..., 0], theta))
        return jax.tree.map(lambda leaf: leaf[..., None], alone)
    return jax.vmap(function, in_axes=(0, -1), out_axes=-1)(keys, theta)


def noise_like(key: Key[Array, ""], theta: PyTree) -> PyTree:
    """Standard Gaussian values for all chains, in one draw: random bits are slow to compile."""
    leaves, structure = jax.tree.flatten(theta)
    ends = np.cumsum([leaf[..., 0].size for leaf in leaves])
    xi = jax.random.normal(key, (int(ends[-1]), leaves[0].shape[-1]), jnp.result_type(*leaves))
    pieces = [
        piece.reshape(leaf.shape).astype(leaf.dtype)
        for piece, leaf in zip(jnp.split(xi, ends[:-1]), leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, pieces)


def _steps_together(local_steps: int, size: int) -> int:
    """For how many steps noise is drawn at once: a divisor of all.

    Noise for some steps ahead is made in a loop by itself, whatever the gradient looks like; in one
    loop with a gradient that walks through memory in another order, the compiler gives up vector
    instructions, and a step takes twice as long.
    """
    most = max(_NOISE_AHEAD // size, 1)
    return max(step for step in range(1, min(most, local_steps) + 1) if local_steps % step == 0)
