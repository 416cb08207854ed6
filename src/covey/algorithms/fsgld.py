"""FSGLD: Langevin chains that walk from client to client, with conducive gradients."""

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from covey.algorithms.averaging import need_counts, need_positive
from covey.algorithms.chains import (
    Recording,
    Ring,
    averaged_predictive,
    chain_posterior,
    check_recording,
    check_rounds,
    empty_ring,
    first_states,
    log_prior_of,
    published,
    recorded,
)
from covey.algorithms.fald_walk import (
    chain_report,
    energy_gradient,
    first_chain,
    weighted_walk,
)
from covey.algorithms.laplace import sums
from covey.algorithms.mode import LogPrior
from covey.algorithms.qlsd import check_batch, diagnosed, prior_pull
from covey.core.algorithm import Algorithm, Empty, Hooks, Local, Plan
from covey.core.shard import Shard, Spec
from covey.kernels.langevin_chains import Langevin
from covey.models.catalogue import need
from covey.models.model import Model

Chance = Literal["equal", "rows"]


class Surrogate(NamedTuple):
    """A Gaussian log q(theta) = a'theta - theta'P theta / 2 of the flat parameters.

    Attributes:
        linear: a.
        precision: P.
    """

    linear: Float[Array, "*clients d"]
    precision: Float[Array, "*clients d d"]


class State(NamedTuple):
    """The server's state.

    Attributes:
        theta: The states of the chains, on the last axis.
        product: q, the product of all q_i so far.
        round: Rounds done.
        clients: The number of clients.
        examples: Training rows of all clients together.
        ring: The newest draws.
    """

    theta: PyTree
    product: Surrogate | Empty
    round: Int[Array, ""]
    clients: Float[Array, ""]
    examples: Float[Array, ""]
    ring: Ring


class Down(NamedTuple):
    """The entries of the server's state that a client needs."""

    theta: PyTree
    product: Surrogate | Empty
    clients: Float[Array, ""]
    examples: Float[Array, ""]


class Up(NamedTuple):
    """The change of the chains, and of the client's surrogate."""

    delta: PyTree
    surrogate: Surrogate | Empty


