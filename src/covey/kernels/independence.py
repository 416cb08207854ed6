"""Independent proposals around the mode of a client's posterior: a kernel that needs no tuning."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covey.kernels.importance import Laplace, laplace
from covey.kernels.kernel import Kernel


class Memory(NamedTuple):
    """The memory of a chain beside its state.

    Attributes:
        around: The mode of the posterior, and the deviations of its curvature there.
        log_density: The target's log-density at the chain's state.
    """

    around: Laplace
    log_density: Float[Array, ""]


def independence(*, freedom: int = 5) -> Kernel:
    """Independence Metropolis: proposals from a Student t at the posterior's mode.

    With z* the mode and A A' the inverse of the curvature of the log-posterior there, proposals are

        z' = z* + step A t,    t ~ Student t with `freedom` degrees of freedom

    and one is accepted with probability min(1, w(z') / w(z)), w the target's over the proposal's
    density. The chain samples the posterior itself, whatever its shape. Where that is close to a
    Gaussian, as posteriors of random effects are, most proposals are accepted and draws are nearly
    independent. Newton steps find the mode once per round, from that of the round before: for up to
    some ten effects. A second mode is found by the tails of the proposals only.

    Args:
        freedom: Degrees of freedom of the proposals. Fewer have longer tails and more refusals.

    Returns:
        The kernel. Its step size stretches the proposals; 1 fits any client.

    Example:
        >>> from covey.kernels.kernel import sample
        >>> y = jnp.array([1.0, 2.0, 6.0])
        >>> likelihood, start = lambda z, y: -0.5 * (y - z[0]) ** 2, jnp.zeros(1)
        >>> draws = sample(independence(), likelihood, y, start, step_size=1.0, draws=4000)
        >>> bool(abs(draws.mean() - 3) < 0.05)  # the posterior is N(3, 1 / 3)
        True

    Reference: Tierney (1994), Markov chains for exploring posterior distributions, section 2.3.3.
    """
    if freedom < 1:
        raise ValueError(f"independence: freedom must be at least 1, got {freedom}")

    def begin(posterior, z, memory):
        near, here = memory.around.mode, posterior.log_density(z)
        start = jnp.where(posterior.log_density(near) > here, near, z)
        return Memory(laplace(posterior.log_density, start), here)

    def log_proposal(around, z, step_size):
        white = around.axes.T @ (z - around.mode) / (around.deviation * step_size)
        return -(len(z) + freedom) / 2 * jnp.log1p(white @ white / freedom)

    def step(key, posterior, z, memory, step_size):
        (around, here), size = memory, len(z)
        for_noise, for_chance = jax.random.split(key)
        normal = jax.random.normal(for_noise, (size + freedom,), z.dtype)
        white = normal[:size] / jnp.sqrt(jnp.mean(normal[size:] ** 2))
        tried = around.mode + around.axes @ (white * around.deviation * step_size)
        there = posterior.log_density(tried)
        back = log_proposal(around, z, step_size) - log_proposal(around, tried, step_size)
        chance = jnp.log(jax.random.uniform(for_chance, (), z.dtype))
        accepted = chance < there - here + back
        return jnp.where(accepted, tried, z), Memory(around, jnp.where(accepted, there, here))

    def init(z):
        size = len(z)
        around = Laplace(z, jnp.eye(size, dtype=z.dtype), jnp.ones(size, z.dtype))
        return Memory(around, jnp.zeros((), z.dtype))

    return Kernel(step, init=init, begin=begin)
