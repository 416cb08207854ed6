"""FedPop: mixed-effects federated learning. FedSOUK, and with a Langevin kernel FedSOUL."""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from covey.algorithms import fedpop_checks as checks
from covey.algorithms.averaging import Info, optimizer_or
from covey.algorithms.fedpop_additions import RowPass, gradient_along_rows, temperature
from covey.algorithms.fedpop_by_itself import Wanted, by_itself
from covey.algorithms.fedpop_clients import Clients, with_any_draws
from covey.algorithms.fedpop_gradient import client_gradient, completed, sum_over_clients
from covey.algorithms.fedpop_mode import Priors
from covey.algorithms.fedpop_sampler import Down, Sampler
from covey.algorithms.joint import Joint, Population, joint_of
from covey.algorithms.louis import shared_posterior
from covey.core.algorithm import Aggregate, Algorithm, Empty, Hooks, Local, Posterior, keep
from covey.core.shard import Spec, batches_of
from covey.kernels.kernel import Kernel
from covey.kernels.langevin import ula
from covey.models.catalogue import need
from covey.models.effects import Law, gaussian
from covey.models.mixed import MixedModel

ANY_SCALE = (1e-20, 1e20)  # of deviations, in whatever units the effects have
_GAUSSIAN = gaussian(scale_bounds=ANY_SCALE)  # one object, so that runs share compiled programs


class State(NamedTuple):
    """The server's state.

    Attributes:
        theta: The shared parameters (phi, beta).
        phi_optimizer: The optimiser's memory for phi.
        beta_optimizer: The same for beta; empty where the law is not learned.
        particles: Particles of the law's normaliser; empty where its density is complete.
        average: The averaged iterate; empty where it is not asked for.
        clients: The number of clients; zero where that is not known.
        round: The number of rounds done.
    """

    theta: Population
    phi_optimizer: PyTree
    beta_optimizer: PyTree
    particles: PyTree
    average: Population | Empty
    clients: Float[Array, ""]
    round: Int[Array, ""]


