"""Mixed models: an outcome depends on parameters phi that all clients share and on random effects z
of its own client.

The generalised linear ones add z to the coefficients of a generalised linear model: z_0 to the
intercept, z_j to the weight of the j-th column that `slopes` gives, by number or by name,

    predictor = x'w + b + z_0 + sum_j z_j x_j.

A likelihood sees rows, which have no names: which columns names stand for is found when phi is made
from the data's Spec, and rides along in phi as a part that jit knows and nobody learns.

Where the effects have a mean of their own, as in FedPop, data tell only sums apart: the intercept
of a typical client is b + mean_0 and its weight of such a column is w_j + mean_j. `own_parameters`
gives these sums.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree, Shaped

from covey.core.shard import Axis, Rows, Spec
from covey.models.effects import Law
from covey.models.linear import Linear, Noisy, linear, logistic, poisson
from covey.models.model import Model, flat, flat_size, need_number
from covey.models.predictive import Categorical, Mixture, Normal, Predictive, mixture_of

Slopes: TypeAlias = tuple[int | str, ...] | Literal["all"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Columns:
    """Numbers of columns, in a tree of parameters: a static part, without leaves."""

    numbers: tuple[int, ...] = field(metadata={"static": True})


class NamedSlopes(NamedTuple):
    """phi of a model whose `slopes` are names: its coefficients, and which columns have these
    names.

    log_scale: as in `Noisy`; None where the noise is not learned.
    """

    weight: Float[Array, " features"]
    bias: Float[Array, ""]
    log_scale: Float[Array, ""] | None
    slopes: Columns


class MixedModel(NamedTuple):
    """A likelihood p(y | x, phi, z) as pure functions; the law of the effects z is the method's,
    unless the model has its own.

    name: what reports call it.
    init: (key, spec) -> phi, a pytree of floating-point arrays. Data that do not fit raise a
        ValueError.
    init_effects: (key, spec) -> z, a vector: the effects of a client about which nothing is known
        yet.
    log_likelihood: (phi, z, rows) -> log p(y | x, phi, z) by row, with all normalising constants.
    predictive: (phi, z, x) -> the predictive distribution of the outcomes of the rows x of a client
        with effects z.
    log_prior: (phi) -> log p(phi) up to a constant; None is flat.
    law: the law of the effects, whose parameters are then phi; None leaves it to the method.
    describe: (phi, z) -> {name: value}: effects as users know them; None where z is all there is.
    coefficients: (phi, z) -> {name: value}: all that a client with effects z has, shared ones too;
        None if these have no names.
    axes: (spec) -> {name: Axis}: labels of what is described, such as the columns of x, and of the
        `effects` z themselves.
    """

    name: str
    init: Callable[[Key[Array, ""], Spec], PyTree]
    init_effects: Callable[[Key[Array, ""], Spec], Float[Array, " effects"]]
    log_likelihood: Callable[[PyTree, Float[Array, " effects"], Rows], Float[Array, " rows"]]
    predictive: Callable[
        [PyTree, Float[Array, " effects"], Shaped[Array, " rows *features"]], Predictive
    ]
    log_prior: Callable[[PyTree], Float[Array, ""]] | None = None
    law: Law | None = None
    describe: Callable[[PyTree, Float[Array, " effects"]], dict[str, Array]] | None = None
    coefficients: Callable[[PyTree, Float[Array, " effects"]], dict[str, Array]] | None = None
    axes: Callable[[Spec], dict[str, Axis]] | None = None


def mixed_linear(*, scale: float | None = None, slopes: Slopes = ()) -> MixedModel:
    """Linear regression with random intercepts, and random slopes of the columns `slopes`, given by
    number or name.

    The noise has the standard deviation `scale`, or one that is learned, from 1.
    """
    return _generalised("mixed_linear", linear(scale=scale), slopes)


def mixed_logistic(*, slopes: Slopes = ()) -> MixedModel:
    """Logistic regression with random intercepts, and random slopes of the columns `slopes`, given
    by number or name.
    """
    return _generalised("mixed_logistic", logistic(), slopes)


def mixed_poisson(*, slopes: Slopes = ()) -> MixedModel:
    """Poisson regression with random intercepts, and random slopes of the columns `slopes`, given
    by number or name.
    """
    return _generalised("mixed_poisson", poisson(), slopes)


def linear_map(*, effects: int, scale: float = 1.0, start: np.ndarray | None = None) -> MixedModel:
    """Linear regression on `effects` features phi'x that all clients share: y = z'phi'x + noise,
    phi a matrix.

    phi starts at `start`, or with random orthonormal columns; `spectral_start` gives a better one.
    """
    if effects < 1:
        raise ValueError(f"linear_map: effects must be at least 1, got {effects}")
    if scale <= 0:
        raise ValueError(
            f"linear_map: scale is a standard deviation and must be above 0, got {scale:g}"
        )

    def init(key: Key[Array, ""], spec: Spec) -> Float[Array, "features effects"]:
        need_number("linear_map", spec)
        if effects > flat_size(spec):
            raise ValueError(
                f"linear_map: {effects} effects are more than the {flat_size(spec)} columns of these rows"
            )
        if start is not None:
            if start.shape != (flat_size(spec), effects):
                raise ValueError(
                    f"linear_map: start must have shape {(flat_size(spec), effects)}, got {start.shape}"
                )
            return jnp.asarray(start, float)
        return jax.random.orthogonal(key, flat_size(spec), m=effects)

    def predictive(
        phi: Float[Array, "features effects"],
        z: Float[Array, " effects"],
        x: Shaped[Array, " rows *columns"],
    ) -> Normal:
        mean = flat(x) @ (phi @ z)
        return Normal(mean, jnp.full_like(mean, scale))

    return _from_predictive("linear_map", init, lambda key, spec: jnp.zeros(effects), predictive)


def own_parameters(
    phi: Linear | Noisy | NamedSlopes, z: Float[Array, " effects"], slopes: Slopes = ()
) -> Linear | Noisy:
    """The coefficients of a client with effects z; with z the mean of the effects, those of a
    typical client.

    slopes: those of the model that phi is of.
    """
    weight, bias = phi.weight.at[_columns(phi, slopes)].add(z[1:]), phi.bias + z[0]
    if isinstance(phi, Linear) or phi.log_scale is None:
        return Linear(weight, bias)
    return Noisy(weight, bias, phi.log_scale)


def averaged(
    predictive: Callable[[Float[Array, " effects"]], Predictive],
    draws: Float[Array, "draws effects"],
) -> Categorical | Mixture:
    """The predictive distribution of several draws: the mixture with one member per draw.

    Args:
        predictive: (z) -> the predictive distribution of some rows given the effects z.
        draws: Draws of the effects, one per row.

    Returns:
        The mixture with equal weights; see `mixture_of`.

    Example:
        >>> import jax.numpy as jnp
        >>> model, phi = mixed_poisson(), Linear(jnp.zeros(1), jnp.asarray(2.0))
        >>> draws = jnp.array([[-1.0], [0.0], [1.0]])
        >>> counts = averaged(lambda z: model.predictive(phi, z, jnp.zeros((1, 1))), draws)
        >>> round(float(counts.mean[0]), 2), round(float(counts.variance[0]), 2)
        (10.06, 63.91)
    """
    return mixture_of(jax.vmap(predictive)(draws))


def average_of(
    members: Predictive, weights: Float[Array, " members"] | None = None
) -> Categorical | Mixture:
    """The mixture of predictives stacked on a leading axis: another name of `mixture_of`."""
    return mixture_of(members, weights)


def _columns(phi: Linear | Noisy | NamedSlopes, slopes: Slopes) -> slice | Array:
    if slopes == "all":
        return slice(None)
    numbers = phi.slopes.numbers if isinstance(phi, NamedSlopes) else slopes
    if any(isinstance(column, str) for column in numbers):
        raise ValueError(
            f"slopes={slopes} are names, which these coefficients do not know; take phi from the model's own init"
        )
    return jnp.array(numbers, int)


def _generalised(name: str, base: Model, slopes: Slopes) -> MixedModel:
    """A generalised linear model whose client has coefficients of its own."""
    if slopes != "all" and len(set(slopes)) < len(slopes):
        raise ValueError(f"{name}: slopes names a column twice: {slopes}")
    by_name = slopes != "all" and any(isinstance(column, str) for column in slopes)

    def init(key: Key[Array, ""], spec: Spec) -> Linear | Noisy | NamedSlopes:
        phi, columns = base.init(key, spec), Columns(_found(name, slopes, spec))
        return (
            NamedSlopes(phi.weight, phi.bias, getattr(phi, "log_scale", None), columns)
            if by_name
            else phi
        )

    def init_effects(key: Key[Array, ""], spec: Spec) -> Float[Array, " effects"]:
        return jnp.zeros(1 + len(_found(name, slopes, spec)))

    def predictive(
        phi: Linear | Noisy | NamedSlopes,
        z: Float[Array, " effects"],
        x: Shaped[Array, " rows *features"],
    ) -> Predictive:
        return base.predictive(own_parameters(phi, z, slopes), x)

    def describe(
        phi: Linear | Noisy | NamedSlopes, z: Float[Array, " effects"]
    ) -> dict[str, Array]:
        own = own_parameters(phi, z, slopes)
        personal = {"intercept": own.bias}
        return (
            personal
            if not len(slopes)
            else personal | {"slopes": own.weight[_columns(phi, slopes)]}
        )

    def coefficients(
        phi: Linear | Noisy | NamedSlopes, z: Float[Array, " effects"]
    ) -> dict[str, Array]:
        own = own_parameters(phi, z, slopes)
        named = {"intercept": own.bias, "weights": own.weight}
        return named | {"noise": jnp.exp(own.log_scale)} if isinstance(own, Noisy) else named

    def axes(spec: Spec) -> dict[str, Axis]:
        if spec.features is None:
            return {}
        own = tuple(spec.features[column] for column in _found(name, slopes, spec))
        effects = Axis("effect", ("intercept", *own))
        return {
            "slopes": Axis("slope", own),
            "weights": Axis("column", spec.features),
            "effects": effects,
        }

    model = _from_predictive(name, init, init_effects, predictive)
    return model._replace(describe=describe, coefficients=coefficients, axes=axes)


def _found(name: str, slopes: Slopes, spec: Spec) -> tuple[int, ...]:
    """The numbers of the columns of these rows that `slopes` gives."""
    if slopes == "all":
        return tuple(range(flat_size(spec)))
    found = tuple(_number(name, column, spec) for column in slopes)
    if len(set(found)) < len(found):
        raise ValueError(f"{name}: slopes names a column twice: {slopes}")
    return found


def _number(name: str, column: int | str, spec: Spec) -> int:
    if not isinstance(column, str):
        if not 0 <= column < flat_size(spec):
            raise ValueError(
                f"{name}: slopes are columns 0 to {flat_size(spec) - 1} of these rows, got {column}"
            )
        return column
    if spec.features is None:
        raise ValueError(
            f"{name}: slopes has the name {column!r}, but the columns of these data have no names; give its number, or make the "
            "data with features="
        )
    if column not in spec.features:
        raise ValueError(
            f"{name}: slopes has {column!r}, but the columns of these data are {', '.join(spec.features)}"
        )
    return spec.features.index(column)


def _from_predictive(
    name: str,
    init: Callable[[Key[Array, ""], Spec], PyTree],
    init_effects: Callable[[Key[Array, ""], Spec], Float[Array, " effects"]],
    predictive: Callable[
        [PyTree, Float[Array, " effects"], Shaped[Array, " rows *features"]], Predictive
    ],
) -> MixedModel:
    """The model whose log-likelihood is its predictive's log-probability: one formula for learning
    and for scoring.
    """

    def log_likelihood(
        phi: PyTree, z: Float[Array, " effects"], rows: Rows
    ) -> Float[Array, " rows"]:
        return predictive(phi, z, rows.x).log_prob(rows.y)

    return MixedModel(name, init, init_effects, log_likelihood, predictive)
