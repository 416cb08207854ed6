"""The start of FedPop without a step size: the maximum of the marginal likelihood, and the
covariance of the parameters there.
"""

import warnings
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from covey.algorithms.joint import Joint, Population
from covey.algorithms.marginal import marginal
from covey.algorithms.marginal.parameters import Coordinates, Theta
from covey.algorithms.marginal.state import Published, State, at_zero, spread_of, theta_of
from covey.algorithms.rounds_by_asking import rounds_by_asking
from covey.core.algorithm import Algorithm, Approximation, Ask, Empty
from covey.core.shard import Spec
from covey.models.effects import Correlated, Gaussian
from covey.models.law import Law

Kind: TypeAlias = Literal["isotropic", "diagonal", "full", "model", "fixed"]
QUESTION = "marginal"
LARGEST = 300  # parameters: clients send a matrix with this many rows and columns
MOST_EFFECTS = 10
_SMALL = 0.03  # a deviation that counts as 0, in units of what the rows can tell from 0


class Priors(NamedTuple):
    """Standard deviations of the Gaussian priors on phi and beta; None is flat."""

    phi: float | None
    beta: float | None

    def log_density(self, joint: Joint, theta: Population) -> Float[Array, ""]:
        """The log prior of theta, the model's own included, up to a constant."""
        total = jnp.zeros(())
        for part, prior in zip(theta, self, strict=True):
            if prior is not None:
                total -= jnp.sum((ravel_pytree(part)[0] / prior) ** 2) / 2
        return total if joint.model.log_prior is None else total + joint.model.log_prior(theta.phi)

    def is_flat(self, joint: Joint) -> bool:
        """Whether there is no prior at all."""
        return self == (None, None) and joint.model.log_prior is None


class Start(NamedTuple):
    """A maximum.

    Attributes:
        theta: The parameters there.
        factor: F, with F F' the covariance of the flattened theta: the inverse of the negative
            Hessian. What the data do not determine, and deviations at 0, do not vary in it.
    """

    theta: Population
    factor: Float[Array, "parameters directions"]


def kind_of(joint: Joint) -> Kind:
    """The structure of the covariance of the effects, by their law.

    Raises:
        ValueError: The law is none that can be integrated out.
    """
    model, law = joint
    if model.law is not None:
        if law.normaliser is not None:
            _refuse(f"the law of the effects of {model.name} has no complete density")
        return "model"
    if not law.learned:
        return "fixed"
    beta = jax.eval_shape(lambda key: law.init(key, jnp.zeros(2), Spec(None)), jax.random.key(0))
    if isinstance(beta, Correlated):
        return "full"
    if isinstance(beta, Gaussian):
        return "diagonal" if beta.log_scale.shape else "isotropic"
    return _refuse("it starts from the maximum of the likelihood with Gaussian effects")


def mean_held(joint: Joint) -> Joint:
    """The joint law with the mean of the effects held where it is: phi has their mean.

    The likelihood knows only the sum of a coefficient and the mean of its effect.
    """
    law = joint.law
    if joint.model.law is not None or not law.learned:
        return joint

    def held(beta):
        return beta._replace(mean=jax.lax.stop_gradient(beta.mean))

    return joint._replace(
        law=law._replace(
            log_density=lambda beta, z: law.log_density(held(beta), z),
            start=lambda beta: law.start(held(beta)),
        )
    )


def marginal_of(joint: Joint, kind: Kind, log_prior: Callable | None = None) -> Algorithm:
    """The marginal likelihood with the same effects.

    Args:
        joint: The model and the law of its effects.
        kind: See `kind_of`.
        log_prior: (described parameters) -> log-density, for a penalised maximum.
    """
    model, law = joint
    key = jax.random.key(0)  # of nothing: a law that is given has nothing random

    def log_density(phi, z):
        beta = law.init(key, jnp.zeros(len(z), z.dtype), Spec(None))
        return law.log_density(beta, z)

    if kind == "fixed":
        given = Law(law.init, log_density, start=lambda phi: jnp.zeros(()), draws=law.draws)
        model = model._replace(law=given)
    if log_prior is not None:  # a function of phi itself
        model = model._replace(log_prior=None, coefficients=None)
    return marginal(model, covariance="full" if kind == "full" else "diagonal", prior=log_prior)


