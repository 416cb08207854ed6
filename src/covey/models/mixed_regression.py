"""Generalised linear regressions with random effects that add to their coefficients."""

from functools import lru_cache

import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from covey.core.shard import Axis, Rows, Spec
from covey.models.columns import Roles, Slopes
from covey.models.families import Family
from covey.models.mixed_model import LinearPredictor, MixedModel
from covey.models.predictive import Predictive
from covey.models.regression import Coefficients, Parameters, Regression, scale_of


def own_parameters(phi: Parameters, z: Float[Array, " effects"], slopes: Slopes = ()) -> Parameters:
    """The coefficients of a client with effects z.

    Where the effects have their own mean, as in FedPop, data identify only sums: the intercept
    of a typical client is b + mean_0, and its weight of a column with a random slope w_j + mean_j.
    With z the mean of the effects this function gives these sums.

    Args:
        phi: The shared parameters.
        z: The client's effects, the intercept first where it is random.
        slopes: The `slopes` of the model that phi belongs to.

    Returns:
        Parameters of the same kind, with the effects added to weights and intercept.

    Example:
        >>> import jax.numpy as jnp
        >>> from covey.models import Linear
        >>> phi = Linear(jnp.array([1.0, 2.0]), jnp.array(0.0))
        >>> own_parameters(phi, jnp.array([0.5, -1.0]), slopes=(1,)).weight.tolist()
        [1.0, 1.0]
    """
    if not isinstance(phi, Coefficients):
        bias = phi.bias + z[0]
        return phi._replace(weight=phi.weight.at[_columns(phi, slopes)].add(z[1:]), bias=bias)
    columns, bias, weight = phi.columns, phi.bias, phi.weight
    if columns.random_intercept:
        bias, z = (z[0] if bias is None else bias + z[0]), z[1:]
    if columns.random:
        weight = jnp.concatenate([weight, jnp.zeros(len(columns.random), weight.dtype)])
    return phi._replace(weight=weight.at[_columns(phi, slopes)].add(z), bias=bias)


def _columns(phi: Parameters, slopes: Slopes) -> slice | Array:
    """Which weights have a random slope."""
    if isinstance(phi, Coefficients):
        return jnp.array(phi.columns.slopes, int)
    if slopes == "all":
        return slice(None)
    if any(isinstance(column, str) for column in slopes):
        raise ValueError(
            f"slopes={slopes} are names, which these coefficients do not know; take phi from the "
            "model's own init"
        )
    return jnp.array(slopes, int)


def generalised(
    name: str, family: Family, roles: Roles, *, scale: float | None = None
) -> MixedModel:
    """The generalised linear regression of a family with random effects added to its coefficients.

    Args:
        name: Name of the model in messages.
        family: Family of the outcomes, with its link.
        roles: Which columns have which role.
        scale: The scale parameter where it is known; None learns it.

    Returns:
        The mixed model; equal settings give the same object.
    """
    Regression(name, family, scale, roles).check()
    slopes = roles.slopes if isinstance(roles.slopes, str) else tuple(roles.slopes)
    roles = roles._replace(slopes=slopes, random_only=tuple(roles.random_only))
    return _remembered(name, family, roles, scale)


@lru_cache(maxsize=64)  # equal models are one object, so that runs share compiled programs
def _remembered(name: str, family: Family, roles: Roles, scale: float | None) -> MixedModel:
    regression = Regression(name, family, scale, roles)
    slopes = roles.slopes

    def own(phi: Parameters, z: Float[Array, " effects"]) -> Parameters:
        return own_parameters(phi, z, slopes)

    def init_effects(key: Key[Array, ""], spec: Spec) -> Float[Array, " effects"]:
        return jnp.zeros(roles.find(name, spec).effects)

    def log_likelihood(
        phi: Parameters, z: Float[Array, " effects"], rows: Rows
    ) -> Float[Array, " rows"]:
        if roles.groups is None:
            return regression.log_likelihood(own(phi, z), rows)
        return regression.grouped_log_likelihood(own(phi, z), rows)

    def predictive(
        phi: Parameters, z: Float[Array, " effects"], x: Shaped[Array, " rows *features"]
    ) -> Predictive:
        params = own(phi, z)
        if roles.groups is None:
            return regression.predictive(params, x)
        return regression.unseen_groups(params, x)

    def describe(phi: Parameters, z: Float[Array, " effects"]) -> dict[str, Array]:
        params = own(phi, z)
        personal = {} if params.bias is None else {"intercept": params.bias}
        if not len(slopes):
            return personal
        return personal | {"slopes": params.weight[_columns(phi, slopes)]}

    def coefficients(phi: Parameters, z: Float[Array, " effects"]) -> dict[str, Array]:
        params = own(phi, z)
        found = {
            "intercept": None if phi.bias is None else params.bias,
            "weights": params.weight[: len(phi.weight)],
            "noise": scale_of(params, "log_scale"),
            "dispersion": scale_of(params, "log_dispersion"),
            "group_deviation": scale_of(params, "log_groups"),
        }
        return {called: value for called, value in found.items() if value is not None}

    def axes(spec: Spec) -> dict[str, Axis]:
        labels = regression.labels(spec)
        if labels is None:
            return {}
        own_slopes = regression.slope_labels(spec)
        first = ("intercept",) if roles.random_intercept else ()
        return {
            "slopes": Axis("slope", own_slopes),
            "weights": Axis("column", labels),
            "effects": Axis("effect", (*first, *own_slopes)),
        }

    def predictor(
        phi: Parameters, z: Float[Array, " effects"], x: Shaped[Array, " rows *features"]
    ) -> Float[Array, " rows"]:
        return regression.predictor(own(phi, z), x)

    return MixedModel(
        name,
        regression.init,
        init_effects,
        log_likelihood,
        predictive,
        describe=describe,
        coefficients=coefficients,
        axes=axes,
        groups=roles.groups,
        predictor=None
        if roles.groups is not None
        else LinearPredictor(predictor, regression.usable_terms, log_likelihood),
    )
