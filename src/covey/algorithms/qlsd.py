"""QLSD: Langevin dynamics along quantised gradients of clients."""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

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
    minibatches,
)
from covey.algorithms.mode import LogPrior
from covey.core.algorithm import Algorithm, Empty, Hooks, Local, no_state
from covey.core.shard import Batch, Shard, Spec, all_rows
from covey.kernels.curvature import largest_curvature
from covey.kernels.langevin_chains import each_chain, noise_like
from covey.models.catalogue import need
from covey.models.model import Model

# (parameters of one chain, batch, n_i / m) -> gradient of U_i
Potential: TypeAlias = Callable[[PyTree, Batch, Float[Array, ""]], PyTree]


class State(NamedTuple):
    """The server's state.

    Attributes:
        theta: The states of the chains, on the last axis.
        round: Rounds done.
        ring: The newest draws.
    """

    theta: PyTree
    round: Int[Array, ""]
    ring: Ring


def qlsd(
    model: Model,
    *,
    step_size: float,
    batch_size: int | None = None,
    prior: float | LogPrior | None = None,
    chains: int = 4,
    jitter: float = 0.0,
    burn_in: int = 0,
    thinning: int = 1,
    keep: int = 100,
) -> Algorithm:
    """QLSD: the server takes Langevin steps along compressed gradients of the clients.

    The target is the posterior pi(theta) ~ exp(-U - sum_i U_i), U_i minus the log-likelihood of
    client i's rows and U = -log prior. A round is one step:

        client:  H_i = (n_i / m) sum over a minibatch of grad l,  estimates grad U_i;   sends C(H_i)
        server:  theta <- theta - gamma (sum_i w_i C(H_i) + grad U) + sqrt(2 gamma) xi

    C is the channel of the run, e.g. `covey.channel.dithering`, and w_i the inverse participation
    probability. Without a channel, with all rows and all clients this is the unadjusted Langevin
    algorithm (ULA) on the pooled rows. Minibatches, compression and partial cohorts add noise whose
    variance is of the order of gamma and does not vanish at the mode, so that the posterior is too
    wide; `qlsd_plus` takes it away.

    Args:
        model: Log-likelihood of the rows; see `covey.models`. A model's own prior counts once.
        step_size: Step size of the server (gamma), on the scale of the parameters squared. A tenth
            of the smallest posterior variance is a start.
        batch_size: Rows per client and round, drawn without replacement; None takes all.
        prior: Standard deviation of a Gaussian prior with mean zero on every parameter, or a
            log-density of the parameters. Default: the model's own prior, or a flat one.
        chains: Chains that walk side by side, for R-hat and effective sample sizes. An upload has
            one gradient for each.
        jitter: Standard deviation of the Gaussian noise added to each chain's start.
        burn_in: Rounds before the first draw.
        thinning: Rounds from one draw to the next.
        keep: Newest draws of each chain that the server keeps, and that predictions average over.

    Returns:
        A method for `covey.run`, with chains of the shared parameters and without client state.

    Example:
        >>> import numpy as np, covey
        >>> rng = np.random.default_rng(0)
        >>> rows = {name: (np.ones((50, 1)), rng.normal(2.0, 1.0, 50)) for name in "abc"}
        >>> data = covey.FederatedData.from_clients(rows)
        >>> method = covey.qlsd(covey.models.linear(intercept=False), step_size=1e-3)
        >>> channel = covey.channel.dithering(levels=15)
        >>> fit = covey.run(method, data, rounds=500, seed=1, channel=channel, progress=False)
        >>> abs(float(fit.posterior.shared.draws()["weight"].mean()) - 2.0) < 0.2
        True

    Reference: Vono, Plassier, Durmus, Dieuleveut and Moulines (2022), QLSD: quantised Langevin
    stochastic dynamics for Bayesian federated learning, algorithm 1.

    Departures from the paper: several chains may walk side by side, and the server adds the
    gradient of the prior.
    """
    need(model, Model, "qlsd")
    sampler = langevin_server(
        "qlsd", model, prior, step_size, chains, jitter, Recording(burn_in, thinning, keep)
    )
    check_batch("qlsd", batch_size)
    gradient = energy_gradient(model, None, None)

    def client(key, theta, state, data):
        estimate = minibatch_gradient(gradient, key, theta, data, batch_size)
        return Local(estimate, Empty(), chain_report(model, key, theta, data, batch_size, 1))

    def server(key, state, aggregate):
        return sampler.step(key, state, aggregate.weighted), Empty()

    return Algorithm(
        name="qlsd",
        init=sampler.first,
        broadcast=lambda state: state.theta,
        server=server,
        init_client=no_state,
        client=client,
        commit=no_state,
        predict=lambda key, down, client_state, x: averaged_predictive(model, down, x),
        adapt=no_state,
        posterior=chain_posterior(model, lambda state: state.ring),
        publish=lambda state: published(state.ring, state.theta),
        hooks=Hooks(
            validate=partial(check_rounds, "qlsd", sampler.recording),
            diagnose=lambda theta, data: diagnosed(gradient, step_size, theta, data),
        ),
    )


