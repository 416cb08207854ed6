"""FA-LD: federated averaging Langevin dynamics.

Deng, Zhang, Ma, Song and Lin (2024), "On convergence of federated averaging Langevin dynamics",
algorithms 1 and 3. The target is pi(theta) ~ exp(-f(theta) / tau), where f = sum_c l^c + U adds the
negative log-likelihoods of all clients and the energy U = -log prior, counted once. With p_c = n_c
/ n and f^c = l^c / p_c + U, so that f = sum_c p_c f^c, a round is

    client:  K times   beta = theta^c - eta g^c(theta^c) + sqrt(2 eta tau) [rho xi + sqrt((1 - rho^2) / p_c) xi^c]
    server:            theta = sum_c w_c p_c beta^c / sum_c w_c p_c

g^c is f^c's gradient by a minibatch of m rows drawn without replacement: 1/(gamma p_c) sum_S grad l
= (n / m) sum_S grad l, for gamma = m / n_c. xi is the same at every client, from a key that the
server broadcasts; xi^c is the client's own. Averaged with weights p_c the noise has variance 2 eta
tau for any rho. eta is constant or falls as eta / (1 + decay k) with the number k of local steps:
eta_k = 1 / (2 L + m k / 12), as in theorem 4.8, is step_size = 1 / (2 L), decay = m / (24 L).

w_c is the inverse participation probability: with everyone the average is the paper's sum over all
devices; with `cohort.weighted(S)`, its scheme I, the mean over S draws; with `cohort.uniform(S)`
and clients of equal size, its scheme II. Under scheme II the paper takes the plain mean whatever
the sizes. Here clients keep their weights p_c, so that the ratio of sums stays near the right
posterior, and unequal sizes give a warning. Where S of N clients take part, their own noise is
averaged over few and its variance is up to N / S times too large: a bias that no short step mends,
and only rho near 1 does.

K = 1, rho = 0 and everyone is SGLD. No step is rejected: what the chains sample differs from pi by
O(eta), and by how far clients with different data move apart in K steps. A chain diverges from eta
= 2 / lambda on, lambda the largest curvature of any f^c.

With `clip` the gradient of each row is scaled down to a norm of at most C before rows are added,
which bounds what one row does to an upload; the noise of the clients' own then hides it (theorem
G.3, `covey.privacy`). That biases what is sampled where rows have larger gradients.

The states after each `thinning` rounds past `burn_in` are the draws. Several independent chains
walk side by side, on the last axis of all arrays: with few parameters and many chains that is where
vector instructions find work.

Example:
    method = covey.fald(covey.models.logistic(), step_size=1e-3, local_steps=10, prior=2.0,
    chains=4, burn_in=200)
"""

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree, UInt32
from optax.tree_utils import tree_norm, tree_random_like

from covey.algorithms.averaging import Info, mean_change
from covey.core import tree
from covey.core.algorithm import (
    Algorithm,
    Chains,
    Empty,
    Hooks,
    Kept,
    Local,
    Plan,
    Posterior,
    no_state,
)
from covey.core.shard import Batch, all_rows, poisson_rows, some_rows
from covey.models.mixed import average_of
from covey.models.model import Model
from covey.privacy.clipping import clipped_sum
from covey.privacy.mechanism import LangevinMechanism, Sampling, participation

_TOGETHER = 32  # draws that predict side by side
_POWER_STEPS = 30
_NOISE_AHEAD = 4096  # random numbers that a client draws at once; they should stay in cache

LogPrior: TypeAlias = Callable[[PyTree], Float[Array, ""]]


class State(NamedTuple):
    """Where the chains stand, and their newest draws. Chains lie on the last axis of theta and of
    the ring.

    shared_key: of the noise that all clients of the next round share.
    examples: n, the rows of all clients together.
    ring: the newest draws, (places, ...); the next goes to place `drawn` modulo their number.
    """

    theta: PyTree
    shared_key: UInt32[Array, " words"]
    round: Int[Array, ""]
    examples: Float[Array, ""]
    ring: PyTree
    drawn: Int[Array, ""]


class Down(NamedTuple):
    """What clients of a round are sent."""

    theta: PyTree
    shared_key: UInt32[Array, " words"]
    round: Int[Array, ""]
    examples: Float[Array, ""]


class Published(NamedTuple):
    """What clients predict with: draws of all chains on the leading axis, and which of them
    count.
    """

    draws: PyTree
    weight: Float[Array, " draws"]


