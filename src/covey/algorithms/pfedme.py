"""pFedMe: personal models near a shared one that minimises their Moreau envelopes."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from covey.algorithms.averaging import Info, Weighting, local_work, need_counts, optimizer_or
from covey.algorithms.fedprox import with_penalty
from covey.algorithms.surrogate import Surrogate, surrogate_optimisation
from covey.core.algorithm import Algorithm
from covey.core.shard import Batch, some_rows
from covey.kernels.descent import Descent, Gradient, descend, mean_gradient
from covey.models.catalogue import need
from covey.models.model import Model


class Personal(NamedTuple):
    """A client's personal model, v_t."""

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
    """pFedMe: every client has a personal model, and a shared model lies near all of them.

    The objective, over the shared u, is sum_t w_t f_t(u). f_t is the Moreau envelope of the mean
    loss F_t:

        f_t(u) = min over v of F_t(v) + (lambda / 2) ||v - u||^2,    grad f_t(u) = lambda (u - v)

    with v the minimiser, which is the client's personal model. Each of `local_rounds` times

        client:  B = minibatch of its rows
                 v_t = K optimiser steps on F_B(v) + (lambda / 2) ||v - u_t||^2 from u_t
                 u_t = u_t - step lambda (u_t - v_t)
        server:  u = server optimiser(u, sum_t w_t (u - u_t) / sum_t w_t)

    It is surrogate optimisation (Marfoq et al. 2021, section 3.4). A client predicts with the v_t
    of its last round; an unseen client minimises F_t(v) + (lambda / 2) ||v - u||^2 over its rows.
    With step lambda = 1 and K = 1, u_t takes plain steps of the inner optimiser (SGD: FedAvg).

    Args:
        model: Model to train, from `covey.models`.
        proximal: Strength of the penalty (lambda in the paper), above 0. As it grows, personal
            models become the shared one; near 0 they are trained locally.
        step: Step size of the shared model along the envelope's gradient (eta in the paper), below
            2 / lambda. Default: 0.1 / lambda, a tenth of the way to the personal model.
        inner_optimizer: Optax optimiser of the personal model; SGD needs a step size below
            1 / lambda. Default: SGD with step size 0.05, or 0.75 / lambda where that is smaller.
        inner_steps: Steps of the inner optimiser on one minibatch (K in the paper).
        local_rounds: Minibatches per client and round (R in the paper).
        server_optimizer: Optax optimiser that takes the averaged change of u as its gradient; SGD
            with step size beta is the paper's beta. Default: the plain average.
        batch_size: Rows per minibatch; None uses all rows. The personal model is that of the last
            minibatch, and poor after a small one.
        adapt_epochs: Passes over its rows that an unseen client trains its personal model for.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`. A client's state is its personal model.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=3, rows=10, dimensions=2, heterogeneity=0.5)
        >>> method = covey.pfedme(covey.models.linear(), proximal=0.5, inner_steps=50)
        >>> run = covey.run(method, data, rounds=20, seed=1)
        >>> run.evaluate(split="train").pooled["mse"] < 0.15
        True

    Reference: Dinh, Tran and Nguyen (2020), Personalized federated learning with Moreau envelopes,
    algorithm 1.

    Departures from the paper: clients count by their rows unless `weighting="equal"`. The inner
    steps, whose start the paper leaves open, start at u_t, so that no memory is needed to continue.
    """
    need(model, Model, "pfedme")
    share = _checked_share(proximal, step)
    need_counts("pfedme", inner_steps=inner_steps)
    gradient = mean_gradient(model.log_likelihood)
    plan = local_work("pfedme", batch_size=batch_size, epochs=adapt_epochs, prefix="adapt_")
    stable = optax.sgd(0.05 if proximal <= 15 else 0.75 / proximal)
    optimizer = optimizer_or(stable, inner_optimizer, "inner_optimizer", "pfedme")

    def build(key, shared, own, data):
        batch = some_rows(key, data, plan.batch_size)
        near = with_penalty(gradient, proximal, shared)
        nearest, loss = minimised(near, optimizer, inner_steps, shared, batch)

        def solve(shared):
            moved = jax.tree.map(lambda u, v: u - share * (u - v), shared, nearest)
            return Descent(moved, loss, jnp.asarray(inner_steps, data.count.dtype))

        return Surrogate(Personal(nearest), solve)

    def adapt(key, shared, data):
        near = with_penalty(gradient, proximal, shared)
        return Personal(descend(key, data, near, optimizer, plan, shared).parameters)

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


def minimised(
    gradient: Gradient,
    optimizer: optax.GradientTransformation,
    steps: int,
    start: PyTree,
    batch: Batch,
) -> tuple[PyTree, Float[Array, ""]]:
    """The end of some steps on one minibatch, and the loss before the last of them."""

    def step(_, carry):
        parameters, memory, _ = carry
        loss, by_parameters = gradient(parameters, batch)
        updates, memory = optimizer.update(by_parameters, memory, parameters)
        return optax.apply_updates(parameters, updates), memory, loss

    begin = (start, optimizer.init(start), jnp.zeros(()))
    end, _, loss = jax.lax.fori_loop(0, steps, step, begin)
    return end, loss


def _checked_share(proximal: int | float, step: int | float | None) -> int | float:
    """The share of the way to the personal model that the shared one goes, step lambda."""
    if not 0 < proximal < math.inf:
        raise ValueError(
            f"pfedme: proximal must be above 0 and finite, got {proximal:g}; without a penalty, "
            "use local"
        )
    share = 0.1 if step is None else step * proximal
    if not 0 < share < 2:
        raise ValueError(
            f"pfedme: step must be above 0 and below 2 / proximal, {2 / proximal:g}, or the shared "
            f"model diverges; got {step:g}"
        )
    return share
