"""FedPop without settings: it starts at the maximum of the marginal likelihood, takes steps in
units of standard errors, and tells when its Monte Carlo error no longer matters.
"""

from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.algorithms.averaging import Info as ClientInfo
from covey.algorithms.fedpop_clients import Clients, with_any_draws
from covey.algorithms.fedpop_gradient import moving_gradient
from covey.algorithms.fedpop_mode import (
    QUESTION,
    Priors,
    Start,
    find_start,
    kind_of,
    marginal_of,
    mean_held,
)
from covey.algorithms.fedpop_sampler import Down, Sampler
from covey.algorithms.joint import Joint, Population
from covey.algorithms.louis import shared_posterior
from covey.algorithms.rounds_by_asking import round_query
from covey.core.algorithm import (
    Aggregate,
    Algorithm,
    Ask,
    Empty,
    Hooks,
    Local,
    Posterior,
    Preparation,
    keep,
    no_state,
)
from covey.core.labels import flat_names
from covey.core.shard import Shard, Spec
from covey.kernels.independence import independence

PRECISE = 0.03  # standard errors: the Monte Carlo error of an estimate that has settled
NOISE = 0.15  # standard errors: the Monte Carlo error of one round that draws are chosen for
FEWEST, MOST = 20, 1000  # draws per round
LEAST_ROUNDS = 20
PREDICTIVE_DRAWS = 100
_TRIED = 64  # draws that tell how many are needed
_REPEATS = 1.5  # draws that one independent draw takes, where some proposals are refused
_POWER = 0.7  # of the round, in step lengths
_LONGEST = 2.0  # step, in standard errors
_ROUNDING = 0.01  # standard errors
_SURE = 3.0  # Monte Carlo errors that a trend must be above zero


class Wanted(NamedTuple):
    """The options that the user gave; None is determined from the data.

    Attributes:
        draws: Draws per round.
        burn_in: Transitions before them.
        predictive_draws: Draws that a prediction averages over.
        adapt_burn_in: Transitions before the draws of an unseen client.
    """

    draws: int | None
    burn_in: int
    predictive_draws: int | None
    adapt_burn_in: int


class Found(NamedTuple):
    """The result of the preparation: the start, and the count of draws per round."""

    start: Start
    draws: Int[Array, ""]


class State(NamedTuple):
    """The server's state.

    Attributes:
        start: Start of the run, and F.
        theta: The shared parameters that clients are sent.
        average: Their average over the rounds, later ones with more weight: what is published.
        offset: theta as F^-1 (theta - start), in standard errors.
        mean_offset: The same for the average.
        newton: Average of each parameter's Newton step over the rounds, in its standard errors.
        last: These steps in the last round.
        variance: Monte Carlo variance of a round's steps, by differences of successive rounds.
        round: The number of rounds done.
    """

    start: Start
    theta: Population
    average: Population
    offset: Float[Array, " directions"]
    mean_offset: Float[Array, " directions"]
    newton: Float[Array, " parameters"]
    last: Float[Array, " parameters"]
    variance: Float[Array, " parameters"]
    round: Int[Array, ""]

    @property
    def error(self) -> Float[Array, " parameters"]:
        """Monte Carlo error of the average, in standard errors."""
        # Round k has a weight proportional to k: the squares of T weights sum up to 4 / (3 T).
        return jnp.sqrt(4 / 3 * self.variance / jnp.maximum(self.round, 1))


class Info(NamedTuple):
    """The largest Monte Carlo error of an estimate, and the largest Newton step from it, both in
    standard errors.
    """

    monte_carlo_error: Float[Array, ""]
    newton_step: Float[Array, ""]


