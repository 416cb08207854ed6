"""Maximum marginal likelihood and the marginal posterior of a mixed model, by sums over clients, in
about a dozen rounds.
"""

import warnings
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from covey.algorithms.marginal_law import draw_law, fit_law
from covey.algorithms.marginal_likelihood import (
    Information,
    client_rows,
    client_term,
    coefficients_of,
    draws_of_effects,
    information_jet,
    is_linear_gaussian,
    jet_and_gain,
)
from covey.algorithms.marginal_parameters import (
    Coordinates,
    Covariance,
    Theta,
    as_mixed,
    labels_of,
    named,
)
from covey.algorithms.marginal_prior import LogPrior, Scales, default_scales, log_prior
from covey.algorithms.marginal_start import Moments, moments, start
from covey.algorithms.marginal_state import (
    Estimate,
    Settings,
    State,
    limited,
    spread_of,
    theta_of,
)
from covey.core import tree
from covey.core.algorithm import (
    Aggregate,
    Algorithm,
    Approximation,
    Empty,
    Hooks,
    Local,
    Plan,
    Posterior,
    no_state,
)
from covey.core.shard import Batch, Shard, Spec
from covey.kernels.laplace import Jet, jet
from covey.kernels.newton import begin, climb
from covey.kernels.precision import in_double
from covey.models.mixed import MixedModel, average_of
from covey.models.model import Model
from covey.models.predictive import Predictive

MOST_EFFECTS = 10
MOST_PARAMETERS = 1000  # a client sends a matrix of their number squared
MOST_POINTS = 1000  # of a quadrature grid
_BAD = -1e30  # the gain of a step to where a client's likelihood is not finite
_START = 0.5  # deviations of effects at the start, in units of the linear predictor


class Down(NamedTuple):
    """What clients of a round are sent: the parameters to evaluate, those to compare with, and the
    frame that derivatives are taken in.
    """

    trial: Theta
    point: Theta
    frame: Float[Array, "k k"]
    unit: Float[Array, " q"]
    basis: Float[Array, "p p"] | Empty
    round: Int[Array, ""]


class Up(NamedTuple):
    """A client's terms of the sums.

    Attributes:
        value: Its log marginal likelihood at the trial point. First round: `Moments.squares`.
        gain: The value minus that at the best point.
        rows: Its number of rows. First round: `Moments.weight`.
        gradient: In the frame. First round: `Moments.score`.
        hessian: In the frame. First round: `Moments.information`, and `Moments.effects` on the
            diagonal.
        information: X'V^-1 X with derivatives, for REML.
    """

    value: Float[Array, ""]
    gain: Float[Array, ""]
    rows: Float[Array, ""]
    gradient: Float[Array, " k"]
    hessian: Float[Array, "k k"]
    information: Information | Empty


class ClientInfo(NamedTuple):
    """The negative log marginal likelihood per row."""

    train_loss: Float[Array, ""]


class Info(NamedTuple):
    """Of a round.

    Attributes:
        log_likelihood: The marginal log-likelihood at the best point so far, that of REML for REML.
        accepted: 1 if the step was accepted.
        settled: 1 once the best point is a maximum: more rounds change nothing.
        waiting: 1 if clients were missing, so that nothing was changed.
    """

    log_likelihood: Float[Array, ""]
    accepted: Float[Array, ""]
    settled: Float[Array, ""]
    waiting: Float[Array, ""]


class Personal(NamedTuple):
    """Draws of all parameters and of a client's effects, in pairs."""

    theta: Float[Array, "draws k"]
    effects: Float[Array, "draws q"]


