"""A client's observed information about the shared parameters of a mixed model, by the identity of
Louis (1982); see `louis.shared_posterior`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key

from covey.algorithms.joint import Joint, Population
from covey.core.shard import Shard, all_rows
from covey.kernels.importance import laplace, prior_draws, weighted_draws

BATCHES = 8  # independent estimates per client; their spread is the Monte Carlo error
FEW = 0.1  # of the draws: a client with fewer effective ones is counted as poorly drawn


class Information(NamedTuple):
    """A client's upload, and the sum over clients: estimates of the information about theta.

    Attributes:
        batches: Independent unbiased estimates.
        score: The gradient of the log-likelihood, estimated by each batch.
        complete: Mean squares of the scores of rows and effects together: about the diagonal of the
            information that these would have.
        poor: Clients whose draws of the effects are worth few.
    """

    batches: Float[Array | np.ndarray, "batches parameters parameters"]
    score: Float[Array | np.ndarray, "batches parameters"]
    complete: Float[Array | np.ndarray, " parameters"]
    poor: Float[Array | np.ndarray, ""]


class _Half(NamedTuple):
    """Moments of the score of the complete data under p(z | D_i, theta)."""

    curvature: Float[Array, "parameters parameters"]
    second: Float[Array, "parameters parameters"]
    mean: Float[Array, " parameters"]
    effective: Float[Array, ""]


def client_information(
    key: Key[Array, ""], theta: Population, data: Shard, *, joint: Joint, draws: int
) -> Information:
    """A client's information about theta, from draws of its effects; zero for one without rows."""
    flat, unravel = ravel_pytree(theta)
    every = all_rows(data)

    def log_density(z):
        return joint.log_complete(theta, z, every)

    around = laplace(log_density, joint.start(theta))
    response = joint.response(theta, around, every)

    def log_joint(parameters, z):
        return joint.log_moving(unravel(parameters), theta, response, z, every)

    def drawn_by(key):
        key_prior, key_near = jax.random.split(key)
        some = joint.prior_draws(key_prior, theta, prior_draws(draws))
        return weighted_draws(
            key_near, log_density, around, some, lambda z: joint.log_effects(theta, z), draws
        )

    def moments_of_half(key):
        """Independent draws, and the moments of the score that they give."""
        drawn = drawn_by(key)

        def expected(parameters):
            return drawn.weight @ jax.vmap(lambda z: log_joint(parameters, z))(drawn.z)

        scores = jax.vmap(lambda z: jax.grad(log_joint)(flat, z))(drawn.z)
        return _Half(
            -jax.hessian(expected)(flat),
            (scores.T * drawn.weight) @ scores,
            drawn.weight @ scores,
            drawn.effective,
        )

    keys = jax.random.split(key, (BATCHES, 2)).reshape(-1)
    halves = jax.lax.map(moments_of_half, keys)
    one, other = (jax.tree.map(lambda leaf, at=at: leaf[at::2], halves) for at in (0, 1))
    # The product of two independent means: that of one with itself would be too large on average.
    outer = jax.vmap(jnp.outer)(one.mean, other.mean)
    outer = (outer + jnp.swapaxes(outer, 1, 2)) / 2
    batches = (one.curvature + other.curvature - one.second - other.second) / 2 + outer
    drawn = drawn_by(keys[0])
    still = jax.grad(lambda at, z: joint.log_complete(unravel(at), z, every))
    complete = drawn.weight @ jax.vmap(lambda z: still(flat, z) ** 2)(drawn.z)
    poor = jnp.mean(halves.effective < FEW * draws, dtype=flat.dtype)
    found = Information(batches, (one.mean + other.mean) / 2, complete, poor)
    return jax.tree.map(lambda leaf: jnp.where(data.count > 0, leaf, 0.0), found)
