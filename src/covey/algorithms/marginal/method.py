"""Maximum marginal likelihood and the marginal posterior of a mixed model, by sums over clients, in
about a dozen rounds.
"""

from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from covey.algorithms.marginal import answers, rounds
from covey.algorithms.marginal.checks import (
    NEEDS_SERVER,
    NOT_FINITE,
    check_options,
    check_prior,
    need_everyone,
)
from covey.algorithms.marginal.client import (
    answer_gains,
    answer_left_out,
    client_rows,
    draws_of_effects,
)
from covey.algorithms.marginal.fit import cautions, draw_law, fit_law, publish_law
from covey.algorithms.marginal.parameters import (
    Coordinates,
    Covariance,
    Estimate,
    LogPrior,
    Settings,
    as_mixed,
    described,
    labels_of,
)
from covey.algorithms.marginal.state import Published, spread_of, theta_of
from covey.core.algorithm import Algorithm, Approximation, Empty, Hooks, Posterior, keep
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
    draws: int = 1000,
    predictive_draws: int = 100,
    min_rows: int = 0,
) -> Algorithm:
    """Maximum likelihood, REML or the posterior of a mixed model, in about a dozen rounds.

    Client i has effects z_i ~ N(0, L L'). It integrates them out of its likelihood and sends

        l_i(theta) = log of the integral of p(D_i | phi, L b) N(b; 0, I) db

    with gradient and Hessian by theta = (phi, L). The server sums them and takes Newton steps; a
    step that does not gain is taken back, which costs a round. The first round finds where to
    start. All clients must take part in every round: a round in which one is missing is repeated,
    and a run without `rounds=` ends after a few of these, with a warning that names the client.
    The estimates are those of pooled data; with `nodes=1` they are those of lme4. Columns may have
    any units. Clients with a linear Gaussian model keep cross products of their rows, so that later
    rounds cost nothing in rows. Fits of data of the same shapes with equal settings share compiled
    programs: a second one takes a fraction of a second. Without `rounds=`, a run ends once the
    maximum is found (`run.metrics["settled"]`), or with a warning after 100 rounds without one.
    `run.posterior.shared` then is

        "ml", "reml"   the Gaussian distribution at the maximum with the inverse Hessian;
                       `.law.table()` has estimates and standard errors, `.law.aic`, `.law.bic`;
                       `.law.compare(smaller.law)` is a likelihood-ratio test
        "posterior"    the posterior: points of a Student t distribution around the mode, weighted
                       by the exact posterior density, which takes one round. Pareto smoothing tells
                       how good that is (`.law.k_hat`); above 0.5, or with too few effective draws,
                       the points are moved and more are asked for, up to four times.
                       `.law.leave_one_client_out()` is a predictive measure to compare models by

    `run.posterior.client(name)` has the client's own coefficients, and predictions average over
    them, the uncertainty of theta included. Parameters are called as in lme4: `intercept`,
    `weights`, `noise`, and the standard deviations `sd` and correlations `cor` of the effects.

    What messages reveal: a client's value, gradient and Hessian say more about its rows than a
    gradient alone. A client with few rows and a linear model can be solved for cross products of
    its rows; its likelihood at many points says as much. Sums over many clients say much less, and
    are all that the server uses: let them be summed securely where the server is not trusted, and
    use `min_rows` to keep clients with very few rows out. There is no privacy accounting.

    Without a server (engine="peers") there are no sums over all clients, and it is refused; the
    error says what runs between peers instead.

    Args:
        model: A mixed model with up to 10 effects, e.g. `covey.models.mixed_logistic()`, or a
            NumPyro model with a plate over clients, whose own law of the effects is integrated; or
            a model without effects, e.g. `covey.models.logistic()` or a NumPyro model without a
            plate, whose likelihood is then pooled.
        estimate: "ml" maximises the marginal likelihood; "reml" corrects its bias of the variances
            (Gaussian linear models only); "posterior" gives the posterior of all parameters.
        covariance: Of the effects: "full", or "diagonal" for independent ones.
        prior: None, a value, or a function. None is flat for "ml" and
            "reml". For "posterior" it is weakly informative: intercept and log noise flat; a weight
            N(0, (2.5 s)^2), s the standard error that one average row would give; deviations of
            effects half Student t with 3 degrees of freedom and a scale of 2.5 units of the linear
            predictor (the noise, or 1 for logistic and Poisson models, over the root mean square of
            the column); correlations LKJ(2). A value is the standard deviation of a Gaussian prior
            of each weight, in the units of the data, in place of these. A function is the log
            density of all described parameters: a dictionary with `intercept`, `weights`, `noise`,
            `sd`, `cor`. A NumPyro model has its own prior, which "ml" does not use.
        nodes: Quadrature nodes per effect; 1 is Laplace's method. Default: 9, 7 or 5 for one, two
            or three effects, and 1 beyond. A Gaussian linear model is integrated exactly.
        draws: Independent draws that the posterior's points are to be worth; for "posterior" only.
            A client sends half as many values again, more only where these are too few.
        predictive_draws: Draws that a prediction averages over.
        min_rows: Smallest count of rows with which a client takes part in the fit. One with fewer
            sends zeros, and only its own predictions use its rows. Default: 0.

    Returns:
        A method for `covey.run`.

    Example:
        >>> import covey
        >>> import numpy as np
        >>> random, clients = np.random.default_rng(0), {}
        >>> for i in range(30):
        ...     x, own = random.normal(size=(6, 1)), random.normal()
        ...     clients[str(i)] = x, 2 * x[:, 0] + own + random.normal(size=6)
        >>> data = covey.FederatedData.from_clients(clients, features=["dose"])
        >>> run = covey.run(covey.marginal(covey.models.mixed_linear()), data, progress=False)
        >>> run.posterior.shared.law.table()["estimate"].round(1).to_dict()
        {'intercept': -0.1, 'weights[dose]': 2.0, 'noise': 1.0, 'sd[intercept]': 0.8}

    Reference: Pinheiro and Bates (1995), Approximations to the log-likelihood function in the
    nonlinear mixed-effects model; Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed
    importance sampling.

    Departures from the papers: these are for pooled rows; here each client computes its term of the
    likelihood and the server takes Newton steps on the sums.
    """
    check_options(estimate, covariance, prior, nodes, draws, predictive_draws, min_rows)
    mixed = as_mixed(model)
    check_prior(mixed, prior)
    kind = covariance if mixed.law is None else "model"
    coordinates = Coordinates(kind, positive=estimate == "posterior")
    settings = Settings(
        mixed, coordinates, estimate, prior, nodes, draws, predictive_draws, min_rows
    )
    return _algorithm(settings, isinstance(model, MixedModel))


