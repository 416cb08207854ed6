"""The mean and precision of a posterior from few samples: Sigma^-1 (theta_0 - mean) without a
matrix.

Al-Shedivat et al. (2021), "Federated learning via posterior averaging", theorem 3 and appendix C.
With samples x_1 .. x_l, their mean xbar and covariance S (divided by l - 1), the covariance of the
posterior is estimated by

    Sigma = rho_l I + (1 - rho_l) S,    rho_l = 1 / (1 + (l - 1) rho)

and Sigma / rho_l = I + (l - 1) rho S grows by a matrix of rank one with each sample, so that by the
formula of Sherman and Morrison D_t = (Sigma_t / rho_t)^-1 (theta_0 - xbar_t) follows from D_{t-1}:
with gamma_t = rho (t - 1) / t,

    u_t = x_t - xbar_{t-1},    v_t = u_t - sum_{k<t} w_k (v_k . u_t) v_k,    w_t = gamma_t / (1 + gamma_t u_t . v_t)
    D_t = D_{t-1} - [1 + w_t (t u_t . D_{t-1} - u_t . v_t)] v_t / t,    xbar_t = xbar_{t-1} + u_t / t

in O(l^2 d) time and O(l d) memory, and whenever one stops, D_t is that of the samples so far. Two
things are ours. Samples are given as displacements from theta_0, which changes nothing in exact
arithmetic and keeps digits where they are small beside theta_0; the recursion then starts from
zeros. And the recursion loses digits where rho l S is large beside I: a fall from |D_1| to |D_l| is
lost with them. With u_k and v_k at hand both Sigma and its inverse can be applied, so two steps of
iterative refinement, O(l d) each, bring the digits back.

`oas` chooses rho from the samples (oracle approximating shrinkage: Chen, Wiesel, Eldar and Hero,
2010). It shrinks S towards m I, m = trace(S) / d, and not towards I.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int, PyTree

Number = int | float | Float[Array, ""]
_REFINEMENTS = 2


class Samples(NamedTuple):
    """What is known of a posterior after `count` samples, with room for more; row k - 1 of an array
    is of sample k.

    mean: xbar_t, as a displacement from theta_0.
    solution: D_t, before it is refined.
    steps, directions: u_k and v_k.
    gamma, weight: gamma_k and w_k; zeros where there is no sample yet.
    """

    count: Int[Array, ""]
    mean: Float[Array, " d"]
    solution: Float[Array, " d"]
    steps: Float[Array, "samples d"]
    directions: Float[Array, "samples d"]
    gamma: Float[Array, " samples"]
    weight: Float[Array, " samples"]


class Shrinkage(NamedTuple):
    """Sigma = scale (I + (l - 1) rho S)."""

    rho: Float[Array, ""]
    scale: Float[Array, ""]


class Estimate(NamedTuple):
    """What samples say of a client: Delta_i, trace(Sigma_i^-1) / d, c_i, and (columns) ->
    Sigma_i^-1 times columns.
    """

    delta: Float[Array, " d"]
    mean_precision: Float[Array, ""]
    level: Float[Array, ""]
    times: Callable[[Float[Array, "d rank"]], Float[Array, "d rank"]]


def no_samples(number: int, size: int, dtype: DTypeLike = float) -> Samples:
    """Room for `number` samples of `size` numbers."""
    row, table, column = (jnp.zeros(shape, dtype) for shape in ((size,), (number, size), (number,)))
    return Samples(jnp.int32(0), row, row, table, table, column, column)


def add(samples: Samples, displacement: Float[Array, " d"], rho: Number) -> Samples:
    """One sample more, x_t - theta_0."""
    before, dtype = samples.count, displacement.dtype
    number = (before + 1).astype(dtype)
    step = displacement - samples.mean
    direction = step - samples.directions.T @ (samples.weight * (samples.directions @ step))
    gamma = jnp.asarray(rho * before / number, dtype)
    along = step @ direction
    weight = gamma / (1 + gamma * along)
    part = (1 + weight * (number * (step @ samples.solution) - along)) / number
    return Samples(
        before + 1,
        samples.mean + step / number,
        samples.solution - part * direction,
        samples.steps.at[before].set(step),
        samples.directions.at[before].set(direction),
        samples.gamma.at[before].set(gamma),
        samples.weight.at[before].set(weight),
    )


def added(displacements: Float[Array, "samples d"], rho: Number) -> Samples:
    """All samples, one after the other."""
    number, size = displacements.shape
    start = no_samples(number, size, displacements.dtype)
    return jax.lax.scan(lambda samples, one: (add(samples, one, rho), None), start, displacements)[
        0
    ]


def given(rho: Number, number: int | Int[Array, ""], dtype: DTypeLike = float) -> Shrinkage:
    """The estimate of the paper for a number of samples, shrunk towards I."""
    level = jnp.asarray(rho, dtype)
    return Shrinkage(level, 1 / (1 + jnp.maximum(number - 1, 0) * level))


def delta(samples: Samples, shrinkage: Shrinkage) -> Float[Array, " d"]:
    """Sigma^-1 (theta_0 - xbar) of the samples so far."""

    def refined(solution, _):
        scaled = solution + samples.steps.T @ (samples.gamma * (samples.steps @ solution))
        return solution + _whitened(samples, -samples.mean - scaled), None

    solution = jax.lax.scan(refined, samples.solution, length=_REFINEMENTS)[0]
    return jnp.where(samples.count > 1, solution, samples.solution) / shrinkage.scale


def precision_times(
    samples: Samples, shrinkage: Shrinkage, matrix: Float[Array, "d columns"]
) -> Float[Array, "d columns"]:
    """Sigma^-1 times some columns."""
    return _whitened(samples, matrix) / shrinkage.scale


def mean_precision(samples: Samples, shrinkage: Shrinkage) -> Float[Array, ""]:
    """The trace of Sigma^-1, divided by d."""
    lost = jnp.mean(samples.weight @ samples.directions**2)
    return (1 - lost) / shrinkage.scale


def oas(displacements: Float[Array, "samples d"]) -> Shrinkage:
    """The shrinkage a m I + (1 - a) S of Chen et al., equation 23. Not finite where the samples are
    all the same.
    """
    number, size = displacements.shape
    centred = displacements - jnp.mean(displacements, axis=0)
    gram = centred @ centred.T / (number - 1)
    trace, trace_of_square = jnp.trace(gram), jnp.sum(gram**2)
    excess = trace_of_square - trace**2 / size
    differs = (
        excess > 10 * jnp.finfo(gram.dtype).eps * trace_of_square
    )  # not so where S is a multiple of I, as for one number
    share = ((1 - 2 / size) * trace_of_square + trace**2) / (
        (number + 1 - 2 / size) * jnp.where(differs, excess, 1.0)
    )
    share = jnp.where(differs, jnp.clip(share, 0.0, 1.0), 1.0)
    scale = share * trace / size
    return Shrinkage((1 - share) / scale / (number - 1), scale)


def dense_covariance(
    displacements: Float[Array, "samples d"], shrinkage: Shrinkage
) -> Float[Array, "d d"]:
    """Sigma itself, for few parameters."""
    centred = displacements - jnp.mean(displacements, axis=0)
    return shrinkage.scale * (
        jnp.eye(displacements.shape[1], dtype=centred.dtype) + shrinkage.rho * centred.T @ centred
    )


def dense_delta(
    displacements: Float[Array, "samples d"], shrinkage: Shrinkage
) -> Float[Array, " d"]:
    """The same as `delta` by solving with the matrix: O(d^3) time and O(d^2) memory."""
    return -jnp.linalg.solve(
        dense_covariance(displacements, shrinkage), jnp.mean(displacements, axis=0)
    )


def estimate(
    one: Callable[[PyTree, Int[Array, ""]], tuple[Float[Array, " d"], PyTree]],
    trail: PyTree,
    number: int,
    at: Float[Array, " d"],
    rho: int | float | Literal["oas"],
    solver: str,
) -> tuple[PyTree, Estimate]:
    """Draw the samples, and what they say. With a rho that is given, a sample is forgotten once it
    is added.
    """
    if rho != "oas" and solver == "recursive":

        def take_in(carry, place):
            trail, known = carry
            displacement, trail = one(trail, place)
            return (trail, add(known, displacement, rho)), None

        start = (trail, no_samples(number, at.size, at.dtype))
        (trail, known), _ = jax.lax.scan(take_in, start, jnp.arange(number))
        return trail, _recursive(known, given(rho, known.count, at.dtype))

    def keep(trail, place):
        displacement, trail = one(trail, place)
        return trail, displacement

    trail, displacements = jax.lax.scan(keep, trail, jnp.arange(number))
    level = oas(displacements) if rho == "oas" else given(rho, number, at.dtype)
    if solver == "recursive":
        return trail, _recursive(added(displacements, level.rho), level)
    inverse = jnp.linalg.inv(dense_covariance(displacements, level))
    solution = dense_delta(displacements, level)
    return trail, Estimate(
        solution, jnp.mean(jnp.diag(inverse)), 1 / level.scale, lambda omega: inverse @ omega
    )


def _recursive(known: Samples, level: Shrinkage) -> Estimate:
    return Estimate(
        delta(known, level),
        mean_precision(known, level),
        1 / level.scale,
        lambda omega: precision_times(known, level, omega),
    )


def _whitened(samples: Samples, right: Float[Array, " d *columns"]) -> Float[Array, " d *columns"]:
    """(I + (l - 1) rho S)^-1 times a vector or some columns."""
    weight = samples.weight.reshape((-1,) + (1,) * (right.ndim - 1))
    return right - samples.directions.T @ (weight * (samples.directions @ right))
