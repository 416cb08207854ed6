"""FedEM for mixtures of distributions: shared component models, and weights of them for each
client.

Marfoq, Neglia, Bellet, Kameni and Vidal (2021), "Federated multi-task learning under a mixture of
distributions", algorithm 1. (`fedem` is the method of the same name by Dieuleveut et al., EM on
sufficient statistics.) The rows of client t come from M component models theta_m that all clients
share, each row from one of them, drawn with weights pi_t of the client's own. Minimised is minus
the log-likelihood, its equation (6):

    f(Theta, Pi) = -(1/n) sum_t sum_i log sum_m pi_tm p(y_i | x_i, theta_m)

by generalised EM. In a round, from the components that were sent and the client's own weights, its
equations (8) to (10):

    E:       q_i(m) = pi_tm p(y_i | x_i, theta_m) / sum over m' of the same                   for every row i of the client
    M:       pi_tm = mean_i q_i(m)                                                            stays at the client
    M:       theta_mt = local solver from theta_m on (1/n_t) sum_i q_i(m) (-log p(y_i | x_i, theta))
    server:  theta_m = server optimiser(theta_m, sum_t n_t (theta_m - theta_mt) / sum_t n_t)  as in FedAvg

It is surrogate optimisation (`surrogate.py`) with u = Theta, v_t = pi_t, and EM's bound as the
surrogate. A client predicts the mixture sum_m pi_tm p(y | x, theta_m), of probabilities and not of
logits. A client that never took part starts from equal weights and makes E steps and updates of pi,
components held: the paper makes one such step, `adapt_steps=1`; many lead to the weights of the
highest likelihood, which is what its section 2.2 asks for.

One component is FedAvg. Weights that are 0 or 1 stay so: clients with such weights are clusters,
each with its own model.

EM finds a local optimum. Components that start alike stay alike, and generalised linear models
always start at zero; those are moved apart at random (`spread`). If components are more than the
data tell apart, some double others or lose all rows: every round reports the share of clients for
which component m explains at least one of their rows (`users_0`, `users_1`, ...; zero is a
component that no client of the round uses), every evaluation the weights (`weight_0`, ...), for
each client and over all.

Example:
    method = covey.mixture(covey.models.logistic(), components=3, client_optimizer=optax.sgd(0.5),
    batch_size=128)
"""

import warnings
from collections import namedtuple
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from covey.algorithms.averaging import Info, Weighting
from covey.algorithms.surrogate import Surrogate, surrogate_optimisation
from covey.core import tree
from covey.core.algorithm import Algorithm
from covey.core.metrics import Mean
from covey.core.shard import Shard, Spec, batches_of, noted
from covey.kernels.descent import Gradient, descend, schedule
from covey.models.model import Model
from covey.models.predictive import mixture_of

_PASS = 256  # rows at once in an E step; bounds the memory and changes no value beyond rounding


class Personal(NamedTuple):
    """A client's weights of the components, pi_t."""

    weights: Float[Array, " components"]


def mixture(
    model: Model,
    *,
    components: int | Literal["auto"] = 3,
    client_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    spread: int | float | None = None,
    adapt_steps: int = 100,
    weighting: Weighting = "rows",
) -> Algorithm:
    """FedEM of Marfoq et al.: component models that all share, mixed by each client's own weights;
    other options as in FedAvg.

    `components="auto"` is for configurations, which try some numbers first; in Python
    `covey.choose_components` does that. `spread` is the standard deviation of noise on every number
    of each component's start. By default there is none, except for a model whose start is always
    the same: then that which makes the noise of a component about as long as 1. `adapt_steps` are
    the updates of a new client's weights. The optimisers see each component alone.
    """
    if components == "auto":
        raise ValueError(
            'mixture: components="auto" is decided before a run; use `covey run`, or covey.choose_components'
        )
    if components < 1:
        raise ValueError(f"mixture: components must be at least 1, got {components}")
    if spread is not None and spread < 0:
        raise ValueError(
            f"mixture: spread is a standard deviation and must be at least 0, got {spread:g}"
        )
    if adapt_steps < 1:
        raise ValueError(f"mixture: adapt_steps must be at least 1, got {adapt_steps}")
    plan = schedule(batch_size=batch_size, epochs=epochs, steps=steps)
    optimizer = each_component(optax.sgd(0.1) if client_optimizer is None else client_optimizer)
    gradient = weighted_gradient(model)
    report = namedtuple("Info", (*Info._fields, *(f"users_{m}" for m in range(components))))

    def init(key, spec):
        if spec.clients is not None and components > spec.clients:
            warnings.warn(
                f"mixture: {components} components for {spec.clients} clients: some will double others or go unused; "
                "take fewer, or components='auto'",
                stacklevel=2,
            )
        return first_components(key, model, spec, components, spread)

    def equal():
        return jnp.full(components, 1 / components, float)

    def build(key, shared, own, data):
        q = expectation(log_likelihoods(model, shared, data), own.weights)
        with_q = noted(data, q)
        return Surrogate(
            own=Personal(mean_weights(q, own.weights, data)),
            solve=lambda shared: descend(key, with_q, gradient, optimizer, plan, shared),
        )

    def predict(shared, own, x):
        return mixture_of(
            jax.vmap(lambda parameters: model.predictive(parameters, x))(shared), own.weights
        )

    def adapt(key, shared, data):
        found = log_likelihoods(model, shared, data)

        def update(_, weights):
            return mean_weights(expectation(found, weights), weights, data)

        return Personal(jax.lax.fori_loop(0, adapt_steps, update, equal()))

    def describe(own, data):
        rows = data.count.astype(float)
        return {f"weight_{m}": Mean(own.weights[m] * rows, rows) for m in range(components)}

    return surrogate_optimisation(
        "mixture",
        init=init,
        init_client=lambda key, shared, data: Personal(equal()),
        build=build,
        report=lambda at, data: report(at.loss, at.steps, *(at.own.weights * data.count >= 1)),
        predict=predict,
        adapt=adapt,
        describe=describe,
        server_optimizer=None if server_optimizer is None else each_component(server_optimizer),
        weighting=weighting,
    )


