"""FedPop: mixed-effects federated learning (FedSOUK; with a Langevin kernel, FedSOUL).

Kotelevskii, Vono, Moulines and Durmus (2022), "FedPop: a Bayesian approach for personalised
federated learning", algorithm 1. Client i has random effects z_i ~ p(z | beta) of its own; all
share phi. Empirical Bayes maximises

    log p(phi, beta | D) = log p(phi) + log p(beta) + sum_i log integral of p(D_i | phi, z) p(z |
    beta) dz

by stochastic approximation with Fisher's identity:

    client:  Z_1 .. Z_M from a Markov kernel for p(z | D_i, phi, beta), started where its last round ended
             I_i = mean_m grad_beta log p(Z_m | beta),    J_i = mean_m grad_phi log p(D_i | Z_m, phi)
    server:  beta = Proj[beta + eta_1 (grad log p(beta) + sum_i w_i I_i)],  phi = phi + eta_2 (grad log p(phi) + sum_i w_i J_i)

w_i is the inverse participation probability, or the paper's b / |A|: the same for cohorts of a
fixed size drawn uniformly. The steps eta are those of any Optax optimisers. The sums grow with the
number of clients and so must plain SGD's step shrink; Adam's does not depend on it. The laws p(z |
beta) are those of `models.effects`. An energy's gradient lacks the term of its normaliser, which
needs no data: the server adds it.

A client predicts by averaging over its last M draws. One that never took part runs the kernel with
phi and beta as they are; with no rows it draws from p(z | beta).

The same gradient by beta has another form, with effects as z = T(beta, u) and u of a law without
parameters ("non-centred"): I_i = mean_m grad_beta log p(D_i | T(beta, U_m), phi). Its variance does
not grow as effects get small, where that of the form above, (Z - mean) / sigma^2 for a Gaussian,
has no bound; where clients have many rows the first form is the better one.

With many rows a client and few rounds, one step of phi a round is little. With `phi_rate` r a
client takes its draws and then walks once through minibatches of its rows, phi moving along: J_i is
the sum of the gradients on the way,

    phi_i = phi_i + r mean_m sum over a minibatch of grad_phi log p(row | Z_m, phi_i),    J_i = (phi_i - phi) / r

For r -> 0 this is J_i as above. The server takes the mean of phi_i - phi for its descent, so that
SGD with step 1 averages the phi_i, as FedRep does. This is our addition: the paper's algorithm
takes one step of phi a round.

With little noise and few rows a client's effects fit its rows whatever phi is, and phi hardly
moves. `anneal` starts from a flatter likelihood, p(D_i | phi, z)^(1/T), which for Gaussian noise is
more noise, and lets T fall to 1.

Example:
    method = covey.fedpop(covey.models.mixed_linear(slopes="all"), step_size=0.01, draws=10)
"""

import warnings
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from covey.algorithms.averaging import Info
from covey.core.algorithm import Algorithm, Empty, Local, Posterior, keep
from covey.core.shard import all_rows, batches_of
from covey.kernels.descent import walk
from covey.kernels.kernel import Kernel, Target, chain
from covey.kernels.langevin import ula
from covey.models.effects import Law, gaussian
from covey.models.mixed import MixedModel, averaged


class Population(NamedTuple):
    """theta = (phi, beta): shared parameters, and the law of the effects. Gradients for it have the
    same shape.
    """

    phi: PyTree
    beta: PyTree


class State(NamedTuple):
    """theta, the memories of the two server optimisers, the particles of a law's normaliser, and
    two numbers.

    clients: how many there are; zero where that is not known.
    """

    theta: Population
    phi_optimizer: PyTree
    beta_optimizer: PyTree
    particles: PyTree
    clients: Float[Array, ""]
    round: Int[Array, ""]


class Down(NamedTuple):
    """What clients are sent: theta, and how flat the likelihood is at this round."""

    theta: Population
    temperature: Float[Array, ""]


class Personal(NamedTuple):
    """A client's newest draws of its random effects, in the order of the chain, and the kernel's
    memory.
    """

    draws: Float[Array, "draws effects"]
    memory: PyTree


