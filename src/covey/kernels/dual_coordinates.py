"""Stochastic dual coordinate ascent (SDCA) on one client's rows, for losses of a linear predictor.

    primal:  minimise over w      sum_j loss_j(x_j'w) + w'Q^-1 w / 2
    dual:    maximise over alpha  -sum_j loss_j*(-alpha_j) - v'Q v / 2,    v = sum_j alpha_j x_j

w = Q v leads from one to the other. The difference of the two is at least zero, and zero at the
optimum only.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

_NEWTON_STEPS = 12


class Loss(NamedTuple):
    """A loss of the predictor for each of some rows, as functions of the row's index.

    Attributes:
        value: (predictors) -> the losses, for all rows.
        conjugate: (dual variables) -> loss*(-alpha), for all rows.
        best: (row, alpha, predictor, q) -> the alpha of a row that maximises the dual with all
            others fixed, q = x'Q x.
    """

    value: Callable[[Float[Array, " rows"]], Float[Array, " rows"]]
    conjugate: Callable[[Float[Array, " rows"]], Float[Array, " rows"]]
    best: Callable[..., Float[Array, ""]]


class Problem(NamedTuple):
    """One client's problem.

    Attributes:
        design: x_j by row.
        loss: The losses of the rows.
        metric: Q.
        mask: Which rows are real.
    """

    design: Float[Array, "rows d"]
    loss: Loss
    metric: Float[Array, "d d"]
    mask: Bool[Array, " rows"]


def squared_loss(y: Float[Array, " rows"], scale: Float[Array, " rows"]) -> Loss:
    """(u - y)^2 / (2 scale^2), minus the log-likelihood of Gaussian noise without its constant.

    Example:
        >>> loss = squared_loss(jnp.array([2.0]), jnp.array([1.0]))
        >>> float(loss.best(0, 0.0, 0.0, 1.0))  # of 2 alpha - alpha^2 / 2 - alpha^2 / 2
        1.0
    """
    variance = scale**2

    def best(row, alpha, predictor, q):
        step = (y[row] - predictor - variance[row] * alpha) / (variance[row] + q)
        return alpha + step

    return Loss(
        lambda u: (u - y) ** 2 / (2 * variance),
        lambda alpha: variance * alpha**2 / 2 - alpha * y,
        best,
    )


def logistic_loss(y: Int[Array, " rows"]) -> Loss:
    """log(1 + exp(-s u)), s = 1 for label 1 and -1 for label 0.

    With alpha = s beta the conjugate is beta log beta + (1 - beta) log(1 - beta) for beta in
    [0, 1]. The best beta = sigmoid(a) of a row solves a + s u + q (sigmoid(a) - beta) = 0, which
    rises in a: by Newton's method between bounds.

    Example:
        >>> loss = logistic_loss(jnp.array([1]))
        >>> float(loss.best(0, 0.0, 0.0, 0.0))
        0.5
    """
    sign = jnp.where(y == 1, 1.0, -1.0)

    def best(row, alpha, predictor, q):
        s = sign[row]
        before, pulled = s * alpha, s * predictor

        def excess(a):
            return a + pulled + q * (jax.nn.sigmoid(a) - before)

        def newton(_, carry):
            a, low, high = carry
            value = excess(a)
            low, high = jnp.where(value < 0, a, low), jnp.where(value < 0, high, a)
            chance = jax.nn.sigmoid(a)
            step = a - value / (1 + q * chance * (1 - chance))
            inside = (step >= low) & (step <= high)
            return jnp.where(inside, step, (low + high) / 2), low, high

        bounds = -pulled + q * (before - 1.0), -pulled + q * before
        start = (bounds[0] + bounds[1]) / 2
        a, _, _ = jax.lax.fori_loop(0, _NEWTON_STEPS, newton, (start, *bounds))
        return s * jax.nn.sigmoid(a)

    def conjugate(alpha):
        beta = jnp.clip(sign * alpha, 0.0, 1.0)
        return jax.scipy.special.xlogy(beta, beta) + jax.scipy.special.xlogy(1 - beta, 1 - beta)

    return Loss(lambda u: jax.nn.softplus(-sign * u), conjugate, best)


def dual_ascent(
    problem: Problem,
    dual: Float[Array, " kept"],
    orders: Int[Array, "passes rows"],
    count: Int[Array, ""],
) -> tuple[Float[Array, " d"], Float[Array, " kept"]]:
    """Passes over the rows, each of which maximises the dual by the row's variable.

    Args:
        problem: The client's problem.
        dual: alpha, from its first row on; there may be more or fewer than rows are padded to.
        orders: The order of the rows in each pass.
        count: The number of rows.

    Returns:
        w = Q v, and alpha.
    """
    design, loss, metric, _ = problem
    curvature = jnp.einsum("rd,de,re->r", design, metric, design)

    def one_row(row, carry):
        v, dual = carry
        alpha = loss.best(row, dual[row], design[row] @ (metric @ v), curvature[row])
        return v + (alpha - dual[row]) * design[row], dual.at[row].set(alpha)

    def one_pass(order, carry):
        return jax.lax.fori_loop(0, count, lambda at, carry: one_row(order[at], carry), carry)

    carry = (_sum_of(problem, dual), dual)
    v, dual = jax.lax.fori_loop(
        0, len(orders), lambda at, carry: one_pass(orders[at], carry), carry
    )
    return metric @ v, dual


def duality_gap(
    problem: Problem, dual: Float[Array, " kept"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The loss of all rows at w = Q v, and the primal minus the dual objective."""
    design, loss, metric, mask = problem
    v, alpha = _sum_of(problem, dual), _of_rows(problem, dual)
    total = jnp.sum(jnp.where(mask, loss.value(design @ (metric @ v)), 0.0))
    conjugates = jnp.sum(jnp.where(mask, loss.conjugate(alpha), 0.0))
    return total, total + conjugates + v @ metric @ v


def _of_rows(problem: Problem, dual: Float[Array, " kept"]) -> Float[Array, " rows"]:
    """The dual variable of each row, zero for padding."""
    index = jnp.arange(len(problem.mask))
    return jnp.where(problem.mask, dual.at[index].get(mode="clip"), 0.0)


def _sum_of(problem: Problem, dual: Float[Array, " kept"]) -> Float[Array, " d"]:
    """The sum v of alpha_j x_j."""
    return _of_rows(problem, dual) @ problem.design
