"""The rounds of `covey.marginal`: the broadcast, and the server's step from the sums."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from covey.algorithms.marginal.answers import Down, Up
from covey.algorithms.marginal.checks import check_fit
from covey.algorithms.marginal.client import Information, coefficients_of
from covey.algorithms.marginal.initialisation import Moments, start
from covey.algorithms.marginal.parameters import (
    Scales,
    Settings,
    Theta,
    default_scales,
    logarithms,
)
from covey.algorithms.marginal.state import State, limited, log_prior_at, theta_of
from covey.core import tree
from covey.core.algorithm import Aggregate, Empty
from covey.core.shard import Spec
from covey.kernels.laplace import Jet, jet
from covey.kernels.newton import begin, climb
from covey.kernels.precision import in_double
from covey.kernels.triangle import unpacked

MOST_ROUNDS = 100  # after which a run gives up
_START = 0.5  # deviations of effects at the start, in units of the linear predictor


class Info(NamedTuple):
    """Of a round.

    Attributes:
        log_likelihood: The marginal log-likelihood at the best point so far, that of REML for REML.
        accepted: 1 if the step was accepted.
        settled: 1 once the best point is a maximum: more rounds change nothing.
        waiting: 1 if clients were missing, so that nothing was changed.
    """

    log_likelihood: Float[Array, ""]
    accepted: Float[Array, ""]
    settled: Float[Array, ""]
    waiting: Float[Array, ""]


def init(settings: Settings, key, spec: Spec) -> State:
    """The state before the first round."""
    model, coordinates = settings.model, settings.coordinates
    phi, effects = model.init(key, spec), model.init_effects(key, spec)
    check_fit(settings, phi, effects, spec)
    flat, _ = ravel_pytree(Theta(phi, jnp.zeros(coordinates.size(len(effects)))))
    shared = flat.size - coordinates.size(len(effects))
    beta, _ = coefficients_of(Theta(phi, flat[shared:]))
    return State(
        phi=phi,
        climb=begin(flat, jnp.eye(flat.size, dtype=flat.dtype)),
        unit=jnp.ones(len(effects)),
        scales=Scales(
            jnp.full(shared, jnp.inf, flat.dtype), jnp.ones(len(coordinates.diagonal(len(effects))))
        ),
        variance=jnp.ones(shared),
        value=jnp.zeros(()),
        level=jnp.zeros(()),
        restriction=jnp.zeros(()),
        log_prior=jnp.zeros(()),
        rows=jnp.zeros(()),
        basis=jnp.eye(len(beta)) if settings.estimate == "reml" else Empty(),
        clients=jnp.asarray(spec.clients or 0, float),
        round=jnp.int32(0),
        waited=jnp.int32(0),
        seed=jax.random.bits(jax.random.fold_in(key, 1), (), jnp.uint32),
    )


def broadcast(settings: Settings, state: State) -> Down:
    """The message of a round."""
    trial, point = (
        theta_of(state, settings.coordinates, flat)
        for flat in (state.climb.trial, state.climb.point)
    )
    frame = state.climb.frame
    return Down(trial, point, frame, state.unit, state.level, state.basis, state.round)


def server(settings: Settings, key, state: State, aggregate: Aggregate) -> tuple[State, Info]:
    """The server's step; none while clients are missing."""
    complete = (state.clients == 0) | (aggregate.count > state.clients - 0.5)
    epsilon = float(jnp.finfo(state.climb.point.dtype).eps)
    step = in_double(_start_or_step, settings, epsilon)
    new = step(state, aggregate.weighted, aggregate.weight)
    state = tree.where(complete, new, state._replace(waited=state.waited + 1))
    value = jnp.where(state.round < 2, jnp.nan, state.log_likelihood)
    flags = (state.climb.accepted & complete, state.settled, ~complete)
    return state, Info(value, *(flag.astype(float) for flag in flags))


def _start_or_step(
    settings: Settings, epsilon: float, state: State, sums: Up, clients: Array
) -> State:
    first, later = partial(_started, settings), partial(_stepped, settings, epsilon)
    return jax.lax.cond(state.round == 0, first, later, state, sums, clients)


def unsettled(state: State) -> str | None:
    """Why there is no maximum yet; None once there is one."""
    rounds = int(state.round)
    if bool(state.settled):
        return None
    if rounds < 2:
        return f"marginal has heard all clients in {rounds} rounds, and needs about a dozen"
    return (
        f"marginal has not found the maximum after {rounds} rounds: the next step would gain "
        f"{float(state.climb.gradient @ state.climb.gradient) / 2:.2g} of log-likelihood"
    )


