"""Mixed models: an outcome depends on parameters phi that all clients share and on random effects z
of its own client.

The generalised linear ones add z to the coefficients of a generalised linear model: z_0 to the
intercept, z_j to the weight of the j-th column in `slopes`,

    predictor = x'w + b + z_0 + sum_j z_j x_j.
"""

from functools import lru_cache

import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from covey.core.shard import Axis, Rows, Spec
from covey.models.columns import Column, Roles, Slopes
from covey.models.families import (
    BERNOULLI,
    BINOMIAL,
    GAUSSIAN,
    NEGATIVE_BINOMIAL,
    POISSON,
    Family,
)
from covey.models.mixed_model import (
    LinearPredictor,
    MixedModel,
    averaged,
    from_mixed_predictive,
)
from covey.models.predictive import Predictive
from covey.models.regression import Coefficients, Parameters, Regression, scale_of

__all__ = [
    "MixedModel",
    "averaged",
    "from_mixed_predictive",
    "mixed_binomial",
    "mixed_linear",
    "mixed_logistic",
    "mixed_negative_binomial",
    "mixed_poisson",
    "own_parameters",
]


def mixed_linear(
    *,
    scale: float | None = None,
    slopes: Slopes = (),
    offset: Column | None = None,
    weights: Column | None = None,
    groups: Column | None = None,
    intercept: bool = True,
    random_intercept: bool = True,
    random_only: tuple[Column, ...] = (),
) -> MixedModel:
    """Linear regression with a random intercept for each client, and random slopes.

        y = x'w + b + z_0 + sum_j z_j x_j + scale * noise,   noise ~ N(0, 1)

    Args:
        scale: Standard deviation of the noise, in units of the outcome. Default: None, which learns
            it, starting from 1.
        slopes: Columns with a random slope for each client, by name or index, or "all". Default:
            none, a random intercept only.
        offset: Column that is added to the predictor as it is, by name or index. It has no
            coefficient. Default: none.
        weights: Column of prior weights above 0: the variance of a row is scale^2 / weight, as in
            R's `lmer`. Default: none.
        groups: Column with the group of each row, such as the ward within a hospital: groups have
            random intercepts v ~ N(0, tau^2) inside the client, tau is learned (`group_deviation`).
            Integrated out in closed form. Rows are predicted as those of unseen groups. Needs a
            method that sees all rows of a client at once. Default: none.
        intercept: Whether there is a shared intercept. False is lme4's `0 + ...` in the fixed part.
        random_intercept: Whether each client has a random intercept. False is lme4's
            `(0 + ... | client)`.
        random_only: Columns of `slopes` that have no shared weight, by name or index: their effects
            vary around zero. Default: none.

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
    own = (intercept, random_intercept, random_only)
    roles = Roles(slopes, offset, weights, None, groups, *own)
    return _generalised("mixed_linear", GAUSSIAN, roles, scale=scale)


def mixed_logistic(
    *,
    slopes: Slopes = (),
    offset: Column | None = None,
    weights: Column | None = None,
    groups: Column | None = None,
    intercept: bool = True,
    random_intercept: bool = True,
    random_only: tuple[Column, ...] = (),
) -> MixedModel:
    """Logistic regression with a random intercept for each client, and random slopes.

        log p(1) - log p(0) = x'w + b + z_0 + sum_j z_j x_j

    Args:
        slopes: Columns with a random slope for each client, by name or index, or "all". Default:
            none, a random intercept only.
        offset: Column that is added to the predictor as it is, by name or index. It has no
            coefficient. Default: none.
        weights: Column of prior weights above 0: a row counts so many times. Default: none.
        groups: Column with the group of each row, such as the ward within a hospital: groups have
            random intercepts v ~ N(0, tau^2) inside the client, tau is learned (`group_deviation`).
            Integrated out by quadrature. Rows are predicted as those of unseen groups. Needs a
            method that sees all rows of a client at once. Default: none.
        intercept: Whether there is a shared intercept. False is lme4's `0 + ...` in the fixed part.
        random_intercept: Whether each client has a random intercept. False is lme4's
            `(0 + ... | client)`.
        random_only: Columns of `slopes` that have no shared weight, by name or index: their effects
            vary around zero. Default: none.

    Returns:
        A mixed model of data with two classes, for `fedpop`, `fedrep` and `fedper`.

    Example:
        >>> import jax.numpy as jnp
        >>> from covey.models import Linear
        >>> phi, z = Linear(jnp.array([1.0]), jnp.array(0.5)), jnp.array([-0.5])
        >>> mixed_logistic().predictive(phi, z, jnp.zeros((1, 1))).mean.tolist()
        [[0.5, 0.5]]
    """
    own = (intercept, random_intercept, random_only)
    roles = Roles(slopes, offset, weights, None, groups, *own)
    return _generalised("mixed_logistic", BERNOULLI, roles)


def mixed_binomial(
    *,
    totals: Column,
    slopes: Slopes = (),
    offset: Column | None = None,
    weights: Column | None = None,
    groups: Column | None = None,
    intercept: bool = True,
    random_intercept: bool = True,
    random_only: tuple[Column, ...] = (),
) -> MixedModel:
    """Binomial regression with a random intercept for each client, and random slopes.

        y ~ Binomial(total, p),   log p - log(1 - p) = x'w + b + z_0 + sum_j z_j x_j

    Args:
        totals: Column with the number of trials of each row, by name or index; the outcome counts
            the successes. It has no coefficient.
        slopes: Columns with a random slope for each client, by name or index, or "all". Default:
            none, a random intercept only.
        offset: Column that is added to the predictor as it is, by name or index. It has no
            coefficient. Default: none.
        weights: Column of prior weights above 0: a row counts so many times. Default: none.
        groups: Column with the group of each row, such as the ward within a hospital: groups have
            random intercepts v ~ N(0, tau^2) inside the client, tau is learned (`group_deviation`).
            Integrated out by quadrature. Rows are predicted as those of unseen groups. Needs a
            method that sees all rows of a client at once. Default: none.
        intercept: Whether there is a shared intercept. False is lme4's `0 + ...` in the fixed part.
        random_intercept: Whether each client has a random intercept. False is lme4's
            `(0 + ... | client)`.
        random_only: Columns of `slopes` that have no shared weight, by name or index: their effects
            vary around zero. Default: none.

    Returns:
        A mixed model of data with a numeric outcome that counts, for `fedpop`, `fedrep` and
        `fedper`. The log-likelihood of a row with more successes than trials is NaN.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from covey.data.federated import FederatedData
        >>> herd = np.array([[1.0, 14.0], [2.0, 12.0]]), np.array([2.0, 3.0])
        >>> data = FederatedData.from_clients({"a": herd}, features=["period", "size"])
        >>> model = mixed_binomial(totals="size")
        >>> phi = model.init(jax.random.key(0), data.spec)
        >>> model.predictive(phi, jnp.zeros(1), jnp.asarray(data.rows.x)).mean.tolist()
        [7.0, 6.0]
        >>> model.axes(data.spec)["weights"].labels
        ('period',)
    """
    own = (intercept, random_intercept, random_only)
    roles = Roles(slopes, offset, weights, totals, groups, *own)
    return _generalised("mixed_binomial", BINOMIAL, roles)


def mixed_poisson(
    *,
    slopes: Slopes = (),
    offset: Column | None = None,
    weights: Column | None = None,
    groups: Column | None = None,
    intercept: bool = True,
    random_intercept: bool = True,
    random_only: tuple[Column, ...] = (),
) -> MixedModel:
    """Poisson regression with a random intercept for each client, and random slopes.

        log E[y] = x'w + b + z_0 + sum_j z_j x_j

    Args:
        slopes: Columns with a random slope for each client, by name or index, or "all". Default:
            none, a random intercept only.
        offset: Column that is added to the predictor as it is, such as the logarithm of
            the time at risk, by name or index. It has no coefficient. Default: none.
        weights: Column of prior weights above 0: a row counts so many times. Default: none.
        groups: Column with the group of each row, such as the ward within a hospital: groups have
            random intercepts v ~ N(0, tau^2) inside the client, tau is learned (`group_deviation`).
            Integrated out by quadrature. Rows are predicted as those of unseen groups. Needs a
            method that sees all rows of a client at once. Default: none.
        intercept: Whether there is a shared intercept. False is lme4's `0 + ...` in the fixed part.
        random_intercept: Whether each client has a random intercept. False is lme4's
            `(0 + ... | client)`.
        random_only: Columns of `slopes` that have no shared weight, by name or index: their effects
            vary around zero. Default: none.

    Returns:
        A mixed model of data with a numeric outcome that counts, for `fedpop`, `fedrep` and
        `fedper`.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from covey.data.federated import FederatedData
        >>> rows = np.array([[40.0, 3.0, 1.0], [60.0, 2.0, 2.0]]), np.array([4.0, 7.0])
        >>> data = FederatedData.from_clients({"a": rows}, features=["age", "log_days", "ward"])
        >>> model = mixed_poisson(offset="log_days", groups="ward")
        >>> model.axes(data.spec)["weights"].labels
        ('age',)
        >>> phi = model.init(jax.random.key(0), data.spec)
        >>> sorted(model.coefficients(phi, jnp.zeros(1)))
        ['group_deviation', 'intercept', 'weights']
    """
    own = (intercept, random_intercept, random_only)
    roles = Roles(slopes, offset, weights, None, groups, *own)
    return _generalised("mixed_poisson", POISSON, roles)


def mixed_negative_binomial(
    *,
    dispersion: float | None = None,
    slopes: Slopes = (),
    offset: Column | None = None,
    weights: Column | None = None,
    groups: Column | None = None,
    intercept: bool = True,
    random_intercept: bool = True,
    random_only: tuple[Column, ...] = (),
) -> MixedModel:
    """Negative binomial regression with a random intercept for each client, and random slopes.

        log E[y] = x'w + b + z_0 + sum_j z_j x_j,   var y = mu + mu^2 / dispersion

    Args:
        dispersion: The dispersion, theta of `glmer.nb`; smaller means more variance. Default: None,
            which learns it, starting from 1.
        slopes: Columns with a random slope for each client, by name or index, or "all". Default:
            none, a random intercept only.
        offset: Column that is added to the predictor as it is, such as the logarithm of
            the time at risk, by name or index. It has no coefficient. Default: none.
        weights: Column of prior weights above 0: a row counts so many times. Default: none.
        groups: Column with the group of each row, such as the ward within a hospital: groups have
            random intercepts v ~ N(0, tau^2) inside the client, tau is learned (`group_deviation`).
            Integrated out by quadrature. Rows are predicted as those of unseen groups. Needs a
            method that sees all rows of a client at once. Default: none.
        intercept: Whether there is a shared intercept. False is lme4's `0 + ...` in the fixed part.
        random_intercept: Whether each client has a random intercept. False is lme4's
            `(0 + ... | client)`.
        random_only: Columns of `slopes` that have no shared weight, by name or index: their effects
            vary around zero. Default: none.

    Returns:
        A mixed model of data with a numeric outcome that counts, for `fedpop`, `fedrep` and
        `fedper`.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from covey.data.federated import FederatedData
        >>> data = FederatedData.from_clients({"a": (np.eye(2), np.array([0.0, 7.0]))})
        >>> model = mixed_negative_binomial()
        >>> phi = model.init(jax.random.key(0), data.spec)
        >>> float(model.coefficients(phi, jnp.zeros(1))["dispersion"])
        1.0
    """
    own = (intercept, random_intercept, random_only)
    roles = Roles(slopes, offset, weights, None, groups, *own)
    return _generalised("mixed_negative_binomial", NEGATIVE_BINOMIAL, roles, scale=dispersion)


def own_parameters(phi: Parameters, z: Float[Array, " effects"], slopes: Slopes = ()) -> Parameters:
    """The coefficients of a client with effects z.

    Where the effects have a mean of their own, as in FedPop, data identify only sums: the intercept
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


def _generalised(
    name: str, family: Family, roles: Roles, *, scale: float | None = None
) -> MixedModel:
    """The generalised linear regression of a family with random effects added to its
    coefficients.
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
