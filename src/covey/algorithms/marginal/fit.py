"""The law that `covey.marginal` fits: the Gaussian at the maximum, or points of the posterior; with
warnings where the data do not determine a parameter.
"""

import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial
from jaxtyping import Array, Key, PyTree

from covey.algorithms.marginal.client import Points, coefficients_of
from covey.algorithms.marginal.law import Law, flattened
from covey.algorithms.marginal.parameters import (
    WEAK,
    Coordinates,
    Settings,
    described,
    is_regression,
    labels_of,
    logarithms,
)
from covey.algorithms.marginal.products import is_linear_gaussian
from covey.algorithms.marginal.state import (
    Published,
    State,
    at_zero,
    log_prior_at,
    spread_of,
    theta_like,
    theta_of,
)
from covey.core.algorithm import Ask
from covey.core.labels import value_names
from covey.core.shard import Spec
from covey.kernels.pareto_smoothing import HIGHEST_K, Weighted, importance_sample
from covey.models.predictive import Normal

_LOOSE = 0.05  # standard errors that an estimate moves along a direction that is flat
_RUNAWAY = 5.0  # units of the linear predictor that a weight times the spread of its column makes
_RIDGE = 10.0  # times its own size that the standard error of a deviation may be
_OFF = 0.03  # standard errors that rounding may move the estimates without a warning
_SMALL = 1e-2  # a deviation, in units of what the rows can tell from 0, that is 0 in words
_SENT = 2000  # draws of the posterior that clients predict with


def fit_law(settings: Settings, published: Published, spec: Spec, ask: Ask) -> Law:
    """The distribution of the parameters, with warnings where the data do not determine them.

    Args:
        settings: Those of the method.
        published: State that clients predict with.
        spec: Shapes and names of the rows.
        ask: The sum of the answers of all clients, one round each time.

    Returns:
        The law. While the maximum is not found, "posterior" has no points: a warning says so.
    """
    state = published.state
    law = _at_maximum(settings, state, spec)
    _warn(settings, state, spec, law)
    if settings.estimate != "posterior" or not law.settled:
        return law
    if law.unknown:
        raise ValueError(
            f"marginal: there is no posterior, the data do not determine {_some(law.unknown)}; "
            "leave a column out, or give prior= a standard deviation of the weights"
        )
    theta = theta_of(state, settings.coordinates, state.climb.point)

    def ask_left_out(points):
        return ask("leave_out", Points(theta, state.unit, jnp.asarray(points, float)))

    sample = _posterior(settings, state, law, ask)
    return law._replace(sample=sample, ask_left_out=ask_left_out)


def publish_law(published: Published, law: Law) -> Published:
    """The state that clients predict with, with draws of theta from the posterior."""
    if law.sample is None:
        return published
    key = jax.random.key(published.state.seed)
    return published._replace(points=jnp.asarray(law.points(key, _SENT), float))


def draw_law(key: Key[Array, ""], law: Law, count: int) -> PyTree:
    """Draws of the parameters as users know them; NaN where the data do not determine one, and
    everywhere while the maximum is not found.
    """
    drawn = law.described(law.points(key, count))
    bad = np.isin(law.names, law.unknown) | (not law.settled)
    parts = np.array([name.partition("[")[0] for name in law.names])
    masks = {name: bad[parts == name] for name in drawn}
    return {
        name: jnp.where(masks[name].reshape(leaf.shape[1:]), jnp.nan, leaf)
        for name, leaf in drawn.items()
    }


@lru_cache(maxsize=64)  # programs are compiled once per method, not once per run; likewise below
def _describe_of(settings: Settings) -> Callable[..., dict[str, Array]]:
    def describe(phi, unit, flat):
        theta = theta_like(phi, unit, settings.coordinates, flat.astype(jnp.zeros(()).dtype))
        return described(settings.model, settings.coordinates, theta, unit)

    return describe


