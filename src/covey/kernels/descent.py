"""Local optimisation: minibatch steps of any Optax optimiser over one client's rows."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.core.shard import Batch, Shard, batches_of, shuffled

# (parameters, batch) -> (loss, gradient)
Gradient = Callable[[PyTree, Batch], tuple[Float[Array, ""], PyTree]]


class Schedule(NamedTuple):
    """How long a client works in a round: `epochs` passes over its rows, or `steps` minibatches where that is given."""

    batch_size: int | None
    epochs: int
    steps: int | None


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
    size, passes = batches_of(data, plan.batch_size)
    total = plan.epochs * passes if plan.steps is None else jnp.where(passes > 0, plan.steps, 0)
    # Where a batch holds every row, their order changes nothing and the sort can be saved.
    order_matters = plan.batch_size is not None and data.capacity > plan.batch_size

    def epoch(number, carry):
        order = shuffled(jax.random.fold_in(key, number), data) if order_matters else jnp.arange(data.capacity)

        def step(place, carry):
            parameters, memory, loss_sum = carry
            index = place * size + jnp.arange(size)
            batch = Batch(data.take(order.at[index].get(mode="clip")), index < data.count)
            loss, slope = gradient(parameters, batch)
            updates, memory = optimizer.update(slope, memory, parameters)
            return optax.apply_updates(parameters, updates), memory, loss_sum + loss

        return jax.lax.fori_loop(0, jnp.minimum(passes, total - number * passes), step, carry)

    epochs = -(-total // jnp.maximum(passes, 1))
    carry = (start, optimizer.init(start), jnp.zeros(()))
    parameters, _, loss_sum = jax.lax.fori_loop(0, epochs, epoch, carry)
    return Descent(parameters, loss_sum / jnp.maximum(total, 1), total)
