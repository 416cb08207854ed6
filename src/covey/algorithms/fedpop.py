"""FedPop: mixed-effects federated learning (FedSOUK; with a Langevin kernel, FedSOUL).

Kotelevskii, Vono, Moulines and Durmus (2022), "FedPop: a Bayesian approach for personalised federated learning", algorithm 1.
Client i has random effects z_i ~ p(z | beta) of its own; all share phi. Empirical Bayes maximises

    log p(phi, beta | D) = log p(phi) + log p(beta) + sum_i log integral of p(D_i | phi, z) p(z | beta) dz

by stochastic approximation with Fisher's identity:

    client:  Z_1 .. Z_M from a Markov kernel for p(z | D_i, phi, beta), started where its last round ended
             I_i = mean_m grad_beta log p(Z_m | beta),    J_i = mean_m grad_phi log p(D_i | Z_m, phi)
    server:  beta = Proj[beta + eta_1 (grad log p(beta) + sum_i w_i I_i)],  phi = phi + eta_2 (grad log p(phi) + sum_i w_i J_i)

w_i is the inverse participation probability: with cohorts of a fixed size drawn uniformly, the paper's b / |A|. The steps eta
are those of any Optax optimisers. Here p(z | beta) is Gaussian, with a mean and a standard deviation for all effects or one
each; the projection keeps the deviations within bounds. The sums grow with the number of clients and so must plain SGD's
step shrink; Adam's does not depend on it.

A client predicts by averaging over its last M draws. One that never took part runs the kernel with phi and beta as they are;
with no rows it draws from p(z | beta).

Example:
    method = covey.fedpop(covey.models.mixed_linear(slopes="all"), step_size=0.01, draws=10)
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from covey.algorithms.fedavg import Info
from covey.core.algorithm import Algorithm, Empty, Local
from covey.core.shard import all_rows
from covey.kernels.langevin import Kernel, Posterior, chain, ula
from covey.models.measure import measure
from covey.models.mixed import MixedModel, averaged


class Effects(NamedTuple):
    """beta, the law of the random effects: Gaussian; one log standard deviation for all effects, or one for each."""

    mean: Float[Array, " effects"]
    log_scale: Float[Array, "*effects"]


class Population(NamedTuple):
    """theta = (phi, beta). Gradients for it have the same shape."""

    phi: PyTree
    beta: Effects


class State(NamedTuple):
    """theta, and the memories of the two server optimisers."""

    theta: Population
    phi_optimizer: PyTree
    beta_optimizer: PyTree


class Personal(NamedTuple):
    """A client's newest draws of its random effects, in the order of the chain."""

    draws: Float[Array, "draws effects"]