def find_start(joint: Joint, kind: Kind, priors: Priors, spec: Spec, ask: Ask) -> Start:
    """The maximum of the marginal likelihood times the priors, in about a dozen rounds.

    Args:
        joint: The model and the law of its effects.
        kind: See `kind_of`.
        priors: Those of FedPop.
        spec: Shapes of the rows and the number of clients.
        ask: Asks all clients; `QUESTION` is a round of `marginal_of(joint, kind)`.

    Returns:
        The maximum and the covariance there.

    Raises:
        ValueError: There are too many effects or parameters, or no maximum; what to do instead.
    """
    key = jax.random.key(0, impl="threefry2x32")
    model, law = joint
    phi, effects = model.init(key, spec), model.init_effects(key, spec)
    _check(joint, kind, phi, effects)
    beta = Empty() if kind == "model" else law.init(key, effects, spec)
    coordinates = Coordinates(
        "model" if kind in ("model", "fixed") else "full" if kind == "full" else "diagonal",
        positive=False,
    )
    unravel = ravel_pytree(phi)[1]

    def log_prior(known):
        at = Population(unravel(known["parameters"].astype(float)), beta)
        if "sd" in known:
            at = at._replace(beta=_beta_of(beta, _root_of(known["sd"], known.get("cor"))))
        return priors.log_density(joint, at)

    method = marginal_of(joint, kind, None if priors.is_flat(joint) else log_prior)
    state: State = rounds_by_asking(method, key, spec, ask, QUESTION)
    if not bool(state.settled):
        _refuse(
            f"the marginal likelihood of {model.name} has no maximum that Newton's method finds"
        )

    def population(flat):
        theta: Theta = theta_of(state, coordinates, flat)
        if not theta.root.size:
            return Population(theta.phi, beta)
        return Population(theta.phi, _beta_of(beta, coordinates.root(theta.root, state.unit)))

    @jax.jit  # one program instead of many small ones
    def converted(state):
        zero = at_zero(state, coordinates)
        flat = jnp.where(zero, jnp.arcsinh(_SMALL), state.climb.point)
        jacobian = jax.jacobian(lambda at: ravel_pytree(population(at))[0])(flat)
        return zero, Start(population(flat), jacobian @ spread_of(state, coordinates))

    zero, start = converted(state)
    _check_bounds(law, start.theta.beta, kind)
    _warn(method, state, start.theta, np.asarray(zero), spec)
    return start


def _beta_of(like: PyTree, root: Float[Array, "effects effects"]) -> Gaussian | Correlated:
    """The parameters of the law of effects with mean as in `like` and covariance LL'."""
    diagonal = jnp.diagonal(root)
    log_scale = jnp.log(jnp.abs(diagonal))
    if isinstance(like, Correlated):
        return Correlated(like.mean, log_scale, jnp.tril(root / diagonal, -1))
    return Gaussian(like.mean, log_scale.reshape(like.log_scale.shape))


def _root_of(sd: Float[Array, " effects"], cor: Float[Array, " pairs"] | None):
    """The Cholesky factor of a covariance by deviations and correlations."""
    if cor is None:
        return jnp.diag(sd)
    upper = jnp.zeros((len(sd), len(sd)), sd.dtype).at[np.triu_indices(len(sd), 1)].set(cor)
    return sd[:, None] * jnp.linalg.cholesky(upper + upper.T + jnp.eye(len(sd), dtype=sd.dtype))


def _refuse(why: str):
    raise ValueError(
        f"fedpop: without a step_size {why}; give step_size= (and optimisers of phi and beta that "
        "suit the data), see help(covey.fedpop)"
    )


def _check(joint: Joint, kind: Kind, phi, effects: Float[Array, " effects"]) -> None:
    model, size = joint.model, ravel_pytree(phi)[0].size
    if size > LARGEST:
        _refuse(f"it learns up to {LARGEST} shared parameters, and {model.name} has {size}")
    if not 1 <= len(effects) <= MOST_EFFECTS:
        _refuse(f"it takes 1 to {MOST_EFFECTS} effects, and {model.name} has {len(effects)}")
    if kind not in ("model", "fixed") and np.any(np.asarray(effects)):
        _refuse(f"it takes effects with mean 0, and those of {model.name} start elsewhere")
    if kind == "isotropic" and len(effects) > 1:
        _refuse("it learns a deviation for each effect, not one for all (covariance='isotropic')")


def _check_bounds(law: Law, beta, kind: Kind) -> None:
    """An error for an estimate that the law of the effects does not allow."""
    if kind in ("model", "fixed"):
        return
    scale, allowed = np.exp(beta.log_scale), np.exp(law.project(beta).log_scale)
    if not np.allclose(scale, allowed, rtol=1e-3):
        raise ValueError(
            f"fedpop: deviations of the effects are estimated as {np.round(scale, 4)}, and "
            f"scale_bounds of the law of the effects allow {np.round(allowed, 4)} at most or at "
            "least; widen them, or leave effects= out"
        )


def _warn(method: Algorithm, state: State, theta: Population, zero: np.ndarray, spec: Spec) -> None:
    """Say which estimates are at a bound, or run away."""

    def never(name, sent):
        raise ValueError(f"the law at the maximum needs no questions, and asked {name!r}")

    shared = method.posterior.shared
    assert isinstance(shared, Approximation)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        law = shared.fit(Published(state), spec, never)
    for text in method.hooks.cautions(state, spec) if method.hooks.cautions else ():
        text = text.replace("marginal:", "fedpop:").replace("prior=", "phi_prior=")
        warnings.warn(text, stacklevel=2)
    if not zero.any():
        return
    held = np.round(np.exp(theta.beta.log_scale), 4).tolist()
    what = (
        f"{', '.join(law.zero)} is estimated as 0: these data do not show that clients differ in it"
        if law.zero
        else "the effects are estimated as perfectly correlated"
    )
    warnings.warn(
        f"fedpop: {what}. Deviations given the effects before are held at {held}, which counts as "
        "0; it has no standard error. covey.marginal(estimate='posterior') shows how large it may "
        "be",
        stacklevel=2,
    )