def fedpop(
    model: MixedModel,
    *,
    step_size: float | optax.Schedule | None = None,
    draws: int | None = None,
    burn_in: int = 0,
    kernel: Kernel | None = None,
    effects: Law | None = None,
    phi_optimizer: optax.GradientTransformation | None = None,
    beta_optimizer: optax.GradientTransformation | None = None,
    phi_prior: float | None = None,
    beta_prior: float | None = None,
    phi_box: tuple[float, float] | None = None,
    phi_radius: float | None = None,
    scaling: Literal["inverse_probability", "ratio"] = "inverse_probability",
    average: float | None = None,
    adapt_burn_in: int = 200,
    predictive_draws: int | None = None,
    centred: bool = True,
    phi_rate: float | None = None,
    batch_size: int | None = None,
    anneal: tuple[float, int] | None = None,
) -> Algorithm:
    """FedPop: shared parameters, and random effects for each client with their posterior.

    Client i has effects z_i ~ p(z | beta); all clients share theta = (phi, beta). Empirical Bayes
    maximises

        log p(theta | D) = log p(phi) + log p(beta) + sum_i log int p(D_i | phi, z) p(z | beta) dz

    by stochastic approximation with Fisher's identity (FedSOUK; with the default kernel FedSOUL):

        client:  Z_1 .. Z_M from a Markov kernel for p(z | D_i, theta), from where it last ended
                 I_i = mean_m grad_beta log p(Z_m | beta)
                 J_i = mean_m grad_phi log p(D_i | Z_m, phi)
        server:  beta <- Proj[beta + eta_1 (grad log p(beta) + sum_i w_i I_i)]
                 phi  <- Proj[phi + eta_2 (grad log p(phi) + sum_i w_i J_i)]

    with w_i the inverse participation probability, or b / |A|, where b clients have a cohort A.

    Without a `step_size` there is nothing to set: FedPop finds the maximum of the marginal
    likelihood first, as `covey.marginal` does, starts there, draws the effects by
    `kernels.independence`, and takes steps in units of standard errors, so that columns may have
    any units. The effects then have mean zero, and phi are the coefficients of a typical client. A
    run without `rounds=` ends once the Monte Carlo error of every estimate is below 0.03 standard
    errors. This is for Gaussian effects, up to 10 of them, and up to 300 shared parameters; with
    the other options marked (step size) below, a `step_size` must be given.

    A client predicts with the average over draws of its effects, made anew under the newest theta;
    one without rows draws them from p(z | beta).

    The posterior of a client's effects is sampled by the kernel (`run.posterior.client(name)`).
    That of the shared parameters (`run.posterior.shared`) is the Gaussian at the estimate with the
    observed information of all clients and the priors given here: its `law` has the estimate and
    standard errors by name, its draws are in the terms of the model.

    Args:
        model: Likelihood p(y | x, phi, z) with random effects, from `covey.models`:
            `mixed_linear`, `mixed_logistic`, `mixed_poisson`, a network cut by `split_network`, or
            a NumPyro model with a plate over clients.
        step_size: Step size of the Markov kernel (gamma): a value, or an Optax schedule of the
            round for one that falls, as the paper's theorem S2 has it. Its unit is the kernel's:
            for ULA squared units of the effects, to be kept well below the posterior variance; for
            `kernels.ornstein_uhlenbeck` about 1 fits any client. Default: None, which determines
            all settings from the data.
        draws: Draws of the effects that each client makes and learns from per round (M). Default:
            10; without a step_size, enough for a Monte Carlo error per round of 0.15 standard
            errors.
        burn_in: Transitions of the kernel before these draws, per round. Default: none, as the
            chain continues from the client's last round.
        kernel: (step size) Markov kernel from `covey.kernels` (Q). Default: ULA, unadjusted
            Langevin.
        effects: Law of the effects p(z | beta), from `covey.models`: `gaussian`, `mixture`,
            `energy` or `fixed`. Default: a Gaussian with a deviation for each effect.
        phi_optimizer: (step size) Optax optimiser of the server for phi (eta_2). Default: Adam with
            step 0.01 and b2 0.95, whose step needs no change with the number of clients; with
            `phi_rate` SGD with step 1.
        beta_optimizer: (step size) The same for beta (eta_1). Default: Adam, as for phi.
        phi_prior: Standard deviation of a Gaussian prior with mean zero on each parameter in phi,
            in its units. Default: flat.
        beta_prior: The same for beta, where deviations count by their logarithm.
        phi_box: (step size) Lower and upper bound of each parameter in phi, a projection onto a
            box.
        phi_radius: (step size) Largest Euclidean norm of phi, a projection onto a ball; instead of
            `phi_box`.
        scaling: Estimate of the sum over all clients from the uploads of a cohort: by inverse
            participation probabilities, or (step size) by b / |A|, which is refused where clients
            are not equally likely.
        average: (step size) Share of the rounds, counted from the end, over which the shared
            parameters that clients predict with are averaged; 1 is the average of theorem 1 for
            constant steps. Less noise than in the last iterate. Default: None, the last iterate.
        adapt_burn_in: Transitions before the draws of an unseen client. Default: 200; a kernel that
            mixes fast, such as `ornstein_uhlenbeck`, needs about 20.
        predictive_draws: Draws that a prediction averages over, made anew under the newest theta.
            Default: as many as `draws`; without a step_size 100.
        centred: (ours, step size) False takes the gradient by beta in the non-centred form, for
            effects that are small or hardly known from the rows.
        phi_rate: (ours, step size) Step of phi per row, along a pass that each client makes over
            its rows with the draws held; the server averages the changes. For many rows and few
            rounds. Default: None, the paper's single gradient per round.
        batch_size: (ours, step size) Rows per minibatch of that pass. Default: None, one step with
            all rows.
        anneal: (ours, step size) (T, rounds): the log-likelihood is divided by a temperature that
            falls from T to 1 in this many rounds. For little noise and few rows, where phi hardly
            moves. Posterior and predictions are always at temperature 1.

    Returns:
        A method for `covey.run`, with a posterior of the shared parameters and of each client's
        own.

    Example:
        >>> import covey
        >>> import numpy as np
        >>> rng, tables = np.random.default_rng(0), {}
        >>> for site in "abcdef":
        ...     x, own = rng.normal(size=(8, 1)), rng.normal()
        ...     tables[site] = x, 2 * x[:, 0] + own + 0.3 * rng.normal(size=8)
        >>> data = covey.FederatedData.from_clients(tables, features=["dose"])
        >>> model = covey.models.mixed_linear()
        >>> run = covey.run(covey.fedpop(model), data, seed=1, progress=False)
        >>> bool(abs(run.state.average.phi.weight[0] - 2) < 0.2)
        True
        >>> run.posterior.client("a").draws(100, chains=2)["intercept"].shape
        (2, 100)

    Departures from the paper: with an Optax optimiser other than SGD the steps eta are not those of
    the theory; `average` weighs round k by k^(1/average - 1), which needs no end of the run to be
    known; options marked (ours) have no counterpart. The sign of the Langevin drift in the text of
    section 2 is a misprint, algorithm 1 has it right.

    Reference: Kotelevskii, Vono, Moulines and Durmus (2022), FedPop: a Bayesian approach for
    personalised federated learning, algorithm 1.
    """
    need(model, MixedModel, "fedpop")
    first_step = float(jnp.asarray(step_size(0))) if callable(step_size) else step_size
    checks.check_positive(step_size=first_step, phi_rate=phi_rate, phi_radius=phi_radius)
    checks.check_positive(phi_prior=phi_prior, beta_prior=beta_prior)
    checks.check_at_least(1, draws=draws, predictive_draws=predictive_draws, batch_size=batch_size)
    checks.check_at_least(0, burn_in=burn_in, adapt_burn_in=adapt_burn_in)
    if step_size is None:
        checks.check_by_itself(
            kernel=kernel,
            phi_optimizer=phi_optimizer,
            beta_optimizer=beta_optimizer,
            phi_box=phi_box,
            phi_radius=phi_radius,
            scaling=None if scaling == "inverse_probability" else scaling,
            average=average,
            centred=None if centred else "False",
            phi_rate=phi_rate,
            batch_size=batch_size,
            anneal=anneal,
        )
        wanted = Wanted(draws, burn_in, predictive_draws, adapt_burn_in)
        return _without_a_step_size(model, effects, phi_prior, beta_prior, wanted)
    joint, draws = joint_of(model, effects), 10 if draws is None else draws
    checks.check_choices(scaling, average, anneal)
    checks.check_phi(phi_rate, batch_size, phi_box, phi_radius)
    learns_beta = beta_optimizer is not None or beta_prior is not None
    checks.check_law(joint, effects, phi_rate, centred=centred, learns_beta=learns_beta)
    sampler = Sampler(joint, ula() if kernel is None else kernel, step_size)
    clients = Clients(sampler, burn_in, adapt_burn_in, predictive_draws or draws)
    for_phi, for_beta = _optimizers(phi_optimizer, beta_optimizer, phi_rate)
    phi_ascent = _Ascent(for_phi, phi_prior, _projection(phi_box, phi_radius))
    beta_ascent = _Ascent(for_beta, beta_prior, joint.law.project)
    server = _Server(joint, phi_ascent, beta_ascent, scaling, average, phi_rate)
    along = None if phi_rate is None else RowPass(phi_rate, batch_size)

    def broadcast(state):
        return Down(state.theta, temperature(anneal, state.round), sampler.step_at(state.round))

    def publish(state):
        theta = state.theta if average is None else state.average
        return Down(theta, jnp.ones(()), sampler.step_at(state.round))

    def client(key, down, personal, data):
        # Two keys only where they are needed: the random streams of other options stay as they are.
        key, key_rows = (key, key) if along is None else jax.random.split(key)
        personal = sampler.walk(key, down, data, personal, burn_in=burn_in, draws=draws)
        gradient, fit = client_gradient(joint, down, personal.draws, data, centred=centred)
        steps = jnp.asarray(burn_in + draws)
        if along is not None:
            phi = gradient_along_rows(key_rows, joint, down, personal.draws, data, along)
            gradient = gradient._replace(phi=phi)
            steps += batches_of(data, batch_size)[1]
        info = Info(-fit / jnp.maximum(data.count, 1), steps)
        up = gradient if joint.law.learned else gradient._replace(beta=Empty())
        return Local(up, personal, info)

    method = Algorithm(
        name="fedpop",
        init=server.first_state,
        broadcast=broadcast,
        server=server.step,
        init_client=lambda key, down, data: sampler.start(down.theta, draws),
        client=client,
        commit=keep,
        predict=clients.predict,
        adapt=clients.adapt,
        refresh=clients.refresh,
        publish=publish,
        posterior=Posterior(
            shared=shared_posterior(joint, phi_prior=phi_prior, beta_prior=beta_prior),
            client=clients.posterior,
            axes=joint.axes,
        ),
        hooks=Hooks(validate=partial(checks.check_plan, scaling=scaling, anneal=anneal)),
    )
    return with_any_draws(clients, method)


