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

Parameters: TypeAlias = Float[Array, " parameters"]
Effects: TypeAlias = Float[Array, " effects"]
LogLikelihood: TypeAlias = Callable[[Parameters, Effects], Float[Array, ""]]

_MOST_STEPS = 100  # of Newton's method for the mode; a concave likelihood takes about six
_CLOSE = 1e-7  # length of the last step; the two steps after it double the digits twice


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
    value, gradient = jax.value_and_grad(function)(at)
    return Jet(value, gradient, jax.hessian(function)(at))


def log_marginal(
    log_likelihood: LogLikelihood, theta: Parameters, *, effects: int, nodes: int
) -> Float[Array, ""]:
    """The log of the marginal likelihood at theta; see `marginal_jet`."""
    if not effects:
        return log_likelihood(theta, jnp.zeros(0, theta.dtype))
    start = mode(lambda b: log_likelihood(theta, b), effects, theta.dtype)
    return _integrated(log_likelihood, theta, start, nodes)


def marginal_jet(
    log_likelihood: LogLikelihood, theta: Parameters, *, effects: int, nodes: int
) -> Jet:
    """The log of the marginal likelihood with its exact gradient and Hessian by theta.

    With b* the mode of the joint density of rows and effects, and C C' minus its Hessian there,

        l(theta) = joint(b*) - log det C                                        one node (Laplace)
        l(theta) = log sum_k w_k exp(joint(b* + C'^-1 t_k) + |t_k|^2 / 2) - log det C    otherwise

    where t_k and w_k are the nodes and weights of Gauss-Hermite quadrature, a grid with `nodes`
    points per effect. The mode is found without derivatives by theta; two further Newton steps, that
    derivatives pass through, make b* and hence l right to the second order in theta. A Gaussian
    likelihood is integrated exactly by one node.

    Args:
        log_likelihood: (theta, b) -> log p(D | theta, b), the effects b standard normal.
        theta: The parameters.
        effects: Number of effects (q). The grid has nodes^q points: more than one node is for up
            to three effects.
        nodes: Quadrature nodes per effect; 1 is Laplace's method.

    Returns:
        The value, gradient and Hessian.

    Example:
        >>> import jax
        >>> def binary(theta, b):  # three successes out of three, given the client's effect
        ...     return 3 * jax.nn.log_sigmoid(theta[0] + jnp.exp(theta[1]) * b[0])
        >>> theta = jnp.zeros(2)
        >>> [round(float(marginal_jet(binary, theta, effects=1, nodes=n).value), 3) for n in (1, 9)]
        [-1.67, -1.66]

    Reference: Pinheiro and Bates (1995), Approximations to the log-likelihood function in the
    nonlinear mixed-effects model.
    """
    if not effects:
        return jet(lambda at: log_likelihood(at, jnp.zeros(0, at.dtype)), theta)
    start = mode(lambda b: log_likelihood(theta, b), effects, theta.dtype)
    return jet(lambda at: _integrated(log_likelihood, at, start, nodes), theta)


def mode(
    log_likelihood: Callable[[Effects], Float[Array, ""]], effects: int, dtype: jnp.dtype
) -> Effects:
    """The mode of log_likelihood(b) - |b|^2 / 2, by Newton's method from zero.

    A step that does not go up is tried again at a quarter of its length. Where the likelihood is
    log-concave the curvature is at least one, and elsewhere it is taken to be.
    """

    def joint(b):
        return log_likelihood(b) - b @ b / 2

    def newton(b):
        curvature, axes = jnp.linalg.eigh(-jax.hessian(joint)(b))
        return axes @ ((axes.T @ jax.grad(joint)(b)) / jnp.maximum(jnp.abs(curvature), 1.0))

    def going(carry):
        _, _, size, length, count = carry
        return (count < _MOST_STEPS) & (size > _CLOSE) & (length > 1e-12)

    def step(carry):
        b, best, _, length, count = carry
        move = newton(b)
        trial = b + length * move
        value = joint(trial)
        size = jnp.linalg.norm(move)
        up = (value >= best) | (size < 1e-3)  # so close, rounding decides, and Newton is safe
        b, best = jnp.where(up, trial, b), jnp.where(up, value, best)
        return b, best, size, jnp.where(up, jnp.minimum(4 * length, 1.0), length / 4), count + 1

    start, one = jnp.zeros(effects, dtype), jnp.ones((), dtype)
    return jax.lax.while_loop(going, step, (start, joint(start), jnp.inf * one, one, 0))[0]


