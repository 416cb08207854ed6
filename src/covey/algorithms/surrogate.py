"""Federated surrogate optimisation: the frame of methods with shared and client-specific
parameters, such as `mixture` and `pfedme`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.algorithms.averaging import (
    Weighting,
    check_weighting,
    client_weight,
    first_state,
    need_counts,
    optimizer_or,
    server_step,
)
from covey.core.algorithm import Algorithm, Empty, Info, Local, keep
from covey.core.measure import measure
from covey.core.metrics import Metric
from covey.core.shard import Shard, Spec
from covey.kernels.descent import Descent
from covey.models.predictive import Predictive


class Surrogate(NamedTuple):
    """A surrogate g_t near a client's point.

    Attributes:
        own: v_t, the minimiser of g_t(u, .).
        solve: (u) -> the end of some steps on g_t(., v_t) from u.
    """

    own: PyTree
    solve: Callable[[PyTree], Descent]


class Point(NamedTuple):
    """A client's position within its round.

    Attributes:
        shared: u_t.
        own: v_t.
        loss: Sum of the losses of its local rounds.
        steps: Number of its steps.
    """

    shared: PyTree
    own: PyTree
    loss: Float[Array, ""]
    steps: Int[Array, ""]


# (key, u, v_t, data) -> g_t
Build: TypeAlias = Callable[[Key[Array, ""], PyTree, PyTree, Shard], Surrogate]


def surrogate_optimisation(
    name: str,
    *,
    init: Callable[[Key[Array, ""], Spec], PyTree],
    init_client: Callable[[Key[Array, ""], PyTree, Shard], PyTree],
    build: Build,
    report: Callable[[Point, Shard], Info],
    predict: Callable[[PyTree, PyTree, PyTree], Predictive],
    adapt: Callable[[Key[Array, ""], PyTree, Shard], PyTree],
    describe: Callable[[PyTree, Shard], Mapping[str, Metric]] | None = None,
    local_rounds: int = 1,
    server_optimizer: optax.GradientTransformation | None,
    weighting: Weighting,
) -> Algorithm:
    """A method that minimises sum_t w_t f_t(u, v_t), u shared and v_t of client t, by surrogates.

    A partial first-order surrogate g_t of f_t near (u, v_t) lies above f_t and touches it there.

        client:  g_t = surrogate of f_t near (u, v_t)
                 v_t = argmin over v of g_t(u, v)                            stays with the client
                 u_t = local solver on g_t(., v_t) from u
        server:  u = server optimiser(u, sum_t w_t (u - u_t) / sum_t w_t)    as in FedAvg

    w_t is the number of rows of client t (or 1), times the inverse of its participation
    probability.

    Args:
        name: The method's name in reports.
        init: (key, spec) -> u.
        init_client: (key, u, data) -> v_t at the client's first round.
        build: (key, u, v_t, data) -> the surrogate; the key serves its solver as well.
        report: (position at the end of the round, data) -> scalars to report.
        predict: (u, v_t, x) -> predictive distribution.
        adapt: (key, u, data) -> v of an unseen client.
        describe: (v_t, data) -> metrics of v_t, reported beside those of its predictions.
        local_rounds: Surrogates that a client builds and solves per round, each at the point
            that the last one led to.
        server_optimizer: Optax optimiser of the averaged change of u; None is the plain average.
        weighting: Whether clients count by their training rows ("rows") or equally ("equal").

    Returns:
        A method for `covey.run`. A client's state is v_t.

    Reference: Marfoq et al. (2021), Federated multi-task learning under a mixture of distributions,
    section 3.4 and algorithm 3.
    """
    check_weighting(weighting, name)
    need_counts(name, local_rounds=local_rounds)
    optimizer = optimizer_or(optax.sgd(1.0), server_optimizer, "server_optimizer", name)

    def once(key, at, data):
        surrogate = build(key, at.shared, at.own, data)
        end = surrogate.solve(at.shared)
        return Point(end.parameters, surrogate.own, at.loss + end.loss, at.steps + end.steps)

    def client(key, shared, own, data):
        at = Point(shared, own, jnp.zeros(()), jnp.zeros((), data.count.dtype))
        if local_rounds == 1:  # the key as it is: minibatches are then those of FedAvg
            at = once(key, at, data)
        else:
            at = jax.lax.fori_loop(
                0, local_rounds, lambda r, at: once(jax.random.fold_in(key, r), at, data), at
            )
        delta = jax.tree.map(jnp.subtract, shared, at.shared)
        info = report(at._replace(loss=at.loss / local_rounds), data)
        return Local(delta, at.own, info, client_weight(data, weighting))

    def evaluate(key, shared, own, data):
        more = {} if describe is None else dict(describe(own, data))
        return measure(lambda x: predict(shared, own, x), data) | more

    return Algorithm(
        name=name,
        init=lambda key, spec: first_state(optimizer, init(key, spec)),
        broadcast=lambda state: state.parameters,
        server=lambda key, state, aggregate: (server_step(optimizer, state, aggregate), Empty()),
        init_client=init_client,
        client=client,
        commit=keep,
        predict=lambda key, shared, own, x: predict(shared, own, x),
        adapt=adapt,
        evaluate=evaluate,
    )
