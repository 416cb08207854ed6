"""Weighted draws of a client's effects from p(z | D_i, theta), by importance sampling.

Most draws come from a Student t around the mode, the others from the law of the effects, so that a
second mode is found as well. They are independent and need no step size and no burn-in.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

LogDensity: TypeAlias = Callable[[Float[Array, " effects"]], Float[Array, ""]]

_FREEDOM = 5  # of the Student t: its tails are heavier than those of a posterior of effects
_FROM_PRIOR = 0.25  # of the draws
_NEWTON_STEPS = 50  # at most
_SHORTER = 0.5 ** np.arange(12)  # of a Newton step, where the whole is too long
_CONVERGED = 1e-8  # gain of a step that is expected from gradient and curvature


class Laplace(NamedTuple):
    """The mode of a density, and the axes of its curvature there with a deviation each."""

    mode: Float[Array, " effects"]
    axes: Float[Array, "effects effects"]
    deviation: Float[Array, " effects"]


class WeightedDraws(NamedTuple):
    """Draws with weights that add up to one, and the number of equal draws they are worth."""

    z: Float[Array, "draws effects"]
    weight: Float[Array, " draws"]

    @property
    def effective(self) -> Float[Array, ""]:
        """The effective number of draws, 1 / sum of squared weights."""
        return 1 / jnp.sum(self.weight**2)


def laplace(log_density: LogDensity, start: Float[Array, " effects"]) -> Laplace:
    """The mode of a log-density and its curvature there, by damped Newton steps.

    Where the density is not concave, the curvature is taken by its absolute values, so that every
    step goes up.

    Args:
        log_density: (z) -> log-density up to a constant, twice differentiable.
        start: Start of the search.

    Returns:
        The mode, and the Gaussian that has the same curvature there.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> def log_density(z):
        ...     return -jnp.sum((z - 2.0) ** 2) / 8
        >>> found = jax.jit(lambda start: laplace(log_density, start))(jnp.zeros(1))
        >>> float(found.mode[0]), float(found.deviation[0])
        (2.0, 2.0)
    """

    def curvature(z):
        values, axes = jnp.linalg.eigh(-jax.hessian(log_density)(z))
        values = jnp.abs(values)
        return jnp.maximum(values, 1e-10 * jnp.max(values) + jnp.finfo(z.dtype).tiny), axes

    def step(at):
        z, _, count = at
        gradient = jax.grad(log_density)(z)
        values, axes = curvature(z)
        newton = axes @ ((axes.T @ gradient) / values)
        tried = z + jnp.asarray(_SHORTER, z.dtype)[:, None] * newton
        found = jnp.nan_to_num(jax.vmap(log_density)(tried), nan=-jnp.inf)
        best = jnp.argmax(found)
        better = found[best] > log_density(z)
        return (
            jnp.where(better, tried[best], z),
            jnp.where(better, gradient @ newton, 0.0),
            count + 1,
        )

    def going_on(at):
        _, gain, count = at
        return (gain > _CONVERGED) & (count < _NEWTON_STEPS)

    first = (start, jnp.asarray(jnp.inf, start.dtype), jnp.int32(0))
    mode, _, _ = jax.lax.while_loop(going_on, step, first)
    values, axes = curvature(mode)
    return Laplace(mode, axes, 1 / jnp.sqrt(values))


def weighted_draws(
    key: Key[Array, ""],
    log_density: LogDensity,
    around: Laplace,
    from_prior: Float[Array, "some effects"],
    log_prior: LogDensity,
    count: int,
) -> WeightedDraws:
    """Draws of a density with importance weights, three of four from a Student t around its mode.

    Args:
        key: Random key.
        log_density: (z) -> log-density up to a constant.
        around: Its mode and curvature, from `laplace`.
        from_prior: Independent draws of the prior, a quarter of `count`.
        log_prior: (z) -> log-density of the prior, complete.
        count: Number of draws.

    Returns:
        `count` draws, with weights that add up to one.
    """
    effects, near = len(around.mode), count - len(from_prior)
    normal = jax.random.normal(key, (near, effects + _FREEDOM), around.mode.dtype)
    stretch = jnp.sqrt(jnp.mean(normal[:, effects:] ** 2, axis=1, keepdims=True))
    student = around.mode + (normal[:, :effects] / stretch * around.deviation) @ around.axes.T
    z = jnp.concatenate([student, from_prior])
    share = len(from_prior) / count
    proposal = jnp.logaddexp(
        jnp.log(1 - share) + jax.vmap(lambda z: _log_student(around, z))(z),
        jnp.log(share) + jax.vmap(log_prior)(z),
    )
    log_weight = jax.vmap(log_density)(z) - proposal
    return WeightedDraws(z, jax.nn.softmax(jnp.nan_to_num(log_weight, nan=-jnp.inf)))


def prior_draws(count: int) -> int:
    """The count of draws from the prior among `count` draws."""
    return round(_FROM_PRIOR * count)


def _log_student(around: Laplace, z: Float[Array, " effects"]) -> Float[Array, ""]:
    size = len(around.mode) + _FREEDOM
    white = (around.axes.T @ (z - around.mode)) / around.deviation
    constant = math.lgamma(size / 2) - math.lgamma(_FREEDOM / 2)
    constant -= len(around.mode) / 2 * math.log(_FREEDOM * math.pi)
    return (
        constant
        - jnp.sum(jnp.log(around.deviation))
        - size / 2 * jnp.log1p(white @ white / _FREEDOM)
    )
