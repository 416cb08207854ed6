"""The Laplace approximation of the posterior of the shared parameters, from sums over clients."""

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from covey.core.algorithm import Approximation, Ask, Message
from covey.core.shard import Batch, Shard, Spec, fold_batches
from covey.kernels.curvature import curvature_times
from covey.kernels.low_rank import LowRank, deviations, orthonormal_columns, power_of
from covey.models.mixed import averaged
from covey.models.model import Model

_ROWS = 512  # whose second derivatives are held in memory together
_PROBES = 16  # random directions that estimate the curvature beyond the `rank` known ones
_SKETCH = 0  # seed of the directions; the law hardly depends on it
LARGEST_SPREAD = 0.2  # squared variation of the curvature: beyond, sds are off by some 10 %
FARTHEST = 0.1  # of the centre from the mode, root mean square, in standard deviations
_NEWTON_STEPS = 8


class Law(NamedTuple):
    """A Gaussian of the parameters.

    Attributes:
        start: The parameters of the run.
        mean: The centre, flat.
        curvature: Its precision.
    """

    start: PyTree
    mean: Float[Array, " d"]
    curvature: "Curvature"


class Curvature(NamedTuple):
    """The Hessian H of f, or its approximation P.

    Attributes:
        unit: A unit for each parameter, one over the root of its diagonal element where that is
            known: columns in small and large units then need no more digits than others.
        precision: P of the parameters in these units.
        spread: Squared coefficient of variation of the eigenvalues beyond `rank` (s).
    """

    unit: Float[Array, " d"]
    precision: LowRank
    spread: float

    def solve(self, right: Float[Array, " d"]) -> Float[Array, " d"]:
        """P^-1 times a vector."""
        return self.unit * power_of(self.precision, -1.0, self.unit * right)


class Point(NamedTuple):
    """The broadcast of a question: parameters, and the columns that the Hessian multiplies."""

    parameters: PyTree
    columns: Float[Array, "d columns"]


class Sums(NamedTuple):
    """Sums over clients of the derivatives of f, minus the log-likelihood of all rows.

    Attributes:
        gradient: Its gradient.
        times: Its Hessian times some columns.
    """

    gradient: Float[Array, " d"]
    times: Float[Array, "d columns"]


def laplace(
    model: Model, parameters_of: Callable[[Message], PyTree], *, rank: int
) -> Approximation:
    """The Laplace approximation of the posterior of the shared parameters, with a flat prior.

    With f minus the log-likelihood of all rows, g its gradient and H its Hessian, Newton steps from
    the run's parameters

        theta <- theta - P^-1 g(theta),    P = H(theta)

    lead to the mode, where the law is N(theta, P^-1): exact for linear regression with known noise.
    The steps end when one is shorter than a tenth of a standard deviation. Clients send sums over
    their rows, when the posterior is asked for and not in the rounds.

    Up to `rank` parameters P is H itself. Beyond, clients send H times `rank` columns, twice: P has
    H's largest eigenvalues along about its `rank` leading eigenvectors (one step of subspace
    iteration) and one value across them, m / (1 + s), with m the mean and s the squared coefficient
    of variation of the other eigenvalues, estimated in random directions: to second order, this is
    one over the mean of their inverses. No Newton step is made with such a P, and the centre is the
    run's parameters.

    Args:
        model: Log-likelihood of the rows.
        parameters_of: (what the method publishes) -> its parameters.
        rank: Number of directions in which the curvature is taken as it is.

    Returns:
        The approximation, for `Posterior.shared`. Its fit raises an error where the rows do not
        determine all parameters. It warns where the centre is not at the mode, and where
        standard deviations are rough because the curvatures beyond `rank` vary.

    Reference: Tierney and Kadane (1986), Accurate approximations for posterior moments and marginal
    densities; Halko, Martinsson and Tropp (2011), Finding structure with randomness, algorithm 4.4.
    """

    def fit(down: Message, spec: Spec, ask: Ask) -> Law:
        start = parameters_of(down)
        flat, unravel = ravel_pytree(start)

        def derivatives(at, columns):
            return Sums(*ask("derivatives", Point(unravel(at), columns)))

        mean, steps = flat, 0
        while True:
            found, gradient = curvature(partial(derivatives, mean), mean, rank)
            step = found.solve(gradient)
            distance = math.sqrt(float(gradient @ step) / flat.size)
            if flat.size > rank:
                break
            mean, steps = mean - step, steps + 1
            if distance < FARTHEST or steps == _NEWTON_STEPS:
                break
        _warn(distance, found.spread, rank, flat.size)
        return Law(start, mean, found)

    def drawn(key, law, count):
        unit, precision, _ = law.curvature
        return law.mean + unit * deviations(key, precision, count)

    def draw(key, law, count):
        _, unravel = ravel_pytree(law.start)
        draws = jax.vmap(unravel)(drawn(key, law, count))
        return draws if model.describe is None else jax.vmap(model.describe)(draws)

    def predictive(key, law, x, count):
        _, unravel = ravel_pytree(law.start)
        return averaged(lambda z: model.predictive(unravel(z), x), drawn(key, law, count))

    def terms(key, sent: Point, data: Shard) -> Sums:
        at, unravel = ravel_pytree(sent.parameters)

        def log_likelihood(z, rows):
            return model.log_likelihood(unravel(z), rows)

        return sums(log_likelihood, data, at, sent.columns)

    return Approximation(fit, draw, predictive, {"derivatives": terms})


