"""Mime: MimeLite with a control variate against the drift of clients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PyTree

from covey.algorithms import averaging
from covey.algorithms.averaging import (
    Info,
    Weighting,
    change,
    check_weighting,
    client_weight,
    local_work,
    mean_change,
)
from covey.algorithms.clustered import whole_gradient
from covey.algorithms.mimelite import frozen_steps
from covey.core import tree
from covey.core.algorithm import Algorithm, Empty, Local, no_state
from covey.core.shard import some_rows
from covey.kernels.descent import descend, mean_gradient
from covey.models.catalogue import need
from covey.models.model import Model


class State(NamedTuple):
    """The server's state and the broadcast.

    Attributes:
        shared: x, and the statistics s.
        control: c, the mean gradient at x; of use in odd rounds.
        round: Rounds done. Gradients are sent in even rounds and changes in odd ones.
    """

    shared: averaging.State
    control: PyTree
    round: Int[Array, ""]


def mime(
    model: Model,
    *,
    step_size: int | float = 0.1,
    momentum: int | float = 0.9,
    statistics: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """Mime: local steps that mimic those of a server with all gradients, momentum included.

        even rounds:  client sends grad F_i(x), of all its rows;    server: c = their mean
        odd rounds:   client sends x - y_i,  y_i = steps from x of
                          y <- y - eta ((1 - beta)(g_i(y; B) - g_i(x; B) + c) + beta s)
                      server: x = mean of y_i;    s = (1 - beta) c + beta s

    The minibatch B is the same at y and at x, so that where y is near x every client steps along
    the mean gradient c, however different clients are: with one local step this is gradient descent
    with momentum on all rows.

    Args:
        model: Model to train, from `covey.models`.
        step_size: Step size of the clients' steps (eta in the paper).
        momentum: Share of the old momentum (beta in the paper), at least 0 and below 1.
        statistics: Optax transformation in place of momentum, e.g. `optax.scale_by_adam()`: its
            memory is the server's, and clients apply it without changing it. Default: momentum.
        batch_size: Rows per minibatch; None uses all rows of the client at each step.
        epochs: Passes over the client's rows in an odd round. A step takes two gradients.
        steps: Minibatch steps in an odd round, in place of `epochs`.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`, without client state. Two rounds of a run are one of the paper;
        the shared model moves in every second.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=4, rows=10, dimensions=2, heterogeneity=0.5)
        >>> run = covey.run(covey.mime(covey.models.linear(), epochs=5), data, rounds=60, seed=1)
        >>> run.evaluate(split="train").pooled["mse"] < 0.25
        True

    Reference: Karimireddy et al. (2021), Breaking the centralized barrier for cross-device
    federated learning, algorithm 1.

    Departures from the paper: a round of the paper has two exchanges with one cohort; here they are
    two rounds, which may have different cohorts.
    """
    need(model, Model, "mime")
    check_weighting(weighting, "mime")
    frozen = frozen_steps("mime", step_size, momentum, statistics)
    plan = local_work("mime", batch_size=batch_size, epochs=epochs, steps=steps)
    gradient = mean_gradient(model.log_likelihood)

    def init(key, spec):
        shared = averaging.first_state(frozen.optimizer, model.init(key, spec))
        return State(shared, optax.tree.zeros_like(shared.parameters), jnp.int32(0))

    def client(key, down, state, data):
        x = down.shared.parameters

        def corrected(y, batch):
            loss, at_y = gradient(y, batch)
            _, at_x = gradient(x, batch)
            return loss, jax.tree.map(lambda y, x, c: y - x + c, at_y, at_x, down.control)

        def steps():
            end = descend(key, data, corrected, frozen.local(down.shared), plan, x)
            return change(x, end._replace(steps=end.steps.astype(jnp.int32)))

        def gradients():
            loss, _ = gradient(x, some_rows(key, data, plan.batch_size))
            return whole_gradient(gradient, x, data), Info(loss, jnp.int32(0))

        up, info = jax.lax.cond(_is_even(down), gradients, steps)
        return Local(up, Empty(), info, client_weight(data, weighting))

    def server(key, state, aggregate):
        mean, even = mean_change(aggregate), _is_even(state)
        control = tree.where(even, mean, state.control)
        moved = frozen.moved(state.shared, mean, state.control)
        return State(tree.where(even, state.shared, moved), control, state.round + 1), Empty()

    return Algorithm(
        name="mime",
        init=init,
        broadcast=lambda state: state,
        server=server,
        init_client=no_state,
        client=client,
        commit=no_state,
        predict=lambda key, down, client_state, x: model.predictive(down.shared.parameters, x),
        adapt=no_state,
    )


def _is_even(state: State) -> Array:
    return state.round % 2 == 0
