"""Langevin kernels that learn the scale of each client's posterior, so that one step size serves
clients of any size.

`ornstein_uhlenbeck` takes the curvature -H of the log-posterior at its mode as the metric of a
round, A A' = (-H)^-1, and solves the Langevin diffusion of the Gaussian that fits there exactly:

    z <- z + (1 - e^-step) A A' grad log p(z | D_i) + sqrt(1 - e^(-2 step)) A xi

For a Gaussian posterior this samples the posterior itself, whatever the step: the correlation of
successive draws is e^-step. For others the bias is O(step); a long step is a draw from the Laplace
approximation around a Newton step. The curvature is not taken where the chain is, as a chain stays
longer where its own metric is small, and no short step mends that. Newton steps find the mode, from
that of the round before: a Hessian or two a round, meant for up to some hundred effects.

`psgld` is preconditioned SGLD (Li et al., 2016): RMSprop's running mean v of squared gradients
scales each coordinate,

    v <- decay v + (1 - decay) g^2,    z <- z + step G g + sqrt(2 step G) xi,    G = 1 / (damping + sqrt(v))

without the correction for the change of G, as is usual. g is the gradient of the whole
log-posterior, not of its mean over rows.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from covey.core.shard import some_rows
from covey.kernels.kernel import Kernel, Target
from covey.kernels.langevin import check_batch_size

NEAR, NEWTON_STEPS = (
    0.01,
    20,
)  # where the search for a mode ends: this many squared deviations away, or after so many steps
HALVINGS = tuple(0.5**power for power in range(8))


class Laplace(NamedTuple):
    """The Gaussian N(mode, A A') that fits a posterior at its mode."""

    mode: Float[Array, " effects"]
    root: Float[Array, "effects effects"]


def ornstein_uhlenbeck(*, floor: float = 1e-6) -> Kernel:
    """Langevin in the metric of the posterior's own curvature: exact for Gaussian posteriors, at
    any step size.

    Where the log-posterior curves upwards, the absolute curvature serves, and never less than
    `floor`.
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
    """Preconditioned SGLD: steps scaled by a running mean of squared gradients, which a client
    keeps between rounds.
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
    """Newton steps, halved as far as the log-density asks for, until the mode is near."""

    def look(at):
        curvature, axes = jnp.linalg.eigh(-jax.hessian(posterior.log_density)(at))
        root = axes / jnp.sqrt(jnp.maximum(jnp.abs(curvature), floor))
        return Laplace(at, root), root.T @ jax.grad(posterior.log_density)(at)

    def climb(carry):
        (at, root), slope, number = carry
        tries = at + jnp.asarray(HALVINGS, at.dtype)[:, None] * (root @ slope)
        heights = jax.vmap(posterior.log_density)(tries)
        best = jnp.argmax(jnp.where(jnp.isnan(heights), -jnp.inf, heights))
        return *look(tries[best]), number + 1

    def is_far(carry):
        _, slope, number = carry
        return (jnp.sum(slope**2) > NEAR) & (number < NEWTON_STEPS)

    return jax.lax.while_loop(is_far, climb, (*look(start), 0))[0]
