"""APFL: every client mixes a model of its own with the one of all.

Deng, Kamani and Mahdavi (2020), "Adaptive personalized federated learning", algorithm 1. Client i
predicts by the parameters m_i = alpha_i v_i + (1 - alpha_i) w: w is learned together as in FedAvg,
v_i never leaves the client. With F_i the mean loss of a minibatch of client i, the same one for
both,

    client:  w_i <- w_i - step grad F_i(w_i)                                          from the w of this round
             v_i <- v_i - step alpha_i grad F_i(alpha_i v_i + (1 - alpha_i) w_i)      from the v_i of its last round
    server:  w = server optimiser(w, sum_i n_i (w - w_i) / sum_i n_i)                 as in FedAvg

and, where alpha is adaptive, once a round before these steps, the product summed over all
parameters,

    alpha_i <- Clip_[0, 1](alpha_i - alpha_step <v_i - w, grad F_i(alpha_i v_i + (1 - alpha_i) w)>).

alpha = 0 is FedAvg and alpha = 1 local training. v_i starts as the w of the client's first round,
so that it begins with the common model. A client that never took part trains a v_i with w held, at
the alpha that all start from; without rows it has w.

Example:
    method = covey.apfl(covey.models.cifar_cnn(), client_optimizer=optax.sgd(0.05), alpha=0.25,
    alpha_step=0.05)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from covey.algorithms.averaging import (
    Info,
    State,
    Weighting,
    check_weighting,
    client_weight,
    server_step,
)
from covey.core.algorithm import Algorithm, Empty, Local, keep
from covey.core.shard import some_rows
from covey.kernels.descent import descend, mean_gradient, schedule
from covey.models.model import Model


class Personal(NamedTuple):
    """A client's own parameters v_i, and their share alpha_i in its model."""

    parameters: PyTree
    alpha: Float[Array, ""]


class Pair(NamedTuple):
    """What a client's steps move: its copy of the common parameters, and its own."""

    common: PyTree
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
    alpha_step: float | None = None,
    adapt_epochs: int = 50,
    weighting: Weighting = "rows",
) -> Algorithm:
    """APFL: each client's model is alpha times its own plus 1 - alpha times the common one; options
    as in FedAvg.

    `alpha` is where all clients start; with `alpha_step` each learns its own. A local step takes
    two gradients, twice FedAvg's work. The optimiser sees both sets of parameters as one tree.
    `adapt_epochs` are a new client's passes for its own part.
    """
    check_weighting(weighting)
    if not 0 <= alpha <= 1:
        raise ValueError(
            f"apfl: alpha is the share of a client's own model and must be in [0, 1], got {alpha:g}"
        )
    if alpha_step is not None and alpha_step <= 0:
        raise ValueError(
            f"apfl: alpha_step must be above 0, got {alpha_step:g}; leave it out to keep alpha as it is"
        )
    gradient = mean_gradient(model.log_likelihood)
    plan = schedule(batch_size=batch_size, epochs=epochs, steps=steps)
    adapt_plan = schedule(batch_size=batch_size, epochs=adapt_epochs, steps=None)
    for_client = optax.sgd(0.1) if client_optimizer is None else client_optimizer
    for_server = optax.sgd(1.0) if server_optimizer is None else server_optimizer

    def of_own(share, common, own, batch):
        """The loss of the mixed model, and its gradient by the client's own part."""
        loss, slope = gradient(mixed(share, own, common), batch)
        return loss, jax.tree.map(lambda s: share * s, slope)

    def learned_share(key, common, personal, data, step):
        _, slope = gradient(
            mixed(personal.alpha, personal.parameters, common), some_rows(key, data, batch_size)
        )
        apart = jax.tree.map(jnp.subtract, personal.parameters, common)
        return jnp.clip(personal.alpha - step * optax.tree.vdot(apart, slope), 0.0, 1.0)

    def init(key, spec):
        parameters = model.init(key, spec)
        return State(parameters, for_server.init(parameters))

    def init_client(key, common, data):
        return Personal(common, jnp.asarray(alpha, float))

    def client(key, common, personal, data):
        share = personal.alpha
        if (
            alpha_step is not None
            # not split otherwise: with alpha kept, minibatches are those of FedAvg and of local
            # training
        ):
            key, choose = jax.random.split(key)
            share = learned_share(choose, common, personal, data, alpha_step)

        def of_both(at, batch):
            _, by_common = gradient(at.common, batch)
            loss, by_own = of_own(share, at.common, at.own, batch)
            return loss, Pair(by_common, by_own)

        end = descend(key, data, of_both, for_client, plan, Pair(common, personal.parameters))
        delta = jax.tree.map(jnp.subtract, common, end.parameters.common)
        own = Personal(end.parameters.own, share)
        return Local(delta, own, Info(end.loss, end.steps), client_weight(data, weighting))

    def server(key, state, aggregate):
        return server_step(for_server, state, aggregate), Empty()

    def predict(key, common, personal, x):
        return model.predictive(mixed(personal.alpha, personal.parameters, common), x)

    def adapt(key, common, data):
        share = jnp.asarray(alpha, float)
        end = descend(
            key,
            data,
            lambda own, batch: of_own(share, common, own, batch),
            for_client,
            adapt_plan,
            common,
        )
        return Personal(end.parameters, share)

    return Algorithm(
        name="apfl",
        init=init,
        init_client=init_client,
        broadcast=lambda state: state.parameters,
        client=client,
        commit=keep,
        server=server,
        predict=predict,
        adapt=adapt,
    )


def mixed(share: Float[Array, ""], own: PyTree, common: PyTree) -> PyTree:
    """A client's model: share own + (1 - share) common."""
    return jax.tree.map(lambda v, w: share * v + (1 - share) * w, own, common)