class Sampler(NamedTuple):
    """A server that takes Langevin steps.

    Attributes:
        first: (key, spec) -> the state before the first round.
        step: (key, state, estimate of sum_i grad U_i) -> the state after a round.
        recording: Which states are draws.
    """

    first: Callable[[Key[Array, ""], Spec], State]
    step: Callable[[Key[Array, ""], State, PyTree], State]
    recording: Recording


def langevin_server(
    name: str,
    model: Model,
    prior: int | float | LogPrior | None,
    step_size: int | float,
    chains: int,
    jitter: int | float,
    recording: Recording,
) -> Sampler:
    """The server's part of QLSD and QLSD++, its options checked; see `qlsd`."""
    need_positive(name, step_size=step_size)
    need_counts(name, chains=chains)
    check_recording(name, recording)
    if not jitter >= 0:
        raise ValueError(f"{name}: jitter must be at least 0, got {jitter:g}")
    log_prior = log_prior_of(name, model, prior)

    def first(key, spec):
        start, apart = jax.random.split(key)
        theta = first_states(start, apart, model, spec, chains, jitter)
        return State(theta, jnp.int32(0), empty_ring(recording.keep, theta))

    def step(key, state, gradient):
        spread = math.sqrt(2 * step_size)
        theta = jax.tree.map(
            lambda at, g, p, xi: at - step_size * (g - p) + spread * xi,
            state.theta,
            gradient,
            prior_pull(log_prior, state.theta),
            noise_like(key, state.theta),
        )
        done = state.round + 1
        return State(theta, done, recorded(state.ring, theta, recording.due(done)))

    return Sampler(first, step, recording)


def prior_pull(log_prior: LogPrior | None, theta: PyTree) -> PyTree:
    """The gradient of the log prior for every chain; zero for a flat one."""
    if log_prior is None:
        return jax.tree.map(jnp.zeros_like, theta)
    return jax.vmap(jax.grad(log_prior), in_axes=-1, out_axes=-1)(theta)


def minibatch_gradient(
    gradient: Potential, key: Key[Array, ""], theta: PyTree, data: Shard, batch_size: int | None
) -> PyTree:
    """An unbiased estimate of grad U_i for every chain, each by its own minibatch."""
    batch_of, rows = minibatches(data, batch_size, "fixed")
    scale = data.count / jnp.maximum(rows, 1)
    chains = jax.tree.leaves(theta)[0].shape[-1]
    return each_chain(
        lambda key, one: gradient(one, batch_of(key), scale), jax.random.split(key, chains), theta
    )


def diagnosed(gradient: Potential, step_size: int | float, theta: PyTree, data: Shard) -> str:
    """The step size compared with this client's curvature, where chains have diverged."""
    rows, one = all_rows(data), first_chain(theta)
    curvature = largest_curvature(lambda at: gradient(at, rows, jnp.ones(())), one)
    if not np.isfinite(curvature) or curvature <= 0:
        return f"step_size is {step_size:g}; try a tenth of it"
    return (
        f"its rows alone allow a step of at most {2 / curvature:.2g}, those of all clients less, "
        f"and step_size is {step_size:g}"
    )


def check_batch(name: str, batch_size: int | None) -> None:
    """Raise a ValueError for a minibatch that cannot be."""
    if batch_size is not None:
        need_counts(name, batch_size=batch_size)
