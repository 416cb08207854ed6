"""Clustered FL, split by a leading gradient direction (from sums), not by pairwise cosines."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.algorithms.averaging import (
    Weighting,
    change,
    check_weighting,
    client_weight,
    local_work,
    need_counts,
    optimizer_or,
)
from covey.core import tree
from covey.core.algorithm import Aggregate, Algorithm, Hooks, Local, no_state
from covey.core.shard import Shard, Spec, fold_batches
from covey.kernels.descent import Gradient, descend, mean_gradient
from covey.models.catalogue import need
from covey.models.model import Model

# rows at once in a gradient of all rows; bounds the memory and changes no value beyond rounding
_PASS = 256
_NOT_YET = -1


class Down(NamedTuple):
    """The clusters, and how clients find theirs.

    Attributes:
        parameters: theta_c; the leading axis is the cluster.
        direction: v_c; the leading axis is the cluster.
        divided: For each division, in order, the cluster that was divided. The half with a negative
            sign became cluster 1 at the first division, 2 at the second, and so on. -1 stands for a
            division that has not happened.
        at: The model of each division.
        along: The direction of each division.
    """

    parameters: PyTree
    direction: PyTree
    divided: Int[Array, " divisions"]
    at: PyTree
    along: PyTree


class State(NamedTuple):
    """The server's state.

    Attributes:
        down: The broadcast.
        rest: Rounds since the last division.
        first: r of the first round; 0 before it.
    """

    down: Down
    rest: Int[Array, ""]
    first: Float[Array, ""]


class Up(NamedTuple):
    """A client's upload: values in its cluster, zeros in all others.

    Attributes:
        delta: Delta_i, the change of the model.
        gradient: g_i.
        turn: u_i <u_i, v>.
        member: One; its weighted sum is the weight of the cluster.
        clients: One for a client with rows.
        square: |g_i|^2.
        coherence: <u_i, v>^2.
    """

    delta: PyTree
    gradient: PyTree
    turn: PyTree
    member: Float[Array, " clusters"]
    clients: Float[Array, " clusters"]
    square: Float[Array, " clusters"]
    coherence: Float[Array, " clusters"]


class Personal(NamedTuple):
    """The index of a client's cluster."""

    cluster: Int[Array, ""]


class Report(NamedTuple):
    """The number of clusters after the round."""

    clusters: Int[Array, ""]


class Rules(NamedTuple):
    """When a cluster is divided; see `clustered`."""

    clusters: int
    tolerance: int | float
    apart: int | float
    coherence: int | float
    patience: int


