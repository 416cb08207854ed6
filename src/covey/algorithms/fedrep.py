"""FedRep: a shared representation, and a head for each client."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import optax
from jaxtyping import Array, Float, Key, PyTree

from covey.algorithms import averaging
from covey.algorithms.averaging import (
    Info,
    Weighting,
    change,
    check_weighting,
    client_weight,
    first_state,
    local_work,
    optimizer_or,
    server_step,
)
from covey.core.algorithm import Algorithm, Empty, Local, keep
from covey.core.shard import Shard
from covey.kernels.descent import Descent, Schedule, descend, mean_gradient
from covey.models.catalogue import need
from covey.models.mixed import MixedModel


class State(NamedTuple):
    """phi with the memory of the server optimiser, and the initial head of every client."""

    shared: averaging.State
    head: Float[Array, " head"]


class Pair(NamedTuple):
    """phi and a head. Broadcast: the newest phi, and the initial head for clients without one."""

    phi: PyTree
    head: Float[Array, " head"]


class Personal(NamedTuple):
    """A client's head."""

    head: Float[Array, " head"]


# (key, phi and the client's head, data) -> (Delta_i, the client's new head, info)
Solver = Callable[[Key[Array, ""], Pair, Shard], tuple[PyTree, Float[Array, " head"], Info]]


def fedrep(
    model: MixedModel,
    *,
    head_optimizer: optax.GradientTransformation | None = None,
    body_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    head_epochs: int = 10,
    head_steps: int | None = None,
    body_epochs: int = 1,
    body_steps: int | None = None,
    adapt_epochs: int = 50,
    weighting: Weighting = "equal",
) -> Algorithm:
    """FedRep: clients share a representation phi and each trains a head z_i, which stays with it.

    The objective is the mean over clients of min over z of F_i(phi, z). F_i is the mean loss:

        client:  z_i   = optimiser steps on F_i(phi, .) from the z_i of its last round
                 phi_i = optimiser steps on F_i(., z_i) from phi,    Delta_i = phi - phi_i
        server:  phi = server optimiser(phi, sum_i w_i Delta_i / sum_i w_i)

    Many head steps approach the inner minimum, which the paper's analysis assumes. An unseen client
    trains a head with phi fixed; without rows it keeps the initial head. (`fedpop` has a law of the
    effects, which says more about such a client.) With no personal parameters in the model this is
    FedAvg, with no shared ones local training.

    Args:
        model: Mixed model, e.g. `covey.models.mixed_mlp()` or `split_network(model)`: phi are its
            shared parameters, z its effects.
        head_optimizer: Optax optimiser of the steps on the head. Default: SGD with step size 0.1.
        body_optimizer: Optax optimiser of the steps on phi. Default: SGD with step size 0.1.
        server_optimizer: Optax optimiser that takes the averaged change of phi as its gradient.
            Default: the plain average.
        batch_size: Rows per minibatch; None uses all rows of the client at each step.
        head_epochs: Passes over the client's rows for its head per round; 10 in the paper.
        head_steps: Minibatch steps for the head per round, in place of `head_epochs` (tau).
        body_epochs: Passes over the client's rows for phi per round; 1 in the paper.
        body_steps: Minibatch steps for phi per round, in place of `body_epochs`.
        adapt_epochs: Passes over its rows that an unseen client trains its head for.
        weighting: Whether clients count equally ("equal", as in the paper) or by their training
            rows ("rows").

    Returns:
        A method for `covey.run`. A client's state is its head.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=4, rows=10, dimensions=2, heterogeneity=0.5)
        >>> model = covey.models.linear_map(effects=2)
        >>> run = covey.run(covey.fedrep(model), data, rounds=20, seed=1)
        >>> run.evaluate(split="train").pooled["mse"] < 0.05
        True

    Reference: Collins, Hassani, Mokhtari and Shakkottai (2021), Exploiting shared representations
    for personalized federated learning, algorithm 1.

    Departures from the paper: none with the default options; the server optimiser and weights by
    rows are additions.
    """
    need(model, MixedModel, "fedrep")
    for_head = optimizer_or(optax.sgd(0.1), head_optimizer, "head_optimizer", "fedrep")
    for_body = optimizer_or(optax.sgd(0.1), body_optimizer, "body_optimizer", "fedrep")
    head_plan = local_work(
        "fedrep", batch_size=batch_size, epochs=head_epochs, steps=head_steps, prefix="head_"
    )
    body_plan = local_work(
        "fedrep", batch_size=batch_size, epochs=body_epochs, steps=body_steps, prefix="body_"
    )

    def solve(key, at, data):
        head_key, body_key = jax.random.split(key)
        tuned = fit_head(head_key, model, at, data, for_head, head_plan)
        by_body = mean_gradient(lambda phi, rows: model.log_likelihood(phi, tuned.parameters, rows))
        delta, info = change(at.phi, descend(body_key, data, by_body, for_body, body_plan, at.phi))
        return delta, tuned.parameters, info._replace(local_steps=tuned.steps + info.local_steps)

    return with_heads(
        "fedrep",
        model,
        solve,
        head_optimizer=for_head,
        adapt_plan=local_work(
            "fedrep", batch_size=batch_size, epochs=adapt_epochs, prefix="adapt_"
        ),
        server_optimizer=server_optimizer,
        weighting=weighting,
    )


