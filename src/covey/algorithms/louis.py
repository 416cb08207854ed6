"""A Gaussian posterior of the shared parameters of a mixed model, from the observed information.

Louis (1982), Finding the observed information matrix when using the EM algorithm.
"""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key

from covey.algorithms.identification import StandardErrors, standard_errors
from covey.algorithms.joint import Joint, Population
from covey.algorithms.louis_client import FEW, Information, client_information
from covey.core.algorithm import Approximation, Ask, Message
from covey.core.labels import value_names
from covey.core.shard import Spec

LARGEST = 500  # shared parameters: a client sends some matrices with this many rows and columns
DRAWS = 64  # of each half of a batch, at first
MOST_DRAWS = 640
EXACT_ENOUGH = 0.05  # relative Monte Carlo error of a standard error
_MOST_QUESTIONS = 3  # of the federation, each for more draws
_FAR = 0.5  # standard errors from the maximum that are worth a warning
_SURE = 3.0  # Monte Carlo errors


class SharedLaw(NamedTuple):
    """A Gaussian law of theta = (phi, beta) at its estimate.

    Attributes:
        theta: The estimate.
        factor: A factor of theta's covariance, which is factor @ factor.T, in the order in which
            `ravel_pytree` puts theta.
        estimate: The estimate in the terms of the model, by name.
        error: Standard errors of these values by the delta method; NaN where the data do not
            identify a value.
    """

    theta: Population
    factor: Float[np.ndarray, "parameters directions"]
    estimate: dict[str, np.ndarray]
    error: dict[str, np.ndarray]