@lru_cache(maxsize=64)
def _maximum_of(settings: Settings) -> Callable[..., tuple]:
    """(state) -> the described parameters, flattened as well, with their derivatives; the spread,
    and which deviations are 0. One program in place of many small ones.
    """
    coordinates = settings.coordinates

    def at(state):
        describe = partial(_describe_of(settings), state.phi, state.unit)
        point = state.climb.point
        known = OrderedDict(describe(point))  # a plain one that leaves a program is sorted
        parts = known, flattened(describe, point), jax.jacobian(partial(flattened, describe))(point)
        return *parts, spread_of(state, coordinates), at_zero(state, coordinates)

    return jax.jit(at)


def _at_maximum(settings: Settings, state: State, spec: Spec) -> Law:
    coordinates, unit = settings.coordinates, state.unit
    found, values, jacobian, spread, at_bound = jax.device_get(_maximum_of(settings)(state))
    names = value_names(found, labels_of(settings.model, spec))
    kind = np.array([name.partition("[")[0] for name in names])
    spread, jacobian = np.asarray(spread, float), np.asarray(jacobian, float)
    theta = theta_of(state, coordinates, state.climb.point)
    rows = jax.tree.map(lambda s: jax.ShapeDtypeStruct((1, *s.shape), s.dtype), spec.rows)
    linear = is_regression(theta.phi) and settings.estimate != "posterior"
    if linear and is_linear_gaussian(settings.model, theta.phi, len(unit), rows):
        spread = _orthogonal(spread, coefficients_of(theta))
    law = Law(
        estimate=settings.estimate,
        point=np.asarray(state.climb.point, float),
        spread=spread,
        describe=Partial(_describe_of(settings), state.phi, unit),
        names=names,
        unknown=(),
        zero=(),
        log_likelihood=_exact_log_likelihood(state),
        parameters=len(spread),
        rows=int(state.rows),
        settled=bool(state.settled),
        separated=tuple(_runaways(settings, state, spec)),
    )
    curvature, axes = np.linalg.eigh(np.asarray(state.climb.curvature, float))
    flat = np.asarray(state.climb.frame, float) @ axes[:, curvature <= 0.5]
    with np.errstate(invalid="ignore"):
        moved = np.abs(jacobian @ flat).max(1, initial=0.0)
        known = np.sqrt(np.sum((jacobian @ spread) ** 2, axis=1))
        loose = ~(moved <= _LOOSE * known) & (moved != 0)
        loose |= _far_too_loose(state, values, known, names)
    entries = coordinates.size(len(unit))
    # The logarithm of a deviation at 0, or of an infinite shape, has no maximum and no error.
    held = (known == 0) & np.isin(kind, ("group_deviation", "dispersion")) & (state.round > 1)
    zero, tied = (), ()
    if entries:
        zero, tied = boundary(
            coordinates, np.asarray(unit, float), np.asarray(at_bound[-entries:]), found, names
        )
    return law._replace(
        unknown=tuple(np.array(names)[loose | ~np.isfinite(values)].tolist()),
        zero=zero + tuple(np.array(names)[held & (kind == "group_deviation")].tolist()),
        tied=tied,
        infinite=tuple(np.array(names)[held & (kind == "dispersion")].tolist()),
    )


def _far_too_loose(
    state: State, values: np.ndarray, error: np.ndarray, names: tuple[str, ...]
) -> np.ndarray:
    """Which deviations of noise and effects have standard errors of many times their estimate and
    their plausible size: with one row per client, say, only the sum of both variances is known.
    Newton's method follows such a ridge, and rounding gives it some curvature.
    """
    kind = np.array([name.partition("[")[0] for name in names])
    possible = np.abs(values)
    own = np.asarray(state.scales.effects, float) / WEAK
    if np.sum(kind == "sd") == len(own):
        possible[kind == "sd"] = np.maximum(possible[kind == "sd"], own)
    return np.isin(kind, ("noise", "sd")) & ~(error <= _RIDGE * possible)


