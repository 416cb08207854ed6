"""MOCHA: linear models of related clients, by dual coordinate ascent at each."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.algorithms.averaging import need_counts, need_positive
from covey.core.algorithm import Algorithm, Empty, Hooks, Local, Plan, keep
from covey.core.shard import Batch, Shard, all_rows, shuffled
from covey.kernels.dual_coordinates import (
    Loss,
    Problem,
    dual_ascent,
    duality_gap,
    logistic_loss,
    squared_loss,
)
from covey.models.catalogue import need
from covey.models.linear import Linear
from covey.models.model import Model, flat
from covey.models.predictive import Categorical, Normal


class State(NamedTuple):
    """The server's state and the broadcast.

    Attributes:
        relation: D, a matrix of weights by weights.
        round: Rounds done.
    """

    relation: Float[Array, "d d"]
    round: Int[Array, ""]


class Personal(NamedTuple):
    """A client's weights, the intercept last, and the dual variable of each of its rows."""

    weights: Float[Array, "*clients d"]
    dual: Float[Array, "*clients rows"]


class Info(NamedTuple):
    """The loss per row, and the gap between the client's primal and dual problem."""

    train_loss: Float[Array, ""]
    duality_gap: Float[Array, ""]


def mocha(
    model: Model,
    *,
    penalty: int | float,
    learn_relation: bool = True,
    relate_every: int = 1,
    rows: int = 1024,
    epochs: int = 5,
    adapt_epochs: int = 50,
) -> Algorithm:
    """MOCHA: one linear model per client, drawn together by a covariance that is learned.

    The objective, over the clients' weights W = (w_1, ..., w_b) and over Omega with trace 1, is

        sum_t sum over rows of loss(x'w_t) + lambda tr(W Omega^-1 W')

    where Omega says how clients are related. Its best value given W is
    (W'W)^(1/2) / tr (W'W)^(1/2), and then the penalty is lambda times the squared nuclear norm of
    W. The same penalty is lambda tr(W' D^-1 W) at D = (W W')^(1/2) / tr (W W')^(1/2): a matrix of
    features in place of one of clients, which needs only the sum of all w_t w_t'. So a round is

        client:  passes of stochastic dual coordinate ascent (SDCA) on its rows,
                 w_t = D sum over rows of alpha_j x_j / (2 lambda);    sends w_t w_t'
        server:  every `relate_every` rounds, D = (sum of w_t w_t')^(1/2) / its trace

    Each row has a dual variable alpha_j, which stays with the client. The gap between its primal
    and dual problem, which bounds how far w_t is from the minimum given D, is reported in every
    round. Omega = I / b, which is kept with `learn_relation=False`, is ridge regression for each
    client alone, with the penalty lambda b ||w_t||^2.

    Args:
        model: `covey.models.linear()` with known noise, or `covey.models.logistic()`. The loss is
            minus the log-likelihood of a row; the intercept is penalised as weights are.
        penalty: Strength of the penalty (lambda), above 0.
        learn_relation: Whether D is learned; False keeps I / b.
        relate_every: Rounds from one update of D to the next.
        rows: The most training rows of any client: a client keeps one dual variable per row.
        epochs: Passes over the client's rows per round: its budget (theta_t in the paper).
        adapt_epochs: Passes over its rows of an unseen client, with D fixed.

    Returns:
        A method for `covey.run`. A client's state is its weights and dual variables; an upload has
        a matrix with as many rows as there are weights. Rounds report `duality_gap`, the mean over
        clients.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=5, rows=10, dimensions=2, heterogeneity=0.5)
        >>> run = covey.run(covey.mocha(covey.models.linear(), penalty=0.1), data, rounds=20)
        >>> run.evaluate(split="train").pooled["mse"] < 0.05
        True

    Reference: Smith, Chiang, Sanjabi and Talwalkar (2017), Federated multi-task learning,
    algorithm 1; Argyriou, Evgeniou and Pontil (2008), Convex multi-task feature learning, for the
    equivalence of Omega and D.

    Departures from the paper: D replaces Omega. The minimum is the same, the way to it
    is not: given D the clients' problems are independent, where given Omega they are solved by
    steps on a bound. The server never sees the weights of a client, and b does not enter its work.
    A multiple of I that falls with the square of the updates is added to W W' (see `relation_of`).
    The losses are those of the models; the paper has hinge losses too.
    """
    need(model, Model, "mocha")
    need_positive("mocha", penalty=penalty)
    need_counts(
        "mocha", relate_every=relate_every, rows=rows, epochs=epochs, adapt_epochs=adapt_epochs
    )

    def init(key, spec):
        start = model.init(key, spec)
        _check_model(model, start)
        if spec.clients is None:
            raise ValueError("mocha: the number of clients must be known: Spec.clients")
        size = start.weight.size + 1
        return State(jnp.eye(size) / spec.clients, jnp.int32(0))

    def nothing(key, down, data):
        return _fresh(down, rows)

    def solved(key: Key[Array, ""], down: State, own: Personal, data: Shard, passes: int):
        problem = problem_of(model, down.relation / (2 * penalty), all_rows(data))
        orders = jax.vmap(lambda key: shuffled(key, data))(jax.random.split(key, passes))
        return problem, dual_ascent(problem, own.dual, orders, data.count)

    def client(key, down, own, data):
        problem, (weights, dual) = solved(key, down, own, data, epochs)
        loss, gap = duality_gap(problem, dual)
        info = Info(loss / jnp.maximum(data.count, 1), gap)
        return Local(jnp.outer(weights, weights), Personal(weights, dual), info)

    def server(key, state, aggregate):
        done = state.round + 1
        if not learn_relation:
            return State(state.relation, done), Empty()
        new = relation_of(aggregate.weighted, done // relate_every)
        # Clients that were heard and have no rows have no weights and no information about D.
        due = (done % relate_every == 0) & (jnp.trace(aggregate.weighted) > 0)
        return State(jnp.where(due, new, state.relation), done), Empty()

    def adapt(key, down, data):
        _, (weights, _) = solved(key, down, _fresh(down, data.capacity), data, adapt_epochs)
        return Personal(weights, jnp.zeros(rows, weights.dtype))

    def predict(key, down, own, x):
        return model.predictive(Linear(own.weights[:-1], own.weights[-1]), x)

    return Algorithm(
        name="mocha",
        init=init,
        broadcast=lambda state: state,
        server=server,
        init_client=nothing,
        client=client,
        commit=keep,
        predict=predict,
        adapt=adapt,
        hooks=Hooks(validate=lambda plan: _check_rows(plan, rows)),
    )


def problem_of(model: Model, metric: Float[Array, "d d"], batch: Batch) -> Problem:
    """A client's problem: its design with a column of ones, its outcomes, and the loss."""
    x = flat(batch.rows.x).astype(metric.dtype)
    design = jnp.concatenate([x, jnp.ones((len(x), 1), x.dtype)], axis=1)
    zero = Linear(jnp.zeros(x.shape[1], x.dtype), jnp.zeros((), x.dtype))
    return Problem(design, loss_of(model, zero, batch), metric, batch.mask)


def loss_of(model: Model, at: Linear, batch: Batch) -> Loss:
    """The loss of each row as a function of its predictor."""
    predictive, y = model.predictive(at, batch.rows.x), batch.rows.y
    if isinstance(predictive, Normal):
        return squared_loss(y.astype(predictive.scale.dtype), predictive.scale)
    if isinstance(predictive, Categorical):
        return logistic_loss(y)
    raise ValueError(_not_linear(model))


def relation_of(total: Float[Array, "d d"], updates: int | Int[Array, ""]) -> Float[Array, "d d"]:
    """D = (M + e I)^(1/2) over its trace, M the sum of w w', e its mean eigenvalue / updates^2.

    Without e, directions that no w has could never be taken, and with few clients there are some.
    """
    values, axes = jnp.linalg.eigh((total + total.T) / 2)
    mean = jnp.maximum(jnp.mean(values), jnp.finfo(values.dtype).tiny)
    roots = jnp.sqrt(jnp.maximum(values, 0.0) + mean / jnp.maximum(updates, 1) ** 2)
    return (axes * (roots / jnp.sum(roots))) @ axes.T


def _fresh(down: State, rows: int) -> Personal:
    """No weights yet, and a dual variable for each of `rows` rows."""
    dtype = down.relation.dtype
    return Personal(jnp.zeros(len(down.relation), dtype), jnp.zeros(rows, dtype))


def _check_model(model: Model, start: PyTree) -> None:
    if not isinstance(start, Linear) or start.weight.ndim != 1:
        raise ValueError(_not_linear(model))


def _not_linear(model: Model) -> str:
    return (
        "mocha: the models of clients are linear, with a squared or logistic loss, and "
        f"{model.name} is not, or has more than weights and an intercept; use "
        "covey.models.linear() with a known scale and without offset or weights, or "
        "covey.models.logistic(). For a network take ditto or fedrep"
    )


def _check_rows(plan: Plan, rows: int) -> None:
    most = int(plan.counts.max())
    if most > rows:
        raise ValueError(
            f"mocha: a client has {most} training rows, each with a dual variable, and rows={rows} "
            f"is too small: give rows={most}"
        )
