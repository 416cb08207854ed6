"""L2GD: personal models that are pulled towards their mean, at random times."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.algorithms.averaging import change, local_work, mean_change, need_positive
from covey.algorithms.fedprox import with_penalty
from covey.core.algorithm import Algorithm, Local, keep
from covey.core.shard import Shard
from covey.kernels.descent import descend, descend_steps, mean_gradient
from covey.models.catalogue import need
from covey.models.model import Model


class State(NamedTuple):
    """The server's state and the broadcast.

    Attributes:
        mean: The mean of the clients' models.
        pulls: Steps towards it before the next local ones.
        steps: Local steps after them.
    """

    mean: PyTree
    pulls: Int[Array, ""]
    steps: Int[Array, ""]


class Personal(NamedTuple):
    """A client's model, x_i."""

    parameters: PyTree


class Report(NamedTuple):
    """The iterations of the paper that the next round stands for."""

    iterations: Int[Array, ""]


def l2gd(
    model: Model,
    *,
    proximal: int | float,
    chance: float = 0.2,
    step_size: int | float = 0.1,
    batch_size: int | None = None,
    adapt_epochs: int = 50,
) -> Algorithm:
    """L2GD: gradient descent on personal models with a penalty on their distance to the mean.

    The objective, over x_1, ..., x_b, is the mean over clients of

        F_i(x_i) + (lambda / 2) ||x_i - m||^2,    m = mean of the x_i

    All clients share a coin. In each iteration, with probability 1 - p and p,

        local:  x_i <- x_i - eta grad F_i(x_i)
        pull:   x_i <- x_i - theta (x_i - m),    theta = eta lambda (1 - p) / p

    The two have the direction of the gradient on average. Local iterations need no message, and a
    pull after another needs none, because pulls leave m where it is. So a round here is what lies
    between two messages: a few pulls towards the newest mean, then some local steps, then one
    upload. The server tosses the coin: both counts are geometric, 1 / (1 - p) and 1 / p on average.
    lambda = 0 is local training.

    Args:
        model: Model to train, from `covey.models`.
        proximal: Strength of the penalty (lambda in the paper), at least 0.
        chance: Probability of a pull (p in the paper), between 0 and 1. A share
            p (1 - p) of all iterations has a message.
        step_size: Step size of the local steps (alpha / (b (1 - p)) in the paper).
        batch_size: Rows per local step; None, the default, uses all rows as in the paper.
        adapt_epochs: Passes over its rows that an unseen client trains its model for, with m fixed.

    Returns:
        A method for `covey.run`. A client's state is its model. Each round reports the
        `iterations` of the paper that the next one stands for.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=3, rows=10, dimensions=2, heterogeneity=0.5)
        >>> method = covey.l2gd(covey.models.linear(), proximal=0.1)
        >>> covey.run(method, data, rounds=40, seed=1).evaluate(split="train").pooled["mse"] < 0.1
        True

    Reference: Hanzely and Richtarik (2020), Federated learning of a mixture of global and local
    models, algorithm 1.

    Departures from the paper: step sizes are those of a client and do not depend on the number of
    clients. Where only some clients take part, m is the mean of their models.
    """
    need(model, Model, "l2gd")
    pull = _checked_pull(proximal, chance, step_size)
    plan = local_work("l2gd", batch_size=batch_size, epochs=adapt_epochs, prefix="adapt_")
    gradient = mean_gradient(model.log_likelihood)
    optimizer = optax.sgd(step_size)

    def client(key, down, personal, data):
        start = pulled(personal.parameters, down.mean, pull, down.pulls)
        steps = jnp.where(data.count > 0, down.steps, 0)
        end = descend_steps(key, data, gradient, optimizer, batch_size, steps, start)
        delta, info = change(down.mean, end)
        return Local(delta, Personal(end.parameters), info)

    def server(key, state, aggregate):
        mean = jax.tree.map(jnp.subtract, state.mean, mean_change(aggregate))
        new = State(mean, *runs_of_coin(key, chance))
        return new, Report(new.pulls + new.steps)

    def adapt(key: Key[Array, ""], down: State, data: Shard) -> Personal:
        near = with_penalty(gradient, proximal, down.mean)
        return Personal(descend(key, data, near, optimizer, plan, down.mean).parameters)

    def init(key, spec):
        # The model starts as that of other methods do; the coin has its own key.
        return State(model.init(key, spec), *runs_of_coin(jax.random.fold_in(key, 1), chance))

    return Algorithm(
        name="l2gd",
        init=init,
        broadcast=lambda state: state,
        server=server,
        init_client=lambda key, down, data: Personal(down.mean),
        client=client,
        commit=keep,
        predict=lambda key, down, personal, x: model.predictive(personal.parameters, x),
        adapt=adapt,
    )


def runs_of_coin(key: Key[Array, ""], chance: float) -> tuple[Int[Array, ""], Int[Array, ""]]:
    """The count of pulls in a row, and of local steps after them."""
    for_pulls, for_steps = jax.random.split(key)
    pulls = jax.random.geometric(for_pulls, 1 - chance, dtype=jnp.int32)
    return pulls, jax.random.geometric(for_steps, chance, dtype=jnp.int32)


def pulled(parameters: PyTree, mean: PyTree, pull: float, times: Int[Array, ""]) -> PyTree:
    """Parameters x after some pulls: m + (1 - theta)^times (x - m)."""
    left: Float[Array, ""] = jnp.power(1 - pull, times.astype(float))
    return jax.tree.map(lambda x, m: m + left * (x - m), parameters, mean)


def _checked_pull(proximal: int | float, chance: float, step_size: int | float) -> float:
    """theta, the share of the way to the mean that a pull goes."""
    need_positive("l2gd", step_size=step_size)
    if not 0 <= proximal < math.inf:
        raise ValueError(f"l2gd: proximal must be at least 0 and finite, got {proximal:g}")
    if not 0 < chance < 1:
        raise ValueError(f"l2gd: chance must be above 0 and below 1, got {chance:g}")
    pull = step_size * proximal * (1 - chance) / chance
    if not pull <= 1:
        raise ValueError(
            f"l2gd: with proximal={proximal:g}, chance={chance:g} and step_size={step_size:g} a "
            f"pull goes {pull:.3g} times the way to the mean, and beyond 1 models overshoot it; "
            f"choose step_size up to {step_size / pull:.3g}, or a larger chance"
        )
    return pull
