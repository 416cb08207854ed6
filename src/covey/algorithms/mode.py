"""The mode of the posterior of shared parameters, by sums over clients: Newton's method."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from covey.core import tree
from covey.core.algorithm import Ask, Query
from covey.core.labels import flat_names
from covey.core.shard import Batch, Shard, Spec, fold_batches
from covey.kernels.newton import Climb, begin, climb, inverse_root
from covey.models.model import Model

LogPrior: TypeAlias = Callable[[PyTree], Float[Array, ""]]
LARGEST = 300  # parameters: clients send a matrix with this many rows and columns
_ROWS = 512  # whose second derivatives are held in memory together
_MOST_STEPS = 60
_TOO_FAR = 1e30  # the energy of parameters at which it is not finite
_LEAST_RISE = 0.1  # of the energy at one standard deviation from a mode, where 0.5 is expected
_FLAT = 1e-10  # curvature relative to a parameter's own, below which a direction is not determined


class Derivatives(NamedTuple):
    """The energy f, minus the log-likelihood of some rows, with its gradient and Hessian."""

    value: Float[Array | np.ndarray, ""]
    gradient: Float[Array | np.ndarray, " d"]
    hessian: Float[Array | np.ndarray, "d d"]


class Mode(NamedTuple):
    """The mode of a posterior, and the covariance there.

    Attributes:
        parameters: The mode.
        spread: S, with S S' the inverse Hessian of the energy at the mode.
    """

    parameters: PyTree
    spread: Float[Array | np.ndarray, "d d"]


class Around(NamedTuple):
    """Parameters, and steps away from them, as columns of their flat values."""

    parameters: PyTree
    steps: Float[Array, "d steps"]


def mode_queries(model: Model) -> dict[str, Query]:
    """The questions of `find_mode`: terms of a client at some parameters, and energies nearby."""

    def energy_of(unravel, batch: Batch):
        def energy(z):
            terms = model.log_likelihood(unravel(z), batch.rows)
            return -jnp.sum(jnp.where(batch.mask, terms, 0.0))

        return energy

    def energies(key, sent: Around, data: Shard) -> Float[Array, " steps"]:
        at, unravel = ravel_pytree(sent.parameters)

        def add(total, batch):
            values = jax.lax.map(energy_of(unravel, batch), (at[:, None] + sent.steps).T)
            return total + values

        found = fold_batches(data, _ROWS, add, jnp.zeros(sent.steps.shape[1], at.dtype))
        return jnp.where(jnp.isfinite(found), found, _TOO_FAR)

    def terms(key, parameters: PyTree, data: Shard) -> Derivatives:
        at, unravel = ravel_pytree(parameters)

        def add(total: Derivatives, batch: Batch) -> Derivatives:
            energy = energy_of(unravel, batch)
            value, gradient = jax.value_and_grad(energy)(at)
            found = Derivatives(value, gradient, jax.hessian(energy)(at))
            return jax.tree.map(jnp.add, total, found)

        zeros = Derivatives(*(jnp.zeros(shape, at.dtype) for shape in ((), at.shape, 2 * at.shape)))
        found = fold_batches(data, _ROWS, add, zeros)
        # A step that went too far is refused by its value.
        return tree.where(
            tree.is_finite(found), found, zeros._replace(value=zeros.value + _TOO_FAR)
        )

    return {"derivatives": terms, "energies": energies}


def find_mode(name: str, model: Model, log_prior: LogPrior | None, spec: Spec, ask: Ask) -> Mode:
    """The mode of the posterior, in some rounds of sums.

        theta <- theta - t |H|^-1 g,    g, H = derivatives of f = sum_c l^c - log prior

    |H| has the absolute eigenvalues of H, so that steps go down also where f curves the wrong way;
    t is shortened where a step does not (`kernels.newton`). Everything is computed in double
    precision.

    Args:
        name: The method that asks, for its errors.
        model: Log-likelihood of the rows.
        log_prior: Log-density of the parameters; None is flat.
        spec: Shapes of the rows.
        ask: Asks clients the queries `mode_queries(model)`.

    Returns:
        The mode.

    Raises:
        ValueError: There are too many parameters, or there is no mode; which parameters the data do
            not determine, and what to do.
    """
    with jax.enable_x64(True):
        start = model.init(jax.random.key(0, impl="threefry2x32"), spec)
        start = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), start)
        flat, unravel = ravel_pytree(start)
        if flat.size > LARGEST:
            raise ValueError(
                f"{name}: the model has {flat.size} parameters, and settings are determined "
                f"from the data for up to {LARGEST}; give step_size="
            )

        @jax.jit
        def prior_terms(z) -> Derivatives:
            def energy(z):
                return jnp.zeros(()) if log_prior is None else -log_prior(unravel(z))

            return Derivatives(energy(z), jax.grad(energy)(z), jax.hessian(energy)(z))

        def at(z: np.ndarray) -> Derivatives:
            rows = ask("derivatives", unravel(jnp.asarray(z)))
            both = jax.tree.map(jnp.add, Derivatives(*rows), prior_terms(jnp.asarray(z)))
            return Derivatives(*(np.asarray(leaf, np.float64) for leaf in both))

        names = flat_names(start)
        point, spread = _newton(name, at, np.asarray(flat, np.float64), names)
        mode = unravel(jnp.asarray(point))
        steps = _steps_around(point - np.asarray(flat), spread)
        around = jnp.asarray((point[:, None] + steps).T)
        energies = ask("energies", Around(mode, jnp.asarray(steps)))
        energies = np.asarray(energies + jax.vmap(lambda z: prior_terms(z).value)(around))
        _check_rises(name, energies, steps, names)
        return Mode(jax.device_get(mode), spread)


def _steps_around(way: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Steps of one standard deviation: none, further on the way that led to the mode, and along the
    axes of the covariance in both directions.
    """
    length = np.linalg.norm(np.linalg.solve(spread, way))
    further = way / length if length > 0 else spread[:, 0]
    return np.column_stack([np.zeros(len(way)), further, spread, -spread])


