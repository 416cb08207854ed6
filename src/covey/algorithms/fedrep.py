"""FedRep: one representation for all clients, and a head for each.

Collins, Hassani, Mokhtari and Shakkottai (2021), "Exploiting shared representations for
personalized federated learning", algorithm 1. A `MixedModel` has parameters phi that are shared
(the representation) and a vector z of each client's own (its head h_i). The objective is min over
phi of mean_i min over z of F_i(phi, z), F_i the mean loss of client i's rows:

    client:  z_i   = optimiser steps on F_i(phi, .) from the z_i of its last round    phi is held
             phi_i = optimiser steps on F_i(., z_i) from phi                          the new z_i is held
             Delta_i = phi - phi_i
    server:  phi = server optimiser(phi, sum_i w_i Delta_i / sum_i w_i)               as in FedAvg

Heads never leave their clients. The paper weighs clients equally, and so does the default here; its
experiments make ten passes for the head and one for phi. Many head steps approach the inner
minimum, which is what the analysis is about.

A client that never took part trains a head alone, phi as it is. Without rows it keeps the head that
all start from: as nobody's head is known to others, nothing better can be said of it (FedPop's law
of the effects is what says more).

With nothing personal in the model this is FedAvg, with nothing shared it is local training.

Example:
    method = covey.fedrep(covey.models.mixed_cifar_cnn(), head_optimizer=optax.sgd(0.01,
    momentum=0.5), head_epochs=10)
"""

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
    server_step,
)
from covey.core.algorithm import Algorithm, Empty, Local, keep
from covey.core.shard import Shard
from covey.kernels.descent import Descent, Schedule, descend, mean_gradient, schedule
from covey.models.mixed import MixedModel


class State(NamedTuple):
    """phi with the server optimiser's memory, and the head that every client starts from."""

    shared: averaging.State
    head: Float[Array, " head"]


class Pair(NamedTuple):
    """phi and a head. Broadcast: the newest phi, and the head for those who have none."""

    phi: PyTree
    head: Float[Array, " head"]


class Personal(NamedTuple):
    """A client's own head."""

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
    """FedRep: a shared representation, and a head for each client that is trained first (optimisers
    default to SGD 0.1).

    A client makes `head_epochs` passes over its rows for its head, or `head_steps` minibatch steps
    where given, and then the same for phi by `body_epochs` or `body_steps`. `adapt_epochs` are a
    new client's passes for its head. The average at the server is FedAvg's, with its `weighting`
    and `server_optimizer`.
    """
    for_head = optax.sgd(0.1) if head_optimizer is None else head_optimizer
    for_body = optax.sgd(0.1) if body_optimizer is None else body_optimizer
    head_plan = schedule(batch_size=batch_size, epochs=head_epochs, steps=head_steps)
    body_plan = schedule(batch_size=batch_size, epochs=body_epochs, steps=body_steps)

    def solve(key, at, data):
        head_key, body_key = jax.random.split(key)
        tuned = fit_head(head_key, model, at, data, for_head, head_plan)
        of_body = mean_gradient(lambda phi, rows: model.log_likelihood(phi, tuned.parameters, rows))
        delta, info = change(at.phi, descend(body_key, data, of_body, for_body, body_plan, at.phi))
        return delta, tuned.parameters, info._replace(local_steps=tuned.steps + info.local_steps)

    return with_heads(
        "fedrep",
        model,
        solve,
        head_optimizer=for_head,
        adapt_plan=schedule(batch_size=batch_size, epochs=adapt_epochs, steps=None),
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
    """Steps on the head, phi held."""
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
    """The frame that FedRep shares with its relatives: phi is averaged, heads stay; they differ in
    how a client trains both.
    """
    check_weighting(weighting)
    if model.log_prior is not None or model.law is not None:
        raise ValueError(
            f"{name} finds the least loss and has no use for the prior that {model.name} brings; use fedpop"
        )
    optimizer = optax.sgd(1.0) if server_optimizer is None else server_optimizer

    def init(key, spec):
        # One key for both: the body and the head of a network should be of the same draw.
        phi, head = model.init(key, spec), model.init_effects(key, spec)
        return State(averaging.State(phi, optimizer.init(phi)), head)

    def client(key, down, personal, data):
        delta, head, info = solve(key, Pair(down.phi, personal.head), data)
        return Local(delta, Personal(head), info, client_weight(data, weighting))

    def server(key, state, aggregate):
        return state._replace(shared=server_step(optimizer, state.shared, aggregate)), Empty()

    def predict(key, down, personal, x):
        return model.predictive(down.phi, personal.head, x)

    return Algorithm(
        name=name,
        init=init,
        init_client=lambda key, down, data: Personal(down.head),
        broadcast=lambda state: Pair(state.shared.parameters, state.head),
        client=client,
        commit=keep,
        server=server,
        predict=predict,
        adapt=lambda key, down, data: Personal(
            fit_head(key, model, down, data, head_optimizer, adapt_plan).parameters
        ),
    )