def marginal(
    model: Model | MixedModel,
    *,
    estimate: Estimate = "ml",
    covariance: Covariance = "full",
    prior: float | LogPrior | None = None,
    nodes: int | None = None,
    draws: int = 4000,
    predictive_draws: int = 100,
) -> Algorithm:
    """Maximum likelihood, REML or the posterior of a mixed model, in about a dozen rounds.

    Client i has effects z_i ~ N(0, L L'). It integrates them out of its likelihood and sends

        l_i(theta) = log of the integral of p(D_i | phi, L b) N(b; 0, I) db

    with gradient and Hessian by theta = (phi, L). The server sums them and takes Newton steps; a
    step that does not gain is taken back, which costs a round. The first round finds where to
    start. All clients must take part in every round: a round in which one is missing is repeated.
    The estimates are those of pooled data; with `nodes=1` they are those of lme4.

    Once `run.metrics["settled"]` is 1 the maximum is found. `run.posterior.shared` then is

        "ml", "reml"   the Gaussian distribution at the maximum with the inverse Hessian;
                       `.law.table()` has estimates and standard errors, `.law.aic`, `.law.bic`
        "posterior"    the posterior: `draws` points of a Student t distribution around the mode,
                       weighted by the exact posterior density, which takes one round. Pareto
                       smoothing tells how good that is (`.law.k_hat`); above 0.7 the points are
                       moved, up to four times.

    `run.posterior.client(name)` has the client's own coefficients, the uncertainty of theta
    included. Parameters are called as in lme4: `intercept`, `weights`, `noise`, and the standard
    deviations `sd` and correlations `cor` of the effects.

    Args:
        model: A mixed model, e.g. `covey.models.mixed_logistic()`, with up to 10 effects; or a
            model without effects, e.g. `covey.models.logistic()`, whose likelihood is then pooled.
        estimate: "ml" maximises the marginal likelihood; "reml" corrects its bias of the variances
            (Gaussian linear models only); "posterior" gives the posterior of all parameters.
        covariance: Of the effects: "full", or "diagonal" for independent ones.
        prior: None, a standard deviation, or a function. None is flat for "ml" and "reml". For
            "posterior" it is weakly informative: intercept and log noise flat; a weight
            N(0, (2.5 s)^2), s the standard error that one average row would give; deviations of
            effects half Student t with 3 degrees of freedom and a scale of 2.5 units of the linear
            predictor (the noise, or 1 for logistic and Poisson models, over the root mean square of
            the column); correlations LKJ(2). A number is the standard deviation of a Gaussian prior
            of each weight, in the units of the data, in place of these. A function is the log
            density of all described parameters: a dictionary with `intercept`, `weights`, `sd`, ...
        nodes: Quadrature nodes per effect; 1 is Laplace's method. Default: 9, 7 or 5 for one, two
            or three effects, and 1 beyond. A Gaussian linear model is integrated exactly.
        draws: Points of the posterior's importance sample; for "posterior" only.
        predictive_draws: Draws that a prediction averages over.

    Returns:
        A method for `covey.run`.

    Example:
        >>> import covey, numpy as np
        >>> random = np.random.default_rng(0)
        >>> clients = {
        ...     str(i): (x := random.normal(size=(6, 1)), 2 * x[:, 0] + random.normal() + random.normal(size=6))
        ...     for i in range(30)
        ... }
        >>> data = covey.FederatedData.from_clients(clients, features=["dose"])
        >>> run = covey.run(covey.marginal(covey.models.mixed_linear()), data, rounds=8, seed=0)
        >>> run.posterior.shared.law.table()["estimate"].round(1).to_dict()
        {'intercept': -0.1, 'weights[dose]': 2.0, 'noise': 1.0, 'sd[intercept]': 1.0}

    Reference: Pinheiro and Bates (1995), Approximations to the log-likelihood function in the
    nonlinear mixed-effects model; Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed
    importance sampling.
    """
    _check_options(estimate, covariance, prior, nodes, draws, predictive_draws)
    mixed = as_mixed(model)
    coordinates = Coordinates(covariance, positive=estimate == "posterior")
    settings = Settings(mixed, coordinates, estimate, prior, nodes, draws, predictive_draws)
    has_effects = isinstance(model, MixedModel)
    return Algorithm(
        name="marginal",
        init=partial(_init, settings),
        broadcast=partial(_broadcast, settings),
        server=partial(_server, settings),
        init_client=no_state,
        client=partial(_client, settings),
        commit=no_state,
        predict=partial(_predict, settings),
        adapt=partial(_adapt, settings),
        publish=lambda state: state,
        posterior=Posterior(
            shared=Approximation(partial(fit_law, settings), draw_law),
            client=partial(_client_draws, settings) if has_effects else None,
            axes=partial(labels_of, mixed),
        ),
        hooks=Hooks(validate=_need_everyone, adapt_before_evaluation=True),
    )


