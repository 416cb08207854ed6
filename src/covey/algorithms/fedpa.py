"""FedPA: federated posterior averaging.

Al-Shedivat, Gillenwater, Xing and Rostamizadeh (2021), "Federated learning via posterior averaging:
a new perspective and practical algorithms", algorithms 1, 3 and 4. A product of Gaussian posteriors
N(mu_i, Sigma_i) has its mode where a quadratic is least whose gradient is sum_i q_i Sigma_i^-1
(theta - mu_i). Clients estimate that gradient from samples, and any server optimiser follows it:

    client:  x_1 .. x_l from a sampler of p(theta | D_i) that starts at theta,
             Delta_i = Sigma_i^-1 (theta - mean x),   Sigma_i = rho_l I + (1 - rho_l) cov x,   rho_l = 1 / (1 + (l - 1) rho)
    server:  Delta = sum_i w_i Delta_i / sum_i w_i,   theta = server optimiser(theta, Delta)

FedAvg is the case Sigma_i = I, and so are one sample and rho = 0. Where it stands still moves away
from the mode as local steps grow; FedPA's moves closer. Deltas come from a recursion in O(l^2 d)
(`kernels.shrinkage`), samples from averaged iterates of any Optax optimiser (`kernels.iasg`) or
from a Markov kernel. In the first `burn_in_rounds` rounds, as long as theta is far from where
clients' posteriors have their mass, a client does as in FedAvg with as many steps. Clients remember
nothing, and the prior is flat.

w_i is the number of rows or 1. With samples that have the covariance of a posterior of n_i rows,
Sigma_i^-1 grows with n_i by itself and equal weights are those of the product of posteriors; with
rows as weights large clients count twice. The paper weighs by rows, as is right as long as rho_l I
is the larger part of Sigma_i.

`rho="oas"` takes Sigma_i = a m I + (1 - a) cov x, m the mean variance, with the share a of Chen et
al. (2010) at each client. Such a Sigma_i has the scale of the samples and Delta_i that of a
gradient; so that the server's step need not know it, the server divides by sum_i w_i
trace(Sigma_i^-1) / d. Samples that are all the same have no such Sigma_i, and the client is left
out as one that diverged.

With `rank` above 0 the server also keeps the Gaussian N(theta, P^-1), P = sum_i q_i Sigma_i^-1 with
q_i = w_i / mean w, from which it draws (`Run.posterior`) and predicts. Clients send `rank` + 1
vectors instead of one. Limits: it is a Gaussian at the mode, of a flat prior; each Sigma_i has l -
1 directions in which it differs from a multiple of I, and is no better than its samples and its
shrinkage (with a fixed rho the spread in other directions is that of rho_l I and says nothing of
the data: use "oas", or rho times the variance of the samples far above 1); the inverse of an
estimate is too large on average, the more so the fewer samples there are; directions of P past
`rank` are taken to be as well known as the best known one; clients are averaged over rounds with a
memory of 1 / (1 - decay) of them.

Example:
    method = covey.fedpa(covey.models.logistic(), samples=5, rho=0.1, burn_in_rounds=50,
    server_optimizer=optax.sgd(0.5))
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree, UInt32

from covey.algorithms import averaging
from covey.algorithms.averaging import (
    Info,
    Weighting,
    change,
    check_weighting,
    client_weight,
    server_step,
)
from covey.core.algorithm import (
    Aggregate,
    Algorithm,
    Approximation,
    Empty,
    Hooks,
    Local,
    Posterior,
    no_state,
)
from covey.core.shard import all_rows
from covey.kernels import shrinkage
from covey.kernels.descent import descend_steps, mean_gradient, schedule
from covey.kernels.iasg import Averaging, Minibatches, burnt_in, next_sample, steps_of
from covey.kernels.kernel import Kernel, Target
from covey.kernels.low_rank import LowRank, columns, deviations, from_image
from covey.models.mixed import averaged
from covey.models.model import Model

LARGEST_DENSE = 10_000  # parameters: a matrix of 400 MB


class Precision(NamedTuple):
    """c I - L of a client, of a round, or of many: c, L Omega, and what they were weighted with."""

    level: Float[Array, ""]
    image: Float[Array, "d rank"]
    weight: Float[Array, ""]


class State(NamedTuple):
    """The mode so far, the server optimiser's memory, the rounds done, and what is known of the
    precision there.

    seed: of the columns Omega, the same for a whole run. Both are empty where no posterior is asked
        for.
    """

    parameters: PyTree
    optimizer: PyTree
    round: Int[Array, ""]
    seed: UInt32[Array, ""] | Empty
    precision: Precision | Empty
    clients: Float[Array, ""]


class Down(NamedTuple):
    """What clients of a round are sent."""

    parameters: PyTree
    round: Int[Array, ""]
    seed: UInt32[Array, ""] | Empty


class Published(NamedTuple):
    """What clients predict with, and what draws are of."""

    parameters: PyTree
    posterior: LowRank | Empty


class Up(NamedTuple):
    """A client's delta, its scale tau (1 where rho is given), and its precision."""

    delta: PyTree
    tau: Float[Array, ""]
    precision: Precision | Empty