def fald(
    model: Model,
    *,
    step_size: float,
    local_steps: int = 10,
    batch_size: int | None = None,
    temperature: float = 1.0,
    correlation: float = 0.0,
    decay: float = 0.0,
    prior: float | LogPrior | None = None,
    chains: int = 4,
    jitter: float = 0.0,
    burn_in: int = 0,
    thinning: int = 1,
    keep: int = 100,
    clip: float | None = None,
    sampling: Sampling = "fixed",
) -> Algorithm:
    """FA-LD: chains that sample the posterior of all rows, by Langevin steps at clients and
    averages at the server.

    Args:
        model: a likelihood of rows; its own prior, as NumPyro models have one, counts once.
        step_size: eta.
        local_steps: K, Langevin steps of a client in a round.
        batch_size: rows of each step, drawn anew without replacement; None takes all.
        temperature: tau.
        correlation: rho between 0 and 1, the share of the noise that all clients have in common.
        decay: the step falls as step_size / (1 + decay k), k counting local steps over all rounds.
        prior: the standard deviation of a Gaussian prior with mean zero on every parameter, or a
            log-density of the parameters; None is the model's own, or flat.
        chains: independent replicas.
        jitter: the standard deviation of what is added to each chain's start; chains that start
            apart tell by R-hat if they met.
        burn_in: rounds before the first draw.
        thinning: rounds from draw to draw.
        keep: the newest draws of each chain that the server keeps, and that predictions are
            averaged over. A run collects all.
        clip: the largest norm of one row's gradient. It makes rows private, to the extent that
            `run(privacy=...)` accounts for; the loss of training rows, which is not private, is
            then not reported. None clips nothing.
        sampling: "fixed" draws minibatches of `batch_size` rows; "poisson" each row by itself, of
            which more is known to be private, at the cost of looking at all rows.
    """
    _check_options(
        {"step_size": step_size, "temperature": temperature}
        | ({"prior": prior} if isinstance(prior, int | float) else {})
        | ({} if clip is None else {"clip": clip}),
        {"decay": decay, "jitter": jitter},
        {
            "local_steps": (local_steps, 1),
            "chains": (chains, 1),
            "burn_in": (burn_in, 0),
            "thinning": (thinning, 1),
        }
        | {"keep": (keep, 1)}
        | ({} if batch_size is None else {"batch_size": (batch_size, 1)}),
    )
    if not 0 <= correlation <= 1:
        raise ValueError(f"fald: correlation (rho) must be from 0 to 1, got {correlation:g}")
    if prior is not None and model.log_prior is not None:
        raise ValueError(f"fald: {model.name} has a prior of its own; leave prior= out")
    log_prior = _log_prior(model, prior)

    sum_of_gradients = (
        partial(batch_gradient, model)
        if clip is None
        else clipped_sum(model.log_likelihood, clip=clip)
    )

    def energy_gradient(theta, batch, scale):
        """(n / m) sum over the batch of grad l, plus grad U; scale is n / m."""
        slope = sum_of_gradients(theta, batch)
        shrink = (
            jax.grad(log_prior)(theta)
            if log_prior is not None
            else jax.tree.map(jnp.zeros_like, theta)
        )
        return jax.tree.map(lambda s, p: scale * s - p, slope, shrink)

    def init(key, spec):
        if spec.examples is None:
            raise ValueError(
                "fald: the number of training rows of all clients must be known: Spec.examples"
            )
        start, apart, shared = jax.random.split(key, 3)
        theta = jax.vmap(lambda key: model.init(key, spec), out_axes=-1)(
            jax.random.split(start, chains)
        )
        if jitter:
            theta = jax.tree.map(lambda at, xi: at + jitter * xi, theta, noise_like(apart, theta))
        return State(
            theta,
            jax.random.key_data(shared),
            round=jnp.int32(0),
            examples=jnp.asarray(spec.examples, float),
            ring=jax.tree.map(lambda leaf: jnp.zeros((keep, *leaf.shape), leaf.dtype), theta),
            drawn=jnp.int32(0),
        )

    def client(key, down, state, data):
        share = data.count / down.examples  # p_c
        own_scale = jnp.sqrt((1 - correlation**2) / jnp.where(data.count > 0, share, jnp.inf))
        choose, own = jax.random.split(key)
        shared = jax.random.wrap_key_data(down.shared_key, impl="threefry2x32")
        # Random numbers are most of the cost of a step with few parameters: none are drawn that
        # count for nothing.
        noises = [(correlation, shared)] * (correlation > 0) + [(own_scale, own)] * (
            correlation < 1
        )
        rows = data.count if batch_size is None else jnp.minimum(batch_size, data.count)
        scale = down.examples / jnp.maximum(rows, 1)
        every = all_rows(data) if batch_size is None or batch_size >= data.capacity else None
        draw = some_rows if sampling == "fixed" else poisson_rows

        def batch_of(key):
            return draw(key, data, batch_size) if every is None else every

        def step(number, theta, noise):
            eta = step_size / (1 + decay * (down.round * local_steps + number).astype(float))
            keys = jax.random.split(jax.random.fold_in(choose, number), chains)
            slope = each_chain(
                lambda key, one: energy_gradient(one, batch_of(key), scale), keys, theta
            )
            moved = jax.tree.map(lambda at, s: at - eta * s, theta, slope)
            spread = jnp.sqrt(2 * eta * temperature)
            return jax.tree.map(lambda at, xi: at + spread.astype(at.dtype) * xi, moved, noise)

        def noise_of(number):
            drawn = [noise_like(jax.random.fold_in(of, number), down.theta) for _, of in noises]
            scaled = [
                jax.tree.map(lambda xi, s=s: jnp.asarray(s, xi.dtype) * xi, xi)
                for (s, _), xi in zip(noises, drawn, strict=True)
            ]
            return jax.tree.map(lambda *parts: sum(parts), *scaled)

        def some_steps(block, theta):
            numbers = block * together + jnp.arange(together)
            noise = jax.vmap(noise_of)(numbers)
            return jax.lax.fori_loop(
                0,
                together,
                lambda place, at: step(
                    numbers[place], at, jax.tree.map(lambda xi: xi[place], noise)
                ),
                theta,
            )

        together = _steps_together(local_steps, tree.size(down.theta))
        beta = jax.lax.fori_loop(0, local_steps // together, some_steps, down.theta)
        delta = jax.tree.map(jnp.subtract, beta, down.theta)
        if clip is not None:  # a loss of rows would show of them what noise has hidden
            return Local(delta, Empty(), Empty(), share)
        first = jax.tree.map(lambda leaf: leaf[..., 0], down.theta)
        loss = batch_loss(model, first, batch_of(choose))
        return Local(delta, Empty(), Info(loss, jnp.asarray(local_steps)), share)

    def server(key, state, aggregate):
        theta = jax.tree.map(jnp.add, state.theta, mean_change(aggregate))
        done = state.round + 1
        due = (done > burn_in) & ((done - burn_in) % thinning == 0)
        place = state.drawn % keep
        ring = jax.tree.map(
            lambda all_, new: all_.at[place].set(jnp.where(due, new, all_[place])),
            state.ring,
            theta,
        )
        return State(
            theta, jax.random.key_data(key), done, state.examples, ring, state.drawn + due
        ), Empty()

    def publish(state):
        """The draws that the server keeps; before the first, where the chains stand."""
        ring = jax.tree.map(
            lambda all_, now: all_.at[0].set(jnp.where(state.drawn == 0, now, all_[0])),
            state.ring,
            state.theta,
        )
        counts = jnp.arange(keep) < jnp.maximum(state.drawn, 1)
        draws = jax.tree.map(
            lambda leaf: jnp.moveaxis(leaf, -1, 1).reshape(-1, *leaf.shape[1:-1]), ring
        )
        return Published(draws, jnp.repeat(counts.astype(float), chains))

    def predict(key, down, client_state, x):
        members = jax.lax.map(
            lambda one: model.predictive(one, x),
            down.draws,
            batch_size=min(_TOGETHER, len(down.weight)),
        )
        return average_of(members, down.weight)

    def diagnose(down, data):
        first = jax.tree.map(lambda leaf: leaf[..., 0], down.theta)
        curvature = largest_curvature(
            lambda one: energy_gradient(one, all_rows(data), down.examples / data.count), first
        )
        if not np.isfinite(curvature) or curvature <= 0:
            return f"step_size is {step_size:g}; try a tenth of it"
        return f"its largest stable step there is about {2 / curvature:.2g}, and step_size is {step_size:g}"

    def mechanism(plan):
        scheme, size = participation(plan.sampler)
        rows = plan.counts[plan.counts > 0]
        return LangevinMechanism(
            step_size=step_size,
            temperature=temperature,
            correlation=correlation,
            clip=clip or math.inf,
            local_steps=local_steps,
            rows=tuple(rows.tolist()),
            batch_size=batch_size,
            scheme=scheme,
            cohort_size=min(size, len(rows)) if scheme == "uniform" and size is not None else size,
            sampling=sampling,
            chains=chains,
        )

    def kept(state):
        return Kept(jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 1), state.ring), state.drawn)

    return Algorithm(
        name="fald",
        init=init,
        init_client=no_state,
        broadcast=lambda state: Down(state.theta, state.shared_key, state.round, state.examples),
        client=client,
        commit=no_state,
        server=server,
        predict=predict,
        adapt=no_state,
        posterior=Posterior(
            shared=Chains(kept, model.describe or (lambda draw: draw), model.predictive),
            axes=model.axes,
        ),
        publish=publish,
        privacy=None if clip is None else mechanism,
        hooks=Hooks(validate=_check_cohort, diagnose=diagnose),
    )