def _init(settings: Settings, key, spec: Spec) -> State:
    model, coordinates = settings.model, settings.coordinates
    phi, effects = model.init(key, spec), model.init_effects(key, spec)
    _check_fit(settings, phi, effects, spec)
    flat, _ = ravel_pytree(Theta(phi, jnp.zeros(coordinates.size(len(effects)))))
    shared = flat.size - coordinates.size(len(effects))
    beta, _ = coefficients_of(Theta(phi, flat[shared:]))
    unknown = jnp.asarray(jnp.nan, flat.dtype)
    return State(
        phi=phi,
        climb=begin(flat, jnp.eye(flat.size, dtype=flat.dtype)),
        unit=jnp.ones(len(effects)),
        scales=Scales(jnp.full(shared, jnp.inf, flat.dtype), jnp.ones(len(effects))),
        variance=jnp.ones(shared),
        value=unknown,
        restriction=jnp.zeros(()),
        log_prior=jnp.zeros(()),
        rows=jnp.zeros(()),
        basis=jnp.eye(len(beta)) if settings.estimate == "reml" else Empty(),
        clients=jnp.asarray(spec.clients or 0, float),
        round=jnp.int32(0),
        seed=jax.random.bits(jax.random.fold_in(key, 1), (), jnp.uint32),
    )


def _broadcast(settings: Settings, state: State) -> Down:
    trial, point = (
        theta_of(state, settings.coordinates, flat)
        for flat in (state.climb.trial, state.climb.point)
    )
    return Down(trial, point, state.climb.frame, state.unit, state.basis, state.round)


def _client(settings: Settings, key, down: Down, state: Empty, data: Shard) -> Local:
    first, later = partial(_first_terms, settings), partial(_terms, settings)

    def terms(down, batch):
        return jax.lax.cond(down.round == 0, first, later, down, batch)

    up, loss = in_double(terms)(down, client_rows(data))
    return Local(up, Empty(), ClientInfo(loss / jnp.maximum(data.count, 1)))


def _first_terms(settings: Settings, down: Down, batch: Batch) -> tuple[Up, Array]:
    """A client's terms of the start."""
    model, coordinates, effects = settings.model, settings.coordinates, len(down.unit)
    of = moments(model, down.trial.phi, batch.rows, batch.mask, effects)
    shared, size = len(of.score), len(down.frame)
    entry = shared + coordinates.diagonal(effects)
    hessian = jnp.zeros((size, size)).at[:shared, :shared].set(of.information)
    hessian = hessian.at[entry, entry].set(of.effects)
    each = model.log_likelihood(down.trial.phi, jnp.zeros(effects), batch.rows)
    information: Information | Empty = Empty()
    if isinstance(down.basis, jax.Array):
        (beta, others), zeros = coefficients_of(down.trial), jnp.zeros
        p, m = len(beta), len(others)
        information = Information(zeros((p, p)), zeros((p, p, m)), zeros((p, p, m, m)))
    up = Up(
        of.squares,
        jnp.zeros(()),
        of.weight,
        jnp.zeros(size).at[:shared].set(of.score),
        hessian,
        information,
    )
    return up, -jnp.sum(jnp.where(batch.mask, each, 0.0))


