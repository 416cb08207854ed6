"""FA-LD: federated averaging Langevin dynamics (Deng et al., 2024, algorithms 1 and 3)."""

import warnings
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt32

from covey.algorithms.averaging import Info, mean_change
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
from covey.algorithms.fald_by_itself import BURN_IN, STEP_SIZE, Wanted, by_itself
from covey.algorithms.fald_drift import with_drift_check
from covey.algorithms.fald_privacy import Clipping, check_noise, mechanism_of
from covey.algorithms.fald_walk import (
    Down,
    Gradient,
    Walk,
    batch_loss,
    energy_gradient,
    first_chain,
    local_walk,
    minibatches,
)
from covey.algorithms.mode import LogPrior
from covey.core.algorithm import Algorithm, Empty, Hooks, Local, Plan, no_state
from covey.core.shard import Shard, all_rows
from covey.kernels.curvature import largest_curvature
from covey.kernels.langevin_chains import Langevin
from covey.models.model import Model
from covey.privacy.mechanism import Sampling

LARGEST_WIDENING = 1.2  # of the posterior's variance by partial participation, without a warning


class State(NamedTuple):
    """The server's state.

    Attributes:
        theta: The states of the chains, on the last axis.
        shared_key: Key of the noise that all clients of the next round share.
        round: Rounds done.
        examples: Training rows of all clients together (n).
        ring: The newest draws.
    """

    theta: PyTree
    shared_key: UInt32[Array, " words"]
    round: Int[Array, ""]
    examples: Float[Array, ""]
    ring: Ring


