"""APFL: every client mixes a personal model with the shared one."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from covey.algorithms.averaging import (
    Info,
    Weighting,
    check_weighting,
    client_weight,
    first_state,
    local_work,
    optimizer_or,
    server_step,
)
from covey.core.algorithm import Algorithm, Empty, Local, keep
from covey.core.shard import Batch, Shard, some_rows
from covey.kernels.descent import Gradient, descend, mean_gradient
from covey.models.catalogue import need
from covey.models.model import Model


class Personal(NamedTuple):
    """A client's personal parameters v_i, and their share alpha_i in its model."""

    parameters: PyTree
    alpha: Float[Array, ""]


class Pair(NamedTuple):
    """The parameters that a client's steps move: its copy of the shared ones, and its own."""

    shared: PyTree
    own: PyTree


def apfl(
    model: Model,
    *,
    client_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    alpha: int | float = 0.5,
    alpha_step: int | float | None = None,
    adapt_epochs: int = 50,
    weighting: Weighting = "rows",
) -> Algorithm:
    """APFL: each client predicts with a mixture of a personal model and the shared one.

    Client i has the parameters alpha_i v_i + (1 - alpha_i) w: w is shared and trained as in FedAvg,
    v_i never leaves the client. F_i is the mean loss of a minibatch, the same one for both steps:

        client:  w_i <- w_i - step grad F_i(w_i)                                       from w
                 v_i <- v_i - step alpha_i grad F_i(alpha_i v_i + (1 - alpha_i) w_i)   from its v_i
        server:  w = server optimiser(w, sum_i n_i (w - w_i) / sum_i n_i)

    and with `alpha_step`, once per round before these steps, m_i = alpha_i v_i + (1 - alpha_i) w,

        alpha_i <- clip(alpha_i - alpha_step <v_i - w, grad F_i(m_i)>, 0, 1).

    alpha = 0 is FedAvg and alpha = 1 local training. v_i starts as the w of the client's first
    round. An unseen client trains v_i with w fixed; without rows it predicts with w.

    Args:
        model: Model to train, from `covey.models`.
        client_optimizer: Optax optimiser of the local steps; it sees w_i and v_i as one tree.
            Default: SGD with step size 0.1.
        server_optimizer: Optax optimiser that takes the averaged change of w as its gradient.
            Default: the plain average.
        batch_size: Rows per minibatch; None uses all rows of the client at each step.
        epochs: Passes over the client's rows per round. A step takes two gradients, twice the work
            of FedAvg.
        steps: Minibatch steps per round, in place of `epochs`.
        alpha: Share of the personal model, between 0 and 1, that all clients start from.
        alpha_step: Step size by which each client learns its own share. Default: None, the share
            stays at `alpha`.
        adapt_epochs: Passes over its rows that an unseen client trains its personal model for.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`. A client's state is v_i and alpha_i.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=3, rows=10, dimensions=2, heterogeneity=0.5)
        >>> run = covey.run(covey.apfl(covey.models.linear(), alpha=0.7), data, rounds=40, seed=1)
        >>> run.evaluate(split="train").pooled["mse"] < 0.05
        True

    Reference: Deng, Kamani and Mahdavi (2020), Adaptive personalized federated learning,
    algorithm 1.

    Departures from the paper: clients count by their rows unless `weighting="equal"`.
    """
    need(model, Model, "apfl")
    check_weighting(weighting, "apfl")
    _check_shares(alpha, alpha_step)
    gradient = mean_gradient(model.log_likelihood)
    plan = local_work("apfl", batch_size=batch_size, epochs=epochs, steps=steps)
    adapt_plan = local_work("apfl", batch_size=batch_size, epochs=adapt_epochs, prefix="adapt_")
    for_client = optimizer_or(optax.sgd(0.1), client_optimizer, "client_optimizer", "apfl")
    for_server = optimizer_or(optax.sgd(1.0), server_optimizer, "server_optimizer", "apfl")

    def client(key, shared, personal, data):
        share = personal.alpha
        # With alpha fixed the key is not split: minibatches are those of FedAvg and of Local.
        if alpha_step is not None:
            key, choose = jax.random.split(key)
            batch = some_rows(choose, data, batch_size)
            share = learned_share(gradient, shared, personal, batch, alpha_step)

        def by_both(at, batch):
            _, by_shared = gradient(at.shared, batch)
            loss, by_own = own_gradient(gradient, share, at, batch)
            return loss, Pair(by_shared, by_own)

        end = descend(key, data, by_both, for_client, plan, Pair(shared, personal.parameters))
        delta = jax.tree.map(jnp.subtract, shared, end.parameters.shared)
        own = Personal(end.parameters.own, share)
        return Local(delta, own, Info(end.loss, end.steps), client_weight(data, weighting))

    def adapt(key: Key[Array, ""], shared: PyTree, data: Shard) -> Personal:
        share = jnp.asarray(alpha, float)

        def by_own(own, batch):
            return own_gradient(gradient, share, Pair(shared, own), batch)

        end = descend(key, data, by_own, for_client, adapt_plan, shared)
        return Personal(end.parameters, share)

    def predict(key, shared, personal, x):
        return model.predictive(mixed(personal.alpha, personal.parameters, shared), x)

    return Algorithm(
        name="apfl",
        init=lambda key, spec: first_state(for_server, model.init(key, spec)),
        broadcast=lambda state: state.parameters,
        server=lambda key, state, aggregate: (server_step(for_server, state, aggregate), Empty()),
        init_client=lambda key, shared, data: Personal(shared, jnp.asarray(alpha, float)),
        client=client,
        commit=keep,
        predict=predict,
        adapt=adapt,
    )


def mixed(share: Float[Array, ""], own: PyTree, shared: PyTree) -> PyTree:
    """A client's model: share own + (1 - share) shared."""
    return jax.tree.map(lambda v, w: share * v + (1 - share) * w, own, shared)


def own_gradient(
    gradient: Gradient, share: Float[Array, ""], at: Pair, batch: Batch
) -> tuple[Float[Array, ""], PyTree]:
    """The loss of the mixed model, and its gradient by the client's own parameters."""
    loss, by_mixed = gradient(mixed(share, at.own, at.shared), batch)
    return loss, jax.tree.map(lambda g: share * g, by_mixed)


def learned_share(
    gradient: Gradient, shared: PyTree, personal: Personal, batch: Batch, step: int | float
) -> Float[Array, ""]:
    """A gradient step on alpha_i, clipped to [0, 1]."""
    _, by_mixed = gradient(mixed(personal.alpha, personal.parameters, shared), batch)
    apart = jax.tree.map(jnp.subtract, personal.parameters, shared)
    return jnp.clip(personal.alpha - step * optax.tree.vdot(apart, by_mixed), 0.0, 1.0)


def _check_shares(alpha: int | float, alpha_step: int | float | None) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(
            f"apfl: alpha is the share of the personal model and must be in [0, 1], got {alpha:g}"
        )
    if alpha_step is not None and not 0 < alpha_step < math.inf:
        raise ValueError(
            f"apfl: alpha_step must be above 0 and finite, got {alpha_step:g}; leave it out to "
            "keep alpha fixed"
        )
