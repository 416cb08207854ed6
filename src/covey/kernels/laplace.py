"""The marginal likelihood of one client, random effects integrated out, with its derivatives.

    l(theta) = log of the integral of p(D | theta, b) N(b; 0, I) db

by Laplace's method or by adaptive Gauss-Hermite quadrature, and draws of b given theta and D.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from covey.kernels.positive_definite import inverse, log_det

Parameters: TypeAlias = Float[Array, " parameters"]
Effects: TypeAlias = Float[Array, " effects"]

_MOST_STEPS = 100  # of Newton's method for the mode; a concave likelihood takes about six
_CLOSE = 1e-4  # length of the last step, in deviations; the two steps after it square it twice


class Conditional(NamedTuple):
    """The log-likelihood given the effects, log p(D | theta, b), with its derivatives by b.

    Attributes:
        value: (b) -> the log-likelihood.
        gradient: (b) -> its gradient.
        hessian: (b) -> its Hessian.
    """

    value: Callable[[Effects], Float[Array, ""]]
    gradient: Callable[[Effects], Effects]
    hessian: Callable[[Effects], Float[Array, "effects effects"]]


def differentiated(log_likelihood: Callable[[Effects], Float[Array, ""]]) -> Conditional:
    """Any log-likelihood given the effects; its derivatives are found automatically.

    Args:
        log_likelihood: (b) -> log p(D | theta, b).

    Returns:
        The function with its derivatives.

    Example:
        >>> given = differentiated(lambda b: -((b[0] - 1.0) ** 2))
        >>> given.gradient(jnp.zeros(1)).tolist(), given.hessian(jnp.zeros(1)).tolist()
        ([2.0], [[-2.0]])
    """
    return Conditional(log_likelihood, jax.grad(log_likelihood), jax.hessian(log_likelihood))


def through_predictor(
    terms: Callable[[Float[Array, " rows"]], Float[Array, " rows"]],
    offset: Float[Array, " rows"],
    design: Float[Array, "rows effects"],
    mask: Bool[Array, " rows"],
) -> Conditional:
    """The log-likelihood of rows that depend on the effects by a linear predictor each.

    Derivatives by b are those of each row by its predictor, times the design. That is quicker than
    `differentiated`, and much quicker to compile, as derivatives by theta are taken of these.

    Args:
        terms: (predictor) -> the log-likelihood by row.
        offset: The predictor without effects.
        design: Change of the predictor per unit of each effect.
        mask: Which rows are real.

    Returns:
        The function with its derivatives.

    Example:
        >>> given = through_predictor(
        ...     lambda predictor: -(predictor**2), -jnp.ones(2), jnp.ones((2, 1)), jnp.ones(2, bool)
        ... )
        >>> given.gradient(jnp.zeros(1)).tolist(), given.hessian(jnp.zeros(1)).tolist()
        ([4.0], [[-4.0]])
    """
    ones = jnp.ones_like(offset)

    def first(predictor):
        return jax.jvp(terms, (predictor,), (ones,))[1]

    def second(predictor):
        return jax.jvp(first, (predictor,), (ones,))[1]

    def by_row(function, b):
        return jnp.where(mask, function(offset + design @ b), 0.0)

    return Conditional(
        lambda b: jnp.sum(by_row(terms, b)),
        lambda b: by_row(first, b) @ design,
        lambda b: (design.T * by_row(second, b)) @ design,
    )


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


def log_marginal(given: Conditional, centre: Effects, *, nodes: int) -> Float[Array, ""]:
    """The log of the marginal likelihood, with exact first and second derivatives by theta.

    With b* the mode of the joint density of rows and effects, and C C' minus its Hessian there,

        l(theta) = joint(b*) - log det C                                        one node (Laplace)
        l(theta) = log sum_k w_k exp(joint(b* + C'^-1 t_k) + |t_k|^2 / 2) - log det C    otherwise

    where t_k and w_k are the nodes and weights of Gauss-Hermite quadrature, a grid with `nodes`
    points per effect. The mode is found without derivatives by theta. Two further steps with the
    Hessian there, which derivatives pass through, make b* right to the second order in theta and
    hence the derivatives exact. A Gaussian likelihood is integrated exactly by one node.

    Args:
        given: log p(D | theta, b) at this value of theta, the effects b standard normal.
        centre: The mode of b at this value of theta, from `mode`; empty without effects.
        nodes: Quadrature nodes per effect; 1 is Laplace's method. The grid has nodes^q points for q
            effects: more than one node is for up to three effects.

    Returns:
        The value; `jet` gives it with its derivatives.

    Example:
        >>> def binary(b):  # three successes out of three, given the client's effect
        ...     return 3 * jax.nn.log_sigmoid(b[0])
        >>> given = differentiated(binary)
        >>> centre = mode(given, jnp.zeros(1))
        >>> [round(float(log_marginal(given, centre, nodes=n)), 3) for n in (1, 9)]
        [-1.67, -1.66]

    Reference: Pinheiro and Bates (1995), Approximations to the log-likelihood function in the
    nonlinear mixed-effects model.
    """
    b = jax.lax.stop_gradient(centre)
    if not len(b):
        return given.value(b)
    # A constant matrix: the second step corrects the first order of what it misses.
    back = jax.lax.stop_gradient(inverse(_curvature(given, b)))
    for _ in range(2):
        b = b + back @ (given.gradient(b) - b)
    curvature = _curvature(given, b)
    volume = log_det(curvature) / 2
    if nodes == 1:
        return given.value(b) - b @ b / 2 - volume
    root = jnp.sqrt(curvature) if len(b) == 1 else jnp.linalg.cholesky(curvature)
    points, logs = grid(len(b), nodes)

    def at_node(t):
        at = b + (
            t / root[0]
            if len(b) == 1
            else jax.scipy.linalg.solve_triangular(root.T, t, lower=False)
        )
        return given.value(at) - at @ at / 2 + t @ t / 2

    values = jax.vmap(at_node)(jnp.asarray(points, b.dtype)) + jnp.asarray(logs, b.dtype)
    return jax.nn.logsumexp(values) - volume


def mode(given: Conditional, start: Effects) -> Effects:
    """The mode of given.value(b) - |b|^2 / 2, by Newton's method.

    A step that does not go up is tried again at a quarter of its length. Where the density is not
    log-concave, the size of its curvature is taken.

    Args:
        given: log p(D | theta, b).
        start: Start of the search, e.g. zeros. Where zeros are higher, they are the beginning: a
            mode at another theta may be so far off that the density overflows.

    Returns:
        The mode.
    """
    if not len(start):
        return start
    one = jnp.ones((), start.dtype)

    def joint(b):
        return given.value(b) - b @ b / 2

    def newton(b):
        """The step, and its length in units of the curvature."""
        if len(b) == 1:
            curvature, axes = _curvature(given, b)[0], jnp.ones((1, 1), b.dtype)
        else:
            curvature, axes = jnp.linalg.eigh(_curvature(given, b))
        size = jnp.abs(curvature)
        size = jnp.maximum(size, 1e-6 * size.max() + 1e-30)
        along = axes.T @ (given.gradient(b) - b)
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

    zero = jnp.zeros_like(start)
    at_start, at_zero = joint(start), joint(zero)
    higher = at_start >= at_zero  # not where it is NaN
    first = jnp.where(higher, start, zero), jnp.where(higher, at_start, at_zero)
    return jax.lax.while_loop(going, step, (*first, jnp.inf * one, one, 0))[0]


def grid(effects: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes (points, effects) and log weights (points) of a product rule for N(0, I)."""
    node, weight = np.polynomial.hermite_e.hermegauss(nodes)
    each = np.log(weight / np.sqrt(2 * np.pi))
    points = np.stack(np.meshgrid(*[node] * effects, indexing="ij"), -1).reshape(-1, effects)
    logs = np.stack(np.meshgrid(*[each] * effects, indexing="ij"), -1).reshape(-1, effects)
    return points, logs.sum(1)


_FREEDOM = 8  # of the proposals; a likelihood times a Gaussian has lighter tails than any t
_STEPS = 10  # proposals of the chain before a draw


class Randomness(NamedTuple):
    """The random numbers of one draw of the effects; of many draws, with a leading axis.

    Attributes:
        normal: Standard normal numbers, for the centre of the chain and each of its steps.
        square: Chi-squared numbers over their degrees of freedom, likewise.
        log_uniform: Logarithms of uniform numbers, likewise.
    """

    normal: Float[Array, "*draws steps effects"]
    square: Float[Array, "*draws steps"]
    log_uniform: Float[Array, "*draws steps"]


def randomness(key: Key[Array, ""], draws: int, effects: int) -> Randomness:
    """The random numbers of many draws, made at once: a generator inside of a loop over draws takes
    longer to compile than all the rest.

    They have 32 bits: those of 64 need double precision outside of `in_double` too.
    """
    count = draws * (_STEPS + 1)
    for_normal, for_square, for_uniform = jax.random.split(key, 3)
    single, shape = jnp.float32, (draws, _STEPS + 1)

    def log_uniform(key, count):
        tiny = float(jnp.finfo(single).tiny)
        return jnp.log(jax.random.uniform(key, (count,), single, minval=tiny))

    # An even number of degrees of freedom: a sum of exponential numbers.
    squares = log_uniform(for_square, count * (_FREEDOM // 2)).reshape(*shape, -1)
    return Randomness(
        jax.random.normal(for_normal, (count * effects,), single).reshape(*shape, effects),
        jnp.sum(squares, axis=-1) * (-2 / _FREEDOM),
        log_uniform(for_uniform, count).reshape(shape),
    )


def draw_effects(random: Randomness, given: Conditional, start: Effects) -> Effects:
    """One draw of the effects b from p(b | theta, D).

    An independence Metropolis chain with proposals from a Student t distribution at the mode, which
    is nearly the target: most proposals are accepted, so the chain forgets its start at once.

    Args:
        random: The random numbers of the draw.
        given: log p(D | theta, b), the effects b standard normal.
        start: Start of the search for the mode, e.g. zeros.

    Returns:
        The draw.
    """
    effects, centre = len(start), mode(given, start)
    root = jnp.linalg.cholesky(_curvature(given, centre))
    normal, square, chance = (leaf.astype(start.dtype) for leaf in random)
    white = normal / jnp.sqrt(square)[:, None]
    tried = centre + jax.scipy.linalg.solve_triangular(root.T, white.T, lower=False).T
    log_proposal = -(_FREEDOM + effects) / 2 * jnp.log1p(jnp.sum(white**2, 1) / _FREEDOM)
    log_joint = jax.vmap(lambda b: given.value(b) - b @ b / 2)(tried)
    weight = log_joint - log_proposal

    def move(index, here):
        taken = chance[index] < weight[index] - weight[here]
        return jnp.where(taken, index, here)

    return tried[jax.lax.fori_loop(1, len(white), move, 0)]


def _curvature(given: Conditional, b: Effects) -> Float[Array, "effects effects"]:
    return jnp.eye(len(b), dtype=b.dtype) - given.hessian(b)
