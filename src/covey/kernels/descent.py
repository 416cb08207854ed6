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
    """The length of a client's work in a round.

    Attributes:
        batch_size: Rows per minibatch; None takes all rows.
        epochs: Passes over the client's rows.
        steps: Minibatches, instead of `epochs`; None leaves it to them.
    """

    batch_size: int | None
    epochs: int
    steps: int | None


class Trajectory(NamedTuple):
    """The state of an optimisation.

    Attributes:
        parameters: The parameters after the steps so far.
        memory: The optimiser's memory.
        loss: Sum of the minibatches' losses.
    """

    parameters: PyTree
    memory: PyTree
    loss: Float[Array, ""]


class Descent(NamedTuple):
    """The result of an optimisation.

    Attributes:
        parameters: The parameters after the last step.
        loss: Mean loss of the minibatches on the way.
        steps: Number of steps.
    """

    parameters: PyTree
    loss: Float[Array, ""]
    steps: Int[Array, ""]


def schedule(*, batch_size: int | None, epochs: int, steps: int | None) -> Schedule:
    """A checked schedule.

    Args:
        batch_size: Rows per minibatch; None takes all rows of the client at each step.
        epochs: Passes over the client's rows.
        steps: Minibatches, instead of `epochs`; None leaves it to them.

    Example:
        >>> schedule(batch_size=32, epochs=2, steps=None)
        Schedule(batch_size=32, epochs=2, steps=None)
    """
    for name, value in (("batch_size", batch_size), ("epochs", epochs), ("steps", steps)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    return Schedule(batch_size, epochs, steps)


def mean_gradient(log_likelihood: Callable[[PyTree, PyTree], Float[Array, " batch"]]) -> Gradient:
    """The loss of a batch, minus the mean log-likelihood of its rows, and its gradient.

    Args:
        log_likelihood: (parameters, rows) -> log p(row | parameters), one value per row.

    Returns:
        (parameters, batch) -> (loss, gradient).

    Example:
        >>> gradient = mean_gradient(lambda z, y: -0.5 * (y - z) ** 2)
        >>> batch = Batch(jnp.array([1.0, 3.0, 9.0]), jnp.array([True, True, False]))
        >>> [float(value) for value in gradient(jnp.array(0.0), batch)]
        [2.5, -2.0]
    """

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
    """Minibatch steps by a schedule: rows without replacement, shuffled anew at each pass.

    Args:
        key: Random key of the shuffles.
        data: The client's rows.
        gradient: (parameters, batch) -> (loss, gradient).
        optimizer: Optax optimiser; it starts with a new memory.
        plan: Schedule of the steps.
        start: The parameters before the first step.

    Returns:
        The parameters after the last step, with the mean loss. A client without rows makes no step.

    Example:
        >>> from covey.core.shard import whole
        >>> gradient = mean_gradient(lambda z, y: -0.5 * (y - z) ** 2)
        >>> plan = schedule(batch_size=None, epochs=3, steps=None)
        >>> rows, start = whole(jnp.array([1.0, 3.0])), jnp.array(0.0)
        >>> end = descend(jax.random.key(0), rows, gradient, optax.sgd(0.5), plan, start)
        >>> float(end.parameters), int(end.steps)  # 2 (1 - 0.5^3)
        (1.75, 3)
    """
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
    """The same for a number of steps; the arguments are those of `descend`."""
    path = walk(
        key, data, batch_size, 0, steps, one_step(gradient, optimizer), begin(optimizer, start)
    )
    return Descent(path.parameters, path.loss / jnp.maximum(steps, 1), steps)


def begin(optimizer: optax.GradientTransformation, start: PyTree) -> Trajectory:
    """The state before the first step."""
    return Trajectory(start, optimizer.init(start), jnp.zeros(()))


def one_step(
    gradient: Gradient, optimizer: optax.GradientTransformation
) -> Callable[[Trajectory, Batch], Trajectory]:
    """A step of the optimiser along the gradient of a batch."""

    def step(path, batch):
        loss, gradients = gradient(path.parameters, batch)
        updates, memory = optimizer.update(gradients, path.memory, path.parameters)
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
    """Carry a value through minibatches `first` to `last` - 1 of passes that are shuffled anew.

    Which rows are in a minibatch depends on its index and the key alone, so that a walk in pieces
    is the walk as a whole.

    Args:
        key: Random key of the shuffles.
        data: The client's rows.
        batch_size: Rows per minibatch; None takes all.
        first: Index of the first minibatch, counted over all passes.
        last: Index after the last one.
        step: (value, minibatch) -> value.
        carry: The value before the first minibatch.

    Returns:
        The value after the last minibatch.

    Example:
        >>> from covey.core.shard import whole
        >>> rows = whole(jnp.array([1.0, 2.0, 4.0]))
        >>> add = lambda total, batch: total + jnp.sum(jnp.where(batch.mask, batch.rows, 0.0))
        >>> float(walk(jax.random.key(0), rows, 2, 0, 4, add, 0.0))  # two passes of two minibatches
        14.0
    """
    size, passes = batches_of(data, batch_size)
    # Where a batch holds every row, their order changes nothing and the sort can be saved.
    order_matters = batch_size is not None and data.capacity > batch_size

    def one_pass(index, carry):
        order = (
            shuffled(jax.random.fold_in(key, index), data)
            if order_matters
            else jnp.arange(data.capacity)
        )

        def one_batch(position, carry):
            rows = position * size + jnp.arange(size)
            taken = data.take(order.at[rows].get(mode="clip"))
            return step(carry, Batch(taken, rows < data.count))

        before = index * passes
        return jax.lax.fori_loop(
            jnp.maximum(first - before, 0), jnp.minimum(passes, last - before), one_batch, carry
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
    """The same with rows drawn with replacement for each minibatch, independent of the others.

    The arguments are those of `walk`; `batch_size=None` takes all rows.
    """
    if batch_size is None:
        return walk(key, data, None, first, last, step, carry)
    size = batch_size  # also where that is more than the capacity: values must not depend on it

    def one_batch(index, carry):
        rows = jax.random.randint(
            jax.random.fold_in(key, index), (size,), 0, jnp.maximum(data.count, 1)
        )
        return step(carry, Batch(data.take(rows), jnp.broadcast_to(data.count > 0, (size,))))

    return jax.lax.fori_loop(first, last, one_batch, carry)
