"""QLSD++: QLSD with variance reduction and memories of the clients' gradients."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from covey.algorithms import qlsd
from covey.algorithms.averaging import need_counts
from covey.algorithms.chains import (
    Recording,
    averaged_predictive,
    chain_posterior,
    check_rounds,
    published,
)
from covey.algorithms.fald_walk import chain_report, energy_gradient
from covey.algorithms.memory import (
    check_memory,
    memory_rate_for,
    need_memory_rate,
    remembered,
)
from covey.algorithms.mode import LogPrior
from covey.algorithms.qlsd import diagnosed, langevin_server, minibatch_gradient
from covey.core import tree
from covey.core.algorithm import Algorithm, Empty, Hooks, Local, no_state
from covey.core.shard import Shard, fold_batches
from covey.models.catalogue import need
from covey.models.model import Model

_PASS = 256  # rows at once in a gradient of all rows; changes no value beyond rounding


class State(NamedTuple):
    """The chains, eta = sum_i eta_i, and alpha."""

    chains: qlsd.State
    memory: PyTree
    memory_rate: Float[Array, ""]


class Down(NamedTuple):
    """theta of all chains, alpha, and the index of the outer loop."""

    theta: PyTree
    memory_rate: Float[Array, ""]
    outer: Int[Array, ""]


class Tracker(NamedTuple):
    """A client's state.

    Attributes:
        memory: eta_i.
        anchor: The reference point zeta, where its last pass over all rows was.
        whole: grad U_i(zeta).
        outer: The outer loop of that pass.
    """

    memory: PyTree
    anchor: PyTree
    whole: PyTree
    outer: Int[Array, "*clients"]


class Pending(NamedTuple):
    """The client's state before the upload, and alpha."""

    tracker: Tracker
    memory_rate: Float[Array, "*clients"]


