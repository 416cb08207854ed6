"""The law that `covey.marginal` fits: the Gaussian at the maximum, or points of the posterior; with
warnings where the data do not determine a parameter.
"""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Key, PyTree

from covey.algorithms.marginal_client import Points, coefficients_of, is_linear_gaussian
from covey.algorithms.marginal_law import Law
from covey.algorithms.marginal_parameters import (
    Settings,
    described,
    is_regression,
    labels_of,
    log_prior,
    logarithms,
)
from covey.algorithms.marginal_state import Published, State, at_zero, spread_of, theta_of
from covey.core.algorithm import Ask
from covey.core.labels import value_names
from covey.core.shard import Spec
from covey.kernels.pareto_smoothing import HIGHEST_K, Weighted, importance_sample
from covey.models.predictive import Normal

_LOOSE = 0.05  # standard errors that an estimate moves along a direction that is flat
_RUNAWAY = 5.0  # units of the linear predictor that a weight times the spread of its column makes
_SENT = 2000  # draws of the posterior that clients predict with


def fit_law(settings: Settings, published: Published, spec: Spec, ask: Ask) -> Law:
    """The distribution of the parameters, with warnings where the data do not determine them.

    Args:
        settings: Those of the method.
        published: What clients predict with.
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
    """What clients predict with, with draws of theta from the posterior."""
    if law.sample is None:
        return published
    key = jax.random.key(published.state.seed)
    return published._replace(points=jnp.asarray(law.points(key, _SENT), float))


def draw_law(key: Key[Array, ""], law: Law, count: int) -> PyTree:
    """Draws of the parameters as users know them; NaN where the data do not determine one, and
    everywhere while the maximum is not found.
    """
    drawn = jax.jit(jax.vmap(law.describe))(jnp.asarray(law.points(key, count), float))
    bad = np.isin(law.names, law.unknown) | (not law.settled)
    sizes = {name: int(np.prod(leaf.shape[1:])) for name, leaf in drawn.items()}
    ends = np.cumsum(list(sizes.values()))[:-1]
    masks = dict(zip(sizes, np.split(bad, ends), strict=True))
    return {
        name: jnp.where(masks[name].reshape(leaf.shape[1:]), jnp.nan, leaf)
        for name, leaf in drawn.items()
    }


def _at_maximum(settings: Settings, state: State, spec: Spec) -> Law:
    coordinates, unit = settings.coordinates, state.unit

    def describe(flat):
        theta = theta_of(state, coordinates, flat.astype(state.climb.point.dtype))
        return described(settings.model, coordinates, theta, unit)

    found = describe(state.climb.point)
    names = value_names(found, labels_of(settings.model, spec))
    spread = np.asarray(spread_of(state, coordinates), float)
    theta = theta_of(state, coordinates, state.climb.point)
    rows = jax.tree.map(lambda s: jax.ShapeDtypeStruct((1, *s.shape), s.dtype), spec.rows)
    linear = is_regression(theta.phi) and settings.estimate != "posterior"
    if linear and is_linear_gaussian(settings.model, theta.phi, len(unit), rows):
        spread = _orthogonal(spread, coefficients_of(theta))
    law = Law(
        estimate=settings.estimate,
        point=np.asarray(state.climb.point, float),
        spread=spread,
        describe=describe,
        names=names,
        unknown=(),
        zero=(),
        log_likelihood=_exact_log_likelihood(state),
        parameters=len(spread),
        rows=int(state.rows),
        settled=bool(state.settled),
    )
    jacobian = np.asarray(jax.jacobian(law._flatten)(state.climb.point), float)
    curvature, axes = np.linalg.eigh(np.asarray(state.climb.curvature, float))
    flat = np.asarray(state.climb.frame, float) @ axes[:, curvature <= 0.5]
    with np.errstate(invalid="ignore"):
        moved = np.abs(jacobian @ flat).max(1, initial=0.0)
        known = np.sqrt(np.sum((jacobian @ spread) ** 2, axis=1))
        loose = ~(moved <= _LOOSE * known) & (moved != 0)
    values = np.asarray(law._flatten(state.climb.point))
    entries = coordinates.size(len(unit))
    zero = at_zero(state, coordinates)[-entries:] if entries else None
    none = () if zero is None else _zero_deviations(coordinates, np.asarray(zero), found, names)
    return law._replace(
        unknown=tuple(np.array(names)[loose | ~np.isfinite(values)].tolist()), zero=none
    )


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


def _zero_deviations(coordinates, zero, found, names) -> tuple[str, ...]:
    """Names of the deviations that are 0: not those of effects that depend on another one."""
    largest = max(float(np.max(np.asarray(found["sd"]))), 1e-30)
    own = zero[coordinates.diagonal(len(found["sd"]))]
    small = np.asarray(found["sd"]) < 1e-2 * largest if len(own) > 1 else np.ones(1, bool)
    labels = [name for name in names if name.partition("[")[0] == "sd"]
    return tuple(name for name, at, low in zip(labels, own, small, strict=True) if at and low)


def _posterior(settings: Settings, state: State, law: Law, ask: Ask) -> Weighted:
    """Weighted points of the posterior."""
    theta = theta_of(state, settings.coordinates, state.climb.point)

    def log_prior_at(flat):
        at = theta_of(state, settings.coordinates, flat.astype(state.climb.point.dtype))
        where = (settings.model, settings.coordinates, settings.prior)
        return log_prior(*where, at, state.unit, state.scales)

    priors = jax.jit(jax.vmap(log_prior_at))

    def log_density(points):
        sent = Points(theta, state.unit, jnp.asarray(points, float))
        return np.asarray(ask("gains", sent), float) + np.asarray(priors(sent.points), float)

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
    """What is wrong with the estimates themselves, so that predictions are as well.

    Args:
        settings: Those of the method.
        state: The server's state at the end of a run.
        spec: Shapes and names of the rows.

    Returns:
        One text each; none before the parameters were evaluated.
    """
    runaways = _runaways(settings, state, spec) if int(state.round) > 1 else []
    if not runaways:
        return []
    return [
        f"marginal: {_some(tuple(runaways))} run away, and standard errors with them: the "
        "data are separated, some columns predict the outcome without error, and there is no "
        "finite estimate. Give prior= a standard deviation of the weights, e.g. prior=2.5 for "
        "columns of standard deviation 1"
    ]


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
            "collinear, or two deviations of effects cannot be told apart. Leave one out, or give "
            "prior= a standard deviation of the weights; until then they are NaN",
            stacklevel=3,
        )
    for name in law.zero:
        warnings.warn(
            f"marginal: {name} is estimated as 0: these data do not show that clients differ in "
            "it. It has no standard error, and those of the others take it to be 0; "
            "estimate='posterior' shows how large it may be",
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
    flat = np.asarray(ravel_pytree(theta.phi)[0], float)
    error = np.sqrt(np.sum(np.asarray(spread_of(state, settings.coordinates), float) ** 2, axis=1))
    scale = np.asarray(state.scales.phi, float) / 2.5
    size = np.abs(flat) / np.where(np.isfinite(scale), scale, 1.0)
    bad = (size > _RUNAWAY) & (error[: len(flat)] > np.abs(flat)) & ~logarithms(theta.phi)
    _, unravel = ravel_pytree(theta.phi)
    # What is described differently where these numbers differ.
    without, marked = (
        settings.model.coefficients(unravel(jnp.asarray(flags, float)), state.unit * 0)
        for flags in (np.zeros(len(bad)), bad)
    )
    names = value_names(marked, labels_of(settings.model, spec))
    changed = [np.ravel(marked[name] != without[name]) for name in marked]
    return [name for name, is_so in zip(names, np.concatenate(changed), strict=True) if is_so]


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
