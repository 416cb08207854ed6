"""What a local sampler is: a Markov kernel for a client's posterior, and a chain of its
transitions.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from covey.core.algorithm import Empty
from covey.core.shard import Batch, Shard, all_rows

StepSize: TypeAlias = float | Float[Array, ""]


class Target(NamedTuple):
    """What a kernel samples: p(z | D_i) of one client, up to a constant.

    log_prior: (z) -> log p(z).
    log_likelihood: (z, rows) -> log p(row | z) by row.
    data: the client's rows.
    """

    log_prior: Callable[[PyTree], Float[Array, ""]]
    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]]
    data: Shard

    def log_density(self, z: PyTree, batch: Batch | None = None) -> Float[Array, ""]:
        """The sum log p(z) + n / batch sum over the batch of log p(row | z): unbiased if the batch
        is a random one.
        """
        batch = all_rows(self.data) if batch is None else batch
        terms = jnp.where(batch.mask, self.log_likelihood(z, batch.rows), 0.0)
        scale = self.data.count / jnp.maximum(jnp.sum(batch.mask), 1)
        return self.log_prior(z) + scale * jnp.sum(terms)


class Kernel(NamedTuple):
    """A Markov kernel. `memory` is what a sampler carries beside z; a client keeps it from round to
    round.

    step: (key, posterior, z, memory, step size) -> (z, memory): one transition.
    init: (z) -> memory, at a client's first round.
    begin: (posterior, z, memory) -> memory, before the first transition of a round, when the
        posterior is a new one.
    """

    step: Callable[[Key[Array, ""], Target, PyTree, PyTree, StepSize], tuple[PyTree, PyTree]]
    init: Callable[[PyTree], PyTree] = lambda z: Empty()
    begin: Callable[[Target, PyTree, PyTree], PyTree] = lambda posterior, z, memory: memory


def memoryless(move: Callable[[Key[Array, ""], Target, PyTree, StepSize], PyTree]) -> Kernel:
    """The kernel of a transition (key, posterior, z, step size) -> z that carries nothing else."""
    return Kernel(
        lambda key, posterior, z, memory, step_size: (move(key, posterior, z, step_size), memory)
    )


class Chain(NamedTuple):
    """States after transitions, stacked in order; the last one, with the memory, is where to go on
    from.
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
    """The states after each of the last `draws` of `burn_in + draws` transitions."""

    def step(number, at):
        z, memory = at
        return kernel.step(jax.random.fold_in(key, number), posterior, z, memory, step_size)

    def kept(at, number):
        at = step(number, at)
        return at, at[0]

    begin = jax.lax.fori_loop(0, burn_in, step, (start, kernel.begin(posterior, start, memory)))
    (_, memory), states = jax.lax.scan(kept, begin, burn_in + jnp.arange(draws))
    return Chain(states, memory)
