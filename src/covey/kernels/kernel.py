"""Local samplers: a Markov kernel for a client's posterior, and chains of its transitions."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from covey.core.algorithm import Empty
from covey.core.shard import Batch, Shard, all_rows, whole

StepSize: TypeAlias = float | Float[Array, ""]

EXAMPLE = (lambda z, y: -0.5 * (y - z[0]) ** 2, np.array([1.0, 2.0, 6.0]), np.zeros(1))
"""A log-likelihood, rows and a start to try kernels on: the posterior is N(3, 1 / 3)."""


class Target(NamedTuple):
    """The target of a kernel: the posterior p(z | D_i) of one client, up to a constant.

    Attributes:
        log_prior: (z) -> log p(z).
        log_likelihood: (z, rows) -> log p(row | z), one value per row.
        data: The client's rows.
    """

    log_prior: Callable[[PyTree], Float[Array, ""]]
    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]]
    data: Shard

    def log_density(self, z: PyTree, batch: Batch | None = None) -> Float[Array, ""]:
        """The sum log p(z) + (n / m) sum over the m rows of the batch of log p(row | z).

        It is unbiased if the batch is a random one; without a batch all rows count.
        """
        batch = all_rows(self.data) if batch is None else batch
        terms = jnp.where(batch.mask, self.log_likelihood(z, batch.rows), 0.0)
        scale = self.data.count / jnp.maximum(jnp.sum(batch.mask), 1)
        return self.log_prior(z) + scale * jnp.sum(terms)


class Kernel(NamedTuple):
    """A Markov kernel; `covey.kernels` has several.

    Attributes:
        step: (key, posterior, z, memory, step size) -> (z, memory), one transition. The memory is
            what a sampler carries beside z; a client keeps it from round to round.
        init: (z) -> memory, at a client's first round.
        begin: (posterior, z, memory) -> memory, before the first transition of a round, when the
            posterior is a new one.
    """

    step: Callable[[Key[Array, ""], Target, PyTree, PyTree, StepSize], tuple[PyTree, PyTree]]
    init: Callable[[PyTree], PyTree] = lambda z: Empty()
    begin: Callable[[Target, PyTree, PyTree], PyTree] = lambda posterior, z, memory: memory


def memoryless(move: Callable[[Key[Array, ""], Target, PyTree, StepSize], PyTree]) -> Kernel:
    """The kernel of a transition that carries nothing beside z.

    Args:
        move: (key, posterior, z, step size) -> z.
    """
    return Kernel(
        lambda key, posterior, z, memory, step_size: (move(key, posterior, z, step_size), memory)
    )


class Chain(NamedTuple):
    """States of a chain.

    Attributes:
        draws: The states after each transition, in order, on the leading axis.
        memory: The kernel's memory after the last one.
    """

    draws: PyTree
    memory: PyTree


def chain(
    key: Key[Array, ""],
    kernel: Kernel,
    posterior: Target,
    start: PyTree,
    memory: PyTree,
    *,
    step_size: StepSize,
    burn_in: int,
    draws: int,
) -> Chain:
    """A chain of `burn_in + draws` transitions, of which the last `draws` are kept.

    Args:
        key: Random key; each transition has another.
        kernel: The Markov kernel.
        posterior: The target.
        start: The state before the first transition.
        memory: The kernel's memory; `kernel.init(start)` for a new chain.
        step_size: Step size of the kernel.
        burn_in: Transitions before the first draw.
        draws: Number of draws.

    Returns:
        The draws, and the memory to continue with.

    Example:
        >>> kernel = memoryless(lambda key, posterior, z, step_size: z + step_size)
        >>> posterior = Target(lambda z: 0.0, lambda z, y: 0.0 * y, whole(jnp.ones(3)))
        >>> settings = {"step_size": 0.5, "burn_in": 4, "draws": 2}
        >>> chain(
        ...     jax.random.key(0), kernel, posterior, jnp.zeros(()), Empty(), **settings
        ... ).draws.tolist()
        [2.5, 3.0]
    """

    def step(index, at):
        z, memory = at
        return kernel.step(jax.random.fold_in(key, index), posterior, z, memory, step_size)

    def kept(at, index):
        at = step(index, at)
        return at, at[0]

    begin = jax.lax.fori_loop(0, burn_in, step, (start, kernel.begin(posterior, start, memory)))
    (_, memory), states = jax.lax.scan(kept, begin, burn_in + jnp.arange(draws))
    return Chain(states, memory)


def sample(
    kernel: Kernel,
    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]],
    rows: PyTree,
    start: PyTree,
    *,
    step_size: StepSize,
    draws: int = 1000,
    burn_in: int = 100,
    seed: int = 0,
) -> PyTree:
    """Draws of the posterior of some rows with a flat prior: a kernel by itself, without a run.

    Args:
        kernel: The Markov kernel.
        log_likelihood: (z, rows) -> log p(row | z), one value per row.
        rows: Arrays with the row as the leading axis.
        start: The state before the first transition.
        step_size: Step size of the kernel.
        draws: Number of draws.
        burn_in: Transitions before the first draw.
        seed: Seed of the random numbers.

    Returns:
        The draws, on the leading axis.

    Example:
        >>> from covey.kernels import ula
        >>> draws = sample(ula(), *EXAMPLE, step_size=0.1)
        >>> draws.shape
        (1000, 1)
    """
    posterior = Target(lambda z: jnp.zeros(()), log_likelihood, whole(rows))
    begin = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), start)
    settings = {"step_size": step_size, "burn_in": burn_in, "draws": draws}
    key, memory = jax.random.key(seed, impl="threefry2x32"), kernel.init(begin)
    return chain(key, kernel, posterior, begin, memory, **settings).draws
