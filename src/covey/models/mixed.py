"""Mixed models: an outcome depends on parameters phi that all clients share and on random effects z
of its own client.

The generalised linear ones add z to the coefficients of a generalised linear model: z_0 to the
intercept, z_j to the weight of the j-th column in `slopes`,

    predictor = x'w + b + z_0 + sum_j z_j x_j.
"""

from covey.models.columns import Column, Roles, Slopes
from covey.models.families import BERNOULLI, BINOMIAL, GAUSSIAN, NEGATIVE_BINOMIAL, POISSON
from covey.models.mixed_model import MixedModel, averaged, from_mixed_predictive
from covey.models.mixed_regression import generalised, own_parameters

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
    return generalised("mixed_linear", GAUSSIAN, roles, scale=scale)


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
        weights: Column of prior weights above 0: a row of weight 2 counts twice. Default: none.
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
    return generalised("mixed_logistic", BERNOULLI, roles)


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
        weights: Column of prior weights above 0: a row of weight 2 counts twice. Default: none.
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
        >>> import jax.numpy as jnp
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
    return generalised("mixed_binomial", BINOMIAL, roles)


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
        weights: Column of prior weights above 0: a row of weight 2 counts twice. Default: none.
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
        >>> import jax.numpy as jnp
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
    return generalised("mixed_poisson", POISSON, roles)


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
        weights: Column of prior weights above 0: a row of weight 2 counts twice. Default: none.
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
        >>> import jax.numpy as jnp
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
    return generalised("mixed_negative_binomial", NEGATIVE_BINOMIAL, roles, scale=dispersion)
