"""Averages of clients' changes: what FedAvg and its relatives share.

    client:  Delta_i = what the client would subtract from the parameters, m_i = its weight
    server:  Delta = sum_i w_i m_i Delta_i / sum_i w_i m_i,   theta = server optimiser(theta, Delta)

w_i is the inverse participation probability. The methods differ in how a client solves its local
problem.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.core.algorithm import Aggregate, Algorithm, Empty, Local, no_state
from covey.core.shard import Shard
from covey.kernels.descent import Descent
from covey.models.model import Model

Weighting = Literal["rows", "equal"]


class State(NamedTuple):
    """The global parameters and the server optimiser's memory."""

    parameters: PyTree
    optimizer: PyTree


class Info(NamedTuple):
    """Mean loss of the minibatches on the way, and the number of local steps."""

    train_loss: Float[Array, ""]
    local_steps: Int[Array, ""]


# (key, broadcast parameters, data) -> (Delta_i, info)
Solver = Callable[[Key[Array, ""], PyTree, Shard], tuple[PyTree, Info]]


def averaging(
    name: str,
    model: Model,
    solve: Solver,
    *,
    server_optimizer: optax.GradientTransformation | None,
    weighting: Weighting,
) -> Algorithm:
    """A method of one global model from its local solver.

    Args:
        name: The method's name in reports.
        model: Log-likelihood to train.
        solve: (key, broadcast parameters, data) -> (Delta_i, info).
        server_optimizer: Optax optimiser of the averaged change; None is the plain average.
        weighting: Clients count by their rows ("rows") or equally ("equal").

    Returns:
        The method. Clients remember nothing.
    """
    check_weighting(weighting)
    optimizer = optax.sgd(1.0) if server_optimizer is None else server_optimizer

    def client(key, parameters, state, data):
        delta, info = solve(key, parameters, data)
        return Local(delta, Empty(), info, client_weight(data, weighting))

    return Algorithm(
        name=name,
        init=lambda key, spec: first_state(optimizer, model.init(key, spec)),
        broadcast=lambda state: state.parameters,
        server=lambda key, state, aggregate: (server_step(optimizer, state, aggregate), Empty()),
        init_client=no_state,
        client=client,
        commit=no_state,
        predict=lambda key, parameters, client_state, x: model.predictive(parameters, x),
        adapt=no_state,
    )


def first_state(optimizer: optax.GradientTransformation, parameters: PyTree) -> State:
    """The server's state before the first round."""
    return State(parameters, optimizer.init(parameters))


def change(parameters: PyTree, end: Descent) -> tuple[PyTree, Info]:
    """Delta_i = theta - theta_i."""
    delta = jax.tree.map(jnp.subtract, parameters, end.parameters)
    return delta, Info(end.loss, end.steps)


def check_weighting(weighting: str) -> None:
    """An error for a weighting that is not offered."""
    if weighting not in ("rows", "equal"):
        raise ValueError(f"weighting must be 'rows' or 'equal', got {weighting!r}")


def client_weight(data: Shard, weighting: Weighting) -> Float[Array, ""]:
    """The weight of a client in the average."""
    return data.count.astype(float) if weighting == "rows" else jnp.ones(())


def mean_change(aggregate: Aggregate) -> PyTree:
    """The weighted mean of the uploads; zero in a round in which nobody had a row."""
    total = jnp.where(aggregate.weight > 0, aggregate.weight, 1.0)
    return jax.tree.map(lambda s: s / total, aggregate.weighted)


def server_step(
    optimizer: optax.GradientTransformation, state: State, aggregate: Aggregate
) -> State:
    """The server's step along the averaged change."""
    updates, memory = optimizer.update(mean_change(aggregate), state.optimizer, state.parameters)
    return State(optax.apply_updates(state.parameters, updates), memory)
