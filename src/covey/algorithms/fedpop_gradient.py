"""The gradient of FedPop's marginal likelihood by Fisher's identity: a client's, and the sum."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from covey.algorithms.fedpop_additions import non_centred
from covey.algorithms.fedpop_sampler import Down, Personal
from covey.algorithms.joint import Joint, Population
from covey.core.algorithm import Aggregate
from covey.core.shard import Shard, all_rows


def client_gradient(
    joint: Joint, down: Down, draws: Float[Array, "draws effects"], data: Shard, *, centred: bool
) -> tuple[Population, Float[Array, ""]]:
    """(J_i, I_i) by Fisher's identity, and the log-likelihood averaged over the draws."""
    every = all_rows(data)

    def log_joint(theta):
        z = draws if centred else non_centred(joint, down.theta, theta, draws)
        fit = joint.mean_log_rows(theta, z, every)
        if not centred:
            return fit / down.temperature, fit
        log_effects = jnp.mean(jax.vmap(lambda z: joint.log_effects(theta, z))(z))
        return fit / down.temperature + log_effects, fit

    return jax.grad(log_joint, has_aux=True)(down.theta)


def moving_gradient(
    joint: Joint, down: Down, personal: Personal, data: Shard
) -> tuple[Population, Float[Array, ""]]:
    """The same gradient with effects that move along with theta (see `Joint.log_moving`), which has
    a much smaller Monte Carlo error; for draws of the kernel `independence`, which knows the mode.
    """
    theta, every = down.theta, all_rows(data)
    response = joint.response(theta, personal.memory.around, every)

    def log_joint(new):
        each = jax.vmap(lambda z: joint.log_moving(new, theta, response, z, every))
        return jnp.mean(each(personal.draws))

    return jax.grad(log_joint)(theta), joint.mean_log_rows(theta, personal.draws, every)


def sum_over_clients(
    scaling: str, clients: Float[Array, ""], aggregate: Aggregate
) -> tuple[Population, Float[Array, ""]]:
    """The gradient summed over all clients as the cohort estimates it, and their number."""
    if scaling == "ratio":
        ratio = clients / aggregate.count
        return jax.tree.map(lambda g: g * ratio, aggregate.plain), clients
    return aggregate.weighted, aggregate.weight


def completed(
    key: Key[Array, ""],
    joint: Joint,
    theta: Population,
    particles: PyTree,
    gradient: Population,
    clients: Float[Array, ""],
) -> tuple[Population, PyTree]:
    """The gradient with the terms that need no data: a model's prior, and the normaliser of a law
    whose density is known up to a constant.
    """
    model, law = joint
    phi, beta = gradient
    if model.log_prior is not None:
        phi = jax.tree.map(jnp.add, phi, jax.grad(model.log_prior)(theta.phi))
    if law.normaliser is not None:
        mean, particles = law.normaliser.gradient(key, theta.beta, particles)
        beta = jax.tree.map(lambda g, m: g - clients * m, beta, mean)
    return Population(phi, beta), particles