@lru_cache(maxsize=64)  # equal methods are one object, so that runs share compiled programs
def by_itself(joint: Joint, priors: Priors, wanted: Wanted) -> Algorithm:
    """FedPop once it knows where to start.

        theta <- theta + gamma_t C g,    C the covariance of theta, gamma_t = t^-0.7

    with g the gradient by Fisher's identity from exact draws of the effects. Whatever the units of
    the data, C carries them. The average of the iterates is published.

    Args:
        joint: The model and the law of its effects.
        priors: Gaussian priors.
        wanted: The options that the user gave.

    Returns:
        A method that prepares itself.
    """
    kind, held = kind_of(joint), mean_held(joint)
    sampler = Sampler(held, independence(), 1.0)

    def find(spec: Spec, ask: Ask) -> Found:
        start = find_start(joint, kind, priors, spec, ask)
        noise = np.max(np.asarray(ask("noise", start)), initial=0.0)
        needed = wanted.draws or _draws_for(float(_REPEATS * noise / NOISE**2))
        return Found(start, jnp.int32(needed))

    def noise(key, sent: Start, data: Shard) -> Float[Array, " parameters"]:
        return client_noise(sampler, key, sent, data)

    queries = {QUESTION: round_query(marginal_of(joint, kind)), "noise": noise}
    finish = partial(_method, sampler, priors, wanted)
    none = Start(Population(Empty(), Empty()), jnp.zeros((0, 0)))
    unprepared = finish(Found(none, jnp.int32(1)))
    return unprepared._replace(preparation=Preparation(find, finish, queries))


def _draws_for(needed: float) -> int:
    """At least this many draws: one of few values, so that runs share compiled programs."""
    steps = np.ceil(2 * np.log2(max(needed, FEWEST) / FEWEST))
    return min(int(np.ceil(FEWEST * 2 ** (steps / 2))), MOST)


def client_noise(
    sampler: Sampler, key: Key[Array, ""], sent: Start, data: Shard
) -> Float[Array, " parameters"]:
    """The variance that one draw of a client's effects gives to the Newton step of each parameter,
    in its standard errors.
    """
    down = Down(sent.theta, jnp.ones(()))
    start = sampler.start(sent.theta, 1)
    found = sampler.walk(key, down, data, start, burn_in=1, draws=_TRIED)

    def score(z):
        gradient, _ = moving_gradient(sampler.joint, down, found._replace(draws=z[None]), data)
        return ravel_pytree(gradient)[0]

    steps = jax.vmap(score)(found.draws) @ sent.factor @ _units(sent.factor).T
    return jnp.var(steps, axis=0)


def _units(factor: Float[Array, "parameters directions"]) -> Float[Array, "parameters directions"]:
    """The rows of F, each divided by its length, which is the parameter's standard error."""
    size = jnp.linalg.norm(factor, axis=1, keepdims=True)
    return factor / jnp.where(size > 0, size, 1.0)


def _method(sampler: Sampler, priors: Priors, wanted: Wanted, found: Found) -> Algorithm:
    start = jax.tree.map(jnp.asarray, found.start)
    of_any_start = _rounds(sampler, priors, wanted, int(found.draws))
    return of_any_start._replace(init=partial(_first_state, sampler.joint, start))


def _first_state(joint: Joint, start: Start, key: Key[Array, ""], spec: Spec) -> State:
    none, zeros = (jnp.zeros(count) for count in start.factor.T.shape)
    theta = _at(joint, start, none)
    return State(start, theta, theta, none, none, zeros, zeros, zeros, jnp.int32(0))


def _at(joint: Joint, start: Start, offset: Float[Array, " directions"]) -> Population:
    flat, unravel = ravel_pytree(start.theta)
    theta = unravel(flat + start.factor @ offset)
    return theta._replace(beta=joint.law.project(theta.beta)) if joint.law.learned else theta


