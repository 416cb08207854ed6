"""The parameters of a marginal likelihood: shared parameters and the covariance of the effects, in
coordinates that suit Newton's method; their description and their prior.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from covey.core.shard import Axis, Spec
from covey.models.linear import Linear, Noisy
from covey.models.mixed import MixedModel
from covey.models.model import Model
from covey.models.regression import Coefficients

Covariance: TypeAlias = Literal["full", "diagonal"]
Estimate: TypeAlias = Literal["ml", "reml", "posterior"]
LogPrior: TypeAlias = Callable[[dict[str, Array]], Float[Array, ""]]

POSITIVE = ("noise", "dispersion", "group_deviation")  # described values with a logarithm in phi
WEAK = 2.5  # weakly informative standard deviations, in units that the data give
_FREEDOM = 3.0  # degrees of freedom of the half Student t prior of the effects' deviations
_CONCENTRATION = 2.0  # of the LKJ prior of their correlations


class Theta(NamedTuple):
    """All parameters of the marginal likelihood.

    Attributes:
        phi: The model's shared parameters, the logarithm of the noise among them where it is
            learned.
        root: The Cholesky factor of the covariance of the effects, by rows; see `Coordinates`.
    """

    phi: PyTree
    root: Float[Array, " entries"]


class Coordinates(NamedTuple):
    """The Cholesky factor L of the covariance of the effects, written as unconstrained values.

    For a maximum, rows of L in units of `unit`, its diagonal sinh(u). sinh has the better geometry:
    it is linear where the data cannot tell a deviation from 0, so that a maximum at 0 is an
    ordinary one, and exponential beyond.

    For a density, deviations exp(u) in units of `unit`, and partial correlations tanh(v). Entries
    of L would not do: where deviations may be 0, their density grows without bound near 0, and has
    no mode.

    Attributes:
        covariance: "full", "diagonal" for effects without correlations, or "model" where the
            model has its own law of the effects, whose parameters are among phi.
        positive: Whether deviations stay above 0.
    """

    covariance: Literal["full", "diagonal", "model"]
    positive: bool

    def size(self, effects: int) -> int:
        """The count of values that write the covariance of `effects` effects."""
        if self.covariance == "model":
            return 0
        return effects * (effects + 1) // 2 if self.covariance == "full" else effects

    def diagonal(self, effects: int) -> Int[np.ndarray, " deviations"]:
        """The indices of the diagonal of L."""
        index = np.arange(0 if self.covariance == "model" else effects)
        return index * (index + 3) // 2 if self.covariance == "full" else index

    def root(
        self, entries: Float[Array, " entries"], unit: Float[Array, " effects"]
    ) -> Float[Array, "effects effects"]:
        """L."""
        effects, at = len(unit), self.diagonal(len(unit))
        scale = jnp.exp(entries[at]) if self.positive else jnp.sinh(entries[at])
        if self.covariance == "diagonal":
            return jnp.diag(unit * scale)
        lower = jnp.zeros((effects, effects), entries.dtype)
        lower = lower.at[np.tril_indices(effects)].set(entries)
        if self.positive:
            return (unit * scale)[:, None] * _correlation_root(lower)[0]
        return unit[:, None] * lower.at[np.diag_indices(effects)].set(scale)

    def from_deviations(
        self, deviation: Float[Array, " effects"], unit: Float[Array, " effects"]
    ) -> Float[Array, " entries"]:
        """The values that write independent effects with these standard deviations."""
        inverse = jnp.log if self.positive else jnp.arcsinh
        none = jnp.zeros(self.size(len(unit)), deviation.dtype)
        if not len(none):
            return none
        return none.at[self.diagonal(len(unit))].set(inverse(deviation / unit))

    def log_jacobian(
        self, entries: Float[Array, " entries"], unit: Float[Array, " effects"]
    ) -> Float[Array, ""]:
        """The log of the derivative of deviations and correlations by the values, for a density,
        up to a constant.
        """
        effects = len(unit)
        scales = jnp.sum(entries[self.diagonal(effects)])
        if self.covariance == "diagonal":
            return scales
        lower = jnp.zeros((effects, effects), entries.dtype)
        return scales + _correlation_root(lower.at[np.tril_indices(effects)].set(entries))[1]


def _correlation_root(
    entries: Float[Array, "effects effects"],
) -> tuple[Float[Array, "effects effects"], Float[Array, ""]]:
    """The Cholesky factor of a matrix of correlations from values below the diagonal, whose tanh
    are partial correlations; and the log of the derivative of the correlations by them.

    Reference: Lewandowski, Kurowicka and Joe (2009), Generating random correlation matrices based
    on vines and extended onion method.
    """
    effects, one = len(entries), jnp.ones((), entries.dtype)
    root, log_derivative = jnp.zeros_like(entries).at[0, 0].set(1.0), 0 * one
    for row in range(1, effects):
        log_left = 0 * one  # of one minus the squares so far
        for column in range(row):
            v = entries[row, column]
            # log(1 - tanh(v)^2), precise for any v
            log_rest = 2 * (jnp.log(2 * one) - v - jnp.logaddexp(0 * v, -2 * v))
            root = root.at[row, column].set(jnp.tanh(v) * jnp.exp(log_left / 2))
            log_derivative += log_rest + log_left / 2
            log_left += log_rest
        root = root.at[row, row].set(jnp.exp(log_left / 2))
        log_derivative += (effects - 1 - row) * log_left / 2
    return root, log_derivative


def deviations(
    root: Float[Array, "effects effects"],
) -> tuple[Float[Array, " effects"], Float[Array, " pairs"]]:
    """Standard deviations of the effects and their correlations, pair by pair: (0, 1), (0, 2), ...

    A correlation with an effect that does not vary is NaN.
    """
    covariance = root @ root.T
    square = jnp.diagonal(covariance)
    # The square root has no derivative at 0.
    sd = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)
    one, other = np.triu_indices(len(root), 1)
    scale = sd[one] * sd[other]
    safe = jnp.where(scale > 0, scale, 1.0)
    return sd, jnp.where(scale > 0, covariance[one, other] / safe, jnp.nan)


def as_mixed(model: Model | MixedModel) -> MixedModel:
    """A plain model as a mixed one without effects."""
    if isinstance(model, MixedModel):
        if model.law is not None and model.law.normaliser is not None:
            raise ValueError(
                f"marginal: the law of the effects of {model.name} has no complete density, which "
                "is integrated here; use fedpop"
            )
        return model
    return _without_effects(model)


@lru_cache(maxsize=64)  # equal models are one object, so that runs share compiled programs
def _without_effects(model: Model) -> MixedModel:
    def named(params, z):
        if isinstance(params, (Linear, Noisy)):
            found = {"intercept": params.bias, "weights": params.weight}
            noise = {"noise": jnp.exp(params.log_scale)} if isinstance(params, Noisy) else {}
            return found | noise
        if model.describe is not None:
            return model.describe(params)
        return {"parameters": ravel_pytree(params)[0]}

    def axes(spec):
        known = {} if model.axes is None else model.axes(spec)
        return (
            known if spec.features is None else known | {"weights": Axis("column", spec.features)}
        )

    return MixedModel(
        name=model.name,
        init=model.init,
        init_effects=lambda key, spec: jnp.zeros(0),
        log_likelihood=lambda phi, z, rows: model.log_likelihood(phi, rows),
        predictive=lambda phi, z, x: model.predictive(phi, x),
        log_prior=model.log_prior,
        coefficients=named,
        axes=axes,
    )


def described(
    model: MixedModel, coordinates: Coordinates, theta: Theta, unit: Float[Array, " effects"]
) -> dict[str, Array]:
    """The parameters as users know them: coefficients of a typical client, `noise`, and `sd` and
    `cor` of the effects.
    """
    effects = len(unit)
    if model.coefficients is not None:
        shared = model.coefficients(theta.phi, jnp.zeros(effects, unit.dtype))
    else:
        shared = {"parameters": ravel_pytree(theta.phi)[0]}
    if not theta.root.size:
        return shared
    sd, correlation = deviations(coordinates.root(theta.root, unit))
    correlated = coordinates.covariance == "full" and effects > 1
    return shared | {"sd": sd} | ({"cor": correlation} if correlated else {})


def labels_of(model: MixedModel, spec: Spec) -> dict[str, Axis]:
    """Labels along what is described."""
    known = {} if model.axes is None else model.axes(spec)
    effects = known.get("effects")
    if effects is None:
        return known
    names = effects.labels
    pairs = [
        f"{names[i]}, {names[j]}" for i, j in zip(*np.triu_indices(len(names), 1), strict=True)
    ]
    return known | {"sd": effects, "cor": Axis("pair", tuple(pairs))}


def named(phi: PyTree, name: str) -> Bool[np.ndarray, " p"]:
    """Which values of the flattened phi belong to the field of this name."""

    def leaf_named(path, leaf):
        last = jax.tree_util.keystr(path[-1:], simple=True) if path else ""
        return np.full(np.size(leaf), last == name)

    found = jax.tree.leaves(jax.tree_util.tree_map_with_path(leaf_named, phi))
    return np.concatenate(found) if found else np.zeros(0, bool)


class Settings(NamedTuple):
    """The method's settings; see `covey.marginal`."""

    model: MixedModel
    coordinates: Coordinates
    estimate: Estimate
    prior: float | LogPrior | None
    nodes: int | None
    draws: int
    predictive_draws: int
    min_rows: int


