"""Hamiltonian kernels: z moves with a momentum, which is drawn anew at each transition."""

import jax
import jax.numpy as jnp

from covey.core.shard import some_rows
from covey.kernels.kernel import Kernel, memoryless
from covey.kernels.langevin import check_batch_size


def sghmc(*, batch_size: int, steps: int = 10, friction: float = 1.0) -> Kernel:
    """Stochastic gradient Hamiltonian Monte Carlo: steps with friction, a minibatch each.

    A transition is `steps` steps of a Langevin diffusion of z and its momentum r, with
    c = exp(-friction step),

        z <- z + step r / 2
        r <- c r + (1 + c) / 2 step g + sqrt(1 - c^2) xi
        z <- z + step r / 2

    g is the gradient by a minibatch, as in `sgld`. No step is rejected; with all rows the bias is
    O(step^2).

    Args:
        batch_size: Rows per step; more than a client has takes all of them.
        steps: Steps per transition.
        friction: Friction; larger values forget the momentum sooner.

    Returns:
        The kernel.

    Example:
        >>> from covey.kernels.kernel import EXAMPLE, sample
        >>> draws = sample(sghmc(batch_size=3), *EXAMPLE, step_size=0.2, draws=4000)
        >>> bool(abs(draws.mean() - 3) < 0.1)  # the posterior is N(3, 1 / 3)
        True

    Departures from the paper: its Euler steps, with a momentum that is drawn anew, make the
    variance steps / (steps - 1) times too large however short they are; these are the symmetric
    steps of Leimkuhler and Matthews (2013).

    Reference: Chen, Fox and Guestrin (2014), Stochastic gradient Hamiltonian Monte Carlo.
    """
    check_batch_size("sghmc", batch_size)
    if steps < 1:
        raise ValueError(f"sghmc: steps must be at least 1, got {steps}")
    if friction <= 0:
        raise ValueError(f"sghmc: friction must be above 0, got {friction:g}")

    def step(key, posterior, z, step_size):
        keep = jnp.exp(-friction * step_size)

        def leap(at, key):
            z, momentum = at
            choose, draw = jax.random.split(key)
            z = z + step_size / 2 * momentum
            gradient = jax.grad(posterior.log_density)(
                z, some_rows(choose, posterior.data, batch_size)
            )
            noise = jnp.sqrt(1 - keep**2) * jax.random.normal(draw, z.shape, z.dtype)
            momentum = keep * momentum + (1 + keep) / 2 * step_size * gradient + noise
            return (z + step_size / 2 * momentum, momentum), None

        begin, path = jax.random.split(key)
        start = (z, jax.random.normal(begin, z.shape, z.dtype))
        return jax.lax.scan(leap, start, jax.random.split(path, steps))[0][0]

    return memoryless(step)


def hmc(*, steps: int = 10) -> Kernel:
    """Hamiltonian Monte Carlo: paths of `steps` leapfrog steps, accepted or rejected.

    The posterior is sampled exactly; it needs all rows at each step.

    Args:
        steps: Leapfrog steps per transition.

    Returns:
        The kernel.

    Example:
        >>> from covey.kernels.kernel import EXAMPLE, sample
        >>> draws = sample(hmc(steps=5), *EXAMPLE, step_size=0.3, draws=2000)
        >>> bool(abs(draws.mean() - 3) < 0.1)  # the posterior is N(3, 1 / 3)
        True

    Reference: Neal (2011), MCMC using Hamiltonian dynamics.
    """
    if steps < 1:
        raise ValueError(f"hmc: steps must be at least 1, got {steps}")
    from blackjax.mcmc import hmc as hybrid  # takes a second to import

    move = hybrid.build_kernel()

    def step(key, posterior, z, step_size):
        state = hybrid.init(z, posterior.log_density)
        return move(key, state, posterior.log_density, step_size, jnp.ones_like(z), steps)[
            0
        ].position

    return memoryless(step)


def nuts(*, doublings: int = 8) -> Kernel:
    """The No-U-Turn sampler: paths that end where they would turn back.

    The posterior is sampled exactly; it needs all rows at each step.

    Args:
        doublings: A path has at most 2^doublings steps.

    Returns:
        The kernel.

    Example:
        >>> from covey.kernels.kernel import EXAMPLE, sample
        >>> draws = sample(nuts(doublings=4), *EXAMPLE, step_size=0.5, draws=2000)
        >>> bool(abs(draws.mean() - 3) < 0.1)  # the posterior is N(3, 1 / 3)
        True

    Reference: Hoffman and Gelman (2014), The No-U-Turn sampler.
    """
    if doublings < 1:
        raise ValueError(f"nuts: doublings must be at least 1, got {doublings}")
    from blackjax.mcmc import nuts as no_u_turn  # takes a second to import

    move = no_u_turn.build_kernel()

    def step(key, posterior, z, step_size):
        state = no_u_turn.init(z, posterior.log_density)
        return move(key, state, posterior.log_density, step_size, jnp.ones_like(z), doublings)[
            0
        ].position

    return memoryless(step)
