"""Hamiltonian kernels: z moves with a momentum, which is drawn anew at each transition.

`sghmc` is stochastic gradient Hamiltonian Monte Carlo (Chen, Fox and Guestrin, 2014): `steps` steps of a Langevin diffusion with
friction on one minibatch, nothing rejected. `nuts` is the No-U-Turn sampler, which samples the posterior exactly and needs all
rows: slow beside the others, and there to check them.
"""

import jax
import jax.numpy as jnp
from blackjax.mcmc import nuts as no_u_turn
from blackjax.sgmcmc import sghmc as stochastic_gradient

from covey.core.shard import some_rows
from covey.kernels.kernel import Kernel, memoryless
from covey.kernels.langevin import check_batch_size


def sghmc(*, batch_size: int, steps: int = 10, friction: float = 1.0) -> Kernel:
    """Stochastic gradient Hamiltonian Monte Carlo: `steps` steps with `friction` on one minibatch a transition."""
    check_batch_size("sghmc", batch_size)
    if steps < 1:
        raise ValueError(f"sghmc: steps must be at least 1, got {steps}")
    if friction <= 0:
        raise ValueError(f"sghmc: friction must be above 0, got {friction:g}")
    move = stochastic_gradient.build_kernel(alpha=friction)

    def step(key, posterior, z, step_size):
        choose, noise = jax.random.split(key)
        batch = some_rows(choose, posterior.data, batch_size)
        return move(noise, z, jax.grad(posterior.log_density), batch, step_size, steps)

    return memoryless(step)


def nuts(*, doublings: int = 8) -> Kernel:
    """The No-U-Turn sampler, with paths of at most 2^`doublings` steps."""
    if doublings < 1:
        raise ValueError(f"nuts: doublings must be at least 1, got {doublings}")
    move = no_u_turn.build_kernel()

    def step(key, posterior, z, step_size):
        state = no_u_turn.init(z, posterior.log_density)
        return move(key, state, posterior.log_density, step_size, jnp.ones_like(z), doublings)[0].position

    return memoryless(step)
