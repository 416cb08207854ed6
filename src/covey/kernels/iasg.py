"""Iterate-averaged stochastic gradient (IASG): samples of a posterior from the path of any
optimiser.

Mandt, Hoffman and Blei (2017), "Stochastic gradient descent as approximate Bayesian inference", as
Al-Shedivat et al. (2021) use it (algorithm 4): after B steps of burn-in, each sample is the mean of
the next K iterates. The noise of minibatches takes the place of noise that is drawn. Once the path
is at rest, the mean of K iterates has about the covariance H^-1 C H^-1 / (K m), with H the
curvature of the mean loss, C the covariance of one row's gradient and m the rows of a minibatch: if
K m are the n rows of the client and C = H, as for a model that is true, this is the posterior's
(n H)^-1. It asks for independent minibatches, for K steps that are long beside 1 / (step size times
the smallest curvature), and for a burn-in that ends at rest; else the samples are narrower, or
spread along the way to the optimum.

"independent" minibatches are rows drawn anew for each step, as in that theory. "shuffled" ones are
those of `descend`, rows without replacement at each pass, and one sample of one step is then where
`descend` ends, to the last bit. But the noise of a whole pass adds up to nearly nothing: means over
passes hardly differ once the path is at rest.
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
    """The settings of the samples.

    Attributes:
        batch_size: Rows per step; None takes all rows.
        burn_in: Steps before the first sample (B).
        steps: Iterates averaged into one sample (K); None is one pass over the client's rows.
        minibatches: "shuffled" passes over the rows, or "independent" draws.
    """

    batch_size: int | None
    burn_in: int
    steps: int | None
    minibatches: Minibatches = "shuffled"


class Iterates(NamedTuple):
    """The state of a path.

    Attributes:
        path: Parameters, the optimiser's memory and the sum of losses.
        done: Steps done.
    """

    path: Trajectory
    done: Int[Array, ""]


def steps_of(data: Shard, plan: Averaging, samples: int) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The steps of one sample, and those of the burn-in and all samples.

    A client without rows makes none.

    Example:
        >>> from covey.core.shard import whole
        >>> each, total = steps_of(whole(jnp.ones(70)), Averaging(32, 5, None), samples=4)
        >>> int(each), int(total)  # a pass is three steps
        (3, 17)
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
    """The path after the burn-in; the optimiser starts with a new memory.

    Args:
        key: Random key of the minibatches.
        data: The client's rows.
        gradient: (parameters, batch) -> (loss, gradient).
        optimizer: Optax optimiser of the path.
        plan: Settings of the samples.
        start: The parameters before the first step.
    """
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
    """The mean of the next K iterates, and the path after them.

    The arguments are those of `burnt_in`, and the path so far. A client without rows stays where it
    is.

    Example:
        >>> from covey.core.shard import whole
        >>> from covey.kernels.descent import mean_gradient
        >>> gradient = mean_gradient(lambda z, y: -0.5 * (y - z) ** 2)
        >>> rows, plan = whole(jnp.array([1.0, 3.0])), Averaging(None, 1, 2)
        >>> local = (jax.random.key(0), rows, gradient, optax.sgd(0.5), plan)
        >>> mean, path = next_sample(*local, burnt_in(*local, jnp.array(0.0)))
        >>> float(mean), int(path.done)  # of 1.5 and 1.75, after the burn-in at 1
        (1.625, 3)
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