def fald(
    model: Model,
    *,
    step_size: float | None = None,
    local_steps: int | None = None,
    batch_size: int | None = None,
    temperature: float = 1.0,
    correlation: float | None = None,
    decay: float = 0.0,
    prior: float | LogPrior | None = None,
    chains: int = 4,
    jitter: float = 0.0,
    burn_in: int | None = None,
    thinning: int = 1,
    keep: int = 100,
    clip: float | None = None,
    sampling: Sampling = "fixed",
) -> Algorithm:
    """FA-LD: chains that sample the posterior by Langevin steps at clients and averages.

    The target is pi(theta) ~ exp(-f(theta) / tau), where f = sum_c l^c + U adds the negative
    log-likelihoods of all clients and the energy U = -log prior, counted once. With p_c = n_c / n
    and f^c = l^c / p_c + U, so that f = sum_c p_c f^c, a round is

        client:  K times  beta = theta^c - eta g^c(theta^c)
                                 + sqrt(2 eta tau) [rho xi + sqrt((1 - rho^2) / p_c) xi^c]
        server:           theta = sum_c w_c p_c beta^c / sum_c w_c p_c

    g^c is the gradient of f^c by a minibatch of m rows drawn without replacement, (n / m) sum_S
    grad l + grad U. xi is the same at every client, from a key that the server broadcasts; xi^c is
    the client's own. Averaged with weights p_c the noise has variance 2 eta tau for any rho. w_c is
    the inverse participation probability: with all clients the average is the paper's sum over all
    devices, with `cohort.weighted(S)` its scheme I, with `cohort.uniform(S)` and clients of equal
    size its scheme II. K = 1, rho = 0 and all clients is SGLD.

    By default all settings are determined before the first round, from sums over clients: the mode
    m of the posterior and the Hessian S^-T S^-1 of f there, by Newton's method in about ten rounds.
    The chains walk in u, theta = m + S u, where the posterior is nearly a standard Gaussian, with
    eta = 0.2, rho = 1 and the temperature tau (1 - eta / 2), with which the steps have the right
    variance on a Gaussian. Clients have gradients and curvatures at the mode in common
    (`covey.models.whitened`), and K is the largest of 10, 4, 2 and 1 with which their drift moves
    no mean by more than 0.05 standard deviations. Such a run needs no `rounds=`. A given
    step_size takes the paper's algorithm as it is.

    No step is rejected: the law of the chains differs from pi by O(eta), and by how far clients
    with different data move apart in K steps. A chain diverges from eta = 2 / lambda on, lambda the
    largest curvature of any f^c. Where S of N clients take part, their own noise is averaged over
    few and its variance is up to N / S times too large: a bias that no shorter step mends, and only
    rho near 1 does.

    The states after every `thinning` rounds past `burn_in` are the draws: `run.posterior.shared`.
    The chains have different minibatches and noise, but a round has one cohort, so that with
    partial participation they are pulled the same way. The effective sample sizes and Monte Carlo
    standard errors of `run.posterior.shared.summary()` take this into account; R-hat compares
    chains with each other and does not see what they share.

    Args:
        model: Log-likelihood of the rows; see `covey.models`. A model's own prior, as NumPyro
            models have one, counts once.
        step_size: Step size of the Langevin steps, on the scale of the parameters squared (eta).
            A tenth of the smallest posterior variance is a start; the bias falls with it. Default:
            determined from the data, for models of up to 300 parameters.
        local_steps: Langevin steps of a client per round (K). More save rounds, and bias the
            posterior where clients differ; `run.posterior.shared` warns of it. Default: chosen by
            the drift of clients, or 10 with a given step size.
        batch_size: Rows per step, drawn anew without replacement; None takes all rows.
        temperature: Temperature of the target (tau). Default 1, the posterior; lower values
            concentrate it at the mode.
        correlation: Share of the noise that all clients have in common, from 0 to 1 (rho). Values
            near 1 lessen the bias of partial participation and of many local steps; the shared
            noise protects no row. Default: 1, or 0 with a given step size.
        decay: The step size falls as step_size / (1 + decay k), k counting local steps over all
            rounds. Default 0, constant. eta_k = 1 / (2 L + m k / 12) of theorem 4.8 is
            step_size = 1 / (2 L), decay = m / (24 L).
        prior: Standard deviation of a Gaussian prior with mean zero on every parameter, or a
            log-density of the parameters. Default: the model's own prior, or a flat one.
        chains: Chains that walk side by side, for R-hat and effective sample sizes.
        jitter: Standard deviation of the Gaussian noise added to each chain's start. Chains that
            start apart show by R-hat whether they have met.
        burn_in: Rounds before the first draw. Default: 20, or 0 with a given step size.
        thinning: Rounds from one draw to the next.
        keep: Newest draws of each chain that the server keeps, and that predictions average over.
            A run collects all draws, whatever this is.
        clip: Per-example gradient clipping norm; required for privacy accounting by
            `run(privacy=...)`. It biases the posterior where rows have larger gradients. The loss
            of training rows, which is not private, is then not reported. Default: no clipping.
        sampling: "fixed" draws minibatches of `batch_size` rows. "poisson" draws each row
            independently, which has tighter privacy accounting and looks at all rows in each step.

    Returns:
        A method for `covey.run`, with chains of the shared parameters.

    Example:
        >>> import numpy as np, covey
        >>> rng = np.random.default_rng(0)
        >>> rows = {name: (np.ones((50, 1)), rng.normal(2.0, 1.0, 50)) for name in "abc"}
        >>> data = covey.FederatedData.from_clients(rows)
        >>> model = covey.models.from_density(
        ...     lambda theta, rows: -0.5 * (rows.y - theta) ** 2, np.array(0.0), "normal mean"
        ... )
        >>> fit = covey.run(covey.fald(model), data, seed=1, progress=False)
        >>> chains, draws = fit.posterior.shared.draws().shape
        >>> chains, draws >= 1000
        (4, True)

    Departures from the paper: a prior may be added. Under scheme II the paper takes the plain mean
    whatever the clients' sizes; here clients keep their weights p_c, so that the ratio of sums
    stays near the right posterior, and unequal sizes give a warning. `clip` is not in the paper,
    which assumes bounded gradients.

    Reference: Deng, Zhang, Ma, Song and Lin (2024), On convergence of federated averaging Langevin
    dynamics, algorithms 1 and 3.
    """
    recording = Recording(0 if burn_in is None else burn_in, thinning, keep)
    log_prior = log_prior_of("fald", model, prior)
    if step_size is None:
        _check_free({"decay": decay, "jitter": jitter, "clip": clip})
        wanted = Wanted(local_steps, temperature, correlation, chains)
        if burn_in is None:
            recording = recording._replace(burn_in=BURN_IN)

        walk = Walk(Langevin(STEP_SIZE, 1), 1.0, batch_size, sampling, jitter=1.0)
        return by_itself(model, log_prior, wanted, walk, partial(sampler, recording=recording))
    steps = Langevin(
        step_size, 10 if local_steps is None else local_steps, temperature, decay, chains
    )
    rho = 0.0 if correlation is None else correlation
    clipping = None if clip is None else Clipping(clip, batch_size, sampling, rho)
    walk = Walk(steps, rho, batch_size, sampling, jitter, clipping)
    return sampler(model, model, log_prior, walk, recording)


