"""FedAvg, and adaptive federated optimisation.

McMahan et al. (2017), "Communication-efficient learning of deep networks from decentralized data",
algorithm 1, in the generalised form of Reddi et al. (2021), "Adaptive federated optimization",
algorithm 1: the averaged change of the clients is a pseudo-gradient for a server optimiser.

    client:  theta_i = local optimiser from theta on D_i,    Delta_i = theta - theta_i
    server:  Delta = sum_i w_i Delta_i / sum_i w_i,          theta = server optimiser(theta, Delta)

w_i is the number of rows of client i (or 1), times the inverse of its participation probability.
Server SGD with step 1 is FedAvg; with momentum FedAvgM; Adam, Yogi and Adagrad give FedAdam,
FedYogi and FedAdagrad.

Example:
    method = covey.fedavg(covey.models.logistic(), client_optimizer=optax.sgd(0.1),
    server_optimizer=optax.adam(0.01))
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.core.algorithm import Aggregate, Algorithm, Empty, Local, no_state
from covey.core.shard import Shard
from covey.kernels.descent import Descent, descend, mean_gradient, schedule
from covey.models.measure import measure
from covey.models.model import Model

Weighting = Literal["rows", "equal"]
# (key, broadcast parameters, data) -> (Delta_i, info): what a client would subtract from the
# parameters
Solver = Callable[[Key[Array, ""], PyTree, Shard], tuple[PyTree, "Info"]]


class State(NamedTuple):
    """The global parameters and the server optimiser's memory."""

    parameters: PyTree
    optimizer: PyTree


class Up(NamedTuple):
    """A client's change, times its weight: the server sees the two sums and divides them."""

    delta: PyTree
    weight: Float[Array, ""]


class Info(NamedTuple):
    """Mean loss of the minibatches on the way, and the number of local steps."""

    train_loss: Float[Array, ""]
    local_steps: Int[Array, ""]


def fedavg(
    model: Model,
    *,
    client_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """FedAvg with any client and server optimiser (default: SGD 0.1 at the client, the plain
    average at the server).

    A client makes `epochs` passes over its rows a round, or `steps` minibatch steps where given.
    `batch_size=None` uses all rows at each step. `weighting` averages clients by their rows, or
    equally.
    """
    gradient = mean_gradient(model.log_likelihood)
    plan = schedule(batch_size=batch_size, epochs=epochs, steps=steps)
    optimizer = optax.sgd(0.1) if client_optimizer is None else client_optimizer

    def solve(key, parameters, data):
        return change(parameters, descend(key, data, gradient, optimizer, plan, parameters))

    return averaging("fedavg", model, solve, server_optimizer=server_optimizer, weighting=weighting)


def averaging(
    name: str,
    model: Model,
    solve: Solver,
    *,
    server_optimizer: optax.GradientTransformation | None,
    weighting: Weighting,
) -> Algorithm:
    """The frame that FedAvg shares with its relatives: they differ in how a client solves its local
    problem.
    """
    check_weighting(weighting)
    optimizer = optax.sgd(1.0) if server_optimizer is None else server_optimizer

    def init(key, spec):
        parameters = model.init(key, spec)
        return State(parameters, optimizer.init(parameters))

    def client(key, parameters, state, data):
        delta, info = solve(key, parameters, data)
        weight = client_weight(data, weighting)
        return Local(Up(jax.tree.map(lambda d: weight * d, delta), weight), Empty(), info)

    def server(key, state, aggregate):
        return descend_server(optimizer, state, aggregate), Empty()

    def evaluate(key, parameters, client_state, data):
        return measure(lambda x: model.predictive(parameters, x), data)

    return Algorithm(
        name=name,
        init=init,
        init_client=no_state,
        broadcast=lambda state: state.parameters,
        client=client,
        commit=no_state,
        server=server,
        evaluate=evaluate,
        predict=lambda key, parameters, client_state, x: model.predictive(parameters, x),
        adapt=no_state,
    )


def change(parameters: PyTree, end: Descent) -> tuple[PyTree, Info]:
    """Delta_i = theta - theta_i."""
    return jax.tree.map(jnp.subtract, parameters, end.parameters), Info(end.loss, end.steps)


def check_weighting(weighting: str) -> None:
    """There are two ways to weigh clients."""
    if weighting not in ("rows", "equal"):
        raise ValueError(f"weighting must be 'rows' or 'equal', got {weighting!r}")


def client_weight(data: Shard, weighting: Weighting) -> Float[Array, ""]:
    """What a client counts for in the average."""
    return data.count.astype(float) if weighting == "rows" else jnp.ones(())


def descend_server(
    optimizer: optax.GradientTransformation, state: State, aggregate: Aggregate
) -> State:
    """The server's step along the averaged change. A round in which nobody had a row changes
    nothing.
    """
    total = aggregate.weighted.weight
    delta = jax.tree.map(lambda s: s / jnp.where(total > 0, total, 1.0), aggregate.weighted.delta)
    updates, memory = optimizer.update(delta, state.optimizer, state.parameters)
    return State(optax.apply_updates(state.parameters, updates), memory)