def _without_a_step_size(
    model: MixedModel,
    effects: Law | None,
    phi_prior: float | None,
    beta_prior: float | None,
    wanted: Wanted,
) -> Algorithm:
    """FedPop from the maximum of the marginal likelihood, without settings."""
    joint = joint_of(model, effects or _GAUSSIAN)
    checks.check_law(joint, effects, None, centred=True, learns_beta=beta_prior is not None)
    # Plain values, which can be compared: equal methods share programs.
    priors = Priors(*(None if one is None else float(one) for one in (phi_prior, beta_prior)))
    return by_itself(joint, priors, wanted)


def _optimizers(
    for_phi: optax.GradientTransformation | None,
    for_beta: optax.GradientTransformation | None,
    phi_rate: float | None,
) -> tuple[optax.GradientTransformation, optax.GradientTransformation]:
    """The optimisers of phi and beta: those that were given, or the usual ones."""
    # Gradients are huge where a fit begins far off; a short memory of their squares forgets them.
    usual = optax.adam(0.01, b2=0.95)
    phi_usual = usual if phi_rate is None else optax.sgd(1.0)
    return (
        optimizer_or(phi_usual, for_phi, "phi_optimizer", "fedpop"),
        optimizer_or(usual, for_beta, "beta_optimizer", "fedpop"),
    )


