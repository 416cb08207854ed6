"""FedEM for mixtures of distributions: shared component models, mixed by each client's weights."""

import math
import warnings
from collections import namedtuple
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from covey.algorithms.averaging import Info, Weighting, local_work, need_counts, optimizer_or
from covey.algorithms.surrogate import Surrogate, surrogate_optimisation
from covey.core import tree
from covey.core.algorithm import Algorithm
from covey.core.metrics import Mean
from covey.core.shard import Shard, Spec, batches_of, noted
from covey.kernels.descent import Gradient, descend
from covey.models.catalogue import need
from covey.models.model import Model
from covey.models.predictive import Predictive, mixture_of

_PASS = 256  # rows at once in an E step; bounds the memory and changes no value beyond rounding
_LARGE = 50_000  # parameters of all components, above which each has its own products; measured


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
    """FedEM of Marfoq et al.: clients share M component models and each mixes them by its weights.

    Every row of client t comes from one of the components theta_m, drawn with the weights pi_t of
    the client. Generalised EM minimises minus the mean over rows of the log-likelihood
    log sum_m pi_tm p(y | x, theta_m). In a round

        E:       q_i(m) = pi_tm p(y_i | x_i, theta_m) / sum over m' of the same     for each row i
        M:       pi_tm = mean_i q_i(m)                                  stays with the client
        M:       theta_mt = local solver from theta_m on mean_i q_i(m) (-log p(y_i | x_i, theta))
        server:  theta_m = server optimiser(theta_m, sum_t n_t (theta_m - theta_mt) / sum_t n_t)

    A client predicts sum_m pi_tm p(y | x, theta_m), a mixture of probabilities and not of logits.
    One component is FedAvg; weights of 0 or 1 stay so, and are clusters. (`fedem` is the method of
    the same name by Dieuleveut et al., EM on sufficient statistics.)

    EM finds a local optimum. If there are more components than the data tell apart, some double
    others or lose all rows: every round reports the share of clients for which component m explains
    at least one row (`users_0`, `users_1`, ...), every evaluation the weights (`weight_0`, ...).

    Args:
        model: Model of each component, from `covey.models`.
        components: Number of components (M in the paper). "auto" is for configuration files, where
            `covey run` chooses by validation rows; in Python use `covey.choose_components`.
        client_optimizer: Optax optimiser of the local steps, for each component by itself. As the
            q_i(m) sum to one over the components, it needs about M times the step size of FedAvg.
            Default: SGD with step size 0.1.
        server_optimizer: Optax optimiser of the averaged change, for each component by itself.
            Default: the plain average.
        batch_size: Rows per minibatch of the local solver; None uses all rows of the client.
        epochs: Passes over the client's rows per round, after one E step.
        steps: Minibatch steps per round, in place of `epochs`.
        spread: Standard deviation of the noise on the initial parameters of each component, at
            least 0. Components that start alike stay alike. Default: None, no noise, except for
            models that always start at the same parameters, such as generalised linear ones: for
            those, noise whose norm is about 1 per component.
        adapt_steps: Updates of the weights of an unseen client, from equal weights with the
            components fixed; 1 in the paper, many lead to the most likely weights.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`. A client's state is its weights pi_t.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=5, rows=10, dimensions=2, heterogeneity=0.5)
        >>> run = covey.run(
        ...     covey.mixture(covey.models.linear(), components=2), data, rounds=20, seed=1
        ... )
        >>> run.evaluate(split="train").clients[["weight_0", "weight_1"]].shape
        (5, 2)

    Reference: Marfoq, Neglia, Bellet, Kameni and Vidal (2021), Federated multi-task learning under
    a mixture of distributions, algorithm 1, equations (6) and (8) to (10).

    Departures from the paper: `spread` lets models without a random start begin apart, and by
    default an unseen client takes 100 updates of its weights, not 1.
    """
    need(model, Model, "mixture")
    count = _checked_components(components)
    if spread is not None and not 0 <= spread < math.inf:
        raise ValueError(
            f"mixture: spread is a standard deviation and must be at least 0, got {spread:g}"
        )
    need_counts("mixture", adapt_steps=adapt_steps)
    plan = local_work("mixture", batch_size=batch_size, epochs=epochs, steps=steps)
    for_client = optimizer_or(optax.sgd(0.1), client_optimizer, "client_optimizer", "mixture")
    for_server = optimizer_or(optax.sgd(1.0), server_optimizer, "server_optimizer", "mixture")
    optimizer = each_component(for_client)
    gradient = weighted_gradient(model)
    report = namedtuple("Info", (*Info._fields, *(f"users_{m}" for m in range(count))))

    def equal():
        return jnp.full(count, 1 / count, float)

    def init(key, spec):
        _warn_of_many(count, spec)
        return first_components(key, model, spec, count, spread)

    def build(key, shared, own, data):
        q = expectation(log_likelihoods(model, shared, data), own.weights)
        with_q = noted(data, q)
        return Surrogate(
            own=Personal(mean_weights(q, own.weights, data)),
            solve=lambda shared: descend(key, with_q, gradient, optimizer, plan, shared),
        )

    def describe(own, data):
        rows = data.count.astype(float)
        return {f"weight_{m}": Mean(own.weights[m] * rows, rows) for m in range(count)}

    return surrogate_optimisation(
        "mixture",
        init=init,
        init_client=lambda key, shared, data: Personal(equal()),
        build=build,
        report=lambda at, data: report(at.loss, at.steps, *(at.own.weights * data.count >= 1)),
        predict=lambda shared, own, x: mixed_prediction(model, shared, own.weights, x),
        adapt=lambda key, shared, data: Personal(
            fit_weights(model, shared, data, equal(), adapt_steps)
        ),
        describe=describe,
        server_optimizer=each_component(for_server),
        weighting=weighting,
    )


