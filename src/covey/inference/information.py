"""Standard errors of a FedPop fit's shared parameters, from the observed information.

Louis (1982): the curvature of the marginal log-likelihood of client i, effects integrated out, is

    I_i = E[-grad^2 log p(D_i, z | theta)] - E[s s'] + E[s] E[s]',    s = grad log p(D_i, z | theta)

with z ~ p(z | D_i, theta), gradients by theta. Each client estimates its term from weighted draws
of its effects and sends it once per round, in several independent batches: some times len(theta)^2
values, so this is for models with up to some hundred shared parameters.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree
from scipy.special import ndtri

from covey.algorithms.federated_sum import federated_sum
from covey.algorithms.fedpop import Population, of_law
from covey.core.algorithm import Algorithm
from covey.core.shard import Shard, Spec, all_rows
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.inference.identification import StandardErrors, standard_errors
from covey.inference.importance import laplace, prior_draws, weighted_draws
from covey.inference.posterior import check_probability, labels
from covey.models.effects import gaussian
from covey.models.law import Law
from covey.models.mixed import MixedModel

BATCHES = 8  # independent estimates per round; their spread is the Monte Carlo error
DRAWS = 64  # of each half of a batch
EXACT_ENOUGH = 0.05  # relative Monte Carlo error of a standard error at which drawing ends
_FEW = 0.1  # of the draws: a client with fewer effective ones is counted as poorly drawn


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
        >>> bool(abs(matrix[1, 1] - 2 * 2 / (1 + 2)) < 0.1)  # exactly clients * rows / (1 + rows)
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


def shared_effects(
    method: Algorithm,
    model: MixedModel,
    theta: Population,
    data: FederatedData,
    *,
    effects: Law | None = None,
    phi_prior: float | None = None,
    beta_prior: float | None = None,
    probability: float = 0.9,
    rounds: int = 10,
    seed: int = 0,
) -> pd.DataFrame:
    """Coefficients of a typical client and how much clients differ, with standard errors.

    Clients draw their effects until every standard error is known to 5 %, Monte Carlo error
    included, or `rounds` is reached, which gives a warning. A parameter that the data do not
    identify has the standard error NaN, with a warning that names it. Intervals are Gaussian on the
    scale of each value; with few clients those of deviations are too short.

    Args:
        method: The FedPop method of the fit.
        model: Its mixed model.
        theta: Shared parameters that the fit ended with, `run.state.theta`.
        data: The clients; their training rows are used.
        effects: Law of the effects of the fit. Default: that of `fedpop`, a diagonal Gaussian.
        phi_prior: Standard deviation of the Gaussian prior on phi of the fit. Default: flat.
        beta_prior: The same for beta.
        probability: Probability of the intervals. Default: 0.9.
        rounds: Largest number of rounds, in each of which every client makes 1,024 draws.
        seed: Seed of the draws.

    Returns:
        One row per value, by name (`weights[age]`, `deviation[intercept]`), with the columns
        estimate, se, low and high.

    Example:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from covey.algorithms.fedpop import fedpop
        >>> from covey.models import Linear, fixed, mixed_linear
        >>> from covey.models.effects import Gaussian
        >>> rows = (np.array([[1.0], [-1.0]]), np.array([0.4, -0.2]))
        >>> data = FederatedData.from_clients({"a": rows, "b": rows}, features=["age"])
        >>> model, law = mixed_linear(scale=1.0), fixed(scale=1.0)
        >>> theta = Population(
        ...     Linear(jnp.zeros(1), jnp.zeros(())), Gaussian(jnp.zeros(1), jnp.zeros(()))
        ... )
        >>> method = fedpop(model, step_size=0.1, effects=law)
        >>> table = shared_effects(method, model, theta, data, effects=law)
        >>> round(float(table.loc["weights[age]", "se"]), 2)  # four rows with x = 1 or -1
        0.5

    Reference: Louis (1982), Finding the observed information matrix when using the EM algorithm.
    """
    if method.name != "fedpop":
        raise ValueError(f"shared_effects: the fit must be of FedPop, got {method.name!r}")
    return shared_effects_of(
        model,
        model.law or effects or gaussian(),
        theta,
        data,
        phi_prior=phi_prior,
        beta_prior=beta_prior,
        probability=probability,
        rounds=rounds,
        seed=seed,
    )


def shared_effects_of(
    model: MixedModel,
    law: Law,
    theta: Population,
    data: FederatedData,
    *,
    phi_prior: float | None = None,
    beta_prior: float | None = None,
    probability: float = 0.9,
    rounds: int = 10,
    seed: int = 0,
) -> pd.DataFrame:
    """The table of `shared_effects`, for a model, the law of its effects and its priors."""
    check_probability(probability)
    if rounds < 1:
        raise ValueError(f"shared_effects: rounds must be at least 1, got {rounds}")
    flat, unravel = ravel_pytree(theta)
    prior = np.diag(_precision(theta, phi_prior, beta_prior))
    if model.log_prior is not None:
        prior = prior - _curvature(model.log_prior, theta)
    # A law that is not learned is known: only phi has errors.
    free = slice(None if law.learned else len(ravel_pytree(theta.phi)[0]))
    estimate = described(model, law, theta)
    jacobian = jax.jacobian(lambda v: described(model, law, unravel(v)))(flat)
    gradients = np.concatenate(
        [
            np.asarray(part, np.float64).reshape(-1, len(flat))
            for part in map(jacobian.get, estimate)
        ]
    )
    along = _labels_along(model, law, theta, data.spec)
    names = [label for name in estimate for label in labels(name, along[name])]

    def errors_of(found: Information) -> StandardErrors:
        return standard_errors(
            found.batches[:, free, free],
            prior[free, free],
            found.complete[free],
            gradients[:, free],
        )

    estimates = estimated_information(model, law, theta, data, seed=seed)
    for _ in range(rounds):
        found = next(estimates)
        errors = errors_of(found)
        if errors.identified.all() and errors.monte_carlo.max() <= EXACT_ENOUGH:
            break
    _warn(errors, names, found.poor)
    values = np.concatenate(
        [np.asarray(value, np.float64).reshape(-1) for value in estimate.values()]
    )
    reach = ndtri(0.5 + probability / 2) * errors.value
    return pd.DataFrame(
        {"estimate": values, "se": errors.value, "low": values - reach, "high": values + reach},
        index=pd.Index(names, name="name"),
    )


def described(model: MixedModel, law: Law, theta: Population) -> dict[str, Array]:
    """The coefficients of a typical client, and how much clients differ, by name."""
    parameters = of_law(model, theta)
    if model.coefficients is None:
        shared = {"phi": ravel_pytree(theta.phi)[0]}
    else:
        shared = model.coefficients(theta.phi, law.start(parameters))
    return shared if law.describe is None else shared | law.describe(parameters)


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
    poor = jnp.mean(halves.effective < _FEW * DRAWS, dtype=flat.dtype)
    complete = jnp.diagonal(jnp.mean(halves.curvature, axis=0))
    return jax.tree.map(
        lambda leaf: jnp.where(data.count > 0, leaf, 0.0), _Batch(louis, complete, poor)
    )


def _warn(errors: StandardErrors, names: Sequence[str], poor: float) -> None:
    """Say which standard errors are missing or inexact."""
    if not errors.identified.all():
        missing = [
            name for name, is_known in zip(names, errors.identified, strict=True) if not is_known
        ]
        warnings.warn(
            f"shared_effects: at these estimates the data have no information about "
            f"{', '.join(missing)}; their standard errors are NaN. Is a column constant or a copy "
            "of others, is a deviation at its bound, are there fewer clients than effects, or has "
            "the fit not converged?",
            stacklevel=4,
        )
    worst = float(np.max(errors.monte_carlo[errors.identified], initial=0.0))
    if worst > EXACT_ENOUGH:
        warnings.warn(
            f"shared_effects: standard errors are known up to a Monte Carlo error of {worst:.0%}, "
            f"more than {EXACT_ENOUGH:.0%}; ask for more rounds=",
            stacklevel=4,
        )
    if poor >= 0.5:
        warnings.warn(
            f"shared_effects: the draws of {poor:.0f} clients are worth less than {_FEW:.0%} of "
            "their number; the standard errors may be too small",
            stacklevel=4,
        )


def _labels_along(
    model: MixedModel, law: Law, theta: Population, spec: Spec
) -> dict[str, list[Sequence[object]]]:
    """Labels along the axes of each described value, indices where there are none; the axes of what
    a law describes are effects.
    """
    known = (
        {} if model.axes is None else {name: axis.labels for name, axis in model.axes(spec).items()}
    )
    of_effects = {} if law.describe is None else law.describe(of_law(model, theta))

    def along(name: str, axis: int, size: int) -> Sequence[object]:
        labelled = "effects" if name in of_effects else name if axis == 0 else ""
        return known.get(labelled, range(size))

    shapes = {name: value.shape for name, value in described(model, law, theta).items()}
    return {
        name: [along(name, axis, size) for axis, size in enumerate(shape)]
        for name, shape in shapes.items()
    }


def _precision(theta: Population, phi_prior: float | None, beta_prior: float | None) -> np.ndarray:
    """What the Gaussian priors add to the diagonal of the information."""
    sizes = (len(ravel_pytree(part)[0]) for part in theta)
    each = (0.0 if prior is None else prior**-2 for prior in (phi_prior, beta_prior))
    return np.concatenate([np.full(size, value) for size, value in zip(sizes, each, strict=True)])


def _curvature(log_prior: Callable[[PyTree], Float[Array, ""]], theta: Population) -> np.ndarray:
    """The Hessian of a log prior on phi, with zeros for beta."""
    flat, unravel = ravel_pytree(theta.phi)
    size = len(ravel_pytree(theta)[0])
    found = np.zeros((size, size))
    found[: len(flat), : len(flat)] = jax.hessian(lambda v: log_prior(unravel(v)))(flat)
    return found
