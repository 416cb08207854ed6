"""Mixed models: an outcome depends on parameters phi that all clients share and on random effects z of its own client.

The generalised linear ones add z to the coefficients of a generalised linear model: z_0 to the intercept, z_j to the weight of
the j-th column that `slopes` names,

    predictor = x'w + b + z_0 + sum_j z_j x_j.

Where the effects have a mean of their own, as in FedPop, data tell only sums apart: the intercept of a typical client is
b + mean_0 and its weight of such a column is w_j + mean_j. `own_parameters` gives these sums.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree, Shaped

from covey.core.shard import Axis, Rows, Spec
from covey.models.effects import Law
from covey.models.linear import Linear, Noisy, linear, logistic, poisson
from covey.models.model import Model, flat, flat_size, need_number
from covey.models.predictive import Categorical, Normal, Poisson, Predictive

Slopes: TypeAlias = tuple[int, ...] | Literal["all"]
Coefficients = TypeVar("Coefficients", bound=Linear | Noisy)


class MixedModel(NamedTuple):
    """A likelihood p(y | x, phi, z) as pure functions; the law of the effects z is the method's, unless the model has its own.

    name: what reports call it.
    init: (key, spec) -> phi, a pytree of floating-point arrays. Data that do not fit raise a ValueError.
    init_effects: (key, spec) -> z, a vector: the effects of a client about which nothing is known yet.
    log_likelihood: (phi, z, rows) -> log p(y | x, phi, z) by row, with all normalising constants.
    predictive: (phi, z, x) -> the predictive distribution of the outcomes of the rows x of a client with effects z.
    log_prior: (phi) -> log p(phi) up to a constant; None is flat.
    law: the law of the effects, whose parameters are then phi; None leaves it to the method.
    describe: (phi, z) -> {name: value}: effects as users know them; None where z is all there is.
    coefficients: (phi, z) -> {name: value}: all that a client with effects z has, shared ones too; None if these have no names.
    axes: (spec) -> {name: Axis}: labels of what is described, such as the columns of x, and of the `effects` z themselves.
    """

    name: str
    init: Callable[[Key[Array, ""], Spec], PyTree]
    init_effects: Callable[[Key[Array, ""], Spec], Float[Array, " effects"]]
    log_likelihood: Callable[[PyTree, Float[Array, " effects"], Rows], Float[Array, " rows"]]
    predictive: Callable[[PyTree, Float[Array, " effects"], Shaped[Array, " rows *features"]], Predictive]
    log_prior: Callable[[PyTree], Float[Array, ""]] | None = None
    law: Law | None = None
    describe: Callable[[PyTree, Float[Array, " effects"]], dict[str, Array]] | None = None
    coefficients: Callable[[PyTree, Float[Array, " effects"]], dict[str, Array]] | None = None
    axes: Callable[[Spec], dict[str, Axis]] | None = None


def mixed_linear(*, scale: float | None = None, slopes: Slopes = ()) -> MixedModel:
    """Linear regression with random intercepts, and random slopes of the columns `slopes`.

    The noise has the standard deviation `scale`, or one that is learned, from 1.
    """
    return _generalised("mixed_linear", linear(scale=scale), slopes)


def mixed_logistic(*, slopes: Slopes = ()) -> MixedModel:
    """Logistic regression with random intercepts, and random slopes of the columns `slopes`."""
    return _generalised("mixed_logistic", logistic(), slopes)


def mixed_poisson(*, slopes: Slopes = ()) -> MixedModel:
    """Poisson regression with random intercepts, and random slopes of the columns `slopes`."""
    return _generalised("mixed_poisson", poisson(), slopes)


def linear_map(*, effects: int, scale: float = 1.0, start: np.ndarray | None = None) -> MixedModel:
    """Linear regression on `effects` features phi'x that all clients share: y = z'phi'x + noise, phi a matrix.

    phi starts at `start`, or with random orthonormal columns; `spectral_start` gives a better one.
    """
    if effects < 1:
        raise ValueError(f"linear_map: effects must be at least 1, got {effects}")
    if scale <= 0:
        raise ValueError(f"linear_map: scale is a standard deviation and must be above 0, got {scale:g}")

    def init(key: Key[Array, ""], spec: Spec) -> Float[Array, "features effects"]:
        need_number("linear_map", spec)
        if effects > flat_size(spec):
            raise ValueError(f"linear_map: {effects} effects are more than the {flat_size(spec)} columns of these rows")
        if start is not None:
            if start.shape != (flat_size(spec), effects):
                raise ValueError(f"linear_map: start must have shape {(flat_size(spec), effects)}, got {start.shape}")
            return jnp.asarray(start, float)
        return jax.random.orthogonal(key, flat_size(spec), m=effects)

    def predictive(
        phi: Float[Array, "features effects"], z: Float[Array, " effects"], x: Shaped[Array, " rows *columns"]
    ) -> Normal:
        mean = flat(x) @ (phi @ z)
        return Normal(mean, jnp.full_like(mean, scale))

    return _from_predictive("linear_map", init, lambda key, spec: jnp.zeros(effects), predictive)


def own_parameters(phi: Coefficients, z: Float[Array, " effects"], slopes: Slopes = ()) -> Coefficients:
    """The coefficients of a client with effects z; with z the mean of the effects, those of a typical client."""
    return phi._replace(weight=phi.weight.at[_columns(slopes)].add(z[1:]), bias=phi.bias + z[0])


def averaged(predictive: Callable[[Float[Array, " effects"]], Predictive], draws: Float[Array, "draws effects"]) -> Predictive:
    """What draws of the effects predict together; see `average_of`."""
    return average_of(jax.vmap(predictive)(draws))


def average_of(members: Predictive, weights: Float[Array, " members"] | None = None) -> Predictive:
    """What predictives together say that are stacked on a leading axis; equal weights where none are given.

    Labels: the mixture itself. Numbers: the Gaussian with the mixture's mean and variance. Counts: the Poisson with its mean.
    """
    if isinstance(members, Categorical):
        return Categorical.average(members.log_probability, weights)
    if isinstance(members, Normal):
        mean = jnp.average(members.mean, axis=0, weights=weights)
        variance = jnp.average(members.scale**2 + (members.mean - mean) ** 2, axis=0, weights=weights)
        return Normal(mean, jnp.sqrt(variance))
    if isinstance(members, Poisson):
        each = jnp.ones(members.log_rate.shape[0]) if weights is None else weights
        by_row = each.reshape(-1, *(1,) * (members.log_rate.ndim - 1))
        return Poisson(jax.nn.logsumexp(members.log_rate, axis=0, b=by_row) - jnp.log(jnp.sum(each)))
    raise ValueError(f"draws are averaged of Categorical, Normal and Poisson predictions, not of {type(members).__name__}")


def _columns(slopes: Slopes) -> slice | Array:
    return slice(None) if slopes == "all" else jnp.array(slopes, int)


def _generalised(name: str, base: Model, slopes: Slopes) -> MixedModel:
    """A generalised linear model whose client has coefficients of its own."""
    if slopes != "all" and len(set(slopes)) < len(slopes):
        raise ValueError(f"{name}: slopes names a column twice: {slopes}")

    def init_effects(key: Key[Array, ""], spec: Spec) -> Float[Array, " effects"]:
        return jnp.zeros(1 + len(_found(name, slopes, spec)))

    def predictive(phi: Linear | Noisy, z: Float[Array, " effects"], x: Shaped[Array, " rows *features"]) -> Predictive:
        return base.predictive(own_parameters(phi, z, slopes), x)

    def describe(phi: Linear | Noisy, z: Float[Array, " effects"]) -> dict[str, Array]:
        own = own_parameters(phi, z, slopes)
        personal = {"intercept": own.bias}
        return personal if not len(slopes) else personal | {"slopes": own.weight[_columns(slopes)]}

    def coefficients(phi: Linear | Noisy, z: Float[Array, " effects"]) -> dict[str, Array]:
        own = own_parameters(phi, z, slopes)
        named = {"intercept": own.bias, "weights": own.weight}
        return named | {"noise": jnp.exp(own.log_scale)} if isinstance(own, Noisy) else named

    def axes(spec: Spec) -> dict[str, Axis]:
        if spec.features is None:
            return {}
        own = tuple(spec.features[column] for column in _found(name, slopes, spec))
        effects = Axis("effect", ("intercept", *own))
        return {"slopes": Axis("slope", own), "weights": Axis("column", spec.features), "effects": effects}

    model = _from_predictive(name, base.init, init_effects, predictive)
    return model._replace(describe=describe, coefficients=coefficients, axes=axes)


def _found(name: str, slopes: Slopes, spec: Spec) -> tuple[int, ...]:
    """The columns of these rows that `slopes` names."""
    columns = flat_size(spec)
    if slopes == "all":
        return tuple(range(columns))
    wrong = [column for column in slopes if not 0 <= column < columns]
    if wrong:
        raise ValueError(f"{name}: slopes are columns 0 to {columns - 1} of these rows, got {wrong[0]}")
    return slopes


def _from_predictive(
    name: str,
    init: Callable[[Key[Array, ""], Spec], PyTree],
    init_effects: Callable[[Key[Array, ""], Spec], Float[Array, " effects"]],
    predictive: Callable[[PyTree, Float[Array, " effects"], Shaped[Array, " rows *features"]], Predictive],
) -> MixedModel:
    """The model whose log-likelihood is its predictive's log-probability: one formula for learning and for scoring."""

    def log_likelihood(phi: PyTree, z: Float[Array, " effects"], rows: Rows) -> Float[Array, " rows"]:
        return predictive(phi, z, rows.x).log_prob(rows.y)

    return MixedModel(name, init, init_effects, log_likelihood, predictive)
