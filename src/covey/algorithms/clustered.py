"""Clustered federated learning: where clients contradict each other they are divided in two, again
and again.

Sattler, Müller and Samek (2020), "Clustered federated learning: model-agnostic distributed
multitask optimization under privacy constraints", algorithms 1 and 3. All clients begin with one
model and FedAvg. Where FedAvg has come to rest but the clients have not, the sum of their gradients
small and the gradients themselves large, they pull apart: clients whose gradients have a positive
cosine stay together, and each half goes on with FedAvg of its own.

The paper's server compares all pairs of clients. Ours sees sums over clients alone, and divides by
the leading direction v of their normalised gradients u_i instead, found by power iteration while
FedAvg runs. At rest the cosine of two clients of two clusters is -1 and within a cluster 1 (its
theorem 1), and then the sign of <u_i, v> and the cosines divide them alike.

    client:  cluster c by its signs at all divisions so far; g_i = gradient of its mean loss at theta_c, u_i = g_i / |g_i|
             Delta_i = theta_c - local optimiser from theta_c on D_i
    server:  theta_c = theta_c - sum_i n_i Delta_i / sum_i n_i              over the clients of c, as in FedAvg
             v_c = normalised sum_i u_i <u_i, v_c>
             r_c = sqrt(mean_i |g_i|^2);  c is divided at (theta_c, v_c) if |sum_i n_i g_i / sum_i n_i| < tolerance r_c,
             r_c > apart times that of the first round, mean_i <u_i, v_c>^2 > coherence, and the last division is
             `patience` rounds ago

A client keeps nothing: it finds its cluster from its rows, at the models and directions of the
divisions, and so does a client that never took part. With one cluster it is FedAvg.

Example:
    method = covey.clustered(covey.models.logistic(), clusters=3, client_optimizer=optax.sgd(0.1))
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.algorithms.averaging import Weighting, change, check_weighting, client_weight
from covey.core import tree
from covey.core.algorithm import Algorithm, Hooks, Local, no_state
from covey.core.shard import Shard, fold_batches
from covey.kernels.descent import Gradient, descend, mean_gradient, schedule
from covey.models.model import Model

# rows at once in a gradient of all rows; bounds the memory and changes no value beyond rounding
_PASS = 256
_NOT_YET = -1


class Down(NamedTuple):
    """The clusters, and how clients come to them.

    parameters, direction: theta_c and v_c; the leading axis is the cluster.
    divided: for each division, in their order, the cluster that it divided; the half with a
        negative sign became cluster 1 for the first division, 2 for the second, and so on. -1 is a
        division that has not happened.
    at, along: the model and the direction of each division.
    """

    parameters: PyTree
    direction: PyTree
    divided: Int[Array, " divisions"]
    at: PyTree
    along: PyTree


class State(NamedTuple):
    """What is sent to clients; the rounds since the last division; r of the first round, 0 before
    it.
    """

    down: Down
    rest: Int[Array, ""]
    first: Float[Array, ""]


class Up(NamedTuple):
    """What a client adds to its cluster; zero for all others. The server sees their sums.

    delta, gradient: times the client's weight.
    turn: u <u, v>.
    weight, clients: the client's weight, and one.
    square, coherence: |g|^2 and <u, v>^2.
    """

    delta: PyTree
    gradient: PyTree
    turn: PyTree
    weight: Float[Array, " clusters"]
    clients: Float[Array, " clusters"]
    square: Float[Array, " clusters"]
    coherence: Float[Array, " clusters"]


class Personal(NamedTuple):
    """The number of a client's cluster."""

    cluster: Int[Array, ""]