def sampler(
    model: Model, target: Model, log_prior: LogPrior | None, walk: Walk, recording: Recording
) -> Algorithm:
    """FA-LD itself: the recursion in `fald`'s description.

    Args:
        model: Model of the chains' states: it describes draws and predicts.
        target: The model whose log-likelihood is sampled; the same, or one with the same posterior.
        log_prior: -U of the target; None is flat.
        walk: Step sizes, noise, minibatches.
        recording: Which states are draws.

    Returns:
        The method.
    """
    steps, clip = walk.steps, None if walk.clipping is None else walk.clipping.clip
    _check(steps, walk.correlation, walk.jitter, walk.batch_size)
    check_recording("fald", recording)
    gradient = energy_gradient(target, log_prior, clip)
    mechanism = None if walk.clipping is None else mechanism_of(steps, walk.clipping)

    def init(key, spec):
        if spec.examples is None:
            raise ValueError(
                "fald: the number of training rows of all clients must be known: Spec.examples"
            )
        start, apart, shared = jax.random.split(key, 3)
        theta = first_states(start, apart, model, spec, steps.chains, walk.jitter)
        return State(
            theta,
            jax.random.key_data(shared),
            round=jnp.int32(0),
            examples=jnp.asarray(spec.examples, float),
            ring=empty_ring(recording.keep, theta),
        )

    def client(key, down, state, data):
        beta, share = local_walk(walk, gradient, key, down, data)
        delta = jax.tree.map(jnp.subtract, beta, down.theta)
        if clip is not None:  # a loss of rows would show of them what noise has hidden
            return Local(delta, Empty(), Empty(), share)
        batch_of, _ = minibatches(data, walk.batch_size, walk.sampling)
        choose, _ = jax.random.split(key)
        loss = batch_loss(model, first_chain(down.theta), batch_of(choose))
        return Local(delta, Empty(), Info(loss, jnp.asarray(steps.local_steps)), share)

    def server(key, state, aggregate):
        theta = jax.tree.map(jnp.add, state.theta, mean_change(aggregate))
        done = state.round + 1
        ring = recorded(state.ring, theta, recording.due(done))
        return State(theta, jax.random.key_data(key), done, state.examples, ring), Empty()

    def validate(plan):
        check_rounds("fald", recording, plan)
        _check_cohort(plan, walk)
        if mechanism is not None:
            check_noise(mechanism(plan))

    posterior = chain_posterior(model, lambda state: state.ring)
    if steps.local_steps > 1 and clip is None:
        posterior = with_drift_check(posterior, walk, gradient)
    return Algorithm(
        name="fald",
        init=init,
        init_client=no_state,
        broadcast=lambda state: Down(state.theta, state.shared_key, state.round, state.examples),
        client=client,
        commit=no_state,
        server=server,
        predict=lambda key, down, client_state, x: averaged_predictive(model, down, x),
        adapt=no_state,
        posterior=posterior,
        publish=lambda state: published(state.ring, state.theta),
        privacy=mechanism,
        hooks=Hooks(validate=validate, diagnose=partial(_diagnose, gradient, steps.step_size)),
    )


def _check_free(given: dict[str, float | None]) -> None:
    """An error for options that need a given step size."""
    for name, value in given.items():
        if value:
            raise ValueError(
                f"fald: {name}={value:g} needs a given step_size=: without it fald determines one "
                "from the data, which no privacy budget accounts for, and starts its chains apart"
            )


def _diagnose(gradient: Gradient, step_size: int | float, down: Down, data: Shard) -> str:
    """The largest stable step of a client whose chains have diverged."""
    scale = down.examples / data.count
    curvature = largest_curvature(
        lambda one: gradient(one, all_rows(data), scale), first_chain(down.theta)
    )
    if not np.isfinite(curvature) or curvature <= 0:
        return f"step_size is {step_size:g}; try a tenth of it"
    return (
        f"its largest stable step there is about {2 / curvature:.2g}, and step_size is "
        f"{step_size:g}"
    )


def _check_cohort(plan: Plan, walk: Walk) -> None:
    """Scheme II is for clients of equal size; noise that few clients average is too large."""
    counts, rho = plan.counts, walk.correlation
    part = (plan.sampler.drawn or len(counts)) / len(counts)
    wider = rho**2 + (1 - rho**2) / part
    if wider > LARGEST_WIDENING:
        better = "take correlation=1" if walk.clipping is None else "take larger cohorts"
        warnings.warn(
            f"fald: {plan.sampler.drawn} of {len(counts)} clients take part in a round, and their "
            f"own noise is averaged over few: variances of the posterior are up to {wider:.1f} "
            f"times too large with correlation={rho:g}; {better}",
            stacklevel=4,
        )
    if plan.sampler.alike and counts.min() < counts.max():
        warnings.warn(
            f"fald: clients have {counts.min()} to {counts.max()} rows, but cohorts draw them "
            "alike (scheme II), which is for clients of equal size: the average of a cohort is "
            "then a biased ratio; cohort.weighted (scheme I) draws clients by their rows",
            stacklevel=4,
        )


def _check(
    steps: Langevin, correlation: int | float, jitter: int | float, batch_size: int | None
) -> None:
    for name in ("step_size", "temperature"):
        value = getattr(steps, name)
        if not value > 0:
            raise ValueError(f"fald: {name} must be above 0, got {value:g}")
    for name, value in (("decay", steps.decay), ("jitter", jitter)):
        if not value >= 0:
            raise ValueError(f"fald: {name} must be at least 0, got {value:g}")
    counts = {"local_steps": steps.local_steps, "chains": steps.chains, "batch_size": batch_size}
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"fald: {name} must be at least 1, got {count}")
    if not 0 <= correlation <= 1:
        raise ValueError(f"fald: correlation (rho) must be from 0 to 1, got {correlation:g}")
