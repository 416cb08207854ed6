"""The smallest method that remembers something, for tests to break."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from covey.core.algorithm import Algorithm, Empty, Local
from covey.core.shard import all_rows
from covey.models import Normal


class Mean(NamedTuple):
    mean: jax.Array


class Sums(NamedTuple):
    total: jax.Array
    rows: jax.Array


def client(key, down, state, data):
    rows = all_rows(data)
    total = jnp.sum(jnp.where(rows.mask, rows.rows.y, 0.0))
    return Local(Sums(total, data.count.astype(float)), state, Empty())


def server(key, state, aggregate):
    return Mean(aggregate.plain.total / jnp.maximum(aggregate.plain.rows, 1.0)), Empty()


def mean(**changes) -> Algorithm:
    """The mean of all outcomes; a client remembers the sum of what it has sent."""
    method = Algorithm(
        name="mean",
        init=lambda key, spec: Mean(jnp.zeros(())),
        broadcast=lambda state: state,
        server=server,
        init_client=lambda key, down, data: jnp.zeros(()),
        client=client,
        commit=lambda pending, sent: pending + sent.total,
        predict=lambda key, down, state, x: Normal(jnp.full(len(x), down.mean), jnp.ones(len(x))),
        adapt=lambda key, down, data: jnp.zeros(()),
    )
    return method._replace(**changes)
