"""Iterate-averaged stochastic gradient (IASG): samples of a posterior from the path of any
optimiser.

Mandt, Hoffman and Blei (2017), "Stochastic gradient descent as approximate Bayesian inference", as
Al-Shedivat et al. (2021) use it (algorithm 4): after B steps of burn-in, each sample is the mean of
the next K iterates. The noise of minibatches takes the place of noise that is drawn. With K one
pass over the rows, and noise of the gradient that has the shape of the curvature, the samples have
about the covariance of the posterior whatever the step size is; a longer step makes them less
correlated.

"independent" minibatches are rows drawn anew for each step, as in that theory. "shuffled" ones are
those of `descend`, rows without replacement at each pass, and one sample of one step is then where
`descend` ends, to the last bit. But the noise of a whole pass adds up to nearly nothing: once the
path has come to rest, means over passes hardly differ, and what such samples know of the posterior
is the way on which they came.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, Key, PyTree

from covey.core.shard import Shard, batches_of
from covey.kernels.descent import Gradient, Trajectory, begin, one_step, walk, walk_at_random

Minibatches = Literal["shuffled", "independent"]


class Averaging(NamedTuple):
    """How samples are made: minibatches of `batch_size` rows (None: all), burn-in steps, and steps
    a sample (None: one pass).
    """

    batch_size: int | None
    burn_in: int
    steps: int | None
    minibatches: Minibatches = "shuffled"


class Iterates(NamedTuple):
    """Where the path is, and the number of steps done."""

    path: Trajectory
    done: Int[Array, ""]


def steps_of(data: Shard, plan: Averaging, samples: int) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The steps of one sample, and those of the burn-in and all samples. A client without rows
    makes none.
    """
    _, passes = batches_of(data, plan.batch_size)
    each = passes if plan.steps is None else jnp.where(passes > 0, plan.steps, 0)
    return each, jnp.where(passes > 0, plan.burn_in, 0) + samples * each


def burnt_in(
    key: Key[Array, ""],
    data: Shard,
    gradient: Gradient,
    optimizer: optax.GradientTransformation,
    plan: Averaging,
    start: PyTree,
) -> Iterates:
    """The path after the burn-in; the optimiser starts fresh."""
    path, (_, done) = begin(optimizer, start), steps_of(data, plan, 0)
    if plan.burn_in:
        path = _walk(plan)(key, data, plan.batch_size, 0, done, one_step(gradient, optimizer), path)
    return Iterates(path, done)


def next_sample(
    key: Key[Array, ""],
    data: Shard,
    gradient: Gradient,
    optimizer: optax.GradientTransformation,
    plan: Averaging,
    iterates: Iterates,
) -> tuple[PyTree, Iterates]:
    """The mean of the next K iterates, and the path after them. A client without rows stays where
    it is.
    """
    move, (steps, _) = one_step(gradient, optimizer), steps_of(data, plan, 0)

    def step(carry, batch):
        path, total = carry
        path = move(path, batch)
        return path, jax.tree.map(jnp.add, total, path.parameters)

    begun, (path, done) = jax.tree.map(jnp.zeros_like, iterates.path.parameters), iterates
    path, total = _walk(plan)(key, data, plan.batch_size, done, done + steps, step, (path, begun))
    mean = jax.tree.map(
        lambda sum_, at: jnp.where(steps > 0, sum_ / jnp.maximum(steps, 1), at),
        total,
        path.parameters,
    )
    return mean, Iterates(path, done + steps)


def _walk(plan: Averaging) -> Callable[..., PyTree]:
    return walk if plan.minibatches == "shuffled" else walk_at_random