def shared_posterior(
    joint: Joint, *, phi_prior: float | None, beta_prior: float | None
) -> Approximation:
    """The Gaussian posterior of theta at an estimate, from federated sums.

    Its precision is the information of all clients and of the priors. The information of client i,
    effects integrated out, is by Louis's identity

        I_i = E[-grad^2 log p(D_i, z | theta)] - E[s s'] + E[s] E[s]'

    with s = grad log p(D_i, z | theta), z ~ p(z | D_i, theta), and gradients by theta. Each client
    estimates its term from weighted draws of its effects and sends it in several independent
    batches, so that the Monte Carlo error is known; where that is above 5 % of a standard error,
    clients are asked for more draws, up to three times. Effects move along with theta (see
    `Joint.log_moving`), which leaves little of that error. The score itself tells whether the
    estimate is a maximum: where a Newton step would move a value by more than half of its standard
    error, a warning says so.

    A value that the data do not identify is NaN in every draw, with a warning that names it. The
    law is Gaussian in theta, where deviations count by their logarithm: with few clients its
    intervals are too short, those of deviations above all.

    Args:
        joint: The model and the law of its effects.
        phi_prior: Standard deviation of the Gaussian prior on phi; None is flat.
        beta_prior: The same for beta.

    Returns:
        How to fit the law and to draw from it. `fit` takes a broadcast with the field `theta`, and
        refuses laws whose density is known up to a constant only and more than 500 parameters.

    Example:
        >>> from typing import NamedTuple
        >>> from covey.algorithms.joint import joint_of
        >>> from covey.core.shard import Rows, Spec, whole
        >>> from covey.models import Linear, fixed, mixed_linear
        >>> joint = joint_of(mixed_linear(scale=1.0), fixed(scale=1.0))
        >>> class Down(NamedTuple):
        ...     theta: Population
        >>> weight, beta = jnp.zeros(1), joint.law.init(jax.random.key(0), jnp.zeros(1), Spec(None))
        >>> down = Down(Population(Linear(weight, jnp.zeros(())), beta))
        >>> x, y = np.array([[1.0], [-1.0], [1.0], [-1.0]]), np.array([0.4, -0.2, 0.1, 0.3])
        >>> posterior = shared_posterior(joint, phi_prior=None, beta_prior=None)
        >>> def ask(name, sent):  # the sum over one client
        ...     answer = jax.jit(posterior.queries[name])
        ...     return answer(jax.random.key(1), sent, whole(Rows(x, y)))
        >>> law = posterior.fit(down, Spec(None), ask)
        >>> round(float(law.error["weights"][0]), 2)  # four rows with x = 1 or -1
        0.5
        >>> posterior.draw(jax.random.key(2), law, 100)["weights"].shape
        (100, 1)

    Reference: Louis (1982), Finding the observed information matrix when using the EM algorithm.
    """

    def fit(down: Message, spec: Spec, ask: Ask) -> SharedLaw:
        theta: Population = down.theta
        flat, unravel = ravel_pytree(theta)
        _check(joint, len(flat))
        prior = _prior_information(joint, theta, phi_prior, beta_prior)
        # A law that is not learned is known: only phi has errors.
        free = slice(None if joint.law.learned else len(ravel_pytree(theta.phi)[0]))
        estimate = joint.describe(theta)
        jacobian = jax.jacobian(lambda v: joint.describe(unravel(v)))(flat)
        gradients = _rows_of({name: jacobian[name] for name in estimate}, len(flat))

        def errors_of(found: Information) -> StandardErrors:
            return standard_errors(
                np.asarray(found.batches)[:, free, free],
                prior[free, free],
                np.asarray(found.complete)[free],
                gradients[:, free],
            )

        found, kept = _asked(ask, theta, DRAWS), None
        errors = errors_of(found)
        for _ in range(_MOST_QUESTIONS):
            # Values that more draws did not identify stay unidentified.
            known = kept is not None or errors.identified.all()
            if known and _inexact(errors) <= EXACT_ENOUGH:
                break
            found = kept = _together(kept, _asked(ask, theta, MOST_DRAWS))
            errors = errors_of(found)
        names = value_names(estimate, joint.axes(spec))
        _warn(errors, names, float(found.poor))
        uphill = _prior_gradient(joint, theta, phi_prior, beta_prior) + np.asarray(found.score)
        steps = uphill[:, free] @ errors.factor @ errors.factor.T @ gradients[:, free].T
        _warn_of_a_step(steps, errors, names)
        factor = np.zeros((len(flat), errors.factor.shape[1]))
        factor[free] = errors.factor
        values = {name: np.asarray(value) for name, value in estimate.items()}
        return SharedLaw(theta, factor, values, _shaped(errors.value, values))

    def draw(key: Key[Array, ""], law: SharedLaw, count: int) -> dict[str, Array]:
        flat, unravel = ravel_pytree(law.theta)
        noise = jax.random.normal(key, (count, law.factor.shape[1]), flat.dtype)
        drawn = jax.vmap(lambda v: joint.describe(unravel(v)))(
            flat + noise @ jnp.asarray(law.factor, flat.dtype).T
        )
        return {
            name: jnp.where(np.isnan(law.error[name]), jnp.nan, value)
            for name, value in drawn.items()
        }

    queries = {
        _query(draws): partial(client_information, joint=joint, draws=draws)
        for draws in (DRAWS, MOST_DRAWS)
    }
    return Approximation(fit, draw, queries=queries)


def _inexact(errors: StandardErrors) -> float:
    """The largest relative Monte Carlo error of a standard error."""
    return float(np.max(errors.monte_carlo[errors.identified], initial=0.0))


def _together(known: Information | None, new: Information) -> Information:
    """All independent estimates so far."""
    if known is None:
        return new
    return Information(
        np.concatenate([known.batches, new.batches]),
        np.concatenate([known.score, new.score]),
        (known.complete + new.complete) / 2,
        (known.poor + new.poor) / 2,
    )


def _query(draws: int) -> str:
    return f"information_{draws}"


def _asked(ask: Ask, theta: Population, draws: int) -> Information:
    """The information of all clients, in double precision: it is a difference of large matrices."""
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), theta)
        found = ask(_query(draws), exact)
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found)


def _prior_information(
    joint: Joint, theta: Population, phi_prior: float | None, beta_prior: float | None
) -> np.ndarray:
    """The information of the priors."""
    phi, unravel = ravel_pytree(theta.phi)
    found = np.diag(_prior_precision(theta, phi_prior, beta_prior))
    log_prior = joint.model.log_prior
    if log_prior is not None:
        curvature = jax.hessian(lambda v: log_prior(unravel(v)))(phi)
        found[: len(phi), : len(phi)] -= np.asarray(curvature, np.float64)
    return found