def fedpop(
    model: MixedModel,
    *,
    step_size: float,
    draws: int = 10,
    burn_in: int = 0,
    kernel: Kernel | None = None,
    effects: Law | None = None,
    centred: bool = True,
    scaling: Literal["inverse_probability", "ratio"] = "inverse_probability",
    phi_rate: float | None = None,
    batch_size: int | None = None,
    phi_optimizer: optax.GradientTransformation | None = None,
    beta_optimizer: optax.GradientTransformation | None = None,
    phi_prior: float | None = None,
    beta_prior: float | None = None,
    anneal: tuple[float, int] | None = None,
    adapt_burn_in: int = 200,
) -> Algorithm:
    """FedPop: shared parameters, random effects for each client, and their posterior (default
    kernel: ULA, that is FedSOUL).

    Args:
        model: a likelihood p(y | x, phi, z).
        step_size: of the kernel.
        draws: M, those a client keeps and learns from at each round.
        burn_in: transitions before these, at each round.
        kernel: a sampler of `covey.kernels`.
        effects: the law of the effects, from `covey.models.effects`; by default a Gaussian with a
            deviation for each effect.
        centred: which of the two forms of the gradient by beta; False for effects that are small or
            hardly known from the rows.
        scaling: of the clients' sum, by inverse participation probabilities or by b / |A|.
        phi_rate: the step of phi at a client, for a row, along a pass over its rows; None sends the
            gradient at phi.
        batch_size: of the minibatches of that pass; None takes all rows at once, which is one step.
        phi_optimizer: the server's for phi; by default Adam with step 0.01 and b2 0.95, with a
            phi_rate SGD with step 1.
        beta_optimizer: the same for beta.
        phi_prior: the standard deviation of a Gaussian prior with mean zero on every number of phi;
            None is flat.
        beta_prior: the same for beta, where deviations count by their logarithm.
        anneal: (T, rounds): the temperature of the likelihood falls from T to 1 in so many rounds,
            by a constant factor each.
        adapt_burn_in: transitions before the draws of a client that never took part.
    """
    _check_options(
        {
            "step_size": step_size,
            "phi_rate": phi_rate,
            "phi_prior": phi_prior,
            "beta_prior": beta_prior,
        },
        {
            "draws": (draws, 1),
            "burn_in": (burn_in, 0),
            "adapt_burn_in": (adapt_burn_in, 0),
            "batch_size": (1 if batch_size is None else batch_size, 1),
        },
    )
    if batch_size is not None and phi_rate is None:
        raise ValueError(
            "fedpop: batch_size is of the pass that phi_rate asks for; give both, or neither"
        )
    if scaling not in ("inverse_probability", "ratio"):
        raise ValueError(
            f"fedpop: scaling must be 'inverse_probability' or 'ratio', got {scaling!r}"
        )
    if anneal is not None and not (anneal[0] >= 1 and anneal[1] >= 1):
        raise ValueError(
            f"fedpop: anneal is a temperature of at least 1 and a number of rounds, got {anneal}"
        )
    if model.law is not None and effects is not None:
        raise ValueError(
            f"fedpop: {model.name} has a law of its effects of its own; leave effects= out"
        )
    if model.law is not None and phi_rate is not None:
        raise ValueError(
            f"fedpop: phi of {model.name} has the law of its effects in it, whose gradient has no rows to pass over; "
            "leave phi_rate= out"
        )
    law = model.law or effects or gaussian()
    if (model.law is not None or not law.learned) and not (
        beta_optimizer is None and beta_prior is None
    ):
        raise ValueError(
            "fedpop: this law of the effects has no parameters to learn; leave beta_optimizer= and beta_prior= out"
        )
    if not centred and (law.transport is None or not law.learned):
        raise ValueError(
            "fedpop: centred=False needs a Gaussian law of the effects that is learned, models.gaussian()"
        )
    transition = ula() if kernel is None else kernel
    # Gradients are huge where a fit begins far off; a short memory of their squares forgets that in
    # time.
    usual = optax.adam(0.01, b2=0.95)
    phi_ascent = phi_optimizer or (usual if phi_rate is None else optax.sgd(1.0))
    beta_ascent = beta_optimizer or usual

    def sample(key, down, data, start, memory, *, burn_in, draws):
        posterior = Target(
            log_prior=lambda z: law.log_density(of_law(model, down.theta), z),
            log_likelihood=lambda z, rows: (
                model.log_likelihood(down.theta.phi, z, rows) / down.temperature
            ),
            data=data,
        )
        return Personal(
            *chain(
                key,
                transition,
                posterior,
                start,
                memory,
                step_size=step_size,
                burn_in=burn_in,
                draws=draws,
            )
        )

    def init(key, spec):
        if scaling == "ratio" and spec.clients is None:
            raise ValueError(
                "fedpop: scaling='ratio' needs the number of clients, Spec.clients; or use 'inverse_probability'"
            )
        network, others, particles = jax.random.split(key, 3)
        # One key for both: the body and the head of a network should be of the same draw.
        phi, start = model.init(network, spec), model.init_effects(network, spec)
        _name_limit(model, phi, start)
        theta = Population(phi, Empty() if model.law is not None else law.init(others, start, spec))
        return State(
            theta,
            phi_ascent.init(phi),
            beta_ascent.init(theta.beta) if law.learned else Empty(),
            Empty() if law.normaliser is None else law.normaliser.init(particles, theta.beta),
            clients=jnp.asarray(spec.clients or 0, float),
            round=jnp.int32(0),
        )

    def temperature(state):
        if anneal is None:
            return jnp.ones(())
        first, rounds = anneal
        return first ** jnp.maximum(1 - state.round / rounds, 0.0)

    def init_client(key, down, data):
        start = law.start(of_law(model, down.theta))
        return Personal(jnp.tile(start, (draws, 1)), transition.init(start))

    def fit(phi, effects, batch):
        """The log-likelihood of some rows, the mean over draws of the effects."""
        terms = jax.vmap(lambda z: model.log_likelihood(phi, z, batch.rows))(effects)
        return jnp.sum(jnp.where(batch.mask, terms, 0.0)) / draws

    def along(key, down, effects, data, rate):
        """The gradient by phi, summed along a pass over the rows."""

        def step(phi, batch):
            return jax.tree.map(
                lambda p, s: p + rate / down.temperature * s,
                phi,
                jax.grad(fit)(phi, effects, batch),
            )

        start = down.theta.phi
        end = walk(key, data, batch_size, 0, batches_of(data, batch_size)[1], step, start)
        return jax.tree.map(lambda p, q: (p - q) / rate, end, start)

    def client(key, down, personal, data):
        # Two keys only where they are needed: random numbers of other runs stay as they are.
        key, key_along = (key, key) if phi_rate is None else jax.random.split(key)
        personal = sample(
            key, down, data, personal.draws[-1], personal.memory, burn_in=burn_in, draws=draws
        )
        every = all_rows(data)

        def log_joint(theta):
            if law.transport is not None and not centred:
                found = fit(
                    theta.phi,
                    jax.vmap(partial(law.transport, down.theta.beta, theta.beta))(personal.draws),
                    every,
                )
                return found / down.temperature, found
            found = fit(theta.phi, personal.draws, every)
            log_prior = jnp.mean(
                jax.vmap(lambda z: law.log_density(of_law(model, theta), z))(personal.draws)
            )
            return found / down.temperature + log_prior, found

        slope, found = jax.grad(log_joint, has_aux=True)(down.theta)
        steps = jnp.asarray(burn_in + draws)
        if phi_rate is not None:
            slope = slope._replace(phi=along(key_along, down, personal.draws, data, phi_rate))
            steps += batches_of(data, batch_size)[1]
        info = Info(-found / jnp.maximum(data.count, 1), steps)
        return Local(slope if law.learned else slope._replace(beta=Empty()), personal, info)

    def server(key, state, aggregate):
        theta = state.theta
        if scaling == "ratio":
            slope = jax.tree.map(lambda s: s * state.clients / aggregate.count, aggregate.plain)
            clients = state.clients
        else:
            slope, clients = aggregate.weighted, aggregate.weight
        phi_slope, beta_slope, particles = slope.phi, slope.beta, state.particles
        if model.log_prior is not None:
            phi_slope = jax.tree.map(jnp.add, phi_slope, jax.grad(model.log_prior)(theta.phi))
        if law.normaliser is not None:
            mean, particles = law.normaliser.gradient(key, theta.beta, particles)
            beta_slope = jax.tree.map(lambda s, m: s - clients * m, beta_slope, mean)
        unit = 1.0 if phi_rate is None else phi_rate / jnp.maximum(clients, 1.0)
        phi, phi_memory = _ascend(
            phi_ascent, phi_prior, phi_slope, state.phi_optimizer, theta.phi, unit
        )
        beta, beta_memory = theta.beta, state.beta_optimizer
        if law.learned:
            beta, beta_memory = _ascend(beta_ascent, beta_prior, beta_slope, beta_memory, beta, 1.0)
            beta = law.project(beta)
        return State(
            Population(phi, beta),
            phi_memory,
            beta_memory,
            particles,
            state.clients,
            state.round + 1,
        ), Empty()

    def predict(key, down, personal, x):
        return averaged(lambda z: model.predictive(down.theta.phi, z, x), personal.draws)

    def adapt(key, down, data):
        walk, prior = jax.random.split(key)
        start = law.start(of_law(model, down.theta))
        posterior = sample(
            walk, down, data, start, transition.init(start), burn_in=adapt_burn_in, draws=draws
        )
        from_prior = law.draws(prior, of_law(model, down.theta), draws)
        return posterior._replace(draws=jnp.where(data.count == 0, from_prior, posterior.draws))

    def more(key, down, personal, data, number):
        """A chain of its own from one of the draws that the client kept, in the terms of the model
        where it has such.
        """
        choose, walk, prior = jax.random.split(key, 3)
        start = personal.draws[jax.random.randint(choose, (), 0, draws)]
        chained = sample(
            walk, down, data, start, personal.memory, burn_in=burn_in, draws=number
        ).draws
        effects = jnp.where(
            data.count == 0, law.draws(prior, of_law(model, down.theta), number), chained
        )
        describe = model.describe
        return (
            effects
            if describe is None
            else jax.vmap(lambda z: describe(down.theta.phi, z))(effects)
        )

    return Algorithm(
        name="fedpop",
        init=init,
        init_client=init_client,
        broadcast=lambda state: Down(state.theta, temperature(state)),
        client=client,
        commit=keep,
        server=server,
        predict=predict,
        adapt=adapt,
        posterior=Posterior(client=more, axes=model.axes),
    )


