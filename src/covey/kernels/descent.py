"""Local optimisation: minibatch steps of any Optax optimiser over one client's rows."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.core.shard import Batch, Shard, batches_of, shuffled

Carry = TypeVar("Carry")
# (parameters, batch) -> (loss, gradient)
Gradient = Callable[[PyTree, Batch], tuple[Float[Array, ""], PyTree]]


class Schedule(NamedTuple):
    """How long a client works in a round: `epochs` passes over its rows, or `steps` minibatches
    where that is given.
    """

    batch_size: int | None
    epochs: int
    steps: int | None


class Trajectory(NamedTuple):
    """On the way: where the steps have led so far, the optimiser's memory, and the sum of the
    batches' losses.
    """

    parameters: PyTree
    memory: PyTree
    loss: Float[Array, ""]


class Descent(NamedTuple):
    """Where the steps led, and the mean loss of the batches on the way."""

    parameters: PyTree
    loss: Float[Array, ""]
    steps: Int[Array, ""]


def schedule(*, batch_size: int | None, epochs: int, steps: int | None) -> Schedule:
    """A checked schedule. `batch_size=None` takes all rows of the client at each step."""
    for name, value in (("batch_size", batch_size), ("epochs", epochs), ("steps", steps)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    return Schedule(batch_size, epochs, steps)


def mean_gradient(log_likelihood: Callable[[PyTree, PyTree], Float[Array, " batch"]]) -> Gradient:
    """The loss of a batch, minus the mean log-likelihood of its rows, with its gradient."""

    def loss(parameters, batch):
        terms = jnp.where(batch.mask, log_likelihood(parameters, batch.rows), 0.0)
        return -jnp.sum(terms) / jnp.maximum(jnp.sum(batch.mask), 1)

    return jax.value_and_grad(loss)


def descend(
    key: Key[Array, ""],
    data: Shard,
    gradient: Gradient,
    optimizer: optax.GradientTransformation,
    plan: Schedule,
    start: PyTree,
) -> Descent:
    """Minibatches without replacement, shuffled anew at each pass; the optimiser starts fresh."""
    _, passes = batches_of(data, plan.batch_size)
    total = plan.epochs * passes if plan.steps is None else jnp.where(passes > 0, plan.steps, 0)
    return descend_steps(key, data, gradient, optimizer, plan.batch_size, total, start)


def descend_steps(
    key: Key[Array, ""],
    data: Shard,
    gradient: Gradient,
    optimizer: optax.GradientTransformation,
    batch_size: int | None,
    steps: Int[Array, ""],
    start: PyTree,
) -> Descent:
    """The same for a number of steps."""
    path = walk(
        key, data, batch_size, 0, steps, one_step(gradient, optimizer), begin(optimizer, start)
    )
    return Descent(path.parameters, path.loss / jnp.maximum(steps, 1), steps)


def begin(optimizer: optax.GradientTransformation, start: PyTree) -> Trajectory:
    """No step yet."""
    return Trajectory(start, optimizer.init(start), jnp.zeros(()))


def one_step(
    gradient: Gradient, optimizer: optax.GradientTransformation
) -> Callable[[Trajectory, Batch], Trajectory]:
    """A step of the optimiser along the gradient of a batch."""

    def step(path, batch):
        loss, slope = gradient(path.parameters, batch)
        updates, memory = optimizer.update(slope, path.memory, path.parameters)
        return Trajectory(optax.apply_updates(path.parameters, updates), memory, path.loss + loss)

    return step


def walk(
    key: Key[Array, ""],
    data: Shard,
    batch_size: int | None,
    first: int | Int[Array, ""],
    last: int | Int[Array, ""],
    step: Callable[[Carry, Batch], Carry],
    carry: Carry,
) -> Carry:
    """Carry a value through minibatches `first` to `last` - 1 of a client's endless row of passes,
    each shuffled anew.

    Which rows are in a minibatch depends on its number and the key alone, so that a walk in pieces
    is the walk as a whole.
    """
    size, passes = batches_of(data, batch_size)
    # Where a batch holds every row, their order changes nothing and the sort can be saved.
    order_matters = batch_size is not None and data.capacity > batch_size

    def one_pass(number, carry):
        order = (
            shuffled(jax.random.fold_in(key, number), data)
            if order_matters
            else jnp.arange(data.capacity)
        )

        def at_place(place, carry):
            index = place * size + jnp.arange(size)
            return step(
                carry, Batch(data.take(order.at[index].get(mode="clip")), index < data.count)
            )

        before = number * passes
        return jax.lax.fori_loop(
            jnp.maximum(first - before, 0), jnp.minimum(passes, last - before), at_place, carry
        )

    each = jnp.maximum(passes, 1)
    return jax.lax.fori_loop(first // each, -(-last // each), one_pass, carry)


def walk_at_random(
    key: Key[Array, ""],
    data: Shard,
    batch_size: int | None,
    first: int | Int[Array, ""],
    last: int | Int[Array, ""],
    step: Callable[[Carry, Batch], Carry],
    carry: Carry,
) -> Carry:
    """The same with rows that are drawn with replacement for each minibatch, independent of the
    others; None takes all rows.
    """
    if batch_size is None:
        return walk(key, data, None, first, last, step, carry)
    size = batch_size  # also where that is more than the capacity: numbers must not depend on it

    def at_place(number, carry):
        index = jax.random.randint(
            jax.random.fold_in(key, number), (size,), 0, jnp.maximum(data.count, 1)
        )
        return step(carry, Batch(data.take(index), jnp.broadcast_to(data.count > 0, (size,))))

    return jax.lax.fori_loop(first, last, at_place, carry)