@lru_cache(maxsize=64)
def _rounds(sampler: Sampler, priors: Priors, wanted: Wanted, draws: int) -> Algorithm:
    """The method but for its first state."""
    joint = sampler.joint
    clients = Clients(
        sampler,
        wanted.burn_in,
        wanted.adapt_burn_in,
        wanted.predictive_draws or PREDICTIVE_DRAWS,
    )

    def client(key, down, personal, data):
        personal = sampler.walk(key, down, data, personal, burn_in=wanted.burn_in, draws=draws)
        gradient, fit = moving_gradient(joint, down, personal, data)
        info = ClientInfo(-fit / jnp.maximum(data.count, 1), jnp.asarray(wanted.burn_in + draws))
        up = gradient if joint.law.learned else gradient._replace(beta=Empty())
        # The chain continues from its last draw, and predictions draw anew.
        return Local(up, personal._replace(draws=personal.draws[-1:]), info)

    def server(key, state: State, aggregate: Aggregate):
        gradient = _total(joint, priors, state.theta, aggregate.weighted)
        step = state.start.factor.T @ gradient
        newton = _units(state.start.factor) @ step
        move = (state.round + 1.0) ** -_POWER * step
        move *= jnp.minimum(1.0, _LONGEST / jnp.maximum(jnp.linalg.norm(move), 1e-30))
        offset = state.offset + move
        share = 2 / (state.round + 2.0)
        mean = state.mean_offset + share * (offset - state.mean_offset)
        change = jnp.where(state.round > 0, (newton - state.last) ** 2 / 2, 0.0)
        new = State(
            state.start,
            _at(joint, state.start, offset),
            _at(joint, state.start, mean),
            offset,
            mean,
            state.newton + share * (newton - state.newton),
            newton,
            state.variance + (change - state.variance) / jnp.maximum(state.round, 1.0),
            state.round + 1,
        )
        return new, Info(jnp.max(new.error, initial=0.0), jnp.max(jnp.abs(new.newton), initial=0.0))

    method = Algorithm(
        name="fedpop",
        init=no_state,  # a run has that of `_method`
        broadcast=lambda state: Down(state.theta, jnp.ones(())),
        server=server,
        init_client=lambda key, down, data: sampler.start(down.theta, 1),
        client=client,
        commit=keep,
        predict=clients.predict,
        adapt=clients.adapt,
        refresh=clients.refresh,
        publish=lambda state: Down(state.average, jnp.ones(())),
        posterior=Posterior(
            shared=shared_posterior(joint, phi_prior=priors.phi, beta_prior=priors.beta),
            client=clients.posterior,
            axes=joint.axes,
        ),
        hooks=Hooks(unsettled=unsettled),
    )
    return with_any_draws(clients, method)


def _total(
    joint: Joint, priors: Priors, theta: Population, sums: Population
) -> Float[Array, " parameters"]:
    """The gradient of the log-likelihood of all clients and of the priors, flattened."""
    if isinstance(sums.beta, Empty):
        sums = sums._replace(beta=jax.tree.map(jnp.zeros_like, theta.beta))
    prior: PyTree = jax.grad(lambda theta: priors.log_density(joint, theta))(theta)
    return ravel_pytree(sums)[0] + ravel_pytree(prior)[0]


def unsettled(state: State) -> str | None:
    """Why the estimate may still change by more than a few hundredths of a standard error."""
    rounds = int(state.round)
    if rounds < LEAST_ROUNDS:
        return (
            f"fedpop needs at least {LEAST_ROUNDS} rounds to know its Monte Carlo error: "
            f"run.advance({LEAST_ROUNDS - rounds}), or leave rounds= out"
        )
    error, trend = np.asarray(state.error), np.abs(np.asarray(state.newton))
    drifting = trend > _SURE * error + _ROUNDING
    if drifting.any():
        worst = int(np.argmax(np.where(drifting, trend, 0.0)))
        return (
            f"{flat_names(state.theta)[worst]} still moves: the next step would be "
            f"{trend[worst]:.2g} of its standard error, with a Monte Carlo error of "
            f"{error[worst]:.2g}: run.advance({rounds}), or leave rounds= out"
        )
    if (largest := error.max(initial=0.0)) > PRECISE:
        more = int(np.ceil(rounds * (largest / PRECISE) ** 2)) - rounds
        return (
            f"the estimate of {flat_names(state.theta)[int(np.argmax(error))]} has a Monte Carlo "
            f"error of {largest:.3g} of its standard error, more than {PRECISE:g}: "
            f"run.advance({max(more, 1)}), or leave rounds= out"
        )
    return None