@lru_cache(maxsize=64)  # equal methods are one object, so that runs share compiled programs
def _algorithm(settings: Settings, has_effects: bool) -> Algorithm:
    mixed, estimate = settings.model, settings.estimate
    return Algorithm(
        name="marginal",
        init=partial(rounds.init, settings),
        broadcast=partial(rounds.broadcast, settings),
        server=partial(rounds.server, settings),
        init_client=partial(answers.init_client, settings),
        client=partial(answers.client, settings),
        commit=keep,
        predict=partial(_predict, settings),
        adapt=partial(_adapt, settings),
        publish=Published,
        posterior=Posterior(
            shared=Approximation(
                partial(fit_law, settings),
                draw_law,
                queries={
                    "gains": partial(answer_gains, settings),
                    "leave_out": partial(answer_left_out, settings),
                },
                publish=publish_law if estimate == "posterior" else None,
            ),
            client=partial(_client_draws, settings) if has_effects else None,
            axes=partial(labels_of, mixed),
            averaged_over=lambda count: _algorithm(
                settings._replace(predictive_draws=count), has_effects
            ),
        ),
        hooks=Hooks(
            fixed_shapes=True,
            validate=need_everyone,
            diagnose=lambda down, data: NOT_FINITE,
            adapt_before_evaluation=True,
            unsettled=rounds.unsettled,
            given_up=rounds.given_up,
            waiting=lambda state: int(state.waited),
            cautions=partial(cautions, settings),
            needs_server=NEEDS_SERVER,
        ),
    )


def _points(settings: Settings, key, published: Published, count: int) -> Float[Array, "draws k"]:
    """Draws of theta: from the posterior, or from the Gaussian distribution at the maximum."""
    if not isinstance(published.points, Empty):
        index = jax.random.randint(key, (count,), 0, len(published.points))
        return published.points[index]
    spread = spread_of(published.state, settings.coordinates)
    noise = jax.random.normal(key, (count, len(spread)), spread.dtype)
    return published.state.climb.point + noise @ spread.T


def _paired(settings: Settings, key, published: Published, data: Shard, count: int) -> Personal:
    """Draws of theta, and of the client's effects given them.

    A pair of keys is one for theta and one for the effects: clients that have the first in common
    get the same draws of theta, in the same order.
    """
    for_theta, for_effects = key if key.ndim else jax.random.split(key)
    points = _points(settings, for_theta, published, count)
    state = published.state
    if not len(state.unit):
        return Personal(points, jnp.zeros((count, 0), points.dtype))
    theta = theta_of(state, settings.coordinates, state.climb.point)
    drawn = in_double(draws_of_effects, settings)
    return Personal(points, drawn(theta, state.unit, for_effects, points, client_rows(data)))


def _adapt(settings: Settings, key, published: Published, data: Shard) -> Personal:
    return _paired(settings, key, published, data, settings.predictive_draws)


def _predict(
    settings: Settings, key, published: Published, personal: Personal, x: PyTree
) -> Predictive:
    def one(flat, z):
        phi = theta_of(published.state, settings.coordinates, flat).phi
        return settings.model.predictive(phi, z, x)

    return mixture_of(jax.vmap(one)(personal.theta, personal.effects))


def _client_draws(
    settings: Settings,
    key,
    published: Published,
    personal: Personal | Empty,
    data: Shard,
    count: int,
) -> PyTree:
    pairs = _paired(settings, key, published, data, count)
    describe = settings.model.describe
    if describe is None:
        return pairs.effects
    state, coordinates = published.state, settings.coordinates

    def one(flat, z):
        theta = theta_of(state, coordinates, flat)
        own = describe(theta.phi, z)
        # Draws that go with those of other clients have all shared parameters.
        together = described(settings.model, coordinates, theta, state.unit) if key.ndim else {}
        return together | own

    return jax.vmap(one)(pairs.theta, pairs.effects)
