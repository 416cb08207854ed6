"""Unadjusted Langevin kernels: a step up the gradient of a client's log-posterior, and Gaussian
noise.

    z <- z + step grad log p(z | D_i) + sqrt(2 step) xi

With all rows this is the unadjusted Langevin algorithm (ULA). With a minibatch drawn without
replacement, whose log-likelihood counts n / batch times, it is stochastic gradient Langevin
dynamics (SGLD, Welling and Teh, 2011). No step is rejected, so what the chain samples differs from
the posterior by O(step); for a Gaussian posterior of precision P, ULA samples a Gaussian with the
right mean and covariance P^-1 (I - step P / 2)^-1, and it diverges from step = 2 / max eigenvalue
of P on.

The metropolis-adjusted algorithm (MALA) rejects steps so that the posterior is sampled exactly; it
needs all rows.
"""

import blackjax.mcmc.mala as adjusted
import jax
from blackjax.sgmcmc.diffusions import overdamped_langevin

from covey.core.shard import some_rows
from covey.kernels.kernel import Kernel, memoryless


def ula() -> Kernel:
    """The unadjusted Langevin algorithm: the gradient of all rows at each step."""
    move = overdamped_langevin()

    def step(key, posterior, z, step_size):
        return move(key, z, jax.grad(posterior.log_density)(z), step_size)

    return memoryless(step)


def sgld(*, batch_size: int) -> Kernel:
    """Stochastic gradient Langevin dynamics: `batch_size` rows at each step, drawn anew without
    replacement.
    """
    check_batch_size("sgld", batch_size)
    move = overdamped_langevin()

    def step(key, posterior, z, step_size):
        choose, noise = jax.random.split(key)
        batch = some_rows(choose, posterior.data, batch_size)
        return move(noise, z, jax.grad(posterior.log_density)(z, batch), step_size)

    return memoryless(step)


def mala() -> Kernel:
    """The Metropolis-adjusted Langevin algorithm: ULA's step, rejected where it does not fit the
    posterior.
    """
    move = adjusted.build_kernel()

    def step(key, posterior, z, step_size):
        state = adjusted.init(z, posterior.log_density)
        return move(key, state, posterior.log_density, step_size)[0].position

    return memoryless(step)


def check_batch_size(name: str, batch_size: int) -> None:
    """A minibatch has at least one row."""
    if batch_size < 1:
        raise ValueError(f"{name}: batch_size must be at least 1, got {batch_size}")