def _orthogonal(spread: np.ndarray, parts: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """The root of the covariance in which coefficients beta and variances are independent, as they
    are in expectation: (X'V^-1 X)^-1 for beta, as lme4 reports it.
    """
    beta, others = parts
    by_others = spread[others]
    along = np.linalg.pinv(by_others) @ by_others
    alone = np.zeros_like(spread)
    alone[beta] = spread[beta] @ (np.eye(len(along)) - along)
    alone[others] = by_others @ along
    return alone


def _exact_log_likelihood(state: State) -> float:
    """The log-likelihood in double precision."""
    parts = float(state.value), float(state.level) * float(state.rows), float(state.restriction)
    return sum(parts)


def boundary(
    coordinates: Coordinates, unit: np.ndarray, zero: np.ndarray, found, names: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the deviations that are 0, and of those of effects that depend on others: their own
    part is 0, and they are not. What is small is so in these units.

    Args:
        coordinates: Coordinates of the covariance.
        unit: Smallest deviation of each effect that the rows can tell from 0.
        zero: Which entries of the root are a deviation's own part that is 0.
        found: The described parameters.
        names: Names of the described values.
    """
    relative = np.asarray(found["sd"], float) / unit
    own = zero[coordinates.diagonal(len(relative))]
    labels = np.array([name for name in names if name.partition("[")[0] == "sd"])
    small = relative < _SMALL
    return tuple(labels[own & small].tolist()), tuple(labels[own & ~small].tolist())


@lru_cache(maxsize=64)
def _priors_of(settings: Settings) -> Callable[[State, Array], Array]:
    """(state, points) -> the log prior density of each."""
    return jax.jit(jax.vmap(partial(log_prior_at, settings), in_axes=(None, 0)))


def _posterior(settings: Settings, state: State, law: Law, ask: Ask) -> Weighted:
    """Weighted points of the posterior."""
    theta = theta_of(state, settings.coordinates, state.climb.point)
    priors = _priors_of(settings)

    def log_density(points):
        sent = Points(theta, state.unit, jnp.asarray(points, float))
        return np.asarray(ask("gains", sent), float) + np.asarray(priors(state, sent.points), float)

    sample = importance_sample(
        log_density,
        law.point,
        law.spread @ law.spread.T,
        draws=settings.draws,
        seed=int(state.seed),
    )
    if sample.k_hat > HIGHEST_K:
        warnings.warn(
            f"marginal: the importance weights of the posterior are not reliable (k-hat "
            f"{sample.k_hat:.2f}, above {HIGHEST_K}; {sample.effective:.0f} effective draws of "
            f"{len(sample.points)}): the posterior is far from a Student t distribution in some "
            "direction, and intervals of it may be too short. Raise draws=, give a more "
            "informative prior=, or sample it with fald (a model without effects) or fedpop",
            stacklevel=3,
        )
    return sample


def cautions(settings: Settings, state: State, spec: Spec) -> list[str]:
    """Cautions about the estimates themselves, which concern predictions as well.

    Args:
        settings: Those of the method.
        state: The server's state at the end of a run.
        spec: Shapes and names of the rows.

    Returns:
        One text each; none before the parameters were evaluated.
    """
    if int(state.round) < 2:
        return []
    found = []
    if runaways := _runaways(settings, state, spec):
        found.append(
            f"marginal: the estimates of {_some(tuple(runaways))} run away, and standard errors "
            "with them: the data are separated, some columns predict the outcome without error, "
            "and there is no finite estimate. Give prior= a standard deviation of the weights, "
            "e.g. prior=2.5 for columns of standard deviation 1"
        )
    off = float(np.linalg.norm(np.asarray(state.climb.gradient, float)))
    if bool(state.settled) and off > _OFF:
        found.append(
            f"marginal: estimates are off by up to {off:.2g} standard errors, because parameters "
            "are stored in single precision and columns or outcomes are far from 0 compared with "
            "their spread; centre them, e.g. by data.standardised()"
        )
    return found


def _warn(settings: Settings, state: State, spec: Spec, law: Law) -> None:
    if not law.settled:
        warnings.warn(
            f"marginal has not found the maximum after {int(state.round)} rounds, and draws and "
            "standard errors are NaN until it has; run more, e.g. run.advance(10), and look at "
            "run.metrics",
            stacklevel=3,
        )
    for text in cautions(settings, state, spec):
        warnings.warn(text, stacklevel=3)
    if law.unknown:
        warnings.warn(
            f"marginal: the data do not determine {_some(law.unknown)}: these columns are "
            "collinear, or two deviations, of noise and effects, cannot be told apart. Leave one "
            "out, or give prior= a standard deviation of the weights; until then they are NaN. "
            "Where columns are only nearly collinear, e.g. far from 0 compared with their spread, "
            "all others are estimated as if one were left out: centre and scale them, e.g. by "
            "data.standardised()",
            stacklevel=3,
        )
    for name in law.zero:
        warnings.warn(
            f"marginal: {name} is estimated as 0: these data do not show that clients differ in "
            "it. It has no standard error, and those of the others take it to be 0; "
            "estimate='posterior' shows how large it may be",
            stacklevel=3,
        )
    for name in law.infinite:
        warnings.warn(
            f"marginal: {name} is estimated as infinite: these counts vary no more than those of a "
            "Poisson distribution, which is what the other estimates are of; it has no standard "
            "error",
            stacklevel=3,
        )
    if law.tied:
        warnings.warn(
            f"marginal: {_some(law.tied)} is of effects that are estimated as perfectly correlated "
            "with the others (a singular fit): clients are too few, or too alike, to tell them "
            "apart, and standard errors take this as known. Use covariance='diagonal' (a double "
            "bar in a formula), fewer slopes, or estimate='posterior'",
            stacklevel=3,
        )


def _runaways(settings: Settings, state: State, spec: Spec) -> list[str]:
    """Coefficients that grow without bound: large in units of the linear predictor, and larger
    still in their standard error.
    """
    theta = theta_of(state, settings.coordinates, state.climb.point)
    if not is_regression(theta.phi):
        return []
    rows = jax.tree.map(lambda s: jax.ShapeDtypeStruct((1, *s.shape), s.dtype), spec.rows)
    try:
        shape = jax.eval_shape(
            partial(settings.model.predictive, theta.phi, jnp.zeros(len(state.unit))), rows.x
        )
    except (ValueError, TypeError, AttributeError):
        return []
    if isinstance(shape, Normal) or settings.model.coefficients is None:
        return []
    flat = np.asarray(state.climb.point, float)[: len(logarithms(theta.phi))]
    spread = _spread_of(settings.coordinates)(state)
    error = np.sqrt(np.sum(np.asarray(spread, float) ** 2, axis=1))
    scale = np.asarray(state.scales.phi, float) / 2.5
    size = np.abs(flat) / np.where(np.isfinite(scale), scale, 1.0)
    bad = (size > _RUNAWAY) & (error[: len(flat)] > np.abs(flat)) & ~logarithms(theta.phi)
    if not bad.any():
        return []
    _, unravel = ravel_pytree(theta.phi)
    # The described parameters in which these values differ.
    without, marked = (
        settings.model.coefficients(unravel(jnp.asarray(flags, float)), state.unit * 0)
        for flags in (np.zeros(len(bad)), bad)
    )
    names = value_names(marked, labels_of(settings.model, spec))
    changed = [np.ravel(marked[name] != without[name]) for name in marked]
    return [name for name, is_so in zip(names, np.concatenate(changed), strict=True) if is_so]


@lru_cache(maxsize=64)
def _spread_of(coordinates: Coordinates) -> Callable[[State], Array]:
    return jax.jit(partial(spread_of, coordinates=coordinates))


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
