"""Langevin kernels that learn the scale of each client's posterior, so that one step size serves
clients of any size.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covey.core.shard import some_rows
from covey.kernels.kernel import Kernel, Target
from covey.kernels.langevin import check_batch_size

NEAR = 0.01  # squared standard deviations from the mode at which the search for it ends
NEWTON_STEPS = 20  # and the most steps of this search
HALVINGS = tuple(0.5**power for power in range(8))


class Laplace(NamedTuple):
    """The Gaussian N(mode, A A') that fits a posterior at its mode.

    Attributes:
        mode: The mode.
        root: A.
    """

    mode: Float[Array, " effects"]
    root: Float[Array, "effects effects"]


def ornstein_uhlenbeck(*, floor: float = 1e-6) -> Kernel:
    """Langevin in the metric of the posterior's curvature: exact for Gaussian posteriors.

    With the curvature -H of the log-posterior at its mode as the metric of a round,
    A A' = (-H)^-1, a step solves the Langevin diffusion of the Gaussian that fits there:

        z <- z + (1 - exp(-step)) A A' grad log p(z | D_i) + sqrt(1 - exp(-2 step)) A xi

    For a Gaussian posterior this samples the posterior itself, whatever the step: the correlation
    of successive draws is exp(-step). For others the bias is O(step); a long step is a draw from
    the Laplace approximation around a Newton step. The curvature is taken at the mode and not at
    the chain's state: a chain stays longer where its metric is small, and no shorter step mends
    that. Newton steps find the mode, from that of the round before: one or two Hessians per round,
    for up to some hundred effects.

    Args:
        floor: Least curvature in any direction. Where the log-posterior curves upwards, the
            absolute curvature is used.

    Returns:
        The kernel.

    Example:
        >>> from covey.kernels.kernel import EXAMPLE, sample
        >>> draws = sample(ornstein_uhlenbeck(), *EXAMPLE, step_size=1.0, draws=4000)
        >>> bool(abs(draws.mean() - 3) < 0.1)  # the posterior is N(3, 1 / 3)
        True
    """
    if floor <= 0:
        raise ValueError(f"ornstein_uhlenbeck: floor must be above 0, got {floor:g}")

    def begin(posterior, z, laplace):
        return _laplace(posterior, laplace.mode, floor)

    def step(key, posterior, z, laplace, step_size):
        root, gradient = laplace.root, jax.grad(posterior.log_density)(z)
        noise = jax.random.normal(key, z.shape, z.dtype)
        drift, spread = -jnp.expm1(-step_size), jnp.sqrt(-jnp.expm1(-2 * step_size))
        return z + root @ (drift * (root.T @ gradient) + spread * noise), laplace

    return Kernel(step, init=lambda z: Laplace(z, jnp.eye(len(z), dtype=z.dtype)), begin=begin)


def psgld(*, batch_size: int, decay: float = 0.99, damping: float = 1e-3) -> Kernel:
    """Preconditioned SGLD: steps scaled by a running mean of squared gradients.

        v <- decay v + (1 - decay) g^2,    G = 1 / (damping + sqrt(v))
        z <- z + step G g + sqrt(2 step G) xi

    g is the gradient of the whole log-posterior by a minibatch, as in `sgld`, not of its mean over
    rows. A client keeps v between rounds.

    Args:
        batch_size: Rows per step; more than a client has takes all of them.
        decay: Weight of the past in the running mean (alpha in the paper).
        damping: Least scale of the gradients (lambda in the paper).

    Returns:
        The kernel.

    Example:
        >>> from covey.kernels.kernel import EXAMPLE, sample
        >>> draws = sample(psgld(batch_size=3), *EXAMPLE, step_size=0.1, draws=10000)
        >>> bool(abs(draws.mean() - 3) < 0.1)  # the posterior is N(3, 1 / 3)
        True

    Departures from the paper: the term for the change of G is left out, as is usual.

    Reference: Li, Chen, Carlson and Carin (2016), Preconditioned stochastic gradient Langevin
    dynamics for deep neural networks.
    """
    check_batch_size("psgld", batch_size)
    if not 0 <= decay < 1:
        raise ValueError(f"psgld: decay must be at least 0 and below 1, got {decay:g}")
    if damping <= 0:
        raise ValueError(f"psgld: damping must be above 0, got {damping:g}")

    def step(key, posterior, z, squares, step_size):
        choose, draw = jax.random.split(key)
        gradient = jax.grad(posterior.log_density)(z, some_rows(choose, posterior.data, batch_size))
        squares = decay * squares + (1 - decay) * gradient**2
        scale = 1 / (damping + jnp.sqrt(squares))
        noise = jax.random.normal(draw, z.shape, z.dtype)
        return z + step_size * scale * gradient + jnp.sqrt(2 * step_size * scale) * noise, squares

    return Kernel(step, init=jnp.ones_like)


def _laplace(posterior: Target, start: Float[Array, " effects"], floor: float) -> Laplace:
    """Newton steps, halved as far as the log-density asks for, until the mode is near.

    Gradients are in the metric of the round, A' grad log p.
    """

    def look(at):
        curvature, axes = jnp.linalg.eigh(-jax.hessian(posterior.log_density)(at))
        root = axes / jnp.sqrt(jnp.maximum(jnp.abs(curvature), floor))
        return Laplace(at, root), root.T @ jax.grad(posterior.log_density)(at)

    def climb(carry):
        (at, root), gradient, count = carry
        tries = at + jnp.asarray(HALVINGS, at.dtype)[:, None] * (root @ gradient)
        heights = jax.vmap(posterior.log_density)(tries)
        best = jnp.argmax(jnp.where(jnp.isnan(heights), -jnp.inf, heights))
        return *look(tries[best]), count + 1

    def is_far(carry):
        _, gradient, count = carry
        return (jnp.sum(gradient**2) > NEAR) & (count < NEWTON_STEPS)

    return jax.lax.while_loop(is_far, climb, (*look(start), 0))[0]
