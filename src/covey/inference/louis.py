"""The observed information of a mixed model's shared parameters, by Louis's identity.

The curvature of the marginal log-likelihood of client i, effects integrated out, is

    I_i = E[-grad^2 log p(D_i, z | theta)] - E[s s'] + E[s] E[s]',    s = grad log p(D_i, z | theta)

with z ~ p(z | D_i, theta), gradients by theta. Each client estimates its term from weighted draws
of its effects and sends it once per round, in several independent batches: some times len(theta)^2
values, so this is for models with up to some hundred shared parameters.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key

from covey.algorithms.federated_sum import federated_sum
from covey.algorithms.fedpop import Population, of_law
from covey.core.shard import Shard, all_rows
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.inference.importance import laplace, prior_draws, weighted_draws
from covey.models.effects import gaussian
from covey.models.law import Law
from covey.models.mixed import MixedModel

BATCHES = 8  # independent estimates per round; their spread is the Monte Carlo error
DRAWS = 64  # of each half of a batch
FEW = 0.1  # of the draws: a client with fewer effective ones is counted as poorly drawn


class Information(NamedTuple):
    """Estimates of the information of all clients about theta.

    Attributes:
        batches: Independent unbiased estimates.
        complete: Diagonal of the information that rows and effects together would have.
        poor: Mean number of clients whose draws are worth few.
    """

    batches: Float[np.ndarray, "batches parameters parameters"]
    complete: Float[np.ndarray, " parameters"]
    poor: float


class _Batch(NamedTuple):
    """What one client sends per round."""

    louis: Float[Array, "batches parameters parameters"]
    complete: Float[Array, " parameters"]
    poor: Float[Array, ""]


class _Half(NamedTuple):
    """Moments of the score of the complete data under p(z | D_i, theta)."""

    curvature: Float[Array, "parameters parameters"]
    second: Float[Array, "parameters parameters"]
    mean: Float[Array, " parameters"]
    effective: Float[Array, ""]


def observed_information(
    model: MixedModel,
    theta: Population,
    data: FederatedData,
    *,
    effects: Law | None = None,
    rounds: int = 1,
    seed: int = 0,
) -> Float[np.ndarray, "parameters parameters"]:
    """The observed information of all clients about theta = (phi, beta), by Louis's identity.

    Args:
        model: Mixed model of the fit.
        theta: Shared parameters at which the information is wanted, such as `run.state.theta`.
        data: The clients; their training rows are used.
        effects: Law of the effects of the fit. Default: that of `fedpop`, a diagonal Gaussian.
        rounds: Rounds, in each of which every client makes 1,024 draws of its effects. More rounds
            reduce the Monte Carlo error as 1 / sqrt(rounds).
        seed: Seed of the draws.

    Returns:
        The matrix in the order in which `ravel_pytree` puts theta. Priors are not in it.

    Example:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from covey.models import Linear, mixed_linear
        >>> from covey.models.effects import Gaussian
        >>> rows = (np.zeros((2, 1)), np.array([0.4, -0.2]))
        >>> data = FederatedData.from_clients({"a": rows, "b": rows})
        >>> theta = Population(
        ...     Linear(jnp.zeros(1), jnp.zeros(())), Gaussian(jnp.zeros(1), jnp.zeros(1))
        ... )
        >>> matrix = observed_information(mixed_linear(scale=1.0), theta, data)
        >>> matrix.shape  # weight, intercept, mean effect, log deviation
        (4, 4)
        >>> bool(abs(matrix[1, 1] - 4 / 3) < 0.4)  # clients * rows / (1 + rows), and noise
        True

    Reference: Louis (1982), Finding the observed information matrix when using the EM algorithm.
    """
    if rounds < 1:
        raise ValueError(f"observed_information: rounds must be at least 1, got {rounds}")
    law = model.law or effects or gaussian()
    estimates = estimated_information(model, law, theta, data, seed=seed)
    return [next(estimates) for _ in range(rounds)][-1].batches.mean(0)


def estimated_information(
    model: MixedModel, law: Law, theta: Population, data: FederatedData, *, seed: int
) -> Iterator[Information]:
    """Estimates of the information of all clients, with more draws after each round."""
    if law.normaliser is not None:
        raise ValueError(
            "observed_information: the density of this law is known up to a constant only; use "
            "another law"
        )
    with jax.enable_x64(True):  # the difference of matrices that are nearly equal
        exact = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), theta)

        def of_client(key: Key[Array, ""], rows: Shard) -> _Batch:
            return _louis(key, model, law, exact, rows)

        engine = Simulation(federated_sum(of_client, name="information"), data, seed=seed)
        state = engine.start()
    batches, before, rounds = [], 0.0, 0
    while True:
        with jax.enable_x64(True):
            state, _ = engine.advance(state, 1)
        rounds += 1
        mean = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), state.server.sum)
        batches.append(rounds * mean.louis - before)
        before = rounds * mean.louis
        yield Information(np.concatenate(batches), mean.complete, float(mean.poor))


def _louis(
    key: Key[Array, ""], model: MixedModel, law: Law, theta: Population, data: Shard
) -> _Batch:
    """A client's information about theta, in batches; zero for a client without rows."""
    flat, unravel = ravel_pytree(theta)
    beta = of_law(model, theta)
    rows, mask = all_rows(data)

    def log_joint(parameters, z):
        at = unravel(parameters)
        log_prior = law.log_density(of_law(model, at), z)
        return log_prior + jnp.sum(jnp.where(mask, model.log_likelihood(at.phi, z, rows), 0.0))

    def log_density(z):
        return log_joint(flat, z)

    around = laplace(log_density, law.start(beta))

    def half(key):
        """Independent draws, and the moments of the score that they give."""
        key_prior, key_near = jax.random.split(key)
        some = law.draws(key_prior, beta, prior_draws(DRAWS))
        drawn = weighted_draws(
            key_near, log_density, around, some, lambda z: law.log_density(beta, z), DRAWS
        )

        def expected(parameters):
            return drawn.weight @ jax.vmap(lambda z: log_joint(parameters, z))(drawn.z)

        scores = jax.vmap(lambda z: jax.grad(log_joint)(flat, z))(drawn.z)
        return _Half(
            -jax.hessian(expected)(flat),
            (scores.T * drawn.weight) @ scores,
            drawn.weight @ scores,
            drawn.effective,
        )

    halves = jax.lax.map(half, jax.random.split(key, (BATCHES, 2)).reshape(-1))
    one, other = (jax.tree.map(lambda leaf, at=at: leaf[at::2], halves) for at in (0, 1))
    # The product of two independent means: that of one with itself would be too large on average.
    product = jax.vmap(jnp.outer)(one.mean, other.mean)
    product = (product + jnp.swapaxes(product, 1, 2)) / 2
    louis = (one.curvature + other.curvature - one.second - other.second) / 2 + product
    poor = jnp.mean(halves.effective < FEW * DRAWS, dtype=flat.dtype)
    complete = jnp.diagonal(jnp.mean(halves.curvature, axis=0))
    return jax.tree.map(
        lambda leaf: jnp.where(data.count > 0, leaf, 0.0), _Batch(louis, complete, poor)
    )
