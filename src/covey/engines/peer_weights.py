"""The weight of a peer's upload in the step that it takes alone."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covey.core.algorithm import Aggregate, Message
from covey.core.keys import Stream, key_for
from covey.core.node import first_node
from covey.core.shard import Shard
from covey.engines.setup import Setup

_COHORTS = 1024  # cohorts that the typical weight is found from


def alone(up: Message, weight: Float[Array, ""], peers: int, total: Float[Array, ""]) -> Aggregate:
    """The sums that a server would see if all peers had sent this upload with this weight.

    The sum of the weights is that of all peers' own, so that the mean of these sums over peers is
    the weighted sum.
    """
    count = jnp.asarray(peers, float)
    return Aggregate(
        weighted=jax.tree.map(lambda leaf: (count * weight).astype(leaf.dtype) * leaf, up),
        plain=jax.tree.map(lambda leaf: count.astype(leaf.dtype) * leaf, up),
        weight=total,
        count=count,
    )


def total_weight(setup: Setup, storage: Shard) -> Float[Array, ""]:
    """The sum of the weights of all peers' uploads, at the first round."""

    @jax.jit
    def sum_of_weights(server, storage):
        def weight(client_id, start, count):
            data = Shard(storage.rows, start, count, storage.capacity)
            down = setup.algorithm.broadcast(server)
            node = first_node(setup.algorithm, setup.channel, setup.root, client_id, down, data)
            key = key_for(setup.root, Stream.CLIENT, 0, client_id)
            found = setup.algorithm.client(key, down, node.state, data).weight
            return jnp.ones(()) if found is None else found

        ids = jnp.arange(len(storage.count))
        return jnp.sum(jax.vmap(weight)(ids, storage.start, storage.count))

    return sum_of_weights(setup.first_server(), storage)


def typical_weight(setup: Setup) -> float:
    """The mean cohort weight of those who take part, over many cohorts.

    Any constant would leave the direction of the steps unbiased; with this one, those who take part
    step as far on average as in a round with everyone.
    """

    def one(t):
        cohort = setup.sampler.sample(key_for(setup.root, Stream.COHORT, t), t)
        return jnp.sum(cohort.mask), jnp.sum(jnp.where(cohort.mask, cohort.weight, 0.0))

    found = jax.jit(lambda: jax.lax.map(one, jnp.arange(_COHORTS)))()
    count, weight = (np.sum(np.asarray(part, np.float64)) for part in found)
    return float(weight / count) if count else 1.0
