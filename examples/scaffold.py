"""SCAFFOLD: a method outside of the package, in one file."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from covey.algorithms.averaging import change, local_work, mean_change
from covey.core import tree
from covey.core.algorithm import Algorithm, Empty, Local
from covey.kernels.descent import descend, mean_gradient
from covey.models import Model, need


class State(NamedTuple):
    """The server's state: the model x, the control variate c, and the number of clients b."""

    model: PyTree
    control: PyTree
    clients: Float[Array, ""]


class Pair(NamedTuple):
    """A model and a control variate. Broadcast: x and c. Upload: x - y and the change of c_i."""

    model: PyTree
    control: PyTree


def scaffold(
    model: Model,
    *,
    step_size: int | float = 0.1,
    server_step: int | float = 1.0,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
) -> Algorithm:
    """SCAFFOLD: control variates correct the clients' drift; the fixed point is the optimum.

        client:  K steps y <- y - eta (g_i(y) - c_i + c) from x
                 c_i' = c_i - c + (x - y) / (K eta);    sends x - y and c_i' - c_i
        server:  x = x - eta_g mean over A of (x - y);    c = c + (1/b) sum over A of (c_i' - c_i)

    A is the cohort, b the number of all clients, K the steps that client i has really made. c_i
    moves by what was sent, also through a lossy channel, so that c is always the mean of all c_i.

    Args:
        model: Model to train, from `covey.models`.
        step_size: Step size of the clients' SGD (eta in the paper).
        server_step: Step size of the server (eta_g in the paper).
        batch_size: Rows per minibatch; None uses all rows of the client at each step.
        epochs: Passes over the client's rows per round.
        steps: Minibatch steps per round, in place of `epochs`.

    Returns:
        A method for `covey.run`. It minimises the mean of the clients' mean losses; a client's
        state is c_i.

    Reference: Karimireddy et al. (2020), SCAFFOLD: stochastic controlled averaging for federated
    learning, algorithm 1 with option II.
    """
    need(model, Model, "scaffold")
    for name, value in (("step_size", step_size), ("server_step", server_step)):
        if not 0 < value < math.inf:
            raise ValueError(f"scaffold: {name} must be above 0 and finite, got {value:g}")
    plan = local_work("scaffold", batch_size=batch_size, epochs=epochs, steps=steps)
    gradient = mean_gradient(model.log_likelihood)

    def init(key, spec):
        start = model.init(key, spec)
        return State(start, _zeros(start), jnp.asarray(spec.clients, float))

    def client(key, down, control, data):
        def corrected(y, batch):
            loss, own = gradient(y, batch)
            return loss, jax.tree.map(lambda g, ci, c: g - ci + c, own, control, down.control)

        end = descend(key, data, corrected, optax.sgd(step_size), plan, down.model)
        delta, info = change(down.model, end)
        path = step_size * jnp.maximum(end.steps, 1)
        moved = jax.tree.map(lambda d, c: d / path - c, delta, down.control)
        # A client without rows makes no step and keeps its c_i.
        moved = tree.where(end.steps > 0, moved, _zeros(moved))
        return Local(Pair(delta, moved), control, info)

    def server(key, state, aggregate):
        delta, moved = mean_change(aggregate).model, aggregate.plain.control
        x = jax.tree.map(lambda x, d: x - server_step * d, state.model, delta)
        c = jax.tree.map(lambda c, sent: c + sent / state.clients, state.control, moved)
        return State(x, c, state.clients), Empty()

    return Algorithm(
        name="scaffold",
        init=init,
        broadcast=lambda state: Pair(state.model, state.control),
        server=server,
        init_client=lambda key, down, data: _zeros(down.control),
        client=client,
        commit=lambda control, sent: jax.tree.map(jnp.add, control, sent.control),
        predict=lambda key, down, control, x: model.predictive(down.model, x),
        adapt=lambda key, down, data: _zeros(down.control),
    )


def _zeros(like: PyTree) -> PyTree:
    return jax.tree.map(jnp.zeros_like, like)