def is_regression(phi: PyTree) -> bool:
    """Whether these are coefficients of a linear predictor."""
    return isinstance(phi, (Linear, Noisy, Coefficients))


class Scales(NamedTuple):
    """Standard deviations of the default prior, from the data: of each value of phi, infinite
    where the prior is flat, and of each effect.
    """

    phi: Float[Array, " p"]
    effects: Float[Array, " effects"]


def default_scales(
    phi: PyTree,
    per_weight: Float[Array, " p"],
    spread: Float[Array, ""],
    mean_square: Float[Array, " effects"],
) -> Scales:
    """The scales of the default prior: 2.5 times the standard error that one average row would
    give, for weights; 2.5 units of the linear predictor, for effects.
    """
    flat = named(phi, "bias") | logarithms(phi)
    return Scales(
        jnp.where(flat, jnp.inf, WEAK * jnp.sqrt(per_weight)),
        WEAK * spread / jnp.sqrt(mean_square),
    )


def log_prior(
    model: MixedModel,
    coordinates: Coordinates,
    prior: float | LogPrior | None,
    theta: Theta,
    unit: Float[Array, " effects"],
    scales: Scales,
) -> Float[Array, ""]:
    """The log prior density of theta, up to a constant; see `covey.marginal`.

    With `coordinates.positive` it is a density in these coordinates, with the Jacobian; else the
    density of the described parameters, for a penalised maximum.
    """
    posterior = coordinates.positive
    if model.log_prior is not None:  # its own, a density in these coordinates
        own = model.log_prior(theta.phi) if posterior else jnp.zeros(())
        return own + _effects_prior(coordinates, theta, unit, scales, posterior=posterior)
    flat, _ = ravel_pytree(theta.phi)
    known = described(model, coordinates, theta, unit)
    value = jnp.zeros((), flat.dtype)
    if callable(prior):
        value += prior(known)
    elif prior is not None:
        finite = jnp.isfinite(scales.phi)
        value -= jnp.sum(jnp.where(finite, (flat / prior) ** 2, 0.0)) / 2
    elif posterior:
        value -= jnp.sum((flat / scales.phi) ** 2) / 2
    if callable(prior) and posterior:
        value += coordinates.log_jacobian(theta.root, unit) if theta.root.size else 0.0
        # These are exponentials of the parameters.
        return value + sum(jnp.log(known[name]) for name in POSITIVE if name in known)
    if callable(prior):
        return value
    return value + _effects_prior(coordinates, theta, unit, scales, posterior=posterior)