class Report(NamedTuple):
    """How many clusters there are after the round."""

    clusters: Int[Array, ""]


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
    """Clustered federated learning with at most so many `clusters`; other options as in FedAvg.

    A cluster is at rest when its mean gradient is shorter than `tolerance` times the root mean
    square of its clients'. It is then divided if that root mean square is above `apart` times what
    it was in the first round (the paper's second condition, whose bound is a length), and the mean
    squared cosine of the gradients with the leading direction above `coherence`: for many clients
    that have nothing but noise it is small. The earliest time is `patience` rounds after the last
    division. A message has three vectors a cluster, where FedAvg's has one.
    """
    check_weighting(weighting)
    if clusters < 1:
        raise ValueError(f"clustered: clusters must be at least 1, got {clusters}")
    if tolerance <= 0:
        raise ValueError(f"clustered: tolerance must be above 0, got {tolerance:g}")
    if apart < 0:
        raise ValueError(f"clustered: apart must be at least 0, got {apart:g}")
    if not 0 <= coherence < 1:
        raise ValueError(
            f"clustered: coherence is a mean squared cosine and must be in [0, 1), got {coherence:g}"
        )
    if patience < 1:
        raise ValueError(f"clustered: patience must be at least 1 round, got {patience}")
    gradient = mean_gradient(model.log_likelihood)
    plan = schedule(batch_size=batch_size, epochs=epochs, steps=steps)
    optimizer = optax.sgd(0.1) if client_optimizer is None else client_optimizer

    def init(key, spec):
        model_key, direction_key = jax.random.split(key)
        first = model.init(key if clusters == 1 else model_key, spec)
        models = _stacked(first, clusters)
        at = _stacked(first, clusters - 1)
        directions = jax.vmap(unit)(optax.tree.random_like(direction_key, models))
        none = jnp.full(clusters - 1, _NOT_YET, jnp.int32)
        return State(
            Down(models, directions, none, at, jax.tree.map(jnp.zeros_like, at)),
            jnp.int32(0),
            jnp.zeros(()),
        )

    def cluster_of(down, data):
        """Through the divisions in their order; a client without rows goes with the positive
        halves.
        """

        def through(number, cluster):
            slope = whole_gradient(gradient, tree.take(down.at, number), data)
            side = jnp.asarray(optax.tree.vdot(slope, tree.take(down.along, number)))
            return jnp.where((down.divided[number] == cluster) & (side < 0), number + 1, cluster)

        if clusters == 1:
            return jnp.int32(0)
        return jax.lax.fori_loop(0, jnp.sum(down.divided != _NOT_YET), through, jnp.int32(0))

    def client(key, down, state, data):
        cluster = cluster_of(down, data)
        parameters, direction = (
            tree.take(down.parameters, cluster),
            tree.take(down.direction, cluster),
        )
        slope = whole_gradient(gradient, parameters, data)
        u = unit(slope)
        cosine = jnp.asarray(optax.tree.vdot(u, direction))
        delta, info = change(parameters, descend(key, data, gradient, optimizer, plan, parameters))
        weight = client_weight(data, weighting)
        own = Up(
            delta=jax.tree.map(lambda d: weight * d, delta),
            gradient=jax.tree.map(lambda g: weight * g, slope),
            turn=jax.tree.map(lambda e: cosine * e, u),
            weight=weight,
            clients=(data.count > 0).astype(float),
            square=optax.tree.norm(slope, squared=True),
            coherence=cosine**2,
        )
        in_cluster = jax.nn.one_hot(cluster, clusters)
        return Local(
            jax.tree.map(lambda leaf: jnp.multiply.outer(in_cluster, leaf), own), no_state(), info
        )

    def server(key, state, aggregate):
        down, total = state.down, aggregate.weighted
        mean = jax.tree.map(
            lambda s: jax.vmap(jnp.divide)(s, jnp.where(total.weight > 0, total.weight, 1.0)),
            total.delta,
        )
        down = down._replace(
            parameters=jax.tree.map(jnp.subtract, down.parameters, mean),
            direction=jax.vmap(_turned)(down.direction, total.turn),
        )
        number = jnp.sum(down.divided != _NOT_YET)
        length = jnp.sqrt(total.square / jnp.maximum(total.clients, 1.0))
        first = jnp.where(state.first > 0, state.first, length[0])
        which, ready = _to_divide(total, length, first)
        ready &= (number < clusters - 1) & (state.rest + 1 >= patience)
        down = tree.where(ready, _divide(down, which, number, key), down) if clusters > 1 else down
        return State(down, jnp.where(ready, 0, state.rest + 1), first), Report(1 + number + ready)

    def _to_divide(total, length, first):
        """The cluster that is nearest to rest among those whose clients pull apart, and whether
        there is one.
        """
        mean = jax.vmap(optax.tree.norm)(total.gradient) / jnp.where(
            total.weight > 0, total.weight, 1.0
        )
        at_rest = (mean < tolerance * length) & (total.clients >= 2)
        pulled = at_rest & (length > apart * first) & (total.coherence > coherence * total.clients)
        which = jnp.argmin(jnp.where(pulled, mean / jnp.where(pulled, length, 1.0), jnp.inf))
        return which, pulled[which]

    def predict(key, down, personal, x):
        return model.predictive(tree.take(down.parameters, personal.cluster), x)

    return Algorithm(
        name="clustered",
        init=init,
        init_client=no_state,
        broadcast=lambda state: state.down,
        client=client,
        commit=no_state,
        server=server,
        predict=predict,
        adapt=lambda key, down, data: Personal(cluster_of(down, data)),
        exact=("weight", "clients", "square", "coherence"),
        hooks=Hooks(adapt_before_evaluation=True),
    )


def whole_gradient(gradient: Gradient, parameters: PyTree, data: Shard) -> PyTree:
    """The gradient of the mean loss of all the client's rows; zero without any."""

    def add(total, batch):
        rows = jnp.sum(batch.mask)
        return jax.tree.map(lambda t, g: t + rows * g, total, gradient(parameters, batch)[1])

    total = fold_batches(data, _PASS, add, jax.tree.map(jnp.zeros_like, parameters))
    return jax.tree.map(lambda t: t / jnp.maximum(data.count, 1), total)


def unit(vector: PyTree) -> PyTree:
    """The vector with length 1; zero stays zero."""
    length = optax.tree.norm(vector)
    return jax.tree.map(lambda leaf: leaf / jnp.where(length > 0, length, 1.0), vector)


def _turned(direction: PyTree, turn: PyTree) -> PyTree:
    """A step of power iteration; where no client was heard of, the direction as it was."""
    return tree.where(optax.tree.norm(turn) > 0, unit(turn), direction)


def _divide(down: Down, which: Int[Array, ""], number: Int[Array, ""], key: Key[Array, ""]) -> Down:
    """Both halves go on from the model of the cluster, each with a direction to find."""
    one, new = jnp.stack([which, number + 1]), number[None]
    halves = tree.take(down.parameters, jnp.stack([which, which]))
    fresh = jax.vmap(unit)(optax.tree.random_like(key, halves))
    always = jnp.ones(2, bool)
    return Down(
        parameters=tree.put(down.parameters, one, halves, always),
        direction=tree.put(down.direction, one, fresh, always),
        divided=down.divided.at[number].set(which.astype(jnp.int32), mode="drop"),
        at=tree.put(down.at, new, tree.take(down.parameters, which[None]), always[:1]),
        along=tree.put(down.along, new, tree.take(down.direction, which[None]), always[:1]),
    )


def _stacked(leaves: PyTree, number: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (number, *leaf.shape)), leaves)
