"""The marginal likelihood of one client, random effects integrated out, with its derivatives.

    l(theta) = log of the integral of p(D | theta, b) N(b; 0, I) db

by Laplace's method or by adaptive Gauss-Hermite quadrature, and draws of b given theta and D.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from covey.kernels.positive_definite import inverse, log_det

Parameters: TypeAlias = Float[Array, " parameters"]
Effects: TypeAlias = Float[Array, " effects"]
LogLikelihood: TypeAlias = Callable[[Parameters, Effects], Float[Array, ""]]

_MOST_STEPS = 100  # of Newton's method for the mode; a concave likelihood takes about six
_CLOSE = 1e-7  # length of the last step, in deviations; the two steps after it square it twice


class Jet(NamedTuple):
    """A function at one point: its value, gradient and Hessian."""

    value: Float[Array, ""]
    gradient: Float[Array, " parameters"]
    hessian: Float[Array, "parameters parameters"]


def jet(function: Callable[[Parameters], Float[Array, ""]], at: Parameters) -> Jet:
    """The value, gradient and Hessian of a function at one point.

    Args:
        function: A scalar function of a vector.
        at: The point.

    Returns:
        All three.

    Example:
        >>> jet(lambda v: v[0] * v[1], jnp.array([2.0, 3.0])).hessian.tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """

    def gradient(at):
        value, found = jax.value_and_grad(function)(at)
        return found, (value, found)

    hessian, (value, first) = jax.jacfwd(gradient, has_aux=True)(at)
    return Jet(value, first, hessian)


def log_marginal(
    log_likelihood: LogLikelihood, theta: Parameters, centre: Effects, *, nodes: int
) -> Float[Array, ""]:
    """The log of the marginal likelihood, with exact first and second derivatives by theta.

    With b* the mode of the joint density of rows and effects, and C C' minus its Hessian there,

        l(theta) = joint(b*) - log det C                                        one node (Laplace)
        l(theta) = log sum_k w_k exp(joint(b* + C'^-1 t_k) + |t_k|^2 / 2) - log det C    otherwise

    where t_k and w_k are the nodes and weights of Gauss-Hermite quadrature, a grid with `nodes`
    points per effect. The mode is found without derivatives by theta. Two further steps with the
    Hessian there, which derivatives pass through, make b* right to the second order in theta and
    hence the derivatives exact. A Gaussian likelihood is integrated exactly by one node.

    Args:
        log_likelihood: (theta, b) -> log p(D | theta, b), the effects b standard normal.
        theta: The parameters.
        centre: The mode of b at this value of theta, from `mode`; empty without effects.
        nodes: Quadrature nodes per effect; 1 is Laplace's method. The grid has nodes^q points for q
            effects: more than one node is for up to three effects.

    Returns:
        The value; `jet` gives it with its derivatives.

    Example:
        >>> import jax
        >>> def binary(theta, b):  # three successes out of three, given the client's effect
        ...     return 3 * jax.nn.log_sigmoid(theta[0] + jnp.exp(theta[1]) * b[0])
        >>> theta = jnp.zeros(2)
        >>> centre = mode(lambda b: binary(theta, b), jnp.zeros(1))
        >>> [round(float(log_marginal(binary, theta, centre, nodes=n)), 3) for n in (1, 9)]
        [-1.67, -1.66]

    Reference: Pinheiro and Bates (1995), Approximations to the log-likelihood function in the
    nonlinear mixed-effects model.
    """

    def given(b):
        return log_likelihood(theta, b)

    b = jax.lax.stop_gradient(centre)
    if not len(b):
        return given(b)
    # A constant matrix: the second step corrects the first order of what it misses.
    back = jax.lax.stop_gradient(inverse(_curvature(given, b)))
    for _ in range(2):
        b = b + back @ (jax.grad(given)(b) - b)
    curvature = _curvature(given, b)
    volume = log_det(curvature) / 2
    if nodes == 1:
        return given(b) - b @ b / 2 - volume
    root = jnp.sqrt(curvature) if len(b) == 1 else jnp.linalg.cholesky(curvature)
    points, logs = grid(len(b), nodes)

    def at_node(t):
        at = b + (
            t / root[0]
            if len(b) == 1
            else jax.scipy.linalg.solve_triangular(root.T, t, lower=False)
        )
        return given(at) - at @ at / 2 + t @ t / 2

    values = jax.vmap(at_node)(jnp.asarray(points, theta.dtype)) + jnp.asarray(logs, theta.dtype)
    return jax.nn.logsumexp(values) - volume


def mode(log_likelihood: Callable[[Effects], Float[Array, ""]], start: Effects) -> Effects:
    """The mode of log_likelihood(b) - |b|^2 / 2, by Newton's method.

    A step that does not go up is tried again at a quarter of its length. Where the density is not
    log-concave, the size of its curvature is taken.

    Args:
        log_likelihood: (b) -> log p(D | theta, b).
        start: Where to begin, e.g. zeros.

    Returns:
        The mode.
    """
    if not len(start):
        return start
    one = jnp.ones((), start.dtype)

    def joint(b):
        return log_likelihood(b) - b @ b / 2

    def newton(b):
        """The step, and its length in units of the curvature."""
        if len(b) == 1:
            curvature, axes = -jax.hessian(joint)(b)[0], jnp.ones((1, 1), b.dtype)
        else:
            curvature, axes = jnp.linalg.eigh(-jax.hessian(joint)(b))
        size = jnp.abs(curvature)
        size = jnp.maximum(size, 1e-6 * size.max() + 1e-30)
        along = axes.T @ jax.grad(joint)(b)
        return axes @ (along / size), jnp.sqrt(jnp.sum(along**2 / size))

    def going(carry):
        _, _, size, length, count = carry
        return (count < _MOST_STEPS) & (size > _CLOSE) & (length > 1e-12)

    def step(carry):
        b, best, _, length, count = carry
        move, size = newton(b)
        trial = b + length * move
        value = joint(trial)
        up = (value >= best) | (size < 1e-3)  # so close, rounding decides, and Newton is safe
        b, best = jnp.where(up, trial, b), jnp.where(up, value, best)
        return b, best, size, jnp.where(up, jnp.minimum(4 * length, 1.0), length / 4), count + 1

    return jax.lax.while_loop(going, step, (start, joint(start), jnp.inf * one, one, 0))[0]


def grid(effects: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (points, effects) and log weights (points) of a product rule for N(0, I)."""
    node, weight = np.polynomial.hermite_e.hermegauss(nodes)
    each = np.log(weight / np.sqrt(2 * np.pi))
    points = np.stack(np.meshgrid(*[node] * effects, indexing="ij"), -1).reshape(-1, effects)
    logs = np.stack(np.meshgrid(*[each] * effects, indexing="ij"), -1).reshape(-1, effects)
    return points, logs.sum(1)


def draw_effects(
    key: Key[Array, ""],
    log_likelihood: Callable[[Effects], Float[Array, ""]],
    start: Effects,
    *,
    steps: int = 10,
) -> Effects:
    """One draw of the effects b from p(b | theta, D).

    An independence Metropolis chain of `steps` steps with proposals from a Student t distribution
    at the mode, which is nearly the target: most proposals are accepted, so the chain forgets its
    start at once.

    Args:
        key: A random key.
        log_likelihood: (b) -> log p(D | theta, b), the effects b standard normal.
        start: Where to begin to look for the mode, e.g. zeros.
        steps: Proposals before the draw.

    Returns:
        The draw.
    """
    freedom = 8  # the tails of a likelihood times a Gaussian are lighter than those of any t
    effects, centre = len(start), mode(log_likelihood, start)
    root = jnp.linalg.cholesky(_curvature(log_likelihood, centre))
    normal, chi, accept = jax.random.split(key, 3)
    # Random numbers of 32 bits: those of 64 need double precision outside of here too.
    single = jnp.float32
    square = jnp.sum(jax.random.normal(chi, (steps + 1, freedom), single) ** 2, axis=1)
    noise = jax.random.normal(normal, (steps + 1, effects), single)
    white = (noise / jnp.sqrt(square / freedom)[:, None]).astype(start.dtype)
    tried = centre + jax.scipy.linalg.solve_triangular(root.T, white.T, lower=False).T
    log_proposal = -(freedom + effects) / 2 * jnp.log1p(jnp.sum(white**2, 1) / freedom)
    log_joint = jax.vmap(lambda b: log_likelihood(b) - b @ b / 2)(tried)
    weight = log_joint - log_proposal
    chance = jnp.log(jax.random.uniform(accept, (steps + 1,), single))

    def move(index, here):
        taken = chance[index] < weight[index] - weight[here]
        return jnp.where(taken, index, here)

    return tried[jax.lax.fori_loop(1, steps + 1, move, 0)]


def _curvature(log_likelihood: Callable, b: Effects) -> Float[Array, "effects effects"]:
    return jnp.eye(len(b), dtype=b.dtype) - jax.hessian(log_likelihood)(b)