def log_likelihoods(
    model: Model, components: PyTree, data: Shard
) -> Float[Array, "rows components"]:
    """By row and component, log p(y_i | x_i, theta_m); past the client's last row, that of the last
    one again.
    """
    size, _ = batches_of(data, _PASS)

    def of_rows(first):
        rows = data.take(first + jnp.arange(size))
        return jax.vmap(model.log_likelihood, in_axes=(0, None))(components, rows)

    # A static number of batches: where it depends on the client, XLA writes the results row by row.
    found = jax.lax.map(of_rows, jnp.arange(0, data.capacity, size))
    return jnp.moveaxis(found, 1, -1).reshape(-1, found.shape[1])


def expectation(
    log_likelihood: Float[Array, "rows components"], weights: Float[Array, " components"]
) -> Float[Array, "rows components"]:
    """The E step: q_i(m), by log-sum-exp. A weight of zero stays zero."""
    return jax.nn.softmax(jnp.log(weights) + log_likelihood, axis=-1)


def mean_weights(
    q: Float[Array, "rows components"], weights: Float[Array, " components"], data: Shard
) -> Float[Array, " components"]:
    """The M step of the weights: the mean of q over the client's rows; without any, the weights as
    they were.
    """
    is_row = jnp.arange(q.shape[0]) < data.count
    total = jnp.sum(jnp.where(is_row[:, None], q, 0.0), axis=0)
    return jnp.where(data.count > 0, total / jnp.maximum(data.count, 1), weights)


def weighted_gradient(model: Model) -> Gradient:
    """The loss of rows with their q, sum_m mean_i q_i(m) (-log p(y_i | x_i, theta_m)), and its
    gradient by all components.
    """

    def loss(components, batch):
        rows, q = batch.rows
        terms = jax.vmap(model.log_likelihood, in_axes=(0, None))(components, rows)
        terms = jnp.where(batch.mask, jnp.sum(q.T * terms, axis=0), 0.0)
        return -jnp.sum(terms) / jnp.maximum(jnp.sum(batch.mask), 1)

    return jax.value_and_grad(loss)


def first_components(
    key: Key[Array, ""], model: Model, spec: Spec, components: int, spread: int | float | None
) -> PyTree:
    """Independent starts, stacked; with noise as `mixture` says."""
    if components == 1 and spread is None:
        return jax.tree.map(lambda leaf: leaf[None], model.init(key, spec))
    model_key, noise_key = jax.random.split(key)
    starts = [model.init(one, spec) for one in jax.random.split(model_key, components)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *starts)
    alike = jnp.all(jnp.stack([jnp.all(leaf == leaf[:1]) for leaf in jax.tree.leaves(stacked)]))
    deviation = jnp.where(alike, tree.size(starts[0]) ** -0.5, 0.0) if spread is None else spread
    noise = optax.tree.random_like(noise_key, stacked)
    return jax.tree.map(lambda leaf, draw: leaf + deviation * draw, stacked, noise)


def each_component(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimiser for each component alone, also where it looks at the whole of the parameters (a
    clipped norm, say).
    """
    return optax.GradientTransformation(jax.vmap(optimizer.init), jax.vmap(optimizer.update))