def mixed_prediction(
    model: Model, components: PyTree, weights: Float[Array, " components"], x: PyTree
) -> Predictive:
    """The mixture of the components' predictive distributions."""
    each = jax.vmap(lambda parameters: model.predictive(parameters, x))(components)
    return mixture_of(each, weights)


def fit_weights(
    model: Model,
    components: PyTree,
    data: Shard,
    start: Float[Array, " components"],
    steps: int,
) -> Float[Array, " components"]:
    """EM on the weights alone, components fixed."""
    found = log_likelihoods(model, components, data)

    def update(_, weights):
        return mean_weights(expectation(found, weights), weights, data)

    return jax.lax.fori_loop(0, steps, update, start)


def log_likelihoods(
    model: Model, components: PyTree, data: Shard
) -> Float[Array, "rows components"]:
    """Values log p(y_i | x_i, theta_m) by row and component; padding repeats the last row."""
    size, _ = batches_of(data, _PASS)

    def of_rows(first):
        return _by_component(model, components, data.take(first + jnp.arange(size)))

    # A static count of batches: where it depends on the client, XLA writes the results row by row.
    found = jax.lax.map(of_rows, jnp.arange(0, data.capacity, size))
    return jnp.moveaxis(found, 1, -1).reshape(-1, found.shape[1])


def _by_component(
    model: Model, components: PyTree, rows: PyTree
) -> Float[Array, "components rows"]:
    """Values log p(y_i | x_i, theta_m). Large components one after the other: for convolutional
    networks that takes three quarters of the time, for linear models one and a half times as long.
    """
    if tree.size(components) <= _LARGE:
        return jax.vmap(model.log_likelihood, in_axes=(0, None))(components, rows)
    count = jax.tree.leaves(components)[0].shape[0]
    each = (jax.tree.map(lambda leaf, m=m: leaf[m], components) for m in range(count))
    return jnp.stack([model.log_likelihood(one, rows) for one in each])


def expectation(
    log_likelihood: Float[Array, "rows components"], weights: Float[Array, " components"]
) -> Float[Array, "rows components"]:
    """The E step: q_i(m), by log-sum-exp. A weight of zero stays zero."""
    return jax.nn.softmax(jnp.log(weights) + log_likelihood, axis=-1)


def mean_weights(
    q: Float[Array, "rows components"], weights: Float[Array, " components"], data: Shard
) -> Float[Array, " components"]:
    """The M step of the weights: the mean of q over the client's rows; without rows, the old
    weights.
    """
    is_row = jnp.arange(q.shape[0]) < data.count
    total = jnp.sum(jnp.where(is_row[:, None], q, 0.0), axis=0)
    return jnp.where(data.count > 0, total / jnp.maximum(data.count, 1), weights)


def weighted_gradient(model: Model) -> Gradient:
    """The loss sum_m mean_i q_i(m) (-log p(y_i | x_i, theta_m)) of rows with their q, and its
    gradient by all components.
    """

    def loss(components, batch):
        rows, q = batch.rows
        terms = _by_component(model, components, rows)
        terms = jnp.where(batch.mask, jnp.sum(q.T * terms, axis=0), 0.0)
        return -jnp.sum(terms) / jnp.maximum(jnp.sum(batch.mask), 1)

    return jax.value_and_grad(loss)


def first_components(
    key: Key[Array, ""], model: Model, spec: Spec, components: int, spread: int | float | None
) -> PyTree:
    """Independent initial parameters, stacked, with noise as `mixture` describes."""
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
    """The optimiser for each component by itself, also where it uses a norm of all parameters."""
    return optax.GradientTransformation(jax.vmap(optimizer.init), jax.vmap(optimizer.update))


def _checked_components(components: int | Literal["auto"]) -> int:
    if components == "auto":
        raise ValueError(
            'mixture: components="auto" is decided before a run; use `covey run`, or '
            "covey.choose_components"
        )
    need_counts("mixture", components=components)
    return components


def _warn_of_many(components: int, spec: Spec) -> None:
    if spec.clients is not None and components > spec.clients:
        warnings.warn(
            f"mixture: {components} components for {spec.clients} clients: some will double others "
            "or go unused; take fewer, or components='auto'",
            stacklevel=3,
        )