def _terms(settings: Settings, down: Down, batch: Batch) -> tuple[Up, Array]:
    """A client's marginal likelihood with derivatives. A likelihood that is not finite is reported
    as a bad step, not as a failure.
    """
    term = client_term(
        settings.model, settings.coordinates, settings.nodes, down.trial, down.unit, batch
    )
    (trial, _), (point, _) = ravel_pytree(down.trial), ravel_pytree(down.point)
    found, gain = jet_and_gain(term, trial, point)
    information: Information | Empty = Empty()
    if isinstance(down.basis, jax.Array):
        information = information_jet(term, down.trial, trial, down.basis)
    up = Up(
        found.value,
        gain,
        jnp.sum(batch.mask, dtype=float),
        down.frame.T @ found.gradient,
        down.frame.T @ found.hessian @ down.frame,
        information,
    )
    good = tree.is_finite(up)
    refused = jax.tree.map(jnp.zeros_like, up)._replace(gain=jnp.asarray(_BAD), rows=up.rows)
    up = tree.where(good, up, refused)
    return up, -up.value


def _server(settings: Settings, key, state: State, aggregate: Aggregate) -> tuple[State, Info]:
    complete = (state.clients == 0) | (aggregate.count > state.clients - 0.5)
    first, later = partial(_started, settings), partial(_stepped, settings)

    def step(state, sums, clients):
        return jax.lax.cond(state.round == 0, first, later, state, sums, clients)

    new = in_double(step)(state, aggregate.weighted, aggregate.weight)
    state = tree.where(complete, new, state)
    numbers = (state.climb.accepted & complete, state.settled, ~complete)
    return state, Info(state.log_likelihood, *(value.astype(float) for value in numbers))


def _started(settings: Settings, state: State, sums: Up, clients: Float[Array, ""]) -> State:
    """The start, from the sums of the first round."""
    coordinates, effects = settings.coordinates, len(state.unit)
    flat, _ = ravel_pytree(state.phi)
    shared, entry = flat.size, flat.size + coordinates.diagonal(effects)
    of = Moments(
        sums.value,
        sums.rows,
        sums.gradient[:shared],
        sums.hessian[:shared, :shared],
        sums.hessian[entry, entry],
    )
    found = start(of, flat, jnp.asarray(named(state.phi, "log_scale")), clients)
    deviation = _START * found.spread / jnp.sqrt(found.mean_square)
    entries = coordinates.from_deviations(deviation, found.unit)
    point = jnp.concatenate([found.phi, entries])
    frame = jnp.eye(len(point)).at[:shared, :shared].set(found.frame)
    scales = default_scales(state.phi, found.per_weight, found.spread, found.mean_square)
    basis = state.basis
    if isinstance(basis, jax.Array):
        beta, _ = coefficients_of(Theta(state.phi, entries))
        basis = found.frame[np.ix_(beta, beta)]
    return state._replace(
        climb=begin(point, frame),
        unit=found.unit,
        scales=scales,
        variance=found.variance,
        basis=basis,
        round=state.round + 1,
    )


def _stepped(settings: Settings, state: State, sums: Up, clients: Float[Array, ""]) -> State:
    """A step of Newton's method, with what the prior and REML add to the sums."""
    coordinates, at, first = settings.coordinates, state.climb, state.round == 1
    prior = jet(partial(_log_prior_at, settings, state), at.trial)
    theta = theta_of(state, coordinates, at.trial)
    restriction = _restriction(theta, state.basis, sums.information, len(at.point))
    added = jax.tree.map(jnp.add, prior, restriction)
    before = state.log_prior + state.restriction
    step = climb(
        at,
        sums.gain + jnp.where(first, 0.0, added.value - before),
        sums.gradient + at.frame.T @ added.gradient,
        sums.hessian + at.frame.T @ added.hessian @ at.frame,
        first=first,
        limited=jnp.asarray(limited(state.phi, coordinates, len(state.unit))),
    )

    def newest(new, old):
        return jnp.where(step.accepted, new, old)

    return state._replace(
        climb=step,
        value=newest(sums.value, state.value),
        restriction=newest(restriction.value, state.restriction),
        log_prior=newest(prior.value, state.log_prior),
        rows=sums.rows,
        round=state.round + 1,
    )


