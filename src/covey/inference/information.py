"""How sure a FedPop fit is of what clients share: standard errors from the observed information.

Louis (1982): the curvature of the marginal log-likelihood of client i, effects integrated out, is

    I_i = E[-grad^2 log p(D_i, z | theta)] - Cov[grad log p(D_i, z | theta)],   z ~ p(z | D_i, theta),

estimated from each client's own draws of z and summed over clients in one federated computation: a
client sends a matrix of len(theta)^2 numbers once a round, so this is for models with up to some
hundred shared numbers. The covariance of theta is the pseudo-inverse of sum_i I_i minus the
curvature of the priors: where only a sum of two parameters is known, as a mean effect and an
intercept, their difference has no information and the sum keeps its right variance. Intervals are
Gaussian, on the scale of theta; those of few clients are too short for the deviations of effects.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import norm
from jaxtyping import Array, Float, PyTree

from covey.algorithms.federated_sum import federated_sum
from covey.algorithms.fedpop import Down, Population, of_law
from covey.core.algorithm import Algorithm
from covey.core.shard import Spec, all_rows
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.inference.posterior import labels
from covey.models.effects import Law, gaussian
from covey.models.mixed import MixedModel


def observed_information(
    method: Algorithm,
    model: MixedModel,
    theta: Population,
    data: FederatedData,
    *,
    effects: Law | None = None,
    rounds: int = 10,
    seed: int = 0,
) -> Float[np.ndarray, "numbers numbers"]:
    """The information of all clients about theta, averaged over `rounds` draws of their chains.

    `method` must be FedPop with this model and law of the effects: its clients make new draws, as
    many as they keep in a round.
    """
    if rounds < 1:
        raise ValueError(f"observed_information: rounds must be at least 1, got {rounds}")
    law = model.law or effects or gaussian()
    if law.normaliser is not None:
        raise ValueError(
            "observed_information: the density of this law is known up to a constant only; use another law"
        )
    flat, unravel = ravel_pytree(theta)
    down = Down(theta, jnp.ones(()))

    def log_joint(numbers, z, rows, mask):
        at = unravel(numbers)
        log_prior = law.log_density(of_law(model, at), z)
        return log_prior + jnp.sum(jnp.where(mask, model.log_likelihood(at.phi, z, rows), 0.0))

    def of_client(key, rows):
        draws = method.adapt(key, down, rows).draws
        every, mask = all_rows(rows)
        slopes = jax.vmap(lambda z: jax.grad(log_joint)(flat, z, every, mask))(draws)
        curvature = jnp.mean(
            jax.lax.map(lambda z: jax.hessian(log_joint)(flat, z, every, mask), draws), axis=0
        )
        off = slopes - jnp.mean(slopes, axis=0)
        return -curvature - off.T @ off / max(len(draws) - 1, 1)

    engine = Simulation(federated_sum(of_client, name="information"), data, seed=seed)
    return np.asarray(engine.advance(engine.start(), rounds)[0].server.sum, np.float64)


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
    """A typical client's coefficients and how much clients differ, with standard errors and
    intervals: a line a number.

    The arguments are those of the fit: the method, its model, law and priors, and the theta it
    ended with.
    """
    if not 0 < probability < 1:
        raise ValueError(
            f"shared_effects: probability must lie between 0 and 1, got {probability:g}"
        )
    law = model.law or effects or gaussian()
    information = observed_information(
        method, model, theta, data, effects=effects, rounds=rounds, seed=seed
    )
    information = information + np.diag(_precision(theta, phi_prior, beta_prior))
    if model.log_prior is not None:
        information = information - _curvature(model.log_prior, theta)
    flat, unravel = ravel_pytree(theta)
    free = (
        len(flat) if law.learned else len(ravel_pytree(theta.phi)[0])
    )  # a law that is not learned is known
    covariance = np.zeros_like(information)
    covariance[:free, :free] = np.linalg.pinv(information[:free, :free], rcond=1e-6, hermitian=True)
    estimate, jacobian = (
        described(model, law, unravel(flat)),
        jax.jacobian(lambda v: described(model, law, unravel(v)))(flat),
    )
    places = _places(model, law, theta, data.spec)
    quantile = float(norm.ppf(0.5 + probability / 2))
    lines = []
    for name, value in estimate.items():
        slopes = np.asarray(jacobian[name], np.float64).reshape(-1, len(flat))
        deviations = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", slopes, covariance, slopes), 0.0))
        numbers = np.asarray(value, np.float64).reshape(-1)
        for label, number, sd in zip(labels(name, places[name]), numbers, deviations, strict=True):
            bounds = {"low": number - quantile * sd, "high": number + quantile * sd}
            lines.append({"name": label, "estimate": number, "se": sd, **bounds})
    return pd.DataFrame(lines).set_index("name")


def described(model: MixedModel, law: Law, theta: Population) -> dict[str, Array]:
    """What users know of theta: the coefficients of a typical client, and how much clients
    differ.
    """
    parameters = of_law(model, theta)
    if model.coefficients is None:
        shared = {"phi": ravel_pytree(theta.phi)[0]}
    else:
        shared = model.coefficients(theta.phi, law.start(parameters))
    return shared if law.describe is None else shared | law.describe(parameters)


def _places(
    model: MixedModel, law: Law, theta: Population, spec: Spec
) -> dict[str, list[Sequence[object]]]:
    """What lies along the axes of each described value, numbers where that has no labels; the axes
    of a law's are effects.
    """
    known = (
        {} if model.axes is None else {name: axis.labels for name, axis in model.axes(spec).items()}
    )
    of_effects = {} if law.describe is None else law.describe(of_law(model, theta))

    def along(name: str, place: int, size: int) -> Sequence[object]:
        labelled = "effects" if name in of_effects else name if place == 0 else ""
        return known.get(labelled, range(size))

    shapes = {name: value.shape for name, value in described(model, law, theta).items()}
    return {
        name: [along(name, place, size) for place, size in enumerate(shape)]
        for name, shape in shapes.items()
    }


def _precision(theta: Population, phi_prior: float | None, beta_prior: float | None) -> np.ndarray:
    """What the Gaussian priors add to the information, by number."""
    sizes = (len(ravel_pytree(part)[0]) for part in theta)
    each = (0.0 if prior is None else prior**-2 for prior in (phi_prior, beta_prior))
    return np.concatenate([np.full(size, value) for size, value in zip(sizes, each, strict=True)])


def _curvature(log_prior: Callable[[PyTree], Float[Array, ""]], theta: Population) -> np.ndarray:
    """The Hessian of a log prior on phi, in the places of phi."""
    flat, unravel = ravel_pytree(theta.phi)
    numbers = len(ravel_pytree(theta)[0])
    found = np.zeros((numbers, numbers))
    found[: len(flat), : len(flat)] = jax.hessian(lambda v: log_prior(unravel(v)))(flat)
    return found
