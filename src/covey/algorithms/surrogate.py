"""Federated surrogate optimisation: the frame of methods with something shared and something of
each client's own.

Marfoq et al. (2021), "Federated multi-task learning under a mixture of distributions", section 3.4
and algorithm 3. The objective is f(u, v) = sum_t w_t f_t(u, v_t), with u shared and v_t of client t
alone. A partial first-order surrogate g_t of f_t near (u, v_t) lies above f_t and touches it there.
In a round

    client:  g_t = surrogate of f_t near (u, v_t)
             v_t = argmin over v of g_t(u, v)                                    never leaves the client
             u_t = local solver on g_t(., v_t) from u
    server:  u = server optimiser(u, sum_t w_t (u - u_t) / sum_t w_t)            as in FedAvg

w_t is the number of rows of client t (or 1), times the inverse of its participation probability. A
client may do its part several times in a round (`local_rounds`), each time with a surrogate at the
point where it stands.

`mixture` (v_t are the weights of components) and `pfedme` (v_t is the client's own model) are this
frame with their surrogates.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.algorithms.averaging import (
    State,
    Weighting,
    check_weighting,
    client_weight,
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

    own: v_t, which minimises it there.
    solve: (u) -> where some steps on g_t(., v_t) lead from u.
    """

    own: PyTree
    solve: Callable[[PyTree], Descent]


class Point(NamedTuple):
    """Where a client stands within its round: u_t, v_t, the sum of its local rounds' losses, and
    its steps.
    """

    shared: PyTree
    own: PyTree
    loss: Float[Array, ""]
    steps: Int[Array, ""]


Build: TypeAlias = Callable[
    [Key[Array, ""], PyTree, PyTree, Shard], Surrogate
]  # (key, u, v_t, data) -> g_t


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
    """A method from its surrogate.

    Args:
        name: what reports call it.
        init: (key, spec) -> u.
        init_client: (key, u, data) -> v_t at the client's first round.
        build: the surrogate; it is given one key for all that it does, the solver included.
        report: (where the round led, data) -> scalars.
        predict: (u, v_t, x) -> predictive distribution.
        adapt: (key, u, data) -> v of a client that never took part.
        describe: (v_t, data) -> metrics of v_t beside those of its predictions.
        local_rounds: how often a client does its part in a round.
        server_optimizer: the plain average by default.
        weighting: of the clients, by their rows or equally.
    """
    check_weighting(weighting)
    if local_rounds < 1:
        raise ValueError(f"{name}: local_rounds must be at least 1, got {local_rounds}")
    optimizer = optax.sgd(1.0) if server_optimizer is None else server_optimizer

    def start(key, spec):
        shared = init(key, spec)
        return State(shared, optimizer.init(shared))

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
        init=start,
        init_client=init_client,
        broadcast=lambda state: state.parameters,
        client=client,
        commit=keep,
        server=lambda key, state, aggregate: (server_step(optimizer, state, aggregate), Empty()),
        evaluate=evaluate,
        predict=lambda key, shared, own, x: predict(shared, own, x),
        adapt=adapt,
    )