def fit_head(
    key: Key[Array, ""],
    model: MixedModel,
    at: Pair,
    data: Shard,
    optimizer: optax.GradientTransformation,
    plan: Schedule,
) -> Descent:
    """Steps on the head with phi fixed."""
    gradient = mean_gradient(lambda head, rows: model.log_likelihood(at.phi, head, rows))
    return descend(key, data, gradient, optimizer, plan, at.head)


def with_heads(
    name: str,
    model: MixedModel,
    solve: Solver,
    *,
    head_optimizer: optax.GradientTransformation,
    adapt_plan: Schedule,
    server_optimizer: optax.GradientTransformation | None,
    weighting: Weighting,
) -> Algorithm:
    """A method that averages phi and leaves heads with their clients, from its local solver.

    Args:
        name: The method's name in reports.
        model: Mixed model to train.
        solve: (key, phi and the client's head, data) -> (Delta_i, new head, info).
        head_optimizer: Optax optimiser by which an unseen client trains its head.
        adapt_plan: Schedule of that training.
        server_optimizer: Optax optimiser of the averaged change of phi; None is the plain average.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`. A client's state is its head.
    """
    check_weighting(weighting, name)
    if model.log_prior is not None or model.law is not None:
        raise ValueError(
            f"{name} minimises a loss and cannot use the prior of {model.name}; use fedpop"
        )
    optimizer = optimizer_or(optax.sgd(1.0), server_optimizer, "server_optimizer", name)

    def init(key, spec):
        # One key for both: the body and the head of a network should be of the same draw.
        phi, head = model.init(key, spec), model.init_effects(key, spec)
        return State(first_state(optimizer, phi), head)

    def client(key, down, personal, data):
        delta, head, info = solve(key, Pair(down.phi, personal.head), data)
        return Local(delta, Personal(head), info, client_weight(data, weighting))

    def server(key, state, aggregate):
        return state._replace(shared=server_step(optimizer, state.shared, aggregate)), Empty()

    def adapt(key, down, data):
        return Personal(fit_head(key, model, down, data, head_optimizer, adapt_plan).parameters)

    return Algorithm(
        name=name,
        init=init,
        broadcast=lambda state: Pair(state.shared.parameters, state.head),
        server=server,
        init_client=lambda key, down, data: Personal(down.head),
        client=client,
        commit=keep,
        predict=lambda key, down, personal, x: model.predictive(down.phi, personal.head, x),
        adapt=adapt,
    )