class Sampler(NamedTuple):
    """A client's samples as displacements from theta: the trail after its burn-in, one sample more,
    and its info at the end.
    """

    trail: PyTree
    sample: Callable[[PyTree, Int[Array, ""]], tuple[Float[Array, " d"], PyTree]]
    info: Callable[[PyTree], Info]


def fedpa(
    model: Model,
    *,
    samples: int = 5,
    rho: int | float | Literal["oas"] = 0.1,
    client_optimizer: optax.GradientTransformation | None = None,
    server_optimizer: optax.GradientTransformation | None = None,
    batch_size: int | None = 32,
    burn_in_rounds: int = 0,
    burn_in_steps: int = 0,
    steps_per_sample: int | None = None,
    minibatches: Minibatches = "shuffled",
    kernel: Kernel | None = None,
    step_size: float | None = None,
    weighting: Weighting = "rows",
    solver: Literal["recursive", "dense"] = "recursive",
    rank: int = 0,
    decay: float = 0.9,
    predictive_draws: int = 30,
) -> Algorithm:
    """FedPA: clients sample their posteriors and send what corrects the average (default: SGD 0.1,
    one pass a sample).

    Args:
        model: any model with parameters that clients share.
        samples: l, of each client in each round.
        rho: from 0 (FedAvg) up; or "oas", chosen from the samples.
        client_optimizer: makes the samples by averaging its iterates; in burn-in rounds it is
            FedAvg's.
        server_optimizer: of the deltas; SGD with step 1 by default.
        batch_size: rows of a local step; None, or more than a client has, takes all.
        burn_in_rounds: rounds in the manner of FedAvg before the first with samples.
        burn_in_steps: local steps, or transitions of a kernel, before the first sample of a round.
        steps_per_sample: iterates in the average that is a sample (None: one pass), or transitions
            of a kernel (None: 1).
        minibatches: of the steps that make samples: "shuffled" passes over the rows, or
            "independent" ones, whose noise spreads the samples as the posterior is; see
            `kernels.iasg`. Burn-in rounds have shuffled ones.
        kernel: a sampler of `covey.kernels` instead of averaged iterates; for exact ones, few
            parameters.
        step_size: of the kernel.
        weighting: clients by their rows, or equally.
        solver: "dense" forms the covariance, for few parameters; the result is the same.
        rank: directions of the posterior that the server keeps; 0 keeps none and sends nothing for
            it.
        decay: of the posterior's precision from round to round.
        predictive_draws: of the posterior, where there is one, that a prediction averages over.
    """
    least = {
        "samples": (samples, 1),
        "burn_in_rounds": (burn_in_rounds, 0),
        "burn_in_steps": (burn_in_steps, 0),
        "steps_per_sample": (steps_per_sample, 1),
        "rank": (rank, 0),
        "predictive_draws": (predictive_draws, 1),
    }
    _check_options(least, rho, decay, samples)
    _check_kernel(kernel, step_size, client_optimizer, burn_in_rounds)
    check_weighting(weighting)
    if minibatches not in ("shuffled", "independent"):
        raise ValueError(
            f"fedpa: minibatches must be 'shuffled' or 'independent', got {minibatches!r}"
        )
    if solver not in ("recursive", "dense"):
        raise ValueError(f"fedpa: solver must be 'recursive' or 'dense', got {solver!r}")
    gradient = mean_gradient(model.log_likelihood)
    for_client = optax.sgd(0.1) if client_optimizer is None else client_optimizer
    for_server = optax.sgd(1.0) if server_optimizer is None else server_optimizer
    plan = Averaging(
        schedule(batch_size=batch_size, epochs=1, steps=None).batch_size,
        burn_in_steps,
        steps_per_sample,
        minibatches,
    )

    def init(key, spec):
        parameters = model.init(key, spec)
        flat, _ = ravel_pytree(parameters)
        if solver == "dense" and flat.size > LARGEST_DENSE:
            raise ValueError(
                f"fedpa: solver='dense' is for up to {LARGEST_DENSE} parameters and {model.name} has {flat.size}; "
                "use solver='recursive'"
            )
        seed, precision = Empty(), Empty()
        if rank:
            seed = jax.random.bits(jax.random.fold_in(key, 1), (), jnp.uint32)
            precision = _nothing(flat, rank)
        return State(
            parameters,
            for_server.init(parameters),
            jnp.int32(0),
            seed,
            precision,
            jnp.asarray(spec.clients or 1, float),
        )

    def publish(state):
        posterior: LowRank | Empty = Empty()
        if isinstance(state.precision, Precision):
            level, image, weight = state.precision
            share = jnp.where(weight > 0, weight, 1.0)
            posterior = from_image(
                level / share, image / share, columns(state.seed, image.shape[0], rank, image.dtype)
            )
        return Published(state.parameters, posterior)

    def averaged_round(key, down, data):
        """The client of FedAvg, with as many steps as it makes where it samples."""
        flat, _ = ravel_pytree(down.parameters)
        _, steps = steps_of(data, plan, samples)
        end = descend_steps(key, data, gradient, for_client, batch_size, steps, down.parameters)
        delta, info = change(down.parameters, end)
        return delta, jnp.ones((), flat.dtype), _nothing(flat, rank) if rank else Empty(), info

    def sampled_round(key, down, data):
        flat, unravel = ravel_pytree(down.parameters)
        here = (key, down.parameters, data)
        sampler = iterates(*here) if kernel is None else transitions(*here, kernel)
        has_rows = data.count > 0  # without any there is nothing to sample, and nothing is said

        def one(trail, number):
            displacement, trail = sampler.sample(trail, number)
            return jnp.where(has_rows, displacement, 0.0), trail

        trail, estimate = shrinkage.estimate(one, sampler.trail, samples, flat, rho, solver)
        tau = (
            jnp.where(has_rows, estimate.mean_precision, 1.0)
            if rho == "oas"
            else jnp.ones((), flat.dtype)
        )
        precision: Precision | Empty = Empty()
        if rank:
            omega = columns(down.seed, flat.size, rank, flat.dtype)
            image = estimate.level * omega - estimate.times(omega)
            precision = Precision(estimate.level, image, jnp.ones((), flat.dtype))
            precision = jax.tree.map(lambda leaf: jnp.where(has_rows, leaf, 0.0), precision)
        delta = jnp.where(has_rows, estimate.delta, 0.0)
        return unravel(delta), tau, precision, sampler.info(trail)

    def iterates(key, parameters, data) -> Sampler:
        flat, _ = ravel_pytree(parameters)
        local = (key, data, gradient, for_client, plan)

        def sample(trail, number):
            mean, trail = next_sample(*local, trail)
            return ravel_pytree(mean)[0] - flat, trail

        def info(trail):
            return Info(trail.path.loss / jnp.maximum(trail.done, 1), trail.done)

        return Sampler(burnt_in(*local, parameters), sample, info)

    def transitions(key, parameters, data, kernel) -> Sampler:
        flat, unravel = ravel_pytree(parameters)
        posterior = Target(
            log_prior=lambda z: jnp.zeros((), z.dtype),
            log_likelihood=lambda z, rows: model.log_likelihood(unravel(z), rows),
            data=data,
        )
        each = 1 if steps_per_sample is None else steps_per_sample

        def step(number, at):
            return kernel.step(jax.random.fold_in(key, number), posterior, *at, step_size)

        def sample(trail, number):
            first = burn_in_steps + each * number
            trail = jax.lax.fori_loop(first, first + each, step, trail)
            return trail[0] - flat, trail

        def info(trail):
            loss, _ = gradient(unravel(trail[0]), all_rows(data))
            return Info(loss, jnp.where(data.count > 0, burn_in_steps + samples * each, 0))

        start = (flat, kernel.begin(posterior, flat, kernel.init(flat)))
        return Sampler(jax.lax.fori_loop(0, burn_in_steps, step, start), sample, info)

    def client(key, down, state, data):
        if (
            burn_in_rounds
        ):  # the round is the same for all clients, so that only one of the two is computed
            found = jax.lax.cond(
                down.round < burn_in_rounds, averaged_round, sampled_round, key, down, data
            )
        else:
            found = sampled_round(key, down, data)
        delta, tau, precision, info = found
        return Local(Up(delta, tau, precision), Empty(), info, client_weight(data, weighting))

    def server(key, state, aggregate):
        # The server's step is along the mean delta over the mean scale.
        total = Aggregate(aggregate.weighted.delta, (), aggregate.weighted.tau, aggregate.count)
        before = averaging.State(state.parameters, state.optimizer)
        parameters, memory = server_step(for_server, before, total)
        precision = state.precision
        if isinstance(precision, Precision):
            # With q_i of mean one, the sum over clients is their number times the weighted mean.
            fresh = aggregate.weighted.precision
            share = state.clients / jnp.where(fresh.weight > 0, fresh.weight, 1.0)
            new = Precision(fresh.level * share, fresh.image * share, jnp.ones_like(fresh.weight))
            mixed = jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, precision, new)
            precision = jax.tree.map(
                lambda old, new: jnp.where(fresh.weight > 0, new, old), precision, mixed
            )
        return State(
            parameters, memory, state.round + 1, state.seed, precision, state.clients
        ), Empty()

    def predict(key, down, client_state, x):
        if isinstance(down.posterior, Empty):
            return model.predictive(down.parameters, x)
        flat, unravel = ravel_pytree(down.parameters)
        off = jnp.nan_to_num(
            deviations(key, down.posterior, predictive_draws)
        )  # before the first samples: the mode alone
        return averaged(lambda z: model.predictive(unravel(z), x), flat + off)

    def fit(down, spec, ask):
        return down

    def draw(key, down, count):
        flat, unravel = ravel_pytree(down.parameters)
        drawn = jax.vmap(unravel)(flat + deviations(key, down.posterior, count))
        return drawn if model.describe is None else jax.vmap(model.describe)(drawn)

    def longer_than_burn_in(plan):
        if plan.rounds is not None and plan.rounds <= burn_in_rounds:
            raise ValueError(
                f"fedpa burns in for {burn_in_rounds} rounds, and rounds={plan.rounds} ends before "
                "it begins; ask for more rounds, or for fewer burn_in_rounds"
            )

    return Algorithm(
        name="fedpa",
        init=init,
        init_client=no_state,
        broadcast=lambda state: Down(state.parameters, state.round, state.seed),
        client=client,
        commit=no_state,
        server=server,
        predict=predict,
        adapt=no_state,
        publish=publish,
        posterior=Posterior(shared=Approximation(fit, draw) if rank else None, axes=model.axes),
        exact=("tau", "precision.level", "precision.weight") if rank else ("tau",),
        hooks=Hooks(validate=longer_than_burn_in),
    )