def fsgld(
    model: Model,
    *,
    step_size: float,
    local_steps: int = 10,
    batch_size: int | None = None,
    chance: Chance = "equal",
    surrogates: bool = True,
    prior: float | LogPrior | None = None,
    chains: int = 4,
    jitter: float = 0.0,
    burn_in: int = 0,
    thinning: int = 1,
    keep: int = 100,
) -> Algorithm:
    """FSGLD: chains walk at one client per round, corrected by Gaussians that all clients share.

    In each round one client i is drawn with probability f_i and takes K steps for every chain,

        theta <- theta + (h / 2) [grad log prior + g_i / f_i + grad log q - grad log q_i / f_i]
                 + sqrt(h) xi

    g_i is the gradient of its log-likelihood, by a minibatch scaled to all its rows. Alone,
    g_i / f_i is right on average over clients but varies with them, and chains follow each in turn.
    The rest, the conducive gradient, is zero on average and takes that variation away as far as the
    Gaussian q_i is like the likelihood of client i. q is the product of all q_i. With exact q_i the
    steps are those of SGLD on the pooled rows. q_i = 0 is DSGLD (`surrogates=False`).

    Client i makes q_i by the first and second derivatives of its log-likelihood at the chains'
    mean, at the end of each of its rounds, and sends its change: q is the product of all q_i at
    all times, also of those not made yet, which are zero.

    Run it with `cohort=covey.cohort.uniform(1)`, or `weighted(1)` with `chance="rows"`.

    Args:
        model: Log-likelihood of the rows; see `covey.models`. A model's own prior counts once.
        step_size: Step size of the Langevin steps (h), on the scale of the parameters squared.
        local_steps: Steps of a client before it passes the chains on (K).
        batch_size: Rows per step, drawn anew without replacement; None takes all rows.
        chance: Distribution of the client of a round: "equal", f_i = 1 / b, for
            `cohort.uniform(1)`; "rows", f_i = n_i / n, for `cohort.weighted(1)`.
        surrogates: Whether there are Gaussians q_i; they need a matrix of second derivatives, for
            models with up to a few hundred parameters.
        prior: Standard deviation of a Gaussian prior with mean zero on every parameter, or a
            log-density of the parameters. Default: the model's own prior, or a flat one.
        chains: Chains that walk side by side, at the same client.
        jitter: Standard deviation of the Gaussian noise added to each chain's start.
        burn_in: Rounds before the first draw.
        thinning: Rounds from one draw to the next.
        keep: Newest draws of each chain that the server keeps, and that predictions average over.

    Returns:
        A method for `covey.run`, with chains of the shared parameters. A client's state is q_i.

    Example:
        >>> import numpy as np, covey
        >>> rng = np.random.default_rng(0)
        >>> rows = {name: (np.ones((50, 1)), rng.normal(2.0, 1.0, 50)) for name in "abc"}
        >>> data = covey.FederatedData.from_clients(rows)
        >>> method = covey.fsgld(covey.models.linear(intercept=False), step_size=1e-3, burn_in=20)
        >>> one = covey.cohort.uniform(1)
        >>> fit = covey.run(method, data, rounds=500, seed=1, cohort=one, progress=False)
        >>> abs(float(fit.posterior.shared.draws()["weight"].mean()) - 2.0) < 0.2
        True

    Reference: El Mekkaoui, Mesquita, Blomstedt and Kaski (2021), Federated stochastic gradient
    Langevin dynamics, section 4.

    Departures from the paper: there q_i is fitted once, to draws of a chain that each client runs
    alone. A q_i that changes after its client's steps keeps the mean of the gradients right, and
    needs no chain and no likelihood that has a mode by itself.
    """
    need(model, Model, "fsgld")
    need_positive("fsgld", step_size=step_size)
    need_counts("fsgld", local_steps=local_steps, chains=chains)
    check_batch("fsgld", batch_size)
    _check_options(jitter, chance)
    recording = Recording(burn_in, thinning, keep)
    check_recording("fsgld", recording)
    log_prior = log_prior_of("fsgld", model, prior)
    # theta - eta g + sqrt(2 eta) xi with eta = h / 2.
    steps = Langevin(step_size / 2, local_steps, chains=chains)
    of_rows = energy_gradient(model, None, None)

    def init(key, spec):
        start, apart = jax.random.split(key)
        theta = first_states(start, apart, model, spec, chains, jitter)
        return State(
            theta,
            _nothing(_mean_chain(theta)) if surrogates else Empty(),
            jnp.int32(0),
            jnp.asarray(spec.clients, float),
            jnp.asarray(_examples(spec), float),
            empty_ring(recording.keep, theta),
        )

    def client(key, down, own, data):
        share = 1 / down.clients if chance == "equal" else data.count / down.examples
        inverse = jnp.where(data.count > 0, 1 / share, 0.0)
        choose, noise = jax.random.split(key)

        def common(theta):
            found = jax.tree.map(jnp.negative, prior_pull(log_prior, theta))
            if not surrogates:
                return found
            rest = Surrogate(*(q - inverse * q_i for q, q_i in zip(down.product, own, strict=True)))
            return jax.tree.map(jnp.subtract, found, pull(rest, theta))

        end = weighted_walk(
            steps, of_rows, (choose, noise), data, batch_size, inverse, down.theta, common
        )
        moved = jax.tree.map(jnp.subtract, end, down.theta)
        change = jax.tree.map(jnp.subtract, fitted(model, end, data), own) if surrogates else own
        info = chain_report(model, choose, down.theta, data, batch_size, local_steps)
        return Local(Up(moved, change), own, info)

    def server(key, state, aggregate):
        delta, change = aggregate.plain  # of the one client of the round
        theta = jax.tree.map(jnp.add, state.theta, delta)
        done = state.round + 1
        ring = recorded(state.ring, theta, recording.due(done))
        product = jax.tree.map(jnp.add, state.product, change)
        return state._replace(theta=theta, product=product, round=done, ring=ring), Empty()

    def validate(plan):
        check_rounds("fsgld", recording, plan)
        _check_cohort(plan, chance)

    return Algorithm(
        name="fsgld",
        init=init,
        broadcast=lambda s: Down(s.theta, s.product, s.clients, s.examples),
        server=server,
        init_client=lambda key, down, data: jax.tree.map(jnp.zeros_like, down.product),
        client=client,
        commit=lambda own, sent: jax.tree.map(jnp.add, own, sent.surrogate),
        predict=lambda key, down, own, x: averaged_predictive(model, down, x),
        adapt=lambda key, down, data: Empty(),
        posterior=chain_posterior(model, lambda state: state.ring),
        publish=lambda state: published(state.ring, state.theta),
        hooks=Hooks(
            validate=validate,
            diagnose=lambda down, data: diagnosed(of_rows, step_size / 2, down.theta, data),
            needs_server=(
                "fsgld walks at one client at a time, and peers all step at once: use fald, or "
                "engine='simulate'"
            ),
        ),
    )