def of_law(model: MixedModel, theta: Population) -> PyTree:
    """The parameters of the law of the effects: beta, but phi for a law that is the model's own."""
    return theta.beta if model.law is None else theta.phi


def _ascend(
    optimizer: optax.GradientTransformation,
    prior: float | None,
    slope: PyTree,
    memory: PyTree,
    at: PyTree,
    unit: float | Float[Array, ""],
) -> tuple[PyTree, PyTree]:
    """One step up the log-posterior; Optax descends, so it gets the negative gradient, times
    `unit`.
    """
    shrink = 0.0 if prior is None else 1 / prior**2
    down = jax.tree.map(lambda s, value: unit * (shrink * value - s), slope, at)
    updates, memory = optimizer.update(down, memory, at)
    return optax.apply_updates(at, updates), memory


def _check_options(positive: dict[str, float | None], least: dict[str, tuple[int, int]]) -> None:
    for name, value in positive.items():
        if value is not None and value <= 0:
            raise ValueError(f"fedpop: {name} must be above 0, got {value:g}")
    for name, (value, bound) in least.items():
        if value < bound:
            raise ValueError(f"fedpop: {name} must be at least {bound}, got {value}")


def _name_limit(model: MixedModel, phi: PyTree, z: Float[Array, " effects"]) -> None:
    """A split that leaves one side empty is another method; say which."""
    if not jax.tree.leaves(phi):
        warnings.warn(
            f"fedpop: {model.name} shares no parameters, only the law of the effects", stacklevel=2
        )
    if z.size == 0:
        warnings.warn(
            f"fedpop: {model.name} has no effects: this is FedSGD on the shared parameters",
            stacklevel=2,
        )
