"""FA-LD's settings, determined from the data: coordinates, step size, local steps."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from covey.algorithms.fald_drift import POINTS, drift, effect, gradients, moved
from covey.algorithms.fald_walk import Down, Walk, energy_gradient
from covey.algorithms.mode import LogPrior, Mode, find_mode, mode_queries
from covey.core.algorithm import Algorithm, Ask, Preparation, Query
from covey.core.shard import Spec
from covey.kernels.langevin_chains import Langevin
from covey.models.model import Model
from covey.models.whitened import whitened

STEP_SIZE = 0.2  # in coordinates in which the posterior has unit variances
BURN_IN = 20  # rounds; the chains start from the Gaussian at the mode
DRAWS = 1000  # of each chain, one per round: some 2,000 independent ones with four chains
LOCAL_STEPS = (10, 4, 2)  # tried in this order; with 1, clients do not drift apart
_FAR_OUT = 2.5  # times as far as draws are: where chains come now and then
LARGEST_EFFECT = 0.05  # of drift on a mean, in standard deviations, and on a standard deviation

# (model, model with residuals, log prior, walk) -> the method
Make: TypeAlias = Callable[[Model, Model, LogPrior | None, Walk], Algorithm]


class Wanted(NamedTuple):
    """The options that the user gave; None is determined from the data."""

    local_steps: int | None
    temperature: float
    correlation: float | None
    chains: int


class Found(NamedTuple):
    """The result of the preparation: the mode, and the count of local steps."""

    mode: Mode
    local_steps: Int[Array, ""]


class Trial(NamedTuple):
    """The broadcast by which clients try some local steps: coordinates, and chains in them."""

    mode: Mode
    down: Down


def by_itself(
    model: Model, log_prior: LogPrior | None, wanted: Wanted, walk: Walk, make: Make
) -> Algorithm:
    """FA-LD in whitened coordinates, once they are known.

    Args:
        model: Log-likelihood of the rows.
        log_prior: -U; None is flat.
        wanted: The options that the user gave.
        walk: Settings of the clients' walk, but for its steps and correlation.
        make: Makes the method.

    Returns:
        A method that prepares itself.
    """

    def walk_of(local_steps: int) -> Walk:
        # Steps with this temperature have variance tau on a Gaussian of unit precision.
        exact = wanted.temperature * (1 - STEP_SIZE / 2)
        steps = Langevin(STEP_SIZE, local_steps, exact, chains=wanted.chains)
        rho = 1.0 if wanted.correlation is None else wanted.correlation
        return walk._replace(steps=steps, correlation=rho)

    def find(spec: Spec, ask: Ask) -> Found:
        mode = find_mode("fald", model, log_prior, spec, ask)
        mode = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), mode)
        return Found(mode, jnp.int32(wanted.local_steps or _choose(mode, spec, ask)))

    def finish(found: Found) -> Algorithm:
        plain, rest = whitened(model, log_prior, *found.mode)
        method = make(plain, rest, rest.log_prior, walk_of(int(found.local_steps)))
        return method._replace(hooks=method.hooks._replace(unsettled=_unsettled))

    def tried(local_steps: int) -> Query:
        def answer(key, sent: Trial, data):
            _, rest = whitened(model, log_prior, *sent.mode)
            gradient = energy_gradient(rest, rest.log_prior, None)
            return moved(walk_of(local_steps), gradient, key, sent.down, data)

        return answer

    def together(key, sent: Trial, data):
        _, rest = whitened(model, log_prior, *sent.mode)
        return gradients(energy_gradient(rest, rest.log_prior, None), key, sent.down, data)

    queries = {**mode_queries(model), "gradient": together}
    queries |= {_name(count): tried(count) for count in LOCAL_STEPS}
    unprepared = make(model, model, log_prior, walk_of(1))
    return unprepared._replace(preparation=Preparation(find, finish, queries))


def _name(local_steps: int) -> str:
    return f"moved_{local_steps}"


def _choose(mode: Mode, spec: Spec, ask: Ask) -> int:
    """The most local steps whose drift the posterior does not notice."""
    size = len(mode.spread)
    points = np.random.default_rng(0).standard_normal((size, POINTS))
    both = np.concatenate([points, _FAR_OUT * points], axis=1)
    key = jax.random.key_data(jax.random.key(1, impl="threefry2x32"))
    down = Down(jnp.asarray(both, float), key, jnp.int32(0), jnp.asarray(spec.examples, float))
    for count in LOCAL_STEPS:
        b = drift(
            lambda sent, count=count: ask(_name(count), Trial(mode, sent)),
            lambda sent: ask("gradient", Trial(mode, sent)),
            down,
        )
        found = effect(b[:, :POINTS], points, np.zeros(size), np.eye(size))
        # Far from the mode the pull of drift must stay below that of the posterior, or chains that
        # come there run away.
        outside = np.linalg.norm(b[:, POINTS:], axis=0) / np.linalg.norm(both[:, POINTS:], axis=0)
        if outside.max() > 0.5:
            continue
        # In the worst of many parameters, and along any direction of the whitened ones.
        if max(np.linalg.norm(found.shift), np.abs(found.wider).max()) < LARGEST_EFFECT:
            return count
    return 1


def _unsettled(state) -> str | None:
    """FA-LD is done once the means of its draws are known to a few percent."""
    count = int(state.ring.count)
    if count >= DRAWS:
        return None
    return (
        f"there are {count} draws of each chain, and {DRAWS} are wanted: run.advance"
        f"({DRAWS - count}), or leave rounds= out"
    )
