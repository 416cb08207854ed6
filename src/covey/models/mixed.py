"""Mixed models: an outcome depends on parameters phi that all clients share and on random effects z
of its own client.

The generalised linear ones add z to the coefficients of a generalised linear model: z_0 to the
intercept, z_j to the weight of the j-th column in `slopes`,

    predictor = x'w + b + z_0 + sum_j z_j x_j.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree, Shaped

from covey.core.shard import Axis, Rows, Spec
from covey.models.families import BERNOULLI, GAUSSIAN, POISSON
from covey.models.law import Law
from covey.models.linear import Linear, Noisy, generalised_linear
from covey.models.model import Model, flat_size
from covey.models.predictive import Categorical, Mixture, Predictive, mixture_of

Slopes: TypeAlias = tuple[int | str, ...] | Literal["all"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Columns:
    """Indices of columns, in a tree of parameters: a static part, without leaves."""

    indices: tuple[int, ...] = field(metadata={"static": True})


class NamedSlopes(NamedTuple):
    """Shared parameters phi of a model whose `slopes` are names: its coefficients, and which
    columns have these names.

    A likelihood sees rows, which have no names: the columns are found when phi is made from the
    data's Spec, and stay in phi as a static part that is not learned.

    Attributes:
        weight: Weight of each column.
        bias: Intercept.
        log_scale: Logarithm of the noise's standard deviation; None where it is not learned.
        slopes: The columns with a random slope.
    """

    weight: Float[Array, " features"]
    bias: Float[Array, ""]
    log_scale: Float[Array, ""] | None
    slopes: Columns


class MixedModel(NamedTuple):
    """A likelihood p(y | x, phi, z) as pure functions: phi is shared, z is each client's own.

    The law of the effects z belongs to the method, unless the model has its own.

    Attributes:
        name: Name in reports.
        init: (key, spec) -> phi, a pytree of floating-point arrays. Data that do not fit raise a
            ValueError.
        init_effects: (key, spec) -> z, a vector: the effects of a client without rows.
        log_likelihood: (phi, z, rows) -> log p(y | x, phi, z) by row, with all normalising
            constants.
        predictive: (phi, z, x) -> the predictive distribution of the outcomes of the rows x of a
            client with effects z.
        log_prior: (phi) -> log p(phi) up to a constant; None is flat.
        law: The law of the effects, whose parameters are then phi; None leaves it to the method.
        describe: (phi, z) -> {name: value}: effects as users know them; None where z needs no
            further description.
        coefficients: (phi, z) -> {name: value}: all coefficients of a client with effects z, shared
            ones too; None where they have no names.
        axes: (spec) -> {name: Axis}: labels of what is described, such as the columns of x, and of
            the `effects` z themselves.
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
    """Linear regression with a random intercept for each client, and random slopes.

        y = x'w + b + z_0 + sum_j z_j x_j + scale * noise,   noise ~ N(0, 1)

    Args:
        scale: Standard deviation of the noise, in units of the outcome. Default: None, which learns
            it, starting from 1.
        slopes: Columns with a random slope for each client, by name or index, or "all". Default:
            none, a random intercept only.

    Returns:
        A mixed model of data with a numeric outcome, for `fedpop`, `fedrep` and `fedper`.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from covey.data.federated import FederatedData
        >>> data = FederatedData.from_clients(
        ...     {"a": (np.eye(2), np.array([0.5, 1.0]))}, features=["age", "dose"]
        ... )
        >>> model = mixed_linear(slopes=("dose",))
        >>> model.init_effects(jax.random.key(0), data.spec).shape  # the intercept and one slope
        (2,)
        >>> model.axes(data.spec)["effects"].labels
        ('intercept', 'dose')
    """
    return _generalised(generalised_linear("mixed_linear", GAUSSIAN, scale=scale), slopes)