def _prior_gradient(
    joint: Joint, theta: Population, phi_prior: float | None, beta_prior: float | None
) -> np.ndarray:
    """The score of the priors."""
    flat = np.asarray(ravel_pytree(theta)[0], np.float64)
    found = -_prior_precision(theta, phi_prior, beta_prior) * flat
    if joint.model.log_prior is not None:
        gradient = ravel_pytree(jax.grad(joint.model.log_prior)(theta.phi))[0]
        found[: len(gradient)] += np.asarray(gradient, np.float64)
    return found


def _prior_precision(
    theta: Population, phi_prior: float | None, beta_prior: float | None
) -> np.ndarray:
    """The precision of the Gaussian prior on each parameter; 0 where that is flat."""
    sizes = [len(ravel_pytree(part)[0]) for part in theta]
    each = [0.0 if prior is None else prior**-2 for prior in (phi_prior, beta_prior)]
    return np.repeat(each, sizes)


def _check(joint: Joint, count: int) -> None:
    if joint.law.normaliser is not None:
        raise ValueError(
            "fedpop: the density of this law of the effects is known up to a constant only, which "
            "gives no information about the shared parameters; use another law, e.g. gaussian(), "
            "or see run.posterior.clients for the clients' own parameters"
        )
    if count > LARGEST:
        raise ValueError(
            f"fedpop: the posterior of the shared parameters needs their information matrix, and "
            f"{count} parameters are more than the {LARGEST} that it can have; see "
            "run.posterior.clients for the clients' own parameters"
        )


def _rows_of(values: dict[str, Array], width: int) -> np.ndarray:
    """All values as rows of one matrix."""
    return np.concatenate(
        [np.asarray(value, np.float64).reshape(-1, width) for value in values.values()]
    )


def _shaped(flat: np.ndarray, like: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A vector cut into the shapes of some values."""
    ends = np.cumsum([value.size for value in like.values()])
    parts = np.split(flat, ends[:-1])
    return {
        name: part.reshape(value.shape)
        for (name, value), part in zip(like.items(), parts, strict=True)
    }


def _warn(errors: StandardErrors, names: Sequence[str], poor: float) -> None:
    """Say which standard errors are missing or inexact."""
    if not errors.identified.all():
        missing = [
            name for name, is_known in zip(names, errors.identified, strict=True) if not is_known
        ]
        warnings.warn(
            f"fedpop: at these estimates the data have no information about {', '.join(missing)}; "
            "their posterior is NaN. Is a column constant or a copy of others, is a deviation at "
            "its bound, are there fewer clients than effects, or has the fit not converged?",
            stacklevel=2,
        )
    if (worst := _inexact(errors)) > EXACT_ENOUGH:
        warnings.warn(
            f"fedpop: standard errors of the shared parameters are known up to a Monte Carlo error "
            f"of {worst:.0%}, more than {EXACT_ENOUGH:.0%}",
            stacklevel=2,
        )
    if poor >= 0.5:
        warnings.warn(
            f"fedpop: the draws of {poor:.0f} clients are worth less than {FEW:.0%} of their "
            "count; standard errors of the shared parameters may be too small",
            stacklevel=2,
        )


def _warn_of_a_step(
    steps: Float[np.ndarray, "batches values"], errors: StandardErrors, names: Sequence[str]
) -> None:
    """Say where the estimate is not the maximum: what a Newton step would change."""
    known = errors.identified & (errors.value > 0)
    unit = np.where(known, errors.value, np.inf)
    step = steps.mean(0) / unit
    noise = steps.std(0, ddof=1) / np.sqrt(len(steps)) / unit
    far = np.abs(step) - _SURE * noise
    worst = int(np.argmax(far)) if len(far) else 0
    if len(far) and far[worst] > _FAR:
        warnings.warn(
            f"fedpop: the fit has not converged: from these estimates the next Newton step would "
            f"change {names[worst]} by {step[worst]:+.2g} of its standard errors, and standard "
            "errors and draws are those of a maximum. Run more rounds, e.g. run.advance(...), with "
            "larger steps of phi and beta, or leave step_size= out",
            stacklevel=3,
        )