def given_up(state: State) -> str | None:
    """Why more rounds would not find the maximum; None while they may."""
    why = unsettled(state)
    if why is None or int(state.round) < MOST_ROUNDS:
        return None
    return (
        f"{why}. It gives up: estimates, standard errors and predictions are not those of a "
        "maximum. Standardise the columns (data.standardised()), choose covariance='diagonal' or "
        "fewer slopes, or give a prior= of the parameters; where the likelihood has no maximum, "
        "estimate='posterior' with a prior still has one"
    )


def _started(settings: Settings, state: State, sums: Up, clients: Float[Array, ""]) -> State:
    """The start, from the sums of the first round."""
    coordinates, effects = settings.coordinates, len(state.unit)
    flat, _ = ravel_pytree(state.phi)
    shared, entry = flat.size, flat.size + coordinates.diagonal(effects)
    hessian = unpacked(sums.hessian)
    of = Moments(
        sums.value,
        sums.rows,
        sums.gradient[:shared],
        hessian[:shared, :shared],
        hessian[entry, entry],
    )
    found = start(of, flat, jnp.asarray(logarithms(state.phi)), clients)
    deviation = _START * found.spread / jnp.sqrt(found.mean_square)
    entries = coordinates.from_deviations(deviation, found.unit)
    point = jnp.concatenate([found.phi, entries])
    frame = jnp.eye(len(point)).at[:shared, :shared].set(found.frame)
    scales = default_scales(state.phi, found.per_weight, found.spread, found.mean_square)
    basis = state.basis
    if isinstance(basis, jax.Array):
        beta, _ = coefficients_of(Theta(state.phi, entries))
        basis = found.frame[np.ix_(beta, beta)]
    return state._replace(
        climb=begin(point, frame),
        unit=found.unit if len(entries) else state.unit,
        scales=scales,
        variance=found.variance,
        basis=basis,
        round=state.round + 1,
        waited=jnp.zeros_like(state.waited),
    )


def _stepped(
    settings: Settings, epsilon: float, state: State, sums: Up, clients: Float[Array, ""]
) -> State:
    """A step of Newton's method, with what the prior and REML add to the sums."""
    coordinates, at, first = settings.coordinates, state.climb, state.round == 1
    prior = jet(partial(log_prior_at, settings, state), at.trial)
    theta = theta_of(state, coordinates, at.trial)
    restriction = _restriction(theta, state.basis, sums.information, len(at.point))
    added = jax.tree.map(jnp.add, prior, restriction)
    before = state.log_prior + state.restriction
    step = climb(
        at,
        sums.gain + jnp.where(first, 0.0, added.value - before),
        sums.gradient + at.frame.T @ added.gradient,
        unpacked(sums.hessian) + at.frame.T @ added.hessian @ at.frame,
        first=first,
        limited=jnp.asarray(limited(state.phi, coordinates, len(state.unit))),
        epsilon=epsilon,
    )

    total = sums.value + state.level * sums.rows
    # As it is sent: what rounding takes away stays in the value.
    level = (total / jnp.maximum(sums.rows, 1.0)).astype(jnp.float32).astype(float)

    def newest(new, old):
        return jnp.where(step.accepted, new, old)

    return state._replace(
        climb=step,
        value=newest(total - level * sums.rows, state.value),
        level=newest(level, state.level),
        restriction=newest(restriction.value, state.restriction),
        log_prior=newest(prior.value, state.log_prior),
        rows=sums.rows,
        round=state.round + 1,
        waited=jnp.zeros_like(state.waited),
    )


def _restriction(theta: Theta, basis: Array | Empty, of: Information | Empty, size: int) -> Jet:
    """-1/2 log det X'V^-1 X + p/2 log 2 pi, with derivatives: what REML adds."""
    zero = Jet(jnp.zeros(()), jnp.zeros(size), jnp.zeros((size, size)))
    if isinstance(of, Empty) or isinstance(basis, Empty):
        return zero
    _, others = coefficients_of(theta)
    value, first, second = (unpacked(part.T) for part in of)  # matrices along the last two axes
    inverse = jnp.linalg.inv(value)
    each = jnp.einsum("ij,mjk->ikm", inverse, first)
    curvature = unpacked(jnp.einsum("ij,aji->a", inverse, second))
    curvature -= jnp.einsum("ijm,jin->mn", each, each)
    log_det = jnp.linalg.slogdet(value)[1] - 2 * jnp.linalg.slogdet(basis)[1]
    return Jet(
        len(value) * jnp.log(2 * jnp.pi) / 2 - log_det / 2,
        zero.gradient.at[others].set(-jnp.einsum("iim->m", each) / 2),
        zero.hessian.at[np.ix_(others, others)].set(-curvature / 2),
    )
