"""Standard errors of a FedPop fit's shared parameters, from the observed information."""

import warnings
from collections.abc import Callable, Sequence

import jax
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree
from scipy.special import ndtri

from covey.algorithms.fedpop import Population, of_law
from covey.core.algorithm import Algorithm
from covey.core.shard import Spec
from covey.data.federated import FederatedData
from covey.inference.identification import StandardErrors, standard_errors
from covey.inference.louis import FEW, Information, estimated_information, observed_information
from covey.inference.posterior import check_probability, labels
from covey.models.effects import gaussian
from covey.models.law import Law
from covey.models.mixed import MixedModel

__all__ = ["described", "observed_information", "shared_effects", "shared_effects_of"]

EXACT_ENOUGH = 0.05  # relative Monte Carlo error of a standard error at which drawing ends


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
    found = next(estimates)
    errors = errors_of(found)
    for _ in range(rounds - 1):
        if errors.identified.all() and errors.monte_carlo.max() <= EXACT_ENOUGH:
            break
        found = next(estimates)
        errors = errors_of(found)
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
            f"shared_effects: the draws of {poor:.0f} clients are worth less than {FEW:.0%} of "
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
