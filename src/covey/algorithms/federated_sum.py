"""The sum of a statistic over clients, as a method of one round."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from covey.core.algorithm import Aggregate, Algorithm, Empty, Hooks, Local, Message, Query, no_state
from covey.core.shard import Shard, Spec, whole

Statistic: TypeAlias = Callable[[Key[Array, ""], Shard], PyTree]  # a client's term of a sum


class Sum(NamedTuple):
    """The sum over clients, as a mean over some rounds, and what clients are sent for it."""

    sum: PyTree
    rounds: Float[Array, ""]
    sent: Message = Empty()


def federated_sum(statistic: Statistic, *, name: str = "federated_sum") -> Algorithm:
    """The sum over all clients of a statistic of their rows.

        client:  s_i = statistic(key, D_i)
        server:  the mean over rounds of sum_i w_i s_i

    w_i is the inverse participation probability, times contacted over heard clients where messages
    are lost. One round with every client gives the sum itself; rounds with some of them average to
    it. Only sums reach the server, through whatever channel the run has.

    Args:
        statistic: (key, data) -> a tree of float arrays, whose shapes do not depend on the rows;
            `data` is a `covey.core.shard.Shard`. It may draw random values with the key.
        name: The method's name in reports and errors.

    Returns:
        A method whose server state is a `Sum`. It predicts nothing.

    Example:
        >>> import jax.numpy as jnp
        >>> from covey.core.shard import all_rows
        >>> from covey.datasets.synthetic import least_squares
        >>> from covey.engines.simulate import Simulation
        >>> data, _ = least_squares(0, clients=4, rows=10, dimensions=2, heterogeneity=0.5)
        >>> def rows(key, data):
        ...     return jnp.sum(all_rows(data).mask, dtype=float)
        >>> engine = Simulation(federated_sum(rows), data, seed=0)
        >>> state, _ = engine.advance(engine.start(), 1)
        >>> int(state.server.sum) == int(data.counts("train").sum())
        True
    """
    if not callable(statistic):
        raise ValueError(
            f"{name}: statistic must be a function (key, data) -> float arrays, got {statistic!r}"
        )

    return sum_of_answers(lambda key, sent, data: statistic(key, data), Empty(), name=name)


def sum_of_answers(
    query: Query, sent: Message, *, name: str, fixed_shapes: bool = False
) -> Algorithm:
    """The sum over all clients of their answers to what the server sends; see `federated_sum`.

    Args:
        query: (key, sent, data) -> a tree of float arrays.
        sent: Arrays that are sent to all clients.
        name: The method's name in reports and errors.
        fixed_shapes: Whether answers are known not to depend on the number of rows in their shapes.

    Returns:
        A method whose server state is a `Sum`. It predicts nothing.
    """

    def init(key, spec: Spec):
        count = spec.capacity if fixed_shapes else 1
        rows = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), spec.rows
        )
        shapes = jax.eval_shape(lambda rows: query(key, sent, whole(rows)), rows)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return Sum(zeros, jnp.zeros(()), jax.tree.map(jnp.asarray, sent))

    def no_prediction(*_: object):
        raise ValueError(f"{name} is a sum over clients: it predicts nothing")

    return Algorithm(
        name=name,
        init=init,
        broadcast=_broadcast,
        server=_server,
        init_client=no_state,
        client=_client_of(query),
        commit=no_state,
        predict=no_prediction,
        adapt=no_state,
        evaluate=lambda key, down, state, data: {},
        hooks=Hooks(fixed_shapes=fixed_shapes),
    )


def _broadcast(state: Sum) -> Message:
    return state.sent


def _server(key: Key[Array, ""], state: Sum, aggregate: Aggregate) -> tuple[Sum, Empty]:
    rounds = state.rounds + 1
    mean = jax.tree.map(
        lambda mean, new: mean + (new - mean) / rounds, state.sum, aggregate.weighted
    )
    return Sum(mean, rounds, state.sent), Empty()


@lru_cache(maxsize=64)  # the same function for the same query, so that programs are shared
def _client_of(query: Query):
    def client(key, down, state, data):
        return Local(query(key, down, data), Empty(), Empty())

    return client
