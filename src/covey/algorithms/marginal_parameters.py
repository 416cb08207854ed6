"""The parameters of a marginal likelihood: shared parameters and the covariance of the effects, in
coordinates that suit Newton's method, and their description.
"""

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

Covariance: TypeAlias = Literal["full", "diagonal"]


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
    """How the Cholesky factor L of the covariance of the effects is written as free numbers.

    Row i of L is in units of `unit[i]`. Its diagonal is sinh(u), or exp(u) where it is to stay
    positive. sinh has the better geometry for a maximum: it is linear where the data cannot tell a
    deviation from 0, so that a maximum at 0 is an ordinary one, and exponential beyond.

    Attributes:
        covariance: "full", or "diagonal" for effects without correlations.
        positive: Whether deviations stay above 0.
    """

    covariance: Covariance
    positive: bool

    def size(self, effects: int) -> int:
        """How many numbers write the covariance of so many effects."""
        return effects * (effects + 1) // 2 if self.covariance == "full" else effects

    def diagonal(self, effects: int) -> Int[np.ndarray, " effects"]:
        """The indices of the diagonal of L."""
        index = np.arange(effects)
        return index * (index + 3) // 2 if self.covariance == "full" else index

    def root(
        self, entries: Float[Array, " entries"], unit: Float[Array, " effects"]
    ) -> Float[Array, "effects effects"]:
        """L."""
        effects = len(unit)
        at = self.diagonal(effects)
        curve = jnp.exp if self.positive else jnp.sinh
        values = entries.at[at].set(curve(entries[at]))
        if self.covariance == "diagonal":
            return jnp.diag(unit * values)
        lower = jnp.zeros((effects, effects), entries.dtype)
        return unit[:, None] * lower.at[np.tril_indices(effects)].set(values)

    def from_deviations(
        self, deviation: Float[Array, " effects"], unit: Float[Array, " effects"]
    ) -> Float[Array, " entries"]:
        """The numbers of independent effects with these standard deviations."""
        inverse = jnp.log if self.positive else jnp.arcsinh
        none = jnp.zeros(self.size(len(unit)), deviation.dtype)
        return none.at[self.diagonal(len(unit))].set(inverse(deviation / unit))

    def log_jacobian(
        self, entries: Float[Array, " entries"], unit: Float[Array, " effects"]
    ) -> Float[Array, ""]:
        """The log of the derivative of deviations and correlations by the numbers, exp(u) on the
        diagonal, up to a constant.
        """
        root, effects = self.root(entries, unit), len(unit)
        sd, _ = deviations(root)
        if self.covariance == "diagonal":
            return jnp.sum(jnp.log(sd))
        powers = effects + 1 - jnp.arange(effects)
        return powers @ jnp.log(jnp.diagonal(root)) - effects * jnp.sum(jnp.log(sd))


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
        if model.law is not None:
            raise ValueError(
                f"marginal: {model.name} has its own law of the effects, and marginal integrates "
                "Gaussian ones; use fedpop, or a model without a law"
            )
        return model

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
    if not effects:
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
    """Which numbers of the flattened phi belong to the field of this name."""

    def leaf_named(path, leaf):
        last = jax.tree_util.keystr(path[-1:], simple=True) if path else ""
        return np.full(np.size(leaf), last == name)

    found = jax.tree.leaves(jax.tree_util.tree_map_with_path(leaf_named, phi))
    return np.concatenate(found) if found else np.zeros(0, bool)