def fedpop(
    model: MixedModel,
    *,
    step_size: float,
    draws: int = 10,
    burn_in: int = 0,
    kernel: Kernel | None = None,
    prior: Literal["isotropic", "diagonal"] = "diagonal",
    initial_scale: float = 1.0,
    scale_bounds: tuple[float, float] = (1e-2, 1e2),
    phi_optimizer: optax.GradientTransformation | None = None,
    beta_optimizer: optax.GradientTransformation | None = None,
    phi_prior: float | None = None,
    beta_prior: float | None = None,
    adapt_burn_in: int = 200,
) -> Algorithm:
    """FedPop: shared parameters, random effects for each client, and their posterior (default kernel: ULA, that is FedSOUL).

    A client makes `burn_in` transitions of `kernel` with `step_size` a round, and `draws` more that it keeps and learns from.
    `phi_prior` and `beta_prior` are standard deviations of Gaussian priors with mean zero (beta: means and log deviations of the
    effects); None is flat. Optimisers default to Adam with step 0.01. A client that never took part makes `adapt_burn_in`
    transitions before its draws.
    """
    _check_options(
        {"step_size": step_size, "scale_bounds": scale_bounds[0], "phi_prior": phi_prior, "beta_prior": beta_prior},
        {"draws": (draws, 1), "burn_in": (burn_in, 0), "adapt_burn_in": (adapt_burn_in, 0)},
    )
    if prior not in ("isotropic", "diagonal"):
        raise ValueError(f"fedpop: prior must be 'isotropic' or 'diagonal', got {prior!r}")
    if not scale_bounds[0] <= initial_scale <= scale_bounds[1]:
        raise ValueError(f"fedpop: initial_scale must lie within scale_bounds {scale_bounds}, got {initial_scale:g}")
    transition = ula() if kernel is None else kernel
    phi_ascent = optax.adam(0.01) if phi_optimizer is None else phi_optimizer
    beta_ascent = optax.adam(0.01) if beta_optimizer is None else beta_optimizer

    def sample(key, theta, data, start, burn_in):
        posterior = Posterior(
            log_prior=lambda z: log_density(theta.beta, z),
            log_likelihood=lambda z, rows: model.log_likelihood(theta.phi, z, rows),
            data=data,
        )
        return chain(key, transition, posterior, start, step_size=step_size, burn_in=burn_in, draws=draws)

    def init(key, spec):
        shared, effects = jax.random.split(key)
        phi, mean = model.init(shared, spec), model.init_effects(effects, spec)
        scales = () if prior == "isotropic" else mean.shape
        beta = Effects(mean, jnp.full(scales, math.log(initial_scale), mean.dtype))
        return State(Population(phi, beta), phi_ascent.init(phi), beta_ascent.init(beta))

    def init_client(key, theta, data):
        return Personal(jnp.tile(theta.beta.mean, (draws, 1)))

    def client(key, theta, personal, data):
        z = sample(key, theta, data, personal.draws[-1], burn_in)
        rows, mask = all_rows(data)

        def log_prior(beta):
            return jnp.mean(jax.vmap(lambda one: log_density(beta, one))(z))

        def log_likelihood(phi):
            terms = jax.vmap(lambda one: model.log_likelihood(phi, one, rows))(z)
            return jnp.sum(jnp.where(mask, terms, 0.0)) / draws

        fit, phi_slope = jax.value_and_grad(log_likelihood)(theta.phi)
        info = Info(-fit / jnp.maximum(data.count, 1), jnp.asarray(burn_in + draws))
        return Local(Population(phi_slope, jax.grad(log_prior)(theta.beta)), Personal(z), info)

    def server(key, state, aggregate):
        phi, phi_memory = _ascend(phi_ascent, phi_prior, aggregate.weighted.phi, state.phi_optimizer, state.theta.phi)
        beta, beta_memory = _ascend(beta_ascent, beta_prior, aggregate.weighted.beta, state.beta_optimizer, state.theta.beta)
        low, high = (math.log(bound) for bound in scale_bounds)
        beta = beta._replace(log_scale=jnp.clip(beta.log_scale, low, high))
        return State(Population(phi, beta), phi_memory, beta_memory), Empty()

    def predict(key, theta, personal, x):
        return averaged(lambda z: model.predictive(theta.phi, z, x), personal.draws)

    def evaluate(key, theta, personal, data):
        return measure(lambda x: predict(key, theta, personal, x), data)

    def adapt(key, theta, data):
        from_prior = prior_draws(key, theta.beta, draws)
        from_posterior = sample(key, theta, data, theta.beta.mean, adapt_burn_in)
        return Personal(jnp.where(data.count == 0, from_prior, from_posterior))

    def newest(key, theta, personal, number):
        if not 1 <= number <= draws:
            raise ValueError(f"fedpop: a client keeps {draws} draws, asked for {number}; make the method with more draws")
        return personal.draws[-number:]

    return Algorithm(
        name="fedpop",
        init=init,
        init_client=init_client,
        broadcast=lambda state: state.theta,
        client=client,
        commit=lambda pending, sent: pending,
        server=server,
        evaluate=evaluate,
        predict=predict,
        adapt=adapt,
        draws=newest,
    )


def log_density(beta: Effects, z: Float[Array, " effects"]) -> Float[Array, ""]:
    """The log-density of random effects, log p(z | beta)."""
    return jnp.sum(jax.scipy.stats.norm.logpdf(z, beta.mean, jnp.exp(beta.log_scale)))


def prior_draws(key: Key[Array, ""], beta: Effects, number: int) -> Float[Array, "draws effects"]:
    """Random effects of clients about which nothing is known."""
    noise = jax.random.normal(key, (number, *beta.mean.shape), beta.mean.dtype)
    return beta.mean + jnp.exp(beta.log_scale) * noise


def _ascend(
    optimizer: optax.GradientTransformation, prior: float | None, slope: PyTree, memory: PyTree, at: PyTree
) -> tuple[PyTree, PyTree]:
    """One step up the log-posterior; Optax descends, so it gets the negative gradient."""
    shrink = 0.0 if prior is None else 1 / prior**2
    down = jax.tree.map(lambda s, value: shrink * value - s, slope, at)
    updates, memory = optimizer.update(down, memory, at)
    return optax.apply_updates(at, updates), memory


def _check_options(positive: dict[str, float | None], least: dict[str, tuple[int, int]]) -> None:
    for name, value in positive.items():
        if value is not None and value <= 0:
            raise ValueError(f"fedpop: {name} must be above 0, got {value:g}")
    for name, (value, bound) in least.items():
        if value < bound:
            raise ValueError(f"fedpop: {name} must be at least {bound}, got {value}")