def _check_rises(name: str, energies: np.ndarray, steps: np.ndarray, names: list[str]) -> None:
    """An error where the energy does not rise around the mode: then it falls without bound."""
    flat = energies - energies[0] < _LEAST_RISE
    flat[0] = False
    if flat.any():
        far = np.abs(steps[:, flat]).max(1)
        worst = [names[index] for index in np.argsort(-far)[:3] if far[index] > 0.1 * far.max()]
        raise ValueError(_runaway(name, f": {', '.join(worst)} grow without bound"))


def _newton(
    name: str,
    derivatives: Callable[[np.ndarray], Derivatives],
    start: np.ndarray,
    names: list[str],
) -> tuple[np.ndarray, np.ndarray]:
    """The minimum of an energy and S there, by Newton's method (`kernels.newton`)."""
    found = here = derivatives(start)
    at = begin(jnp.asarray(start), inverse_root(jnp.asarray(found.hessian)))
    for index in range(_MOST_STEPS):
        at = _climb(at, here.value - found.value, found.gradient, found.hessian, index == 0)
        here = found if at.accepted else here
        if at.settled:
            unit, values, axes = _scaled(here.hessian)
            _check_determined(name, values, axes, names)
            return np.asarray(at.point), (unit[:, None] * axes) / np.sqrt(values)
        found = derivatives(np.asarray(at.trial))
    raise ValueError(_runaway(name, f" that Newton's method finds in {_MOST_STEPS} rounds"))


@jax.jit
def _climb(at: Climb, gain, gradient, hessian, first) -> Climb:
    """A step up minus the energy, whose derivatives are by the parameters themselves."""
    return climb(
        at,
        gain,
        -at.frame.T @ gradient,
        -at.frame.T @ hessian @ at.frame,
        first=first,
        limited=jnp.zeros(at.point.shape, bool),
        epsilon=float(jnp.finfo(at.point.dtype).eps),
    )


def _runaway(name: str, what: str) -> str:
    return (
        f"{name}: the posterior has no mode{what}. Where columns tell the outcome without error "
        "(separation), no estimate is finite: give a prior, e.g. prior=2.5 for columns of standard "
        "deviation 1"
    )


def _scaled(hessian: Array | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Units in which the Hessian has a diagonal of ones, and its eigenvalues and axes in them."""
    diagonal = np.abs(np.diag(hessian))
    unit = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, axes = np.linalg.eigh(unit[:, None] * np.asarray(hessian) * unit)
    return unit, values, axes


def _check_determined(name: str, values: np.ndarray, axes: np.ndarray, names: list[str]) -> None:
    flat = values <= _FLAT * len(values)
    if flat.any():
        involved = np.abs(axes[:, flat]).max(1) > 0.1
        which = ", ".join(label for label, is_in in zip(names, involved, strict=True) if is_in)
        raise ValueError(
            f"{name}: the data do not determine {which}: a column is constant or a copy of others, "
            "and there is no prior; leave a column out, or give prior="
        )
