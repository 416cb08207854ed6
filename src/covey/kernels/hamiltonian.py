"""Hamiltonian kernels: z moves with a momentum, which is drawn anew at each transition.

`sghmc` is stochastic gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin, 2014): `steps` steps
of a Langevin diffusion with friction, a minibatch each, nothing rejected. With c = e^(-friction
step), a step is symmetric (Leimkuhler and Matthews, 2013),

    z <- z + step r / 2,   r <- c r + (1 + c) / 2 step grad log p(z | D_i) + sqrt(1 - c^2) xi,   z <- z + step r / 2

so that with all rows the bias is O(step^2). The paper's Euler steps, with a momentum that is drawn
anew, make the variance steps / (steps - 1) times too large however short they are. `hmc`, with
paths of a fixed number of steps, and `nuts`, the No-U-Turn sampler, reject where a path does not
keep its energy: they sample the posterior exactly and need all rows, slow beside the others.
"""

import jax
import jax.numpy as jnp
from blackjax.mcmc import hmc as hybrid
from blackjax.mcmc import nuts as no_u_turn

from covey.core.shard import some_rows
from covey.kernels.kernel import Kernel, memoryless
from covey.kernels.langevin import check_batch_size


def sghmc(*, batch_size: int, steps: int = 10, friction: float = 1.0) -> Kernel:
    """Stochastic gradient Hamiltonian Monte Carlo: `steps` steps with `friction` a transition, a
    minibatch each.
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
            slope = jax.grad(posterior.log_density)(
                z, some_rows(choose, posterior.data, batch_size)
            )
            noise = jnp.sqrt(1 - keep**2) * jax.random.normal(draw, z.shape, z.dtype)
            momentum = keep * momentum + (1 + keep) / 2 * step_size * slope + noise
            return (z + step_size / 2 * momentum, momentum), None

        begin, path = jax.random.split(key)
        start = (z, jax.random.normal(begin, z.shape, z.dtype))
        return jax.lax.scan(leap, start, jax.random.split(path, steps))[0][0]

    return memoryless(step)


def hmc(*, steps: int = 10) -> Kernel:
    """Hamiltonian Monte Carlo, with paths of `steps` steps."""
    if steps < 1:
        raise ValueError(f"hmc: steps must be at least 1, got {steps}")
    move = hybrid.build_kernel()

    def step(key, posterior, z, step_size):
        state = hybrid.init(z, posterior.log_density)
        return move(key, state, posterior.log_density, step_size, jnp.ones_like(z), steps)[
            0
        ].position

    return memoryless(step)


def nuts(*, doublings: int = 8) -> Kernel:
    """The No-U-Turn sampler, with paths of at most 2^`doublings` steps."""
    if doublings < 1:
        raise ValueError(f"nuts: doublings must be at least 1, got {doublings}")
    move = no_u_turn.build_kernel()

    def step(key, posterior, z, step_size):
        state = no_u_turn.init(z, posterior.log_density)
        return move(key, state, posterior.log_density, step_size, jnp.ones_like(z), doublings)[
            0
        ].position

    return memoryless(step)