def _log_prior_at(settings: Settings, state: State, flat: Float[Array, " k"]) -> Float[Array, ""]:
    theta = theta_of(state, settings.coordinates, flat)
    model, coordinates = settings.model, settings.coordinates
    return log_prior(model, coordinates, settings.prior, theta, state.unit, state.scales)


def _restriction(theta: Theta, basis: Array | Empty, of: Information | Empty, size: int) -> Jet:
    """-1/2 log det X'V^-1 X + p/2 log 2 pi, with derivatives: what REML adds."""
    zero = Jet(jnp.zeros(()), jnp.zeros(size), jnp.zeros((size, size)))
    if isinstance(of, Empty) or isinstance(basis, Empty):
        return zero
    _, others = coefficients_of(theta)
    inverse = jnp.linalg.inv(of.value)
    each = jnp.einsum("ij,jkm->ikm", inverse, of.first)
    curvature = jnp.einsum("ij,jimn->mn", inverse, of.second)
    curvature -= jnp.einsum("ijm,jin->mn", each, each)
    log_det = jnp.linalg.slogdet(of.value)[1] - 2 * jnp.linalg.slogdet(basis)[1]
    return Jet(
        len(of.value) * jnp.log(2 * jnp.pi) / 2 - log_det / 2,
        zero.gradient.at[others].set(-jnp.einsum("iim->m", each) / 2),
        zero.hessian.at[np.ix_(others, others)].set(-curvature / 2),
    )


def _points(settings: Settings, key, state: State, count: int) -> Float[Array, "draws k"]:
    """Draws of theta from the Gaussian distribution at the mode."""
    spread = spread_of(state, settings.coordinates)
    noise = jax.random.normal(key, (count, len(spread)), spread.dtype)
    return state.climb.point + noise @ spread.T


def client_draws(settings: Settings, state: State, points: Float[Array, "draws k"]):
    """Draws of a client's effects, given draws of the shared parameters.

    Args:
        settings: Those of the method.
        state: The published state.
        points: Draws of the flattened theta, e.g. from `Law.points`.

    Returns:
        (key, data) -> effects, one draw for each point.
    """
    theta = theta_of(state, settings.coordinates, state.climb.point)

    def draw(key, data: Shard) -> Float[Array, "draws q"]:
        drawn = in_double(partial(draws_of_effects, settings.model, settings.coordinates))
        keys = jax.random.split(key, len(points))
        return drawn(theta, state.unit, keys, points, client_rows(data))

    return draw


def _paired(settings: Settings, key, state: State, data: Shard, count: int) -> Personal:
    """Draws of theta and of the client's effects given them."""
    for_theta, for_effects = jax.random.split(key)
    points = _points(settings, for_theta, state, count)
    if not len(state.unit):
        return Personal(points, jnp.zeros((count, 0), points.dtype))
    return Personal(points, client_draws(settings, state, points)(for_effects, data))


def _adapt(settings: Settings, key, state: State, data: Shard) -> Personal:
    return _paired(settings, key, state, data, settings.predictive_draws)


def _predict(settings: Settings, key, state: State, personal: Personal, x: PyTree) -> Predictive:
    def one(flat, z):
        phi = theta_of(state, settings.coordinates, flat).phi
        return settings.model.predictive(phi, z, x)

    return average_of(jax.vmap(one)(personal.theta, personal.effects))


def _client_draws(
    settings: Settings, key, state: State, personal: Personal, data: Shard, count: int
) -> PyTree:
    pairs = _paired(settings, key, state, data, count)
    describe = settings.model.describe
    if describe is None:
        return pairs.effects
    return jax.vmap(lambda flat, z: describe(theta_of(state, settings.coordinates, flat).phi, z))(
        pairs.theta, pairs.effects
    )


