"""pFedMe: personal models, tied to a common one that minimises their Moreau envelopes.

Dinh, Tran and Nguyen (2020), "Personalized federated learning with Moreau envelopes", algorithm 1.
With F_t the mean loss of client t, minimised is sum_t w_t f_t(u) over the common u, f_t the Moreau
envelope of F_t:

    f_t(u) = min over v of F_t(v) + (lambda / 2) ||v - u||^2

The least v is the client's own model, and grad f_t(u) = lambda (u - v). A client in a round,
`local_rounds` times:

    client:  B = minibatch of its rows;    v_t = K optimiser steps on F_B(v) + (lambda / 2) ||v - u_t||^2 from u_t
             u_t = u_t - step lambda (u_t - v_t)
    server:  u = server optimiser(u, sum_t w_t (u - u_t) / sum_t w_t)              SGD with step beta is the paper's beta

It is surrogate optimisation (`surrogate.py`; Marfoq et al. 2021, section 3.4) with g_t(u, v) =
F_t(v) + (lambda / 2) ||v - u||^2. The paper weighs clients equally, here by their rows unless
`weighting="equal"`. It leaves open where the inner steps start; here at u_t, so that a client needs
no memory to go on. With step lambda = 1 and K = 1, u_t takes plain steps of the inner optimiser
(SGD: FedAvg); as lambda grows the own models become the common one, and with lambda near 0 they
forget it.

A client predicts with the v_t of its last round; one that never took part takes the common model
and minimises F_t(v) + (lambda / 2) ||v - u||^2 over its rows for `adapt_epochs` passes.

Example:
    method = covey.pfedme(covey.models.logistic(), proximal=1.0, inner_optimizer=optax.sgd(0.5),
    inner_steps=10, step=0.5)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from covey.algorithms.averaging import Info, Weighting
from covey.algorithms.fedprox import tied
from covey.algorithms.surrogate import Surrogate, surrogate_optimisation
from covey.core.algorithm import Algorithm
from covey.core.shard import some_rows
from covey.kernels.descent import Descent, descend, mean_gradient, schedule
from covey.models.model import Model


class Personal(NamedTuple):
    """A client's own model, v_t."""

    parameters: PyTree


def pfedme(
    model: Model,
    *,
    proximal: int | float = 15.0,
    step: int | float | None = None,
    inner_optimizer: optax.GradientTransformation | None = None,
    inner_steps: int = 5,
    local_rounds: int = 20,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    adapt_epochs: int = 50,
    weighting: Weighting = "rows",
) -> Algorithm:
    """pFedMe: each client's own model, and a common one that none is far from; `proximal` is
    lambda.

    Args:
        model: a likelihood.
        proximal: lambda, how strongly a client's own model is tied to the common one.
        step: of the common model along the envelope's gradient; 0.1 / lambda by default, a tenth of
            the way to the client's own.
        inner_optimizer: for the client's own model; SGD 0.05 by default. For SGD take a step below
            1 / lambda.
        inner_steps: K, on the same minibatch.
        local_rounds: minibatches in a round.
        server_optimizer: as in FedAvg.
        batch_size: None takes all rows.
        adapt_epochs: passes of a new client for its own model.
        weighting: of the clients, by their rows or equally.
    """
    if proximal <= 0:
        raise ValueError(
            f"pfedme: proximal must be above 0, got {proximal:g}; without a tie, use local"
        )
    share = 0.1 if step is None else step * proximal
    if not 0 < share < 2:
        raise ValueError(
            f"pfedme: step must be above 0 and below 2 / proximal, {2 / proximal:g}, or the common model diverges; got {step:g}"
        )
    if inner_steps < 1:
        raise ValueError(f"pfedme: inner_steps must be at least 1, got {inner_steps}")
    gradient = mean_gradient(model.log_likelihood)
    plan = schedule(batch_size=batch_size, epochs=adapt_epochs, steps=None)
    optimizer = optax.sgd(0.05) if inner_optimizer is None else inner_optimizer

    def build(key, shared, own, data):
        batch = some_rows(key, data, plan.batch_size)
        slope_of = tied(gradient, proximal, shared)

        def inner(_, carry):
            parameters, memory, _ = carry
            loss, slope = slope_of(parameters, batch)
            updates, memory = optimizer.update(slope, memory, parameters)
            return optax.apply_updates(parameters, updates), memory, loss

        start = (shared, optimizer.init(shared), jnp.zeros(()))
        nearest, _, loss = jax.lax.fori_loop(0, inner_steps, inner, start)

        def solve(shared):
            moved = jax.tree.map(lambda u, v: u - share * (u - v), shared, nearest)
            return Descent(moved, loss, jnp.asarray(inner_steps, data.count.dtype))

        return Surrogate(Personal(nearest), solve)

    def adapt(key, shared, data):
        return Personal(
            descend(key, data, tied(gradient, proximal, shared), optimizer, plan, shared).parameters
        )

    return surrogate_optimisation(
        "pfedme",
        init=model.init,
        init_client=lambda key, shared, data: Personal(shared),
        build=build,
        report=lambda at, data: Info(at.loss, at.steps),
        predict=lambda shared, own, x: model.predictive(own.parameters, x),
        adapt=adapt,
        local_rounds=local_rounds,
        server_optimizer=server_optimizer,
        weighting=weighting,
    )