def sums(
    log_likelihood: Callable[[Float[Array, " d"], PyTree], Float[Array, " rows"]],
    data: Shard,
    at: Float[Array, " d"],
    columns: Float[Array, "d columns"],
) -> Sums:
    """A client's terms of the sums."""

    def add(total: Sums, batch: Batch) -> Sums:
        def energy(z):
            return -jnp.sum(jnp.where(batch.mask, log_likelihood(z, batch.rows), 0.0))

        gradient = jax.grad(energy)
        times = curvature_times(gradient, at, columns) if columns.shape[1] else columns
        return Sums(total.gradient + gradient(at), total.times + times)

    nothing = Sums(jnp.zeros_like(at), jnp.zeros_like(columns))
    return fold_batches(data, _ROWS, add, nothing)


def curvature(
    derivatives: Callable[[Float[Array, "d columns"]], Sums], at: Float[Array, " d"], rank: int
) -> tuple[Curvature, Float[Array, " d"]]:
    """P at a point, and the gradient there.

    Args:
        derivatives: (columns) -> the sums over clients.
        at: The point.
        rank: Number of directions in which the curvature is taken as it is.
    """
    if at.size > rank:
        return _leading(derivatives, at, rank)
    gradient, hessian = derivatives(jnp.eye(at.size, dtype=at.dtype))
    diagonal = jnp.diag(hessian)
    unit = 1 / jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1.0))
    scaled = unit[:, None] * hessian * unit
    values, axes = jnp.linalg.eigh((scaled + scaled.T) / 2)
    _check_determined(values)
    return Curvature(unit, LowRank(axes, values, jnp.max(values)), 0.0), gradient


def _leading(
    derivatives: Callable[[Float[Array, "d columns"]], Sums], at: Float[Array, " d"], rank: int
) -> tuple[Curvature, Float[Array, " d"]]:
    """The same with leading directions, and one value across them from random ones."""
    size, dtype = at.size, at.dtype
    sketch, probes = jax.random.split(jax.random.key(_SKETCH, impl="threefry2x32"))
    omega = orthonormal_columns(sketch, size, rank, dtype)
    known = jnp.linalg.qr(derivatives(omega).times)[0]
    others = orthonormal_columns(probes, size, min(_PROBES, size - rank), dtype)
    others = jnp.linalg.qr(others - known @ (known.T @ others))[0]
    gradient, times = derivatives(jnp.concatenate([known, others], axis=1))
    along, across = jnp.split(times, [rank], axis=1)
    core = known.T @ along
    values, vectors = jnp.linalg.eigh((core + core.T) / 2)
    mean = jnp.mean(jnp.sum(others * across, axis=0))
    square = jnp.mean(jnp.sum((across - known @ (known.T @ across)) ** 2, axis=0))
    spread = max(float(square / mean**2) - 1, 0.0)
    level = mean / (1 + spread)
    _check_determined(jnp.append(values, level))
    law = LowRank(known @ vectors, values, level)
    return Curvature(jnp.ones_like(at), law, spread), gradient


def _check_determined(values: Float[Array, " values"]) -> None:
    """A flat prior leaves no posterior where the likelihood is flat."""
    rounding = 100 * jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(values))
    flat = int(jnp.sum(~(values > rounding)))
    if flat:
        raise ValueError(
            f"the log-likelihood of all rows does not curve downwards in {flat} of {len(values)} "
            "directions, so that with a flat prior there is no posterior of the shared parameters: "
            "parameters may be redundant, e.g. collinear columns, or the run may not have "
            "reached a mode; remove columns, or run more rounds"
        )


def _warn(distance: float, spread: float, rank: int, size: int) -> None:
    if not distance < FARTHEST:
        warnings.warn(
            "the posterior of the shared parameters is rough: the mode is "
            f"{distance:.2g} standard deviations from its centre; run more rounds"
            + (f", or give rank={size}: rank={rank} allows no Newton step" if size > rank else ""),
            stacklevel=4,
        )
    if spread > LARGEST_SPREAD:
        warnings.warn(
            f"the posterior of the shared parameters is rough: beyond the leading {rank} of {size} "
            f"directions the curvature varies by {100 * math.sqrt(spread):.0f} %, and one value "
            f"stands for all; give rank={size} for exact standard deviations",
            stacklevel=4,
        )
