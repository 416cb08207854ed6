"""FedBE: an ensemble drawn from a Gaussian over the clients' models, distilled into one."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree, Shaped

from covey.algorithms.averaging import (
    Weighting,
    check_weighting,
    client_weight,
    mean_change,
    need_counts,
    need_positive,
)
from covey.algorithms.fedavg import fedavg
from covey.core.algorithm import Algorithm, Approximation, Empty, Hooks, Local, Posterior
from covey.core.shard import Spec
from covey.models.catalogue import need
from covey.models.model import Model
from covey.models.predictive import Categorical, Normal, Predictive, mixture_of

_CYCLE = 5  # steps of the distillation from its longest to its shortest; models are averaged there
_SHORTEST = 0.1  # of the longest step


# (parameters, indices of the server's rows) -> (loss, gradient)
RowGradient = Callable[[PyTree, Int[Array, " batch"]], tuple[Float[Array, ""], PyTree]]


class Law(NamedTuple):
    """A Gaussian over models, independent in each parameter."""

    mean: PyTree
    variance: PyTree


class State(NamedTuple):
    """The server's state, and what clients predict with.

    Attributes:
        parameters: The model that is broadcast: the distilled one, or the mean without rows.
        law: The Gaussian of the newest round.
        members: The ensemble, on the leading axis.
    """

    parameters: PyTree
    law: Law
    members: PyTree


class Up(NamedTuple):
    """theta - theta_i, and its squares."""

    delta: PyTree
    square: PyTree


def fedbe(
    model: Model,
    *,
    server_rows: Shaped[Array | np.ndarray, " rows *features"] | None = None,
    members: int = 10,
    distill_step: float = 0.01,
    distill_steps: int = 100,
    distill_batch: int = 128,
    client_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """FedBE: FedAvg whose server predicts with an ensemble of models and distils it into one.

        client:  theta_i = local optimiser from theta on D_i;    sends theta - theta_i, its squares
        server:  m = weighted mean of the theta_i,  v = their weighted variance, by parameter
                 ensemble: `members` draws from N(m, v)
                 theta = m, trained by SGD to predict what the ensemble predicts for the server's
                 rows; the average of its models on the way (SWA)

    The server's rows have no outcomes. Without any there is no distillation: theta is FedAvg's m,
    predictions are those of the ensemble, and the run says so. `run.posterior.shared` is N(m, v):
    how much clients disagree, which is not a posterior in the sense of Bayes' theorem.

    Args:
        model: Model to train, from `covey.models`, of labels or of a numeric outcome.
        server_rows: Features of rows that the server has, without outcomes. Default: none.
        members: Models of the ensemble (M in the paper).
        distill_step: Longest step size of the distillation; it falls to a tenth and returns every
            5 steps.
        distill_steps: Steps of the distillation per round, at least 5.
        distill_batch: Rows per step of the distillation.
        client_optimizer: Optax optimiser of the clients' local steps. Default: SGD with step size
            0.1.
        batch_size: Rows per minibatch of a client; None uses all its rows at each step.
        epochs: Passes over the client's rows per round.
        steps: Minibatch steps per round, in place of `epochs`.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`, without client state. An upload has two vectors.

    Example:
        >>> import numpy as np, covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=4, rows=10, dimensions=2, heterogeneity=0.5)
        >>> rows = np.random.default_rng(0).normal(size=(200, 2))
        >>> method = covey.fedbe(covey.models.linear(), server_rows=rows)
        >>> run = covey.run(method, data, rounds=20, seed=1)
        >>> run.evaluate(split="train").pooled["mse"] < 0.25
        True

    Reference: Chen and Chao (2021), FedBE: making Bayesian model ensemble applicable to federated
    learning, algorithm 1.

    Departures from the paper: the ensemble has draws of the Gaussian only, as the server sees sums
    over clients and not each client's model. A numeric outcome is distilled by its mean.
    """
    need(model, Model, "fedbe")
    check_weighting(weighting, "fedbe")
    need_counts("fedbe", members=members, distill_steps=distill_steps, distill_batch=distill_batch)
    need_positive("fedbe", distill_step=distill_step)
    if distill_steps < _CYCLE:
        raise ValueError(f"fedbe: distill_steps must be at least {_CYCLE}, got {distill_steps}")
    plain = fedavg(
        model,
        client_optimizer=client_optimizer,
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        weighting=weighting,
    )
    own_rows = None if server_rows is None else jnp.asarray(server_rows)

    def init(key, spec):
        _check_rows(own_rows, spec)
        start = model.init(key, spec)
        law = Law(start, jax.tree.map(jnp.zeros_like, start))
        alike = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (members, *leaf.shape)), start)
        return State(start, law, alike)

    def client(key, parameters, state, data):
        delta, _, info, _ = plain.client(key, parameters, state, data)
        up = Up(delta, jax.tree.map(jnp.square, delta))
        return Local(up, Empty(), info, client_weight(data, weighting))

    def server(key, state, aggregate):
        for_ensemble, for_rows = jax.random.split(key)
        law = law_of(state.parameters, mean_change(aggregate))
        ensemble = drawn(for_ensemble, law, members)
        if own_rows is None:
            return State(law.mean, law, ensemble), Empty()
        targets = ensemble_predictive(model, ensemble, own_rows)
        gradient = distillation_gradient(model, own_rows, targets)
        sizes = len(own_rows), distill_batch
        student = distilled(for_rows, gradient, law.mean, sizes, distill_steps, distill_step)
        return State(student, law, ensemble), Empty()

    def predict(key, down, client_state, x):
        if own_rows is None:
            return ensemble_predictive(model, down.members, x)
        return model.predictive(down.parameters, x)

    def validate(plan):
        if own_rows is None:
            warnings.warn(
                "fedbe: there are no server_rows, so that nothing is distilled: clients train "
                "FedAvg's mean, and predictions are those of the ensemble",
                stacklevel=4,
            )

    return plain._replace(
        name="fedbe",
        init=init,
        client=client,
        server=server,
        predict=predict,
        publish=lambda state: state,
        posterior=Posterior(shared=_posterior(model), axes=model.axes),
        hooks=Hooks(validate=validate),
    )


def law_of(parameters: PyTree, mean: Up) -> Law:
    """The weighted moments of the clients' models, from those of their changes."""
    centre = jax.tree.map(jnp.subtract, parameters, mean.delta)
    # Rounding, and a lossy channel, can make it negative.
    spread = jax.tree.map(lambda s, d: jnp.maximum(s - d**2, 0.0), mean.square, mean.delta)
    return Law(centre, spread)


def drawn(key: Key[Array, ""], law: Law, count: int) -> PyTree:
    """Models from the law, on the leading axis."""

    def one(key):
        xi = optax.tree.random_like(key, law.mean)
        return jax.tree.map(lambda m, v, e: m + jnp.sqrt(v) * e, law.mean, law.variance, xi)

    return jax.vmap(one)(jax.random.split(key, count))


def ensemble_predictive(
    model: Model, members: PyTree, x: Shaped[Array, " rows *features"]
) -> Predictive:
    """The ensemble's predictive distribution: the mixture with equal weights."""
    return mixture_of(jax.lax.map(lambda one: model.predictive(one, x), members))


def distillation_gradient(
    model: Model, rows: Shaped[Array, " rows *features"], targets: Predictive
) -> RowGradient:
    """(parameters, row indices) -> minus the mean log-score of the ensemble's predictions."""

    def loss(parameters, index):
        student = model.predictive(parameters, rows[index])
        if isinstance(student, Categorical):
            terms = jnp.sum(targets.mean[index] * student.log_probability, axis=-1)
        elif isinstance(student, Normal):
            terms = student.log_prob(targets.mean[index])
        else:
            raise ValueError(
                f"fedbe distils labels and numeric outcomes, and {model.name} predicts a "
                f"{type(student).__name__}; leave server_rows out to predict with the ensemble"
            )
        return -jnp.mean(terms)

    return jax.value_and_grad(loss)


def distilled(
    key: Key[Array, ""],
    gradient: RowGradient,
    start: PyTree,
    sizes: tuple[int, int],
    steps: int,
    longest: int | float,
) -> PyTree:
    """The average of models along SGD with cyclic steps, one at the end of each cycle (SWA).

    Args:
        key: Random key of the minibatches.
        gradient: (parameters, row indices) -> (loss, gradient).
        start: The first model.
        sizes: Rows of the server, and of a minibatch.
        steps: Steps in all; those after the last whole cycle are left out.
        longest: Step size at the beginning of a cycle.
    """
    cycles = steps // _CYCLE
    rates = longest * np.linspace(1.0, _SHORTEST, _CYCLE)

    def step(index, parameters):
        chosen = jax.random.randint(jax.random.fold_in(key, index), (sizes[1],), 0, sizes[0])
        rate = jnp.asarray(rates, float)[index % _CYCLE]
        _, down = gradient(parameters, chosen)
        return jax.tree.map(lambda p, g: p - rate.astype(p.dtype) * g, parameters, down)

    def cycle(index, carry):
        parameters, mean = carry
        first = index * _CYCLE
        parameters = jax.lax.fori_loop(first, first + _CYCLE, step, parameters)
        return parameters, jax.tree.map(lambda m, p: m + (p - m) / (index + 1), mean, parameters)

    return jax.lax.fori_loop(0, cycles, cycle, (start, start))[1]


def _posterior(model: Model) -> Approximation:
    def draw(key, law, count):
        draws = drawn(key, law, count)
        return draws if model.describe is None else jax.vmap(model.describe)(draws)

    return Approximation(
        fit=lambda down, spec, ask: down.law,
        draw=draw,
        predictive=lambda key, law, x, count: ensemble_predictive(model, drawn(key, law, count), x),
        caution="the law of the shared parameters is how much the clients' models differ, not a "
        "posterior: its intervals are no credible intervals. For those see covey.fedpa, covey.fald "
        "or covey.marginal",
    )


def _check_rows(rows: Shaped[Array, " rows *features"] | None, spec: Spec) -> None:
    if rows is not None and (not len(rows) or rows.shape[1:] != spec.rows.x.shape):
        raise ValueError(
            f"fedbe: server_rows has shape {rows.shape}, and rows of clients have features of "
            f"shape {spec.rows.x.shape}; give at least one row of the same features"
        )