def clustered(
    model: Model,
    *,
    clusters: int = 4,
    tolerance: int | float = 0.3,
    apart: int | float = 0.1,
    coherence: int | float = 0.1,
    patience: int = 10,
    client_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    epochs: int = 1,
    steps: int | None = None,
    weighting: Weighting = "rows",
) -> Algorithm:
    """Clustered FL, split by a leading gradient direction (from sums), not by pairwise cosines.

    All clients begin in one cluster with FedAvg. Where a cluster's mean gradient is small and its
    clients' gradients are large, the clients contradict each other: the cluster is divided in two
    by the signs of <u_i, v_c>, u_i the normalised gradient of client i, and each half continues.

        client:  c = its cluster, by its signs at all divisions;    g_i = grad F_i(theta_c)
                 u_i = g_i / |g_i|;    Delta_i = theta_c - local optimiser from theta_c on D_i
        server:  theta_c = theta_c - sum_i w_i Delta_i / sum_i w_i    over the clients of c
                 v_c = normalised sum_i u_i <u_i, v_c>                power iteration
                 r_c = sqrt(mean_i |g_i|^2)
                 divide c at (theta_c, v_c) if |sum_i w_i g_i / sum_i w_i| < tolerance r_c,
                 r_c > apart times r of the first round, and mean_i <u_i, v_c>^2 > coherence

    A client has no state: it finds its cluster from its rows, and so does an unseen client. With
    one cluster this is FedAvg.

    Args:
        model: Model to train, from `covey.models`.
        clusters: Largest number of clusters. An upload has three vectors per cluster, where that of
            FedAvg has one.
        tolerance: A cluster may be divided when its mean gradient is shorter than this multiple of
            the root mean square r of its clients' gradients (eps_1 in the paper, there a length).
        apart: And when r is above this multiple of its value in the first round (eps_2 in the
            paper, there a length).
        coherence: And when the mean squared cosine of the gradients with the leading direction is
            above this, in [0, 1): it is small for many clients that differ by noise alone.
        patience: Rounds from one division to the next, and before the first.
        client_optimizer: Optax optimiser of the local steps. Default: SGD with step size 0.1.
        batch_size: Rows per minibatch of the local steps; None uses all rows. The gradients g_i are
            always of all rows.
        epochs: Passes over the client's rows per round.
        steps: Minibatch steps per round, in place of `epochs`.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal") in the
            averages of changes and gradients.

    Returns:
        A method for `covey.run`. Each round reports the number of `clusters`.

    Example:
        >>> import covey
        >>> from covey.datasets.synthetic import least_squares
        >>> data, _ = least_squares(0, clients=6, rows=10, dimensions=2, heterogeneity=1.0)
        >>> run = covey.run(covey.clustered(covey.models.linear()), data, rounds=40, seed=1)
        >>> int(run.metrics["clusters"].iloc[-1])
        4

    Reference: Sattler, Müller and Samek (2020), Clustered federated learning: model-agnostic
    distributed multitask optimization under privacy constraints, algorithms 1 and 3.

    Departures from the paper: its server sees every client's update and divides by the cosines of
    all pairs. Ours sees sums over clients only, and divides by the leading direction. At a
    stationary point of two clusters all cosines are 1 or -1 (its theorem 1) and the two agree. The
    conditions are relative to r, and `coherence` and `patience` are ours.
    """
    need(model, Model, "clustered")
    check_weighting(weighting, "clustered")
    rules = _checked(Rules(clusters, tolerance, apart, coherence, patience))
    gradient = mean_gradient(model.log_likelihood)
    plan = local_work("clustered", batch_size=batch_size, epochs=epochs, steps=steps)
    optimizer = optimizer_or(optax.sgd(0.1), client_optimizer, "client_optimizer", "clustered")

    def client(key, down, state, data):
        cluster = cluster_of(gradient, down, data)
        parameters = tree.take(down.parameters, cluster)
        delta, info = change(parameters, descend(key, data, gradient, optimizer, plan, parameters))
        own = contribution(delta, whole_gradient(gradient, parameters, data), cluster, down, data)
        return Local(own, no_state(), info, client_weight(data, weighting))

    def predict(key, down, personal, x):
        return model.predictive(tree.take(down.parameters, personal.cluster), x)

    return Algorithm(
        name="clustered",
        init=lambda key, spec: first_state(key, model, spec, clusters),
        broadcast=lambda state: state.down,
        server=lambda key, state, aggregate: server_step(key, state, aggregate, rules),
        init_client=no_state,
        client=client,
        commit=no_state,
        predict=predict,
        adapt=lambda key, down, data: Personal(cluster_of(gradient, down, data)),
        exact=("member", "clients", "square", "coherence"),
        hooks=Hooks(adapt_before_evaluation=True),
    )


def first_state(key: Key[Array, ""], model: Model, spec: Spec, clusters: int) -> State:
    """One cluster, and random directions."""
    model_key, direction_key = jax.random.split(key)
    # The key as it is for one cluster: its model then starts as that of FedAvg.
    first = model.init(key if clusters == 1 else model_key, spec)
    models, at = _stacked(first, clusters), _stacked(first, clusters - 1)
    directions = jax.vmap(unit)(optax.tree.random_like(direction_key, models))
    none = jnp.full(clusters - 1, _NOT_YET, jnp.int32)
    down = Down(models, directions, none, at, jax.tree.map(jnp.zeros_like, at))
    return State(down, jnp.int32(0), jnp.zeros(()))


def cluster_of(gradient: Gradient, down: Down, data: Shard) -> Int[Array, ""]:
    """A client's cluster, through the divisions in order; without rows, the positive halves."""

    def through(division, cluster):
        here = whole_gradient(gradient, tree.take(down.at, division), data)
        side = jnp.asarray(optax.tree.vdot(here, tree.take(down.along, division)))
        return jnp.where((down.divided[division] == cluster) & (side < 0), division + 1, cluster)

    if not len(down.divided):
        return jnp.int32(0)
    return jax.lax.fori_loop(0, jnp.sum(down.divided != _NOT_YET), through, jnp.int32(0))


def contribution(
    delta: PyTree, gradient: PyTree, cluster: Int[Array, ""], down: Down, data: Shard
) -> Up:
    """A client's upload: its values at the index of its cluster."""
    u = unit(gradient)
    cosine = jnp.asarray(optax.tree.vdot(u, tree.take(down.direction, cluster)))
    own = Up(
        delta=delta,
        gradient=gradient,
        turn=jax.tree.map(lambda e: cosine * e, u),
        member=jnp.ones(()),
        clients=(data.count > 0).astype(float),
        square=optax.tree.norm(gradient, squared=True),
        coherence=cosine**2,
    )
    one_hot = jax.nn.one_hot(cluster, len(down.divided) + 1)
    return jax.tree.map(lambda leaf: jnp.multiply.outer(one_hot, leaf), own)