def pull(surrogate: Surrogate, theta: PyTree) -> PyTree:
    """The gradient of log q, a - P theta, for every chain."""

    def of_one(one):
        flat, unravel = ravel_pytree(one)
        return unravel(surrogate.linear - surrogate.precision @ flat)

    return jax.vmap(of_one, in_axes=-1, out_axes=-1)(theta)


def fitted(model: Model, theta: PyTree, data: Shard) -> Surrogate:
    """The client's log-likelihood to second order at the mean of the chains: q_i."""
    at, unravel = _mean_chain(theta), ravel_pytree(first_chain(theta))[1]
    columns = jnp.eye(at.size, dtype=at.dtype)
    found = sums(lambda z, rows: model.log_likelihood(unravel(z), rows), data, at, columns)
    return Surrogate(found.times @ at - found.gradient, found.times)


def _mean_chain(theta: PyTree) -> Float[Array, " d"]:
    return ravel_pytree(jax.tree.map(lambda leaf: jnp.mean(leaf, -1), theta))[0]


def _nothing(flat: Float[Array, " d"]) -> Surrogate:
    return Surrogate(jnp.zeros_like(flat), jnp.zeros((flat.size, flat.size), flat.dtype))


def _examples(spec: Spec) -> int:
    if spec.clients is None or spec.examples is None:
        raise ValueError("fsgld: the counts of clients and of their training rows must be known")
    return spec.examples


def _check_options(jitter: int | float, chance: str) -> None:
    if not jitter >= 0:
        raise ValueError(f"fsgld: jitter must be at least 0, got {jitter:g}")
    if chance not in get_args(Chance):
        raise ValueError(f"fsgld: chance must be 'equal' or 'rows', got {chance!r}")


def _check_cohort(plan: Plan, chance: Chance) -> None:
    """One client per round, drawn as the gradients assume."""
    wanted = {"equal": "covey.cohort.uniform(1)", "rows": "covey.cohort.weighted(1)"}[chance]
    sampler = plan.sampler
    if sampler.slots != 1:
        raise ValueError(
            "fsgld walks at one client at a time, and this cohort has up to "
            f"{sampler.slots}: give cohort={wanted}"
        )
    if len(plan.counts) > 1 and sampler.alike != (chance == "equal"):
        drawn = "alike" if sampler.alike else "by their rows"
        raise ValueError(
            f"fsgld: this cohort draws clients {drawn}, and chance={chance!r} is for "
            f"cohort={wanted}; change one of the two"
        )
