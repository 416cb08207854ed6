"""Maximum marginal likelihood and the marginal posterior of a mixed model, by sums over clients, in
about a dozen rounds.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from covey.algorithms import marginal_rounds as rounds
from covey.algorithms.marginal_checks import check_options, need_everyone
from covey.algorithms.marginal_law import draw_law, fit_law
from covey.algorithms.marginal_likelihood import client_rows, draws_of_effects
from covey.algorithms.marginal_parameters import Coordinates, Covariance, as_mixed, labels_of
from covey.algorithms.marginal_prior import LogPrior
from covey.algorithms.marginal_state import Estimate, Settings, State, spread_of, theta_of
from covey.core.algorithm import Algorithm, Approximation, Hooks, Posterior, no_state
from covey.core.shard import Shard
from covey.kernels.precision import in_double
from covey.models.mixed import MixedModel
from covey.models.model import Model
from covey.models.predictive import Predictive, mixture_of


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
    check_options(estimate, covariance, prior, nodes, draws, predictive_draws)
    mixed = as_mixed(model)
    coordinates = Coordinates(covariance, positive=estimate == "posterior")
    settings = Settings(mixed, coordinates, estimate, prior, nodes, draws, predictive_draws)
    has_effects = isinstance(model, MixedModel)
    return Algorithm(
        name="marginal",
        init=partial(rounds.init, settings),
        broadcast=partial(rounds.broadcast, settings),
        server=partial(rounds.server, settings),
        init_client=no_state,
        client=partial(rounds.client, settings),
        commit=no_state,
        predict=partial(_predict, settings),
        adapt=partial(_adapt, settings),
        publish=lambda state: state,
        posterior=Posterior(
            shared=Approximation(partial(fit_law, settings), draw_law),
            client=partial(_client_draws, settings) if has_effects else None,
            axes=partial(labels_of, mixed),
        ),
        hooks=Hooks(validate=need_everyone, adapt_before_evaluation=True),
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

    return mixture_of(jax.vmap(one)(personal.theta, personal.effects))


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
