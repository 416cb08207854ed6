"""DG-LMC: a Gibbs sampler of a shared draw and of one near it at each client."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
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
from covey.algorithms.fald_walk import chain_report, energy_gradient, weighted_walk
from covey.algorithms.mode import LogPrior
from covey.algorithms.qlsd import check_batch, prior_pull
from covey.core.algorithm import Algorithm, Empty, Hooks, Local, no_state
from covey.core.shard import Shard
from covey.kernels.langevin_chains import Langevin, noise_like
from covey.models.catalogue import need
from covey.models.model import Model


class State(NamedTuple):
    """The server's state.

    Attributes:
        theta: The states x of the chains, on the last axis.
        total: The sum of all z_i.
        start: x before the first round, where every z_i begins.
        round: Rounds done.
        clients: The number of clients (b).
        ring: The newest draws.
    """

    theta: PyTree
    total: PyTree
    start: PyTree
    round: Int[Array, ""]
    clients: Float[Array, ""]
    ring: Ring


class Down(NamedTuple):
    """x, the start of z_i for a client without one, and b."""

    theta: PyTree
    start: PyTree
    clients: Float[Array, ""]


def dg_lmc(
    model: Model,
    *,
    tolerance: float,
    step_size: float | None = None,
    local_steps: int = 10,
    batch_size: int | None = None,
    prior: float | LogPrior | None = None,
    chains: int = 4,
    jitter: float = 0.0,
    burn_in: int = 0,
    thinning: int = 1,
    keep: int = 100,
) -> Algorithm:
    """DG-LMC: every client has a variable z_i near the shared x, and the two are drawn in turn.

    With U_i minus the log-likelihood of client i's rows, plus 1 / b of minus the log prior, the
    target is a law of x and all z_i,

        p(x, z) ~ exp(-sum_i [U_i(z_i) + ||z_i - x||^2 / (2 rho)])

    whose x has the posterior as rho goes to 0. A round draws

        client:  z_i given x, by N steps  z <- z - gamma (grad U_i(z) + (z - x) / rho)
                                               + sqrt(2 gamma) xi     from its last z_i
        server:  x given z ~ N(mean of all z_i, rho / b)

    For small rho the law of x is near the posterior and x moves slowly; for large rho draws are
    less dependent and the law is too wide: its variance exceeds the posterior's by about rho / b
    where clients are alike. Where only some clients take part the others keep their z_i, and the
    law is the same. No step is rejected: it differs by O(gamma).

    Args:
        model: Log-likelihood of the rows; see `covey.models`. A model's own prior counts once.
        tolerance: Variance of z_i around x (rho in the paper), on the scale of the parameters
            squared. About the variance of one client's own posterior is a start.
        step_size: Step size of the Langevin steps (gamma), below rho. Default: a tenth of rho,
            which suits clients whose posterior alone is not narrower than rho.
        local_steps: Langevin steps of a client per round (N).
        batch_size: Rows per step, drawn anew without replacement; None takes all rows.
        prior: Standard deviation of a Gaussian prior with mean zero on every parameter, or a
            log-density of the parameters. Default: the model's own prior, or a flat one.
        chains: Chains that walk side by side, for R-hat and effective sample sizes.
        jitter: Standard deviation of the Gaussian noise added to each chain's start.
        burn_in: Rounds before the first draw.
        thinning: Rounds from one draw to the next.
        keep: Newest draws of each chain that the server keeps, and that predictions average over.

    Returns:
        A method for `covey.run`, with chains of the shared parameters. A client's state is z_i.

    Example:
        >>> import numpy as np, covey
        >>> rng = np.random.default_rng(0)
        >>> rows = {name: (np.ones((50, 1)), rng.normal(2.0, 1.0, 50)) for name in "abc"}
        >>> data = covey.FederatedData.from_clients(rows)
        >>> method = covey.dg_lmc(covey.models.linear(intercept=False), tolerance=0.02, burn_in=50)
        >>> fit = covey.run(method, data, rounds=500, seed=1, progress=False)
        >>> abs(float(fit.posterior.shared.draws()["weight"].mean()) - 2.0) < 0.2
        True

    Reference: Plassier, Vono, Durmus and Moulines (2021), DG-LMC: a turn-key and scalable
    synchronous distributed MCMC algorithm via Langevin Monte Carlo within Gibbs, algorithm 1.

    Departures from the paper: rho, gamma and N are the same for all clients. A client sends the
    change of z_i, so that the sum of all z_i is known also where few take part, and it keeps what
    was sent, so that this holds with lossy channels.
    """
    need(model, Model, "dg_lmc")
    rate = _checked_rate(tolerance, step_size)
    need_counts("dg_lmc", local_steps=local_steps, chains=chains)
    check_batch("dg_lmc", batch_size)
    if not jitter >= 0:
        raise ValueError(f"dg_lmc: jitter must be at least 0, got {jitter:g}")
    recording = Recording(burn_in, thinning, keep)
    check_recording("dg_lmc", recording)
    log_prior = log_prior_of("dg_lmc", model, prior)
    of_rows = energy_gradient(model, None, None)
    steps = Langevin(rate, local_steps, chains=chains)

    def init(key, spec):
        if spec.clients is None:
            raise ValueError("dg_lmc: the number of clients must be known: Spec.clients")
        start, apart = jax.random.split(key)
        theta = first_states(start, apart, model, spec, chains, jitter)
        clients = jnp.asarray(spec.clients, float)
        total = jax.tree.map(lambda x: clients.astype(x.dtype) * x, theta)
        ring = empty_ring(recording.keep, theta)
        return State(theta, total, theta, jnp.int32(0), clients, ring)

    def client(key, down, z, data: Shard):
        choose, noise = jax.random.split(key)

        def near_x(z):
            prior = prior_pull(log_prior, z)
            return jax.tree.map(
                lambda z, x, p: (z - x) / tolerance - p / down.clients, z, down.theta, prior
            )

        end = weighted_walk(steps, of_rows, (choose, noise), data, batch_size, 1.0, z, near_x)
        info = chain_report(model, choose, down.theta, data, batch_size, local_steps)
        return Local(jax.tree.map(jnp.subtract, end, z), z, info)

    def server(key, state, aggregate):
        total = jax.tree.map(jnp.add, state.total, aggregate.plain)
        spread = jnp.sqrt(tolerance / state.clients)
        theta = jax.tree.map(
            lambda t, xi: t / state.clients.astype(t.dtype) + spread.astype(t.dtype) * xi,
            total,
            noise_like(key, total),
        )
        done = state.round + 1
        ring = recorded(state.ring, theta, recording.due(done))
        return state._replace(theta=theta, total=total, round=done, ring=ring), Empty()

    return Algorithm(
        name="dg_lmc",
        init=init,
        broadcast=lambda state: Down(state.theta, state.start, state.clients),
        server=server,
        init_client=lambda key, down, data: down.start,
        client=client,
        commit=lambda z, sent: jax.tree.map(jnp.add, z, sent),
        predict=lambda key, down, z, x: averaged_predictive(model, down, x),
        adapt=no_state,
        posterior=chain_posterior(model, lambda state: state.ring),
        publish=lambda state: published(state.ring, state.theta),
        hooks=Hooks(validate=partial(check_rounds, "dg_lmc", recording)),
    )


def _checked_rate(tolerance: int | float, step_size: int | float | None) -> float:
    """gamma, the step size of the Langevin steps."""
    need_positive("dg_lmc", tolerance=tolerance)
    if step_size is None:
        return tolerance / 10
    if not 0 < step_size < 2 * tolerance:
        raise ValueError(
            f"dg_lmc: step_size must be above 0 and below 2 tolerance, {2 * tolerance:g}, or z_i "
            f"diverges; got {step_size:g}"
        )
    return step_size
