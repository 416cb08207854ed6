"""FedPA: federated posterior averaging (Al-Shedivat et al., 2021, algorithms 1, 3 and 4)."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from covey.algorithms import averaging
from covey.algorithms.averaging import (
    Info,
    Weighting,
    change,
    check_weighting,
    client_weight,
    optimizer_or,
    server_step,
)
from covey.algorithms.laplace import laplace
from covey.core.algorithm import (
    Aggregate,
    Algorithm,
    Empty,
    Hooks,
    Local,
    Plan,
    Posterior,
    no_state,
)
from covey.kernels.descent import descend_steps, mean_gradient, schedule
from covey.kernels.iasg import Averaging, Minibatches, steps_of
from covey.kernels.kernel import Kernel
from covey.kernels.local_samples import Transitions, averaged_iterates, kernel_states
from covey.kernels.shrinkage import CHOSEN, Rho, Solver, estimate
from covey.models.model import Model

LARGEST_DENSE = 10_000  # parameters: a matrix of 400 MB


class State(NamedTuple):
    """The server's state.

    Attributes:
        parameters: The mode so far (theta).
        optimizer: The server optimiser's memory.
        round: Rounds done.
    """

    parameters: PyTree
    optimizer: PyTree
    round: Int[Array, ""]


class Down(NamedTuple):
    """The broadcast: the parameters, and the rounds done."""

    parameters: PyTree
    round: Int[Array, ""]


class Up(NamedTuple):
    """A client's upload.

    Attributes:
        delta: Sigma_i^-1 (theta - mean x).
        scale: The largest eigenvalue of Sigma_i^-1; 1 where deltas are not normalised.
    """

    delta: PyTree
    scale: Float[Array, ""]


def fedpa(
    model: Model,
    *,
    samples: int = 5,
    rho: Rho = 0.1,
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
    normalised: bool = True,
    solver: Solver = "recursive",
    rank: int = 200,
) -> Algorithm:
    """FedPA: clients sample their posteriors and correct the average by their covariance.

    A product of Gaussian posteriors N(mu_i, Sigma_i) has its mode where a quadratic is least whose
    gradient is sum_i Sigma_i^-1 (theta - mu_i). Clients estimate that gradient from samples, and
    the server's optimiser follows it:

        client:  x_1 .. x_l from a sampler of p(theta | D_i) that starts at theta
                 Delta_i = Sigma_i^-1 (theta - mean x)
                 Sigma_i = rho_l I + (1 - rho_l) cov x,   rho_l = 1 / (1 + (l - 1) rho)
        server:  Delta = sum_i w_i Delta_i / sum_i w_i lambda_i
                 theta = server optimiser(theta, Delta)

    w_i is the client's weight over its participation probability and lambda_i the largest
    eigenvalue of Sigma_i^-1 (1 / rho_l where there are fewer samples than parameters), so that a
    server step of 1 is stable for every rho and l. FedAvg is the case Sigma_i = I, and so are one
    sample and rho = 0. FedAvg's fixed point moves away from the mode as local steps grow; FedPA's
    moves closer. Sigma_i is never formed (`covey.kernels.shrinkage`). In the first `burn_in_rounds`
    rounds, as long as theta is far from the clients' posteriors, a client does as in FedAvg with as
    many steps. Clients have no state, and the prior is flat.

    Samples of averaged iterates (`covey.kernels.iasg`) serve the correction. Their covariance is
    not that of a posterior: it follows the step size, the minibatches and the way to the optimum.
    The posterior of the run, `run.posterior.shared`, therefore does not use them. It is the Laplace
    approximation at the mode of all rows, from second derivatives that clients sum up when it is
    asked for (`covey.algorithms.laplace`). `run.predict` predicts with the parameters, and
    `run.posterior.shared.predict` averages over the posterior.

    Args:
        model: Log-likelihood to train; see `covey.models`. A prior of the model is not used.
        samples: Posterior samples each client draws per round (l).
        rho: Strength of the samples' covariance in Sigma_i, from 0 (FedAvg) up; the paper takes
            0.01 to 1. "oas" (oracle approximating shrinkage) and "rblw" (Rao-Blackwellised
            Ledoit-Wolf) choose it from the samples at each client and shrink towards a multiple of
            I.
        client_optimizer: Optax optimiser whose averaged iterates are the samples, and of burn-in
            rounds. Default: SGD with step 0.1.
        server_optimizer: Optax optimiser of the deltas. Default: SGD with step 1.
        batch_size: Rows per local step; None, or more than a client has, takes all its rows.
        burn_in_rounds: Rounds of FedAvg before the first with samples (R_0).
        burn_in_steps: Local steps, or transitions of a kernel, before the first sample of a round
            (B).
        steps_per_sample: Iterates averaged into one sample (K; default: one pass over the client's
            rows), or transitions of a kernel per sample (default: 1).
        minibatches: Minibatches of the local steps that make samples: "shuffled" passes over
            the rows, or "independent" draws, whose noise spreads the samples. Burn-in rounds have
            shuffled ones.
        kernel: Sampler from `covey.kernels` instead of averaged iterates. Exact ones are for few
            parameters.
        step_size: Step size of the kernel.
        weighting: "rows" weighs clients by their rows, as the paper does: right where rho_l I is
            the larger part of Sigma_i. "equal" is right for samples with the covariance of a
            posterior, where Sigma_i^-1 grows with the rows already.
        normalised: Divide by lambda_i, so that the server's step size does not depend on rho and l.
            False is the paper's delta, whose length grows with 1 + (l - 1) rho; required to
            reproduce its settings.
        solver: "dense" forms Sigma_i, for few parameters; the result is the same.
        rank: Number of parameters up to which the posterior's precision is exact; with more, it is
            exact in about as many leading directions. A client sends that many vectors when the
            posterior is asked for. 0 offers no posterior.

    Returns:
        A method for `covey.run`, with a Gaussian posterior of the shared parameters.

    Example:
        >>> import numpy as np, covey
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(4, 30, 1))
        >>> y = 2 * x[..., 0] + rng.normal(size=(4, 30))
        >>> data = covey.FederatedData.from_clients(dict(zip("abcd", zip(x, y))))
        >>> method = covey.fedpa(covey.models.linear(), samples=3)
        >>> fit = covey.run(method, data, rounds=5, seed=1, progress=False)
        >>> draws = fit.posterior.shared.draws(1000, chains=1).weight
        >>> draws.shape, round(float(draws.std()), 2)  # about 1 / sqrt(120 rows)
        ((1, 1000, 1), 0.1)

    Departures from the paper: deltas are normalised unless `normalised=False`; "oas", "rblw",
    kernels and the posterior are additions.

    Reference: Al-Shedivat, Gillenwater, Xing and Rostamizadeh (2021), Federated learning via
    posterior averaging: a new perspective and practical algorithms, algorithms 1, 3 and 4.
    """
    _check_counts(samples, burn_in_rounds, burn_in_steps, steps_per_sample, rank)
    _check_names(rho, samples, minibatches, batch_size, solver)
    moves = _transitions(kernel, step_size, burn_in_steps, steps_per_sample)
    if moves is not None:
        _check_with_kernel(client_optimizer, burn_in_rounds, minibatches)
    check_weighting(weighting)
    gradient = mean_gradient(model.log_likelihood)
    for_client = optimizer_or(optax.sgd(0.1), client_optimizer, "client_optimizer", "fedpa")
    for_server = optimizer_or(optax.sgd(1.0), server_optimizer, "server_optimizer", "fedpa")
    rows = schedule(batch_size=batch_size, epochs=1, steps=None).batch_size
    plan = Averaging(rows, burn_in_steps, steps_per_sample, minibatches)

    def init(key, spec):
        parameters = model.init(key, spec)
        if solver == "dense":
            _check_dense(model, ravel_pytree(parameters)[0].size)
        return State(parameters, for_server.init(parameters), jnp.int32(0))

    def averaged_round(key, down, data):
        """The client of FedAvg, with as many steps as it makes where it samples."""
        _, steps = steps_of(data, plan, samples)
        end = descend_steps(key, data, gradient, for_client, batch_size, steps, down.parameters)
        delta, info = change(down.parameters, end)
        return Up(delta, jnp.ones((), ravel_pytree(delta)[0].dtype)), info

    def sampler(key, data, start):
        if moves is None:
            return averaged_iterates(key, data, gradient, for_client, plan, start)
        return kernel_states(key, data, model.log_likelihood, moves, samples, start)

    def sampled_round(key, down, data):
        flat, unravel = ravel_pytree(down.parameters)
        drawn = sampler(key, data, down.parameters)
        has_rows = data.count > 0  # without any there is nothing to sample

        def one(trail, index):
            displacement, trail = drawn.sample(trail, index)
            return jnp.where(has_rows, displacement, 0.0), trail

        trail, found = estimate(one, drawn.trail, samples, flat, rho, solver)
        delta = unravel(jnp.where(has_rows, found.delta, 0.0))
        scale = jnp.where(has_rows & normalised, found.largest, jnp.ones((), flat.dtype))
        return Up(delta, scale), Info(*drawn.summary(trail))

    def client(key, down, state, data):
        if burn_in_rounds:  # all clients are in the same round: only one branch is computed
            burning = down.round < burn_in_rounds
            up, info = jax.lax.cond(burning, averaged_round, sampled_round, key, down, data)
        else:
            up, info = sampled_round(key, down, data)
        return Local(up, Empty(), info, client_weight(data, weighting))

    def server(key, state, aggregate):
        deltas, scale = aggregate.weighted
        before = averaging.State(state.parameters, state.optimizer)
        after = server_step(for_server, before, Aggregate(deltas, (), scale, aggregate.count))
        return State(*after, state.round + 1), Empty()

    return Algorithm(
        name="fedpa",
        init=init,
        init_client=no_state,
        broadcast=lambda state: Down(state.parameters, state.round),
        client=client,
        commit=no_state,
        server=server,
        predict=lambda key, down, client_state, x: model.predictive(down.parameters, x),
        adapt=no_state,
        posterior=Posterior(
            shared=laplace(model, lambda down: down.parameters, rank=rank) if rank else None,
            axes=model.axes,
        ),
        exact=("scale",),
        hooks=Hooks(validate=partial(_check_rounds, burn_in_rounds)),
    )


def _check_rounds(burn_in_rounds: int, plan: Plan) -> None:
    """A run must not end before its clients sample."""
    if plan.rounds is not None and plan.rounds <= burn_in_rounds:
        raise ValueError(
            f"fedpa burns in for {burn_in_rounds} rounds, and rounds={plan.rounds} ends before "
            "it begins; ask for more rounds, or for fewer burn_in_rounds"
        )


def _check_counts(
    samples: int,
    burn_in_rounds: int,
    burn_in_steps: int,
    steps_per_sample: int | None,
    rank: int,
) -> None:
    for name, count, least in (
        ("samples", samples, 1),
        ("burn_in_rounds", burn_in_rounds, 0),
        ("burn_in_steps", burn_in_steps, 0),
        ("steps_per_sample", steps_per_sample, 1),
        ("rank", rank, 0),
    ):
        if count is not None and count < least:
            raise ValueError(f"fedpa: {name} must be at least {least}, got {count}")


def _check_names(
    rho: int | float | str,
    samples: int,
    minibatches: str,
    batch_size: int | None,
    solver: str,
) -> None:
    if isinstance(rho, str):
        if rho not in CHOSEN:
            raise ValueError(f"fedpa: rho must be at least 0, or 'oas' or 'rblw', got {rho!r}")
        if samples < 2:
            raise ValueError(
                f"fedpa: rho={rho!r} is chosen from how samples differ; take samples=2 or more, or "
                "give rho a value"
            )
    elif not (0 <= rho < float("inf")):
        raise ValueError(
            f"fedpa: rho must be at least 0 and finite, got {rho:g}; 0 is FedAvg, and the paper "
            "takes 0.01 to 1"
        )
    if minibatches not in ("shuffled", "independent"):
        raise ValueError(
            f"fedpa: minibatches must be 'shuffled' or 'independent', got {minibatches!r}"
        )
    if minibatches == "independent" and batch_size is None:
        raise ValueError(
            "fedpa: batch_size=None takes all rows at each step, so that minibatches='independent' "
            "changes nothing; give a batch_size, or leave minibatches out"
        )
    if solver not in ("recursive", "dense"):
        raise ValueError(f"fedpa: solver must be 'recursive' or 'dense', got {solver!r}")


def _transitions(
    kernel: Kernel | None,
    step_size: int | float | None,
    burn_in_steps: int,
    steps_per_sample: int | None,
) -> Transitions | None:
    """The settings of the kernel; None without one."""
    if kernel is None:
        if step_size is not None:
            raise ValueError(
                "fedpa: step_size is that of a kernel; averaged iterates have that of "
                "client_optimizer"
            )
        return None
    if step_size is None or step_size <= 0:
        raise ValueError(f"fedpa: a kernel needs a step_size above 0, got {step_size}")
    return Transitions(
        kernel, step_size, burn_in_steps, 1 if steps_per_sample is None else steps_per_sample
    )


def _check_with_kernel(
    client_optimizer: optax.GradientTransformation | None, burn_in_rounds: int, minibatches: str
) -> None:
    if client_optimizer is not None and not burn_in_rounds:
        raise ValueError(
            "fedpa: with a kernel client_optimizer is for burn-in rounds; give burn_in_rounds, or "
            "leave it out"
        )
    if minibatches != "shuffled":
        raise ValueError(
            "fedpa: minibatches is for averaged iterates; a kernel such as sgld(batch_size=32) "
            "draws its own"
        )


def _check_dense(model: Model, size: int) -> None:
    if size > LARGEST_DENSE:
        raise ValueError(
            f"fedpa: solver='dense' is for up to {LARGEST_DENSE} parameters and {model.name} has "
            f"{size}; use solver='recursive'"
        )
