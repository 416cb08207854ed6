"""Samples of a client's posterior as a stream: averaged iterates of an optimiser, or states of a
Markov kernel. Samples are displacements from the start, flat.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.core.shard import Shard, all_rows
from covey.kernels.descent import Gradient, mean_gradient
from covey.kernels.iasg import Averaging, burnt_in, next_sample
from covey.kernels.kernel import Kernel, StepSize, Target


class LocalSamples(NamedTuple):
    """A stream of samples.

    Attributes:
        trail: The sampler's state after its burn-in.
        sample: (trail, index) -> the next sample, and the trail after it.
        summary: (trail) -> loss on the way and local steps done.
    """

    trail: PyTree
    sample: Callable[[PyTree, Int[Array, ""]], tuple[Float[Array, " d"], PyTree]]
    summary: Callable[[PyTree], tuple[Float[Array, ""], Int[Array, ""]]]


class Transitions(NamedTuple):
    """The settings of a Markov kernel that makes samples.

    Attributes:
        kernel: The kernel.
        step_size: Its step size.
        burn_in: Transitions before the first sample.
        steps: Transitions per sample.
    """

    kernel: Kernel
    step_size: StepSize
    burn_in: int
    steps: int


def averaged_iterates(
    key: Key[Array, ""],
    data: Shard,
    gradient: Gradient,
    optimizer: optax.GradientTransformation,
    plan: Averaging,
    start: PyTree,
) -> LocalSamples:
    """Means of consecutive iterates of an optimiser; see `kernels.iasg`."""
    flat, _ = ravel_pytree(start)
    local = (key, data, gradient, optimizer, plan)

    def sample(trail, index):
        mean, trail = next_sample(*local, trail)
        return ravel_pytree(mean)[0] - flat, trail

    def summary(trail):
        return trail.path.loss / jnp.maximum(trail.done, 1), trail.done

    return LocalSamples(burnt_in(*local, start), sample, summary)


def kernel_states(
    key: Key[Array, ""],
    data: Shard,
    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]],
    plan: Transitions,
    count: int,
    start: PyTree,
) -> LocalSamples:
    """States of a Markov kernel of the client's posterior with a flat prior; `count` is the number
    of samples in all.
    """
    flat, unravel = ravel_pytree(start)
    posterior = Target(
        log_prior=lambda z: jnp.zeros((), z.dtype),
        log_likelihood=lambda z, rows: log_likelihood(unravel(z), rows),
        data=data,
    )
    kernel, step_size, burn_in, steps = plan

    def step(index, at):
        z, memory = at
        return kernel.step(jax.random.fold_in(key, index), posterior, z, memory, step_size)

    def sample(trail, index):
        first = burn_in + steps * index
        trail = jax.lax.fori_loop(first, first + steps, step, trail)
        return trail[0] - flat, trail

    def summary(trail):
        loss, _ = mean_gradient(log_likelihood)(unravel(trail[0]), all_rows(data))
        return loss, jnp.where(data.count > 0, burn_in + count * steps, 0)

    begun = (flat, kernel.begin(posterior, flat, kernel.init(flat)))
    return LocalSamples(jax.lax.fori_loop(0, burn_in, step, begun), sample, summary)
