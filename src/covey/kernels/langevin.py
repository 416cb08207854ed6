"""Unadjusted Langevin kernels: a step up the gradient of a client's log-posterior, and Gaussian noise.

    z <- z + step grad log p(z | D_i) + sqrt(2 step) xi

With all rows this is the unadjusted Langevin algorithm (ULA). With a minibatch drawn without replacement, whose log-likelihood
counts n / batch times, it is stochastic gradient Langevin dynamics (SGLD, Welling and Teh, 2011). No step is rejected, so what
the chain samples differs from the posterior by O(step); for a Gaussian posterior of precision P, ULA samples a Gaussian with
the right mean and covariance P^-1 (I - step P / 2)^-1, and it diverges from step = 2 / max eigenvalue of P on.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from blackjax.sgmcmc.diffusions import overdamped_langevin
from jaxtyping import Array, Float, Key, PyTree

from covey.core.shard import Batch, Shard, all_rows, some_rows


class Posterior(NamedTuple):
    """What a kernel samples: p(z | D_i) of one client, up to a constant.

    log_prior: (z) -> log p(z).
    log_likelihood: (z, rows) -> log p(row | z) by row.
    data: the client's rows.
    """

    log_prior: Callable[[PyTree], Float[Array, ""]]
    log_likelihood: Callable[[PyTree, PyTree], Float[Array, " rows"]]
    data: Shard

    def log_density(self, z: PyTree, batch: Batch) -> Float[Array, ""]:
        """The sum log p(z) + n / batch sum over the batch of log p(row | z): unbiased if the batch is a random one."""
        terms = jnp.where(batch.mask, self.log_likelihood(z, batch.rows), 0.0)
        scale = self.data.count / jnp.maximum(jnp.sum(batch.mask), 1)
        return self.log_prior(z) + scale * jnp.sum(terms)


# (key, posterior, z, step size) -> the next z: one transition. Whatever else a sampler carries it makes anew at each.
Kernel: TypeAlias = Callable[[Key[Array, ""], Posterior, PyTree, float], PyTree]


def ula() -> Kernel:
    """The unadjusted Langevin algorithm: the gradient of all rows at each step."""
    move = overdamped_langevin()

    def kernel(key, posterior, z, step_size):
        return move(key, z, jax.grad(posterior.log_density)(z, all_rows(posterior.data)), step_size)

    return kernel


def sgld(*, batch_size: int) -> Kernel:
    """Stochastic gradient Langevin dynamics: `batch_size` rows at each step, drawn anew without replacement."""
    if batch_size < 1:
        raise ValueError(f"sgld: batch_size must be at least 1, got {batch_size}")
    move = overdamped_langevin()

    def kernel(key, posterior, z, step_size):
        choose, noise = jax.random.split(key)
        batch = some_rows(choose, posterior.data, batch_size)
        return move(noise, z, jax.grad(posterior.log_density)(z, batch), step_size)

    return kernel


def chain(
    key: Key[Array, ""], kernel: Kernel, posterior: Posterior, start: PyTree, *, step_size: float, burn_in: int, draws: int
) -> PyTree:
    """The states after each of the last `draws` of `burn_in + draws` transitions, stacked; the last is where to go on from."""

    def step(number, z):
        return kernel(jax.random.fold_in(key, number), posterior, z, step_size)

    def kept(z, number):
        z = step(number, z)
        return z, z

    begin = jax.lax.fori_loop(0, burn_in, step, start)
    return jax.lax.scan(kept, begin, burn_in + jnp.arange(draws))[1]
