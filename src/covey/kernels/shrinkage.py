"""The covariance of a posterior from few samples, shrunk, and its inverse without a matrix.

Al-Shedivat et al. (2021), "Federated learning via posterior averaging", theorem 3 and appendix C.
With samples x_1 .. x_l, their mean xbar and covariance S (divided by l - 1), the covariance of the
posterior is estimated by

    Sigma = rho_l I + (1 - rho_l) S,    rho_l = 1 / (1 + (l - 1) rho)

and Sigma / rho_l = I + (l - 1) rho S grows by a matrix of rank one with each sample, so that by the
formula of Sherman and Morrison D_t = (Sigma_t / rho_t)^-1 (theta_0 - xbar_t) follows from D_{t-1}:
with gamma_t = rho (t - 1) / t,

    u_t = x_t - xbar_{t-1},    v_t = u_t - sum_{k<t} w_k (v_k . u_t) v_k
    w_t = gamma_t / (1 + gamma_t u_t . v_t)
    D_t = D_{t-1} - [1 + w_t (t u_t . D_{t-1} - u_t . v_t)] v_t / t
    xbar_t = xbar_{t-1} + u_t / t

in O(l^2 d) time and O(l d) memory, and whenever one stops, D_t is that of the samples so far. Two
points differ from the paper. Samples are given as displacements from theta_0, which changes nothing
in exact arithmetic and keeps digits where they are small beside theta_0; the recursion then starts
from zeros. And the recursion loses digits where rho l S is large beside I: a fall from |D_1| to
|D_l| is lost with them. With u_k and v_k at hand both Sigma and its inverse can be applied, so two
steps of iterative refinement, O(l d) each, bring the digits back.

`oas` and `rblw` choose rho from the samples (Chen, Wiesel, Eldar and Hero, 2010, "Shrinkage
algorithms for MMSE covariance estimation"). They shrink S towards m I, m = trace(S) / d, and not
towards I.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int, PyTree

Number: TypeAlias = int | float | Float[Array, ""]
Rho: TypeAlias = int | float | Literal["oas", "rblw"]
Solver: TypeAlias = Literal["recursive", "dense"]
_REFINEMENTS = 2


class Samples(NamedTuple):
    """The estimate after `count` samples, with room for more; row k - 1 is of sample k.

    Attributes:
        count: Samples so far (t).
        mean: Their mean, as a displacement from theta_0 (xbar_t).
        solution: D_t, before it is refined.
        steps: u_k.
        directions: v_k.
        gamma: gamma_k; zero where there is no sample yet.
        weight: w_k; zero where there is no sample yet.
    """

    count: Int[Array, ""]
    mean: Float[Array, " d"]
    solution: Float[Array, " d"]
    steps: Float[Array, "samples d"]
    directions: Float[Array, "samples d"]
    gamma: Float[Array, " samples"]
    weight: Float[Array, " samples"]


class Shrinkage(NamedTuple):
    """Sigma = scale (I + (l - 1) rho S).

    Attributes:
        rho: Strength of the samples' covariance.
        scale: The variance that shrinking alone gives (rho_l, or a share of the mean variance).
    """

    rho: Float[Array, ""]
    scale: Float[Array, ""]


class Estimate(NamedTuple):
    """A client's correction of its mean sample.

    Attributes:
        delta: Sigma^-1 (theta_0 - xbar).
        largest: The largest eigenvalue of Sigma^-1; delta over it is never longer than
            theta_0 - xbar.
    """

    delta: Float[Array, " d"]
    largest: Float[Array, ""]


def no_samples(count: int, size: int, dtype: DTypeLike = float) -> Samples:
    """Room for `count` samples of `size` parameters."""
    row, table, column = (jnp.zeros(shape, dtype) for shape in ((size,), (count, size), (count,)))
    return Samples(jnp.int32(0), row, row, table, table, column, column)


def add(samples: Samples, displacement: Float[Array, " d"], rho: Number) -> Samples:
    """One sample more, x_t - theta_0."""
    before, dtype = samples.count, displacement.dtype
    count = (before + 1).astype(dtype)
    step = displacement - samples.mean
    direction = step - samples.directions.T @ (samples.weight * (samples.directions @ step))
    gamma = jnp.asarray(rho * before / count, dtype)
    along = step @ direction
    weight = gamma / (1 + gamma * along)
    part = (1 + weight * (count * (step @ samples.solution) - along)) / count
    return Samples(
        before + 1,
        samples.mean + step / count,
        samples.solution - part * direction,
        samples.steps.at[before].set(step),
        samples.directions.at[before].set(direction),
        samples.gamma.at[before].set(gamma),
        samples.weight.at[before].set(weight),
    )


def added(displacements: Float[Array, "samples d"], rho: Number) -> Samples:
    """All samples, one after the other."""
    count, size = displacements.shape
    start = no_samples(count, size, displacements.dtype)
    return jax.lax.scan(lambda samples, one: (add(samples, one, rho), None), start, displacements)[
        0
    ]


def given(rho: Number, count: int | Int[Array, ""], dtype: DTypeLike = float) -> Shrinkage:
    """The estimate of the paper for `count` samples, shrunk towards I."""
    level = jnp.asarray(rho, dtype)
    return Shrinkage(level, 1 / (1 + jnp.maximum(count - 1, 0) * level))


def delta(samples: Samples, shrinkage: Shrinkage) -> Float[Array, " d"]:
    """Sigma^-1 (theta_0 - xbar) of the samples so far."""

    def refined(solution, _):
        scaled = solution + samples.steps.T @ (samples.gamma * (samples.steps @ solution))
        return solution + _whitened(samples, -samples.mean - scaled), None

    solution = jax.lax.scan(refined, samples.solution, length=_REFINEMENTS)[0]
    return jnp.where(samples.count > 1, solution, samples.solution) / shrinkage.scale


def largest_precision(samples: Samples, shrinkage: Shrinkage) -> Float[Array, ""]:
    """The largest eigenvalue of Sigma^-1.

    It is 1 / scale where there are fewer samples than parameters: in some direction they do not
    vary.
    """
    room, size = samples.steps.shape
    if room <= size:
        return 1 / shrinkage.scale
    spread = (samples.steps.T * samples.gamma) @ samples.steps
    least = jnp.maximum(jnp.linalg.eigvalsh(spread)[0], 0.0)
    return 1 / (shrinkage.scale * (1 + least))


def oas(displacements: Float[Array, "samples d"]) -> Shrinkage:
    """Oracle approximating shrinkage: Sigma = a m I + (1 - a) S with the share a of equation 23.

    Not finite where the samples are all the same.

    Example:
        >>> samples = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.1]])
        >>> [round(float(v), 2) for v in jnp.diag(dense_covariance(samples, oas(samples)))]
        [0.66, 0.34]
    """
    return _towards_mean_variance(displacements, lambda n, d: (1 - 2 / d, n + 1 - 2 / d))


def rblw(displacements: Float[Array, "samples d"]) -> Shrinkage:
    """Rao-Blackwellised Ledoit-Wolf shrinkage: the same with the share a of equation 17.

    It is the estimator of Ledoit and Wolf (2004), conditioned on S for Gaussian samples. Not finite
    where the samples are all the same.

    Example:
        >>> samples = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.1]])
        >>> [round(float(v), 2) for v in jnp.diag(dense_covariance(samples, rblw(samples)))]
        [0.73, 0.27]
    """
    return _towards_mean_variance(displacements, lambda n, d: ((n - 2) / n, n + 2))


def _towards_mean_variance(
    displacements: Float[Array, "samples d"],
    factors: Callable[[int, int], tuple[float, float]],
) -> Shrinkage:
    """The share a = (b trace(S^2) + trace(S)^2) / (c (trace(S^2) - trace(S)^2 / d)), at most 1.

    `factors` gives b and c for n samples and d parameters.
    """
    count, size = displacements.shape
    centred = displacements - jnp.mean(displacements, axis=0)
    gram = centred @ centred.T / (count - 1)
    trace, trace_of_square = jnp.trace(gram), jnp.sum(gram**2)
    excess = trace_of_square - trace**2 / size
    # Not so where S is a multiple of I, as for one parameter.
    differs = excess > 10 * jnp.finfo(gram.dtype).eps * trace_of_square
    above, below = factors(count, size)
    share = (above * trace_of_square + trace**2) / (below * jnp.where(differs, excess, 1.0))
    share = jnp.where(differs, jnp.clip(share, 0.0, 1.0), 1.0)
    scale = share * trace / size
    return Shrinkage((1 - share) / scale / (count - 1), scale)


CHOSEN: dict[str, Callable[[Float[Array, "samples d"]], Shrinkage]] = {"oas": oas, "rblw": rblw}
"""Shrinkages that are chosen from the samples, by name."""


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
    count: int,
    at: Float[Array, " d"],
    rho: Rho,
    solver: Solver,
) -> tuple[PyTree, Estimate]:
    """Draw the samples, and estimate. With a given rho a sample is forgotten once it is added.

    Args:
        one: (trail, index) -> the next sample as a displacement from theta_0, and the trail after
            it.
        trail: The sampler's state before the first sample.
        count: Samples to draw (l).
        at: theta_0.
        rho: Strength of the samples' covariance, or the name of a rule that chooses it.
        solver: "dense" forms the covariance; the result is the same.

    Returns:
        The trail after the last sample, and the estimate.
    """
    if not isinstance(rho, str) and solver == "recursive":

        def take_in(carry, index):
            trail, known = carry
            displacement, trail = one(trail, index)
            return (trail, add(known, displacement, rho)), None

        start = (trail, no_samples(count, at.size, at.dtype))
        (trail, known), _ = jax.lax.scan(take_in, start, jnp.arange(count))
        return trail, _recursive(known, given(rho, known.count, at.dtype))

    def keep(trail, index):
        displacement, trail = one(trail, index)
        return trail, displacement

    trail, displacements = jax.lax.scan(keep, trail, jnp.arange(count))
    level = CHOSEN[rho](displacements) if isinstance(rho, str) else given(rho, count, at.dtype)
    if solver == "recursive":
        return trail, _recursive(added(displacements, level.rho), level)
    least = level.scale
    if count > at.size:
        least = jnp.linalg.eigvalsh(dense_covariance(displacements, level))[0]
    return trail, Estimate(dense_delta(displacements, level), 1 / least)


def _recursive(known: Samples, level: Shrinkage) -> Estimate:
    return Estimate(delta(known, level), largest_precision(known, level))


def _whitened(samples: Samples, right: Float[Array, " d"]) -> Float[Array, " d"]:
    """(I + (l - 1) rho S)^-1 times a vector."""
    return right - samples.directions.T @ (samples.weight * (samples.directions @ right))
