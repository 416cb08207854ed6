"""Newton's method on sums that cost a communication round each: no derivative is asked for twice.

The method keeps a frame, a matrix T whose columns are directions of about one standard error, and
asks for derivatives along them. In the frame the negative Hessian is near the identity whatever
units and correlations the parameters have, so that sums of float32 numbers lose nothing.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

FLAT = 1e-6  # curvature, relative to a direction's unit, below which float32 sums see none
_FARTHER = 1e3  # units of a direction that seems flat, at which it is evaluated once more
TOLERANCE = 1e-9  # of the Newton decrement g'H^-1 g: 3e-5 standard errors
_NOISE = 1e-6  # log-likelihood that a step may lose to rounding
_LONGEST = 2.0  # step of a limited parameter: logarithms, where a quadratic is no good far away


class Climb(NamedTuple):
    """The state of Newton's method.

    Attributes:
        point: The best parameters so far.
        trial: The parameters that are evaluated next, and the frame that their derivatives are to
            be taken in.
        frame: T, parameters by directions. T C^-1 T' is the inverse of the negative Hessian at the
            best point, C the curvature.
        gradient: Along the directions of the frame at the best point, without directions that are
            flat.
        curvature: C, the negative Hessian at the best point in the frame: the identity at a
            maximum. An eigenvalue of about 0 is a flat direction, one of -1 belongs to a saddle.
        length: The next step as a share of Newton's.
        settled: Whether the best point is a maximum, within `TOLERANCE` or as near as its precision
            allows.
        accepted: Whether the last step was accepted.
        looked: Whether directions that seem flat have been looked at along a longer unit. In a
            model of counts in the millions a client's rows know its own intercept a million times
            better than all clients know the mean of intercepts, and the unit is that of the rows.
    """

    point: Float[Array, " k"]
    trial: Float[Array, " k"]
    frame: Float[Array, "k k"]
    gradient: Float[Array, " k"]
    curvature: Float[Array, "k k"]
    length: Float[Array, ""]
    settled: Bool[Array, ""]
    accepted: Bool[Array, ""]
    looked: Bool[Array, ""]


def begin(point: Float[Array, " k"], frame: Float[Array, "k k"]) -> Climb:
    """The state before the first evaluation.

    Args:
        point: Start of the method.
        frame: Directions of about one standard error, e.g. from `inverse_root`.

    Returns:
        The state; its `trial` is the start.
    """
    none = jnp.zeros((), bool)
    flat, nothing = jnp.zeros_like(point), jnp.zeros_like(frame)
    return Climb(point, point, frame, flat, nothing, jnp.ones(()), none, none, none)


def climb(
    at: Climb,
    gain: Float[Array, ""],
    gradient: Float[Array, " k"],
    hessian: Float[Array, "k k"],
    *,
    first: Bool[Array, ""],
    limited: Bool[Array, " k"],
    epsilon: float,
) -> Climb:
    """One step of Newton's method, given the derivatives at the trial point.

    With the eigenvalues w of the negative Hessian H at a better point, the next step is
    |H|^-1 gradient: uphill also near a saddle. A step that does not gain is refused: the next one
    goes from the best point again, to the maximum of the parabola through what is known.

    Args:
        at: The state.
        gain: The value at the trial point minus that at the best one.
        gradient: The gradient at the trial point, along the directions of the frame.
        hessian: The Hessian there, in the frame.
        first: Whether this is the first evaluation, which has nothing to be compared with.
        limited: Parameters whose step is at most 2: logarithms.
        epsilon: Relative precision of the parameters as they are stored and sent.

    Returns:
        The state, with the trial point to evaluate next; the best point itself once it has settled.
    """
    accepted = first | (gain > -_NOISE)
    value, axes = jnp.linalg.eigh(-(hessian + hessian.T) / 2)
    size, seen = jnp.abs(value), jnp.abs(value) > FLAT
    farther = accepted & ~at.looked & ~jnp.all(seen)
    other = jnp.where(farther, _FARTHER, 1.0)
    scale = jnp.where(seen, 1 / jnp.sqrt(jnp.where(seen, size, 1.0)), other)
    unit = (axes * scale) @ axes.T
    curvature = (axes * jnp.where(seen, jnp.sign(value), value)) @ axes.T
    uphill = axes @ (jnp.where(seen, scale, 0.0) * (axes.T @ gradient))
    lowest = jnp.where(seen, value, 1.0).min()
    near = jnp.maximum(TOLERANCE, _lost_to_rounding(at.frame @ unit, at.trial, epsilon))

    before = _factor(at.frame @ at.gradient, limited) * at.length * at.gradient @ at.gradient
    shorter = jnp.clip(before / (2 * jnp.maximum(before - gain, 1e-30)), 0.1, 0.5)
    new = Climb(
        point=jnp.where(accepted, at.trial, at.point),
        trial=at.trial,
        frame=jnp.where(accepted, at.frame @ unit, at.frame),
        gradient=jnp.where(accepted, uphill, at.gradient),
        curvature=jnp.where(accepted, curvature, at.curvature),
        length=jnp.where(accepted, jnp.minimum(4 * at.length, 1.0), at.length * shorter),
        settled=jnp.where(
            accepted, (uphill @ uphill <= near) & (lowest > 0) & ~farther, at.settled
        ),
        accepted=accepted,
        looked=at.looked | farther,
    )
    step = new.frame @ new.gradient
    trial = new.point + new.length * _factor(step, limited) * step
    return new._replace(trial=jnp.where(new.settled, new.point, trial))


def inverse_root(information: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """T with T T' the inverse of a positive semidefinite matrix, in any units.

    The matrix is scaled to a unit diagonal first. Directions with less than a millionth of the
    information of a single parameter are taken to have that much: T stays finite.

    Args:
        information: The matrix.

    Returns:
        T; for a matrix of zeros the identity.

    Example:
        >>> inverse_root(jnp.diag(jnp.array([4.0, 0.0]))).tolist()
        [[0.5, 0.0], [0.0, 1.0]]
    """
    diagonal = jnp.diagonal(information)
    scale = jnp.where(diagonal > 0, 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1.0)), 1.0)
    scaled = information * scale * scale[:, None]
    scaled = scaled + jnp.diag(jnp.where(diagonal > 0, 0.0, 1.0))
    value, axes = jnp.linalg.eigh(scaled)
    return scale[:, None] * ((axes / jnp.sqrt(jnp.maximum(value, FLAT))) @ axes.T)


def _factor(step: Float[Array, " k"], limited: Bool[Array, " k"]) -> Float[Array, ""]:
    """The factor that keeps a step within the limit."""
    longest = jnp.max(jnp.where(limited, jnp.abs(step), 0.0), initial=0.0)
    return jnp.minimum(1.0, _LONGEST / jnp.maximum(longest, 1e-30))


def _lost_to_rounding(
    frame: Float[Array, "k k"], point: Float[Array, " k"], epsilon: float
) -> Float[Array, ""]:
    """The Newton decrement r'Hr that rounding errors r of the parameters make, about twelve times
    its mean. Where a column is far from 0 compared with its spread, e.g. a year, or the noise is
    small, that is more than the tolerance: no point that can be stored is nearer to the maximum.
    """
    per_unit = jnp.linalg.inv(frame)  # H = per_unit' per_unit
    return jnp.sum((per_unit * (epsilon * point)) ** 2)