def _effects_prior(
    coordinates: Coordinates,
    theta: Theta,
    unit: Float[Array, " effects"],
    scales: Scales,
    *,
    posterior: bool,
) -> Float[Array, ""]:
    """Half Student t deviations and LKJ correlations of the effects, in these coordinates."""
    if not posterior or not theta.root.size:
        return jnp.zeros((), theta.root.dtype)
    root = coordinates.root(theta.root, unit)
    sd, _ = deviations(root)
    spread = -(_FREEDOM + 1) / 2 * jnp.sum(jnp.log1p((sd / scales.effects) ** 2 / _FREEDOM))
    determinant = 2 * jnp.sum(jnp.log(jnp.diagonal(root) / sd))  # of the correlations
    correlations = (_CONCENTRATION - 1) * determinant
    return spread + correlations + coordinates.log_jacobian(theta.root, unit)


def logarithms(phi: PyTree) -> Bool[np.ndarray, " p"]:
    """Which values of the flattened phi are logarithms of a scale: noise, dispersion, groups."""
    found = [named(phi, name) for name in ("log_scale", "log_dispersion", "log_groups")]
    return np.any(found, axis=0)


def unbounded(phi: PyTree) -> Bool[np.ndarray, " p"]:
    """Which of these have no maximum where the scale is estimated as 0, or as infinite."""
    return np.any([named(phi, name) for name in ("log_dispersion", "log_groups")], axis=0)