def mixed_logistic(*, slopes: Slopes = ()) -> MixedModel:
    """Logistic regression with a random intercept for each client, and random slopes.

        log p(1) - log p(0) = x'w + b + z_0 + sum_j z_j x_j

    Args:
        slopes: Columns with a random slope for each client, by name or index, or "all". Default:
            none, a random intercept only.

    Returns:
        A mixed model of data with two classes, for `fedpop`, `fedrep` and `fedper`.

    Example:
        >>> import jax.numpy as jnp
        >>> phi, z = Linear(jnp.array([1.0]), jnp.array(0.5)), jnp.array([-0.5])
        >>> mixed_logistic().predictive(phi, z, jnp.zeros((1, 1))).mean.tolist()
        [[0.5, 0.5]]
    """
    return _generalised(generalised_linear("mixed_logistic", BERNOULLI), slopes)


def mixed_poisson(*, slopes: Slopes = ()) -> MixedModel:
    """Poisson regression with a random intercept for each client, and random slopes.

        log E[y] = x'w + b + z_0 + sum_j z_j x_j

    Args:
        slopes: Columns with a random slope for each client, by name or index, or "all". Default:
            none, a random intercept only.

    Returns:
        A mixed model of data with a numeric outcome that counts, for `fedpop`, `fedrep` and
        `fedper`.

    Example:
        >>> import jax.numpy as jnp
        >>> phi, z = Linear(jnp.array([1.0]), jnp.array(0.5)), jnp.array([-0.5])
        >>> float(mixed_poisson().predictive(phi, z, jnp.zeros((1, 1))).mean[0])
        1.0
    """
    return _generalised(generalised_linear("mixed_poisson", POISSON), slopes)


def own_parameters(
    phi: Linear | Noisy | NamedSlopes, z: Float[Array, " effects"], slopes: Slopes = ()
) -> Linear | Noisy:
    """The coefficients of a client with effects z.

    Where the effects have a mean of their own, as in FedPop, data identify only sums: the intercept
    of a typical client is b + mean_0, and its weight of a column with a random slope w_j + mean_j.
    With z the mean of the effects this function gives these sums.

    Args:
        phi: The shared parameters.
        z: The client's effects, the intercept first.
        slopes: The `slopes` of the model that phi belongs to.

    Returns:
        Weights and intercept, and the noise where it is learned.

    Example:
        >>> import jax.numpy as jnp
        >>> phi = Linear(jnp.array([1.0, 2.0]), jnp.array(0.0))
        >>> own_parameters(phi, jnp.array([0.5, -1.0]), slopes=(1,)).weight.tolist()
        [1.0, 1.0]
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


def _columns(phi: Linear | Noisy | NamedSlopes, slopes: Slopes) -> slice | Array:
    if slopes == "all":
        return slice(None)
    indices = phi.slopes.indices if isinstance(phi, NamedSlopes) else slopes
    if any(isinstance(column, str) for column in indices):
        raise ValueError(
            f"slopes={slopes} are names, which these coefficients do not know; take phi from the "
            "model's own init"
        )
    return jnp.array(indices, int)


def _generalised(base: Model, slopes: Slopes) -> MixedModel:
    """The generalised linear model `base` with random effects added to its coefficients."""
    name = base.name
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

    model = from_mixed_predictive(name, init, init_effects, predictive)
    return model._replace(describe=describe, coefficients=coefficients, axes=axes)


def _found(name: str, slopes: Slopes, spec: Spec) -> tuple[int, ...]:
    """Indices of the columns of these rows that `slopes` gives."""
    if slopes == "all":
        return tuple(range(flat_size(spec)))
    found = tuple(_index(name, column, spec) for column in slopes)
    if len(set(found)) < len(found):
        raise ValueError(f"{name}: slopes names a column twice: {slopes}")
    return found


def _index(name: str, column: int | str, spec: Spec) -> int:
    if not isinstance(column, str):
        if not 0 <= column < flat_size(spec):
            raise ValueError(
                f"{name}: slopes are columns 0 to {flat_size(spec) - 1} of these rows, got {column}"
            )
        return column
    if spec.features is None:
        raise ValueError(
            f"{name}: slopes has the name {column!r}, but the columns of these data have no names; "
            "give its index, or make the data with features="
        )
    if column not in spec.features:
        raise ValueError(
            f"{name}: slopes has {column!r}, but the columns of these data are "
            f"{', '.join(spec.features)}"
        )
    return spec.features.index(column)


def from_mixed_predictive(
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