def grid(effects: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (points, effects) and log weights (points) of a product rule for N(0, I)."""
    node, weight = np.polynomial.hermite_e.hermegauss(nodes)
    each = np.log(weight / np.sqrt(2 * np.pi))
    points = np.stack(np.meshgrid(*[node] * effects, indexing="ij"), -1).reshape(-1, effects)
    logs = np.stack(np.meshgrid(*[each] * effects, indexing="ij"), -1).reshape(-1, effects)
    return points, logs.sum(1)


class Conditional(NamedTuple):
    """The Gaussian approximation of b given theta and D: its mode, and C with C C' its precision."""

    mode: Float[Array, " effects"]
    root: Float[Array, "effects effects"]


def conditional(
    log_likelihood: Callable[[Effects], Float[Array, ""]], effects: int, dtype: jnp.dtype
) -> Conditional:
    """The Gaussian approximation of the effects given the rows, at their mode."""
    at = mode(log_likelihood, effects, dtype)
    return Conditional(at, jnp.linalg.cholesky(_curvature(log_likelihood, at)))


def draw_effects(
    key: Key[Array, ""],
    log_likelihood: Callable[[Effects], Float[Array, ""]],
    effects: int,
    dtype: jnp.dtype,
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
        effects: Number of effects.
        dtype: Their floating-point type.
        steps: Proposals before the draw.

    Returns:
        The draw.
    """
    freedom = 8.0  # the tails of a likelihood times a Gaussian are lighter than any t
    at = conditional(log_likelihood, effects, dtype)
    normal, chi, accept = jax.random.split(key, 3)
    square = 2 * jax.random.gamma(chi, freedom / 2, (steps + 1,), dtype)
    noise = jax.random.normal(normal, (steps + 1, effects), dtype)
    white = noise / jnp.sqrt(square / freedom)[:, None]
    tried = at.mode + jax.vmap(
        lambda t: jax.scipy.linalg.solve_triangular(at.root.T, t, lower=False)
    )(white)
    log_proposal = -(freedom + effects) / 2 * jnp.log1p(jnp.sum(white**2, 1) / freedom)
    log_joint = jax.vmap(lambda b: log_likelihood(b) - b @ b / 2)(tried)
    weight = log_joint - log_proposal
    chance = jnp.log(jax.random.uniform(accept, (steps + 1,), dtype))

    def move(index, here):
        taken = chance[index] < weight[index] - weight[here]
        return jnp.where(taken, index, here)

    return tried[jax.lax.fori_loop(1, steps + 1, move, 0)]


def _curvature(log_likelihood: Callable, b: Effects) -> Float[Array, "effects effects"]:
    return jnp.eye(len(b), dtype=b.dtype) - jax.hessian(log_likelihood)(b)


def _integrated(
    log_likelihood: LogLikelihood, theta: Parameters, start: Effects, nodes: int
) -> Float[Array, ""]:
    """The log integral, from the mode at this value of theta; derivatives by theta are exact."""

    def given(b):
        return log_likelihood(theta, b)

    b = jax.lax.stop_gradient(start)
    for _ in range(2):
        b = b + jnp.linalg.solve(_curvature(given, b), jax.grad(given)(b) - b)
    root = jnp.linalg.cholesky(_curvature(given, b))
    volume = jnp.sum(jnp.log(jnp.diagonal(root)))
    if nodes == 1:
        return given(b) - b @ b / 2 - volume
    points, logs = grid(len(start), nodes)

    def at_node(t):
        at = b + jax.scipy.linalg.solve_triangular(root.T, t, lower=False)
        return given(at) - at @ at / 2 + t @ t / 2

    values = jax.vmap(at_node)(jnp.asarray(points, theta.dtype)) + jnp.asarray(logs, theta.dtype)
    return jax.nn.logsumexp(values) - volume