def _check_options(
    estimate: str,
    covariance: str,
    prior: object,
    nodes: int | None,
    draws: int,
    predictive_draws: int,
) -> None:
    for name, value, known in (
        ("estimate", estimate, ("ml", "reml", "posterior")),
        ("covariance", covariance, ("full", "diagonal")),
    ):
        if value not in known:
            raise ValueError(f"marginal: {name} must be one of {', '.join(known)}, got {value!r}")
    if isinstance(prior, (int, float)):
        if not 0 < prior < float("inf"):
            raise ValueError(
                f"marginal: prior is the standard deviation of the weights and must be above 0, "
                f"got {prior:g}"
            )
    elif prior is not None and not callable(prior):
        raise ValueError(
            "marginal: prior is None, a standard deviation of the weights, or a function of the "
            f"described parameters, got {type(prior).__name__}"
        )
    if prior is not None and estimate == "reml":
        raise ValueError("marginal: REML has no prior; use estimate='ml' or 'posterior' with one")
    for name, value, least in (
        ("nodes", nodes, 1),
        ("draws", draws, 100),
        ("predictive_draws", predictive_draws, 1),
    ):
        if value is not None and value < least:
            raise ValueError(f"marginal: {name} must be at least {least}, got {value}")


def _check_fit(settings: Settings, phi: PyTree, effects: Array, spec: Spec) -> None:
    """Errors and warnings for data that do not fit the model."""
    model, count = settings.model, len(effects)
    entries = settings.coordinates.size(count)
    size = ravel_pytree(phi)[0].size + entries
    if count > MOST_EFFECTS:
        raise ValueError(
            f"marginal: {model.name} has {count} effects, and up to {MOST_EFFECTS} can be "
            "integrated out; give fewer slopes, or use fedpop"
        )
    if size > MOST_PARAMETERS:
        raise ValueError(
            f"marginal: {model.name} has {size} parameters, and clients send a matrix with the "
            f"square of their number; it is for up to {MOST_PARAMETERS}. Use fedpop, or fedavg"
        )
    nodes = settings.nodes
    if nodes is not None and count and nodes**count > MOST_POINTS:
        raise ValueError(
            f"marginal: {nodes} nodes for each of {count} effects make a grid of {nodes**count} "
            f"points, and at most {MOST_POINTS} are allowed; take fewer, or nodes=1 (Laplace)"
        )
    if not isinstance(effects, jax.core.Tracer) and np.any(np.asarray(effects)):
        raise ValueError(
            f"marginal: the effects of {model.name} do not start at 0, and marginal takes their "
            "mean to be 0; use fedpop, whose effects have a mean"
        )
    rows = jax.tree.map(lambda s: jax.ShapeDtypeStruct((1, *s.shape), s.dtype), spec.rows)
    if settings.estimate == "reml" and not is_linear_gaussian(model, phi, count, rows):
        raise ValueError(
            f"marginal: REML is for linear models with Gaussian noise, and {model.name} is none; "
            "use estimate='ml'"
        )
    if count and spec.clients is not None and spec.clients <= entries:
        warnings.warn(
            f"marginal: {spec.clients} clients say little about {entries} parameters of the "
            "covariance of their effects; use covariance='diagonal', fewer slopes, a model "
            "without effects, or estimate='posterior' with a prior that you believe",
            stacklevel=2,
        )


def _need_everyone(plan: Plan) -> None:
    """An error where some clients are left out of a round, or uploads are changed on the way."""
    for t in range(5):
        cohort = plan.sampler.sample(jax.random.key(t), t)
        there, weight = np.asarray(cohort.mask), np.asarray(cohort.weight)
        together = np.unique(np.asarray(cohort.index)[there]).size
        everyone = together == len(plan.counts) and np.allclose(weight[there], 1.0)
        if there.any() and not everyone:
            raise ValueError(
                f"marginal adds up exact terms of all {len(plan.counts)} clients in every round, "
                f"and this cohort has {together} of them; leave cohort= out, or use fedpop"
            )
    if plan.omega != 0:
        raise ValueError(
            "marginal adds up exact terms of all clients, and this channel changes what they "
            "send; leave channel= out: an upload is a small matrix"
        )
