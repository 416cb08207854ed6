"""Langevin kernels: a step up the gradient of a client's log-posterior, and Gaussian noise.

BlackJAX takes a second to import, so it is imported when a kernel is made.
"""

import jax

from covey.core.shard import some_rows
from covey.kernels.kernel import Kernel, memoryless


def ula() -> Kernel:
    """The unadjusted Langevin algorithm: the gradient of all rows at each step.

        z <- z + step grad log p(z | D_i) + sqrt(2 step) xi

    No step is rejected, so that the law of the chain differs from the posterior by O(step). For a
    Gaussian posterior of precision P it is a Gaussian with the right mean and the covariance
    P^-1 (I - step P / 2)^-1, and the chain diverges from step = 2 / (largest eigenvalue of P) on.

    Returns:
        The kernel.

    Example:
        >>> from covey.kernels.kernel import EXAMPLE, sample
        >>> draws = sample(ula(), *EXAMPLE, step_size=0.1, draws=4000)
        >>> bool(abs(draws.mean() - 3) < 0.1)  # the posterior is N(3, 1 / 3)
        True
    """
    from blackjax.sgmcmc.diffusions import overdamped_langevin

    move = overdamped_langevin()

    def step(key, posterior, z, step_size):
        return move(key, z, jax.grad(posterior.log_density)(z), step_size)

    return memoryless(step)


def sgld(*, batch_size: int) -> Kernel:
    """Stochastic gradient Langevin dynamics: a minibatch of rows at each step.

        z <- z + step g + sqrt(2 step) xi

    g is the gradient of log p(z) + (n / m) sum over m rows of log p(row | z), the rows drawn anew
    without replacement. The bias is that of `ula`, and what the noise of g adds.

    Args:
        batch_size: Rows per step (m); more than a client has takes all of them.

    Returns:
        The kernel.

    Example:
        >>> from covey.kernels.kernel import EXAMPLE, sample
        >>> draws = sample(sgld(batch_size=2), *EXAMPLE, step_size=0.01, draws=20000)
        >>> bool(abs(draws.mean() - 3) < 0.1)  # the posterior is N(3, 1 / 3)
        True

    Reference: Welling and Teh (2011), Bayesian learning via stochastic gradient Langevin dynamics.
    """
    check_batch_size("sgld", batch_size)
    from blackjax.sgmcmc.diffusions import overdamped_langevin

    move = overdamped_langevin()

    def step(key, posterior, z, step_size):
        choose, noise = jax.random.split(key)
        batch = some_rows(choose, posterior.data, batch_size)
        return move(noise, z, jax.grad(posterior.log_density)(z, batch), step_size)

    return memoryless(step)


def mala() -> Kernel:
    """The Metropolis-adjusted Langevin algorithm: ULA's step, accepted or rejected.

    The posterior is sampled exactly, at any step size; a long step is rejected often. It needs all
    rows at each step.

    Returns:
        The kernel.

    Example:
        >>> from covey.kernels.kernel import EXAMPLE, sample
        >>> draws = sample(mala(), *EXAMPLE, step_size=0.3, draws=4000)
        >>> bool(abs(draws.mean() - 3) < 0.1)  # the posterior is N(3, 1 / 3)
        True

    Reference: Roberts and Tweedie (1996), Exponential convergence of Langevin distributions and
    their discrete approximations.
    """
    import blackjax.mcmc.mala as adjusted

    move = adjusted.build_kernel()

    def step(key, posterior, z, step_size):
        state = adjusted.init(z, posterior.log_density)
        return move(key, state, posterior.log_density, step_size)[0].position

    return memoryless(step)


def check_batch_size(name: str, batch_size: int) -> None:
    """An error for a minibatch without rows."""
    if batch_size < 1:
        raise ValueError(f"{name}: batch_size must be at least 1, got {batch_size}")
