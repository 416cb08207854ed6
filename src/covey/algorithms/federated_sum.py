"""The sum of a statistic over clients, as a federated computation of its own: what a fit may want
to know before or after.

    client:  s_i = statistic(D_i), which may draw random numbers
    server:  the mean over rounds of sum_i w_i s_i,   w_i the inverse participation probability

One round with everyone gives the sum itself. Only the sum reaches the server, through whatever
channel the run has.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from covey.core.algorithm import Algorithm, Empty, Local, no_state
from covey.core.shard import Shard, Spec, whole


class Sum(NamedTuple):
    """The sum over clients, as a mean over so many rounds."""

    sum: PyTree
    rounds: Float[Array, ""]


def federated_sum(
    statistic: Callable[[Key[Array, ""], Shard], PyTree], *, name: str = "federated_sum"
) -> Algorithm:
    """The algorithm whose state is the sum over clients of `statistic`: (key, data) -> float
    arrays.
    """

    def init(key, spec: Spec):
        one = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape), leaf.dtype), spec.rows)
        shapes = jax.eval_shape(statistic, key, whole(one))
        return Sum(
            jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), jnp.zeros(())
        )

    def server(key, state, aggregate):
        rounds = state.rounds + 1
        return Sum(
            jax.tree.map(
                lambda mean, new: mean + (new - mean) / rounds, state.sum, aggregate.weighted
            ),
            rounds,
        ), Empty()

    def no_prediction(*_: object):
        raise ValueError(f"{name} is a sum over clients: it predicts nothing")

    return Algorithm(
        name=name,
        init=init,
        init_client=no_state,
        broadcast=lambda state: Empty(),
        client=lambda key, down, state, data: Local(statistic(key, data), Empty(), Empty()),
        commit=no_state,
        server=server,
        evaluate=lambda key, down, state, data: {},
        predict=no_prediction,
        adapt=no_state,
    )