def batch_gradient(model: Model, theta: PyTree, batch: Batch) -> PyTree:
    """The gradient of sum over the rows of a batch of -log p(row | theta)."""
    return jax.grad(lambda at: -_log_likelihood(model, at, batch))(theta)


def batch_loss(model: Model, theta: PyTree, batch: Batch) -> Float[Array, ""]:
    """The mean over the rows of a batch of -log p(row | theta)."""
    return -_log_likelihood(model, theta, batch) / jnp.maximum(jnp.sum(batch.mask), 1)


def each_chain(
    function: Callable[[Key[Array, ""], PyTree], PyTree], keys: Key[Array, " chains"], theta: PyTree
) -> PyTree:
    """A function of one chain, for all; chains are the last axis of theta and of what comes back.

    A single chain is called plainly: large matrices are slower under vmap.
    """
    if keys.shape[0] == 1:
        alone = function(keys[0], jax.tree.map(lambda leaf: leaf[..., 0], theta))
        return jax.tree.map(lambda leaf: leaf[..., None], alone)
    return jax.vmap(function, in_axes=(0, -1), out_axes=-1)(keys, theta)


def noise_like(key: Key[Array, ""], theta: PyTree) -> PyTree:
    """Standard Gaussian numbers for all chains, in one draw: random bits are slow to compile."""
    leaves, structure = jax.tree.flatten(theta)
    ends = np.cumsum([leaf[..., 0].size for leaf in leaves])
    xi = jax.random.normal(key, (int(ends[-1]), leaves[0].shape[-1]), jnp.result_type(*leaves))
    pieces = [
        piece.reshape(leaf.shape).astype(leaf.dtype)
        for piece, leaf in zip(jnp.split(xi, ends[:-1]), leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, pieces)


def largest_curvature(gradient: Callable[[PyTree], PyTree], at: PyTree) -> float:
    """The largest eigenvalue in size of the derivative of a gradient, by power iteration: steps
    past 2 over it diverge.
    """

    def climb(_, carry):
        direction, _ = carry
        pushed = jax.jvp(gradient, (at,), (direction,))[1]
        size = tree_norm(pushed)
        return jax.tree.map(lambda leaf: leaf / jnp.where(size > 0, size, 1.0), pushed), size

    def search():
        start = tree_random_like(jax.random.key(0, impl="threefry2x32"), at)
        norm = tree_norm(start)
        begin = jax.tree.map(lambda leaf: leaf / norm, start), jnp.zeros_like(norm)
        return jax.lax.fori_loop(0, _POWER_STEPS, climb, begin)[1]

    return float(jax.jit(search)())


def _steps_together(local_steps: int, numbers: int) -> int:
    """For how many steps noise is drawn at once: a divisor of all.

    Noise for some steps ahead is made in a loop of its own, whatever the gradient looks like; in
    one loop with a gradient that walks through memory in another order, the compiler gives up
    vector instructions, and a step takes twice as long.
    """
    most = max(_NOISE_AHEAD // numbers, 1)
    return max(step for step in range(1, min(most, local_steps) + 1) if local_steps % step == 0)


def _log_likelihood(model: Model, theta: PyTree, batch: Batch) -> Float[Array, ""]:
    return jnp.sum(jnp.where(batch.mask, model.log_likelihood(theta, batch.rows), 0.0))


def _log_prior(model: Model, prior: float | LogPrior | None) -> LogPrior | None:
    """The log-density of the prior up to a constant; None is flat."""
    if prior is None:
        return model.log_prior
    if callable(prior):
        return prior
    return lambda theta: -0.5 * tree_norm(theta, squared=True) / prior**2


def _check_cohort(plan: Plan) -> None:
    """Scheme II is for clients of equal size."""
    counts = plan.counts
    if plan.sampler.alike and counts.min() < counts.max():
        warnings.warn(
            f"fald: clients have {counts.min()} to {counts.max()} rows, but cohorts draw them alike (scheme II), which is for "
            "clients of equal size: the average of a cohort is then a ratio with a bias of its own; cohort.weighted (scheme I) "
            "draws clients by their rows",
            stacklevel=4,
        )


def _check_options(
    positive: dict[str, float], at_least_zero: dict[str, float], whole: dict[str, tuple[int, int]]
) -> None:
    for name, value in positive.items():
        if not value > 0:
            raise ValueError(f"fald: {name} must be above 0, got {value:g}")
    for name, value in at_least_zero.items():
        if not value >= 0:
            raise ValueError(f"fald: {name} must be at least 0, got {value:g}")
    for name, (number, bound) in whole.items():
        if number < bound:
            raise ValueError(f"fald: {name} must be at least {bound}, got {number}")