def server_step(
    key: Key[Array, ""], state: State, aggregate: Aggregate, rules: Rules
) -> tuple[State, Report]:
    """FedAvg and power iteration in each cluster; then at most one division.

    Changes and gradients are averaged by weight. The direction and its measures count the clients
    of the round equally.
    """
    total, plain, down = aggregate.weighted, aggregate.plain, state.down
    moved = jax.vmap(_mean)(total.delta, total.member)
    down = down._replace(
        parameters=jax.tree.map(jnp.subtract, down.parameters, moved),
        direction=jax.vmap(_turned)(down.direction, plain.turn),
    )
    divisions = jnp.sum(down.divided != _NOT_YET)
    length = jnp.sqrt(plain.square / jnp.maximum(plain.clients, 1.0))
    first = jnp.where(state.first > 0, state.first, length[0])
    which, ready = _to_divide(total, plain, length, first, rules)
    ready &= (divisions < rules.clusters - 1) & (state.rest + 1 >= rules.patience)
    if rules.clusters > 1:
        down = tree.where(ready, _divided(down, which, divisions, key), down)
    rest = jnp.where(ready, 0, state.rest + 1)
    return State(down, rest, first), Report(1 + divisions + ready)


def whole_gradient(gradient: Gradient, parameters: PyTree, data: Shard) -> PyTree:
    """The gradient of the mean loss of all the client's rows; zero without any."""

    def add(total, batch):
        rows = jnp.sum(batch.mask)
        return jax.tree.map(lambda t, g: t + rows * g, total, gradient(parameters, batch)[1])

    total = fold_batches(data, _PASS, add, jax.tree.map(jnp.zeros_like, parameters))
    return jax.tree.map(lambda t: t / jnp.maximum(data.count, 1), total)


def unit(vector: PyTree) -> PyTree:
    """The vector with norm 1; zero stays zero."""
    length = optax.tree.norm(vector)
    return jax.tree.map(lambda leaf: leaf / jnp.where(length > 0, length, 1.0), vector)


def _mean(total: PyTree, weight: Float[Array, ""]) -> PyTree:
    """A sum over its weight; zero where nobody was heard."""
    return jax.tree.map(lambda leaf: leaf / jnp.where(weight > 0, weight, 1.0), total)


def _turned(direction: PyTree, turn: PyTree) -> PyTree:
    """A step of power iteration; the old direction where nobody was heard."""
    return tree.where(optax.tree.norm(turn) > 0, unit(turn), direction)


def _to_divide(
    total: Up,
    plain: Up,
    length: Float[Array, " clusters"],
    first: Float[Array, ""],
    rules: Rules,
) -> tuple[Int[Array, ""], Array]:
    """The most stationary of the clusters whose clients contradict each other, and whether there is
    one.
    """
    mean = jax.vmap(optax.tree.norm)(jax.vmap(_mean)(total.gradient, total.member))
    stationary = (mean < rules.tolerance * length) & (plain.clients >= 2)
    contrary = plain.coherence > rules.coherence * plain.clients
    pulled = stationary & (length > rules.apart * first) & contrary
    which = jnp.argmin(jnp.where(pulled, mean / jnp.where(pulled, length, 1.0), jnp.inf))
    return which, pulled[which]


def _divided(
    down: Down, which: Int[Array, ""], division: Int[Array, ""], key: Key[Array, ""]
) -> Down:
    """Both halves continue from the model of the cluster, with new random directions."""
    both, new = jnp.stack([which, division + 1]), division[None]
    halves = tree.take(down.parameters, jnp.stack([which, which]))
    fresh = jax.vmap(unit)(optax.tree.random_like(key, halves))
    always = jnp.ones(2, bool)
    return Down(
        parameters=tree.put(down.parameters, both, halves, always),
        direction=tree.put(down.direction, both, fresh, always),
        divided=down.divided.at[division].set(which.astype(jnp.int32), mode="drop"),
        at=tree.put(down.at, new, tree.take(down.parameters, which[None]), always[:1]),
        along=tree.put(down.along, new, tree.take(down.direction, which[None]), always[:1]),
    )


def _stacked(leaves: PyTree, count: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), leaves)


def _checked(rules: Rules) -> Rules:
    need_counts("clustered", clusters=rules.clusters, patience=rules.patience)
    if not 0 < rules.tolerance < math.inf:
        raise ValueError(
            f"clustered: tolerance must be above 0 and finite, got {rules.tolerance:g}"
        )
    if not 0 <= rules.apart < math.inf:
        raise ValueError(f"clustered: apart must be at least 0 and finite, got {rules.apart:g}")
    if not 0 <= rules.coherence < 1:
        raise ValueError(
            "clustered: coherence is a mean squared cosine and must be in [0, 1), got "
            f"{rules.coherence:g}"
        )
    return rules