def qlsd_plus(
    model: Model,
    *,
    step_size: float,
    batch_size: int,
    inner: int = 10,
    memory_rate: float | None = None,
    prior: float | LogPrior | None = None,
    chains: int = 4,
    jitter: float = 0.0,
    burn_in: int = 0,
    thinning: int = 1,
    keep: int = 100,
) -> Algorithm:
    """QLSD++: QLSD whose noise from minibatches and compression vanishes as chains settle.

    See `qlsd` for the target and U_i. In each round

        client:  H_i = (n_i / m) sum over a minibatch of (grad l(theta) - grad l(zeta))
                       + grad U_i(zeta)
                 sends C(H_i - eta_i);    eta_i = eta_i + alpha C(H_i - eta_i)
        server:  theta <- theta - gamma (eta + sum_i w_i C(H_i - eta_i) + grad U) + sqrt(2 gamma) xi
                 eta = eta + alpha sum_i C(H_i - eta_i)

    where the reference zeta is theta of the first of every `inner` rounds, with a pass over all
    rows. Minibatches only estimate the difference between theta and zeta, and only what the memory
    eta_i has not learned yet is compressed: both are small once chains stay near a mode, so that
    the noise of the estimate, which `qlsd` has at all times, goes to zero there.

    Args:
        model: Log-likelihood of the rows; see `covey.models`. A model's own prior counts once.
        step_size: Step size of the server (gamma); see `qlsd`.
        batch_size: Rows per client and round.
        inner: Rounds from one pass over all rows to the next (l in the paper).
        memory_rate: Rate at which the memories learn (alpha). Default: 1 / (1 + omega) of the
            channel, the largest that theory allows. 0 keeps no memories.
        prior: Standard deviation of a Gaussian prior with mean zero on every parameter, or a
            log-density of the parameters. Default: the model's own prior, or a flat one.
        chains: Chains that walk side by side. An upload has one vector for each.
        jitter: Standard deviation of the Gaussian noise added to each chain's start.
        burn_in: Rounds before the first draw.
        thinning: Rounds from one draw to the next.
        keep: Newest draws of each chain that the server keeps, and that predictions average over.

    Returns:
        A method for `covey.run`, with chains of the shared parameters. A client's state is its
        memory, its reference point and the gradient there.

    Example:
        >>> import numpy as np, covey
        >>> rng = np.random.default_rng(0)
        >>> rows = {name: (np.ones((50, 1)), rng.normal(2.0, 1.0, 50)) for name in "abc"}
        >>> data = covey.FederatedData.from_clients(rows)
        >>> model = covey.models.linear(intercept=False)
        >>> method = covey.qlsd_plus(model, step_size=1e-3, batch_size=10)
        >>> channel = covey.channel.dithering(levels=15)
        >>> fit = covey.run(method, data, rounds=500, seed=1, channel=channel, progress=False)
        >>> abs(float(fit.posterior.shared.draws()["weight"].mean()) - 2.0) < 0.2
        True

    Reference: Vono, Plassier, Durmus, Dieuleveut and Moulines (2022), QLSD: quantised Langevin
    stochastic dynamics for Bayesian federated learning, algorithm 2 (QLSD++).

    Departures from the paper: a client takes its pass at theta of its first round in each outer
    loop and keeps that reference, so that nothing more is broadcast and absent clients need not
    catch up. With all clients in all rounds this is the paper's algorithm.
    """
    need(model, Model, "qlsd_plus")
    sampler = langevin_server(
        "qlsd_plus", model, prior, step_size, chains, jitter, Recording(burn_in, thinning, keep)
    )
    need_counts("qlsd_plus", batch_size=batch_size, inner=inner)
    check_memory("qlsd_plus", memory_rate)
    gradient = energy_gradient(model, None, None)

    def init(key, spec):
        first = sampler.first(key, spec)
        rate = jnp.asarray(memory_rate_for(memory_rate, spec.omega), float)
        return State(first, jax.tree.map(jnp.zeros_like, first.theta), rate)

    def broadcast(state):
        return Down(state.chains.theta, state.memory_rate, state.chains.round // inner)

    def init_client(key, down, data):
        zeros = jax.tree.map(jnp.zeros_like, down.theta)
        return Tracker(zeros, down.theta, zeros, jnp.int32(-1))

    def client(key, down, tracker, data):
        first = tracker.outer != down.outer
        whole = whole_gradient(gradient, down.theta, _rows_if(first, data))
        anchor = tree.where(first, down.theta, tracker.anchor)
        whole = tree.where(first, whole, tracker.whole)
        # The same key, so the same minibatch at both points.
        here, there = (
            minibatch_gradient(gradient, key, at, data, batch_size) for at in (down.theta, anchor)
        )
        innovation = jax.tree.map(
            lambda h, z, w, eta: h - z + w - eta, here, there, whole, tracker.memory
        )
        new = Tracker(tracker.memory, anchor, whole, down.outer)
        info = chain_report(model, key, down.theta, data, batch_size, 1)
        return Local(innovation, Pending(new, down.memory_rate), info)

    def commit(pending, sent):
        tracker, rate = pending
        return tracker._replace(memory=remembered(tracker.memory, sent, rate))

    def server(key, state, aggregate):
        estimate = jax.tree.map(jnp.add, state.memory, aggregate.weighted)
        new = sampler.step(key, state.chains, estimate)
        memory = remembered(state.memory, aggregate.plain, state.memory_rate)
        return State(new, memory, state.memory_rate), Empty()

    def validate(plan):
        check_rounds("qlsd_plus", sampler.recording, plan)
        need_memory_rate("qlsd_plus", memory_rate, plan.omega)

    return Algorithm(
        name="qlsd_plus",
        init=init,
        broadcast=broadcast,
        server=server,
        init_client=init_client,
        client=client,
        commit=commit,
        predict=lambda key, down, tracker, x: averaged_predictive(model, down, x),
        adapt=no_state,
        posterior=chain_posterior(model, lambda state: state.chains.ring),
        publish=lambda state: published(state.chains.ring, state.chains.theta),
        hooks=Hooks(
            validate=validate,
            diagnose=lambda down, data: diagnosed(gradient, step_size, down.theta, data),
        ),
    )


def whole_gradient(gradient: qlsd.Potential, theta: PyTree, data: Shard) -> PyTree:
    """The gradient of U_i by all rows, for every chain."""

    def add(total, batch):
        part = jax.vmap(lambda one: gradient(one, batch, jnp.ones(())), -1, -1)(theta)
        return jax.tree.map(jnp.add, total, part)

    return fold_batches(data, _PASS, add, jax.tree.map(jnp.zeros_like, theta))


def _rows_if(needed: Array, data: Shard) -> Shard:
    """The client's rows where they are needed, and otherwise none, which take no time."""
    return replace(data, count=jnp.where(needed, data.count, 0))