class _Ascent(NamedTuple):
    """The server's step up the log-posterior in one part x of theta, with a Gaussian prior on x.

    x <- Proj[x + eta (grad log p(x) + gradient)]
    """

    optimizer: optax.GradientTransformation
    prior: float | None
    project: Callable[[PyTree], PyTree]

    def step(
        self, gradient: PyTree, memory: PyTree, at: PyTree, unit: float | Float[Array, ""] = 1.0
    ) -> tuple[PyTree, PyTree]:
        """One step. Optax descends, so it gets the negative gradient, times `unit`."""
        precision = 0.0 if self.prior is None else 1 / self.prior**2
        down = jax.tree.map(lambda g, value: unit * (precision * value - g), gradient, at)
        updates, memory = self.optimizer.update(down, memory, at)
        return self.project(optax.apply_updates(at, updates)), memory


class _Server(NamedTuple):
    """The server: its first state, and its step.

    Attributes:
        joint: The model and the law of the effects.
        phi_ascent: The step in phi.
        beta_ascent: The step in beta.
        scaling: Estimate of the sum over all clients from the uploads of a cohort.
        average: Share of the rounds that is averaged over, None for the last iterate.
        phi_rate: Step of phi per row in a client's pass; None where clients send one gradient.
    """

    joint: Joint
    phi_ascent: _Ascent
    beta_ascent: _Ascent
    scaling: str
    average: float | None
    phi_rate: float | None

    def first_state(self, key: Key[Array, ""], spec: Spec) -> State:
        """The server's state before the first round."""
        if self.scaling == "ratio" and spec.clients is None:
            raise ValueError(
                "fedpop: scaling='ratio' needs the number of clients, Spec.clients; or use "
                "'inverse_probability'"
            )
        model, law = self.joint
        key_model, key_law, key_particles = jax.random.split(key, 3)
        # One key for both: the body and the head of a network should be of the same draw.
        phi, start = model.init(key_model, spec), model.init_effects(key_model, spec)
        checks.warn_of_limits(model, phi, start)
        beta = Empty() if model.law is not None else law.init(key_law, start, spec)
        theta = Population(phi, beta)
        return State(
            theta,
            self.phi_ascent.optimizer.init(phi),
            self.beta_ascent.optimizer.init(beta) if law.learned else Empty(),
            Empty() if law.normaliser is None else law.normaliser.init(key_particles, beta),
            Empty() if self.average is None else theta,
            clients=jnp.asarray(spec.clients or 0, float),
            round=jnp.int32(0),
        )

    def step(self, key: Key[Array, ""], state: State, aggregate: Aggregate) -> tuple[State, Empty]:
        """One step up the log-posterior in phi and beta."""
        joint, theta = self.joint, state.theta
        gradient, count = sum_over_clients(self.scaling, state.clients, aggregate)
        gradient, particles = completed(key, joint, theta, state.particles, gradient, count)
        # A pass over the rows moves phi by phi_rate times the gradient: the server takes the mean.
        unit = 1.0 if self.phi_rate is None else self.phi_rate / jnp.maximum(count, 1.0)
        phi, phi_memory = self.phi_ascent.step(gradient.phi, state.phi_optimizer, theta.phi, unit)
        beta, beta_memory = theta.beta, state.beta_optimizer
        if joint.law.learned:
            beta, beta_memory = self.beta_ascent.step(gradient.beta, beta_memory, beta)
        theta = Population(phi, beta)
        mean = Empty() if self.average is None else _averaged(self.average, state, theta)
        done = state.round + 1
        return State(theta, phi_memory, beta_memory, particles, mean, state.clients, done), Empty()


def _averaged(share: float, state: State, theta: Population) -> Population:
    """The average of the iterates, round k with a weight proportional to k^(1/share - 1)."""
    weight = 1 / share / (state.round + 1 / share)

    def mean(old, new):
        return old + (weight * (new - old)).astype(old.dtype)

    return jax.tree.map(mean, state.average, theta)


def _projection(
    box: tuple[float, float] | None, radius: float | None
) -> Callable[[PyTree], PyTree]:
    """The projection of phi; of a pair of bounds, or of a largest norm, or none."""
    if box is not None:
        return lambda phi: jax.tree.map(lambda leaf: jnp.clip(leaf, *box), phi)
    if radius is not None:
        return lambda phi: optax.projections.projection_l2_ball(phi, radius)
    return lambda phi: phi