def _nothing(at: Float[Array, " d"], rank: int) -> Precision:
    zero = jnp.zeros((), at.dtype)
    return Precision(zero, jnp.zeros((at.size, min(rank, at.size)), at.dtype), zero)


def _check_options(
    least: dict[str, tuple[int | None, int]], rho: int | float | str, decay: float, samples: int
) -> None:
    for name, (value, bound) in least.items():
        if value is not None and value < bound:
            raise ValueError(f"fedpa: {name} must be at least {bound}, got {value}")
    if isinstance(rho, str):
        if rho != "oas":
            raise ValueError(f"fedpa: rho must be a number from 0 up or 'oas', got {rho!r}")
        if samples < 2:
            raise ValueError(
                "fedpa: rho='oas' is chosen from how samples differ; take samples=2 or more, or give rho a number"
            )
    elif not (0 <= rho < float("inf")):
        raise ValueError(
            f"fedpa: rho must be at least 0 and finite, got {rho:g}; 0 is FedAvg, and the paper takes 0.01 to 1"
        )
    if not 0 <= decay < 1:
        raise ValueError(f"fedpa: decay must be at least 0 and below 1, got {decay:g}")


def _check_kernel(
    kernel: Kernel | None,
    step_size: float | None,
    client_optimizer: optax.GradientTransformation | None,
    burn_in_rounds: int,
) -> None:
    if kernel is None:
        if step_size is not None:
            raise ValueError(
                "fedpa: step_size is that of a kernel; averaged iterates have that of client_optimizer"
            )
    elif step_size is None or step_size <= 0:
        raise ValueError(f"fedpa: a kernel needs a step_size above 0, got {step_size}")
    elif client_optimizer is not None and not burn_in_rounds:
        raise ValueError(
            "fedpa: with a kernel client_optimizer is for burn-in rounds; give burn_in_rounds, or leave it out"
        )
