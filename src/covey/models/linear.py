"""Generalised linear models: the outcome depends on the row x through the predictor x'w + b.

Parameters start at zero: the log-likelihoods are concave, so a random start would add noise only.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from covey.core.shard import Spec
from covey.models.columns import NO_ROLES, Column, Roles
from covey.models.families import (
    BERNOULLI,
    BINOMIAL,
    GAUSSIAN,
    NEGATIVE_BINOMIAL,
    POISSON,
    Family,
)
from covey.models.model import Model, flat, from_predictive, need_classes
from covey.models.predictive import Categorical
from covey.models.regression import (
    Coefficients,
    Linear,
    Noisy,
    Parameters,
    Regression,
    column_axes,
    scale_of,
    zeros,
)

__all__ = [
    "Coefficients",
    "Linear",
    "Noisy",
    "binomial",
    "generalised_linear",
    "linear",
    "logistic",
    "negative_binomial",
    "poisson",
    "softmax",
]


def linear(
    *,
    scale: float | None = 1.0,
    prior: float | None = None,
    offset: Column | None = None,
    weights: Column | None = None,
    intercept: bool = True,
) -> Model:
    """Linear regression with Gaussian noise.

        y = x'w + b + offset + scale / sqrt(weight) * noise,   noise ~ N(0, 1)

    Args:
        scale: Standard deviation of the noise, in units of the outcome. Default: 1. None learns it,
            starting from 1.
        prior: Standard deviation of a Gaussian prior with mean zero on each weight w, a ridge; the
            intercept has a flat prior. In units of the outcome per unit of the column, so
            standardise the columns first. Default: None, flat. For methods that use priors, such as
            `fald`.
        offset: Column that is added to the predictor as it is, by name or index. Default: none.
        weights: Column of prior weights above 0: the variance of a row is scale^2 / weight, as in
            R's `lm`. Default: none, all rows have weight 1.
        intercept: Whether there is an intercept. False is R's `0 + ...`.

    Returns:
        A model of data with a numeric outcome.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from covey.data.federated import FederatedData
        >>> data = FederatedData.from_clients({"a": (np.eye(3), np.array([0.5, 1.0, 2.0]))})
        >>> linear().init(jax.random.key(0), data.spec).weight.tolist()
        [0.0, 0.0, 0.0]
    """
    roles = Roles(offset=offset, weights=weights, intercept=intercept)
    return generalised_linear("linear", GAUSSIAN, scale=scale, prior=prior, roles=roles)


def logistic(
    *,
    prior: float | None = None,
    offset: Column | None = None,
    weights: Column | None = None,
    intercept: bool = True,
) -> Model:
    """Logistic regression for two classes.

        log p(1) - log p(0) = x'w + b + offset

    Args:
        prior: Standard deviation of a Gaussian prior with mean zero on each weight w, a ridge; the
            intercept has a flat prior. Default: None, flat. For methods that use priors, such as
            `fald`.
        offset: Column that is added to the predictor as it is, by name or index. Default: none.
        weights: Column of prior weights above 0: a row of weight 2 counts twice. Default: none.
        intercept: Whether there is an intercept. False is R's `0 + ...`.

    Returns:
        A model of data with two classes. `binomial` is for counts of successes among trials.

    Example:
        >>> import jax.numpy as jnp
        >>> params = Linear(jnp.array([2.0]), jnp.array(-1.0))
        >>> logistic().predictive(params, jnp.array([[0.5]])).mean.tolist()
        [[0.5, 0.5]]
        >>> float(logistic(prior=0.5).log_prior(params))  # the intercept does not count
        -8.0
    """
    roles = Roles(offset=offset, weights=weights, intercept=intercept)
    return generalised_linear("logistic", BERNOULLI, prior=prior, roles=roles)


def binomial(
    *,
    totals: Column,
    prior: float | None = None,
    offset: Column | None = None,
    weights: Column | None = None,
    intercept: bool = True,
) -> Model:
    """Binomial regression: successes among a known number of trials, with a logit link.

        y ~ Binomial(total, p),   log p - log(1 - p) = x'w + b + offset

    Args:
        totals: Column with the number of trials of each row, by name or index; the outcome counts
            the successes. It has no weight.
        prior: Standard deviation of a Gaussian prior with mean zero on each weight w, a ridge; the
            intercept has a flat prior. Default: None, flat.
        offset: Column that is added to the predictor as it is. Default: none.
        weights: Column of prior weights above 0: a row of weight 2 counts twice. Default: none.
        intercept: Whether there is an intercept. False is R's `0 + ...`.

    Returns:
        A model of data with a numeric outcome that counts. The log-likelihood of a row with more
        successes than trials is NaN.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from covey.data.federated import FederatedData
        >>> herd = np.array([[1.0, 14.0], [2.0, 12.0]]), np.array([2.0, 3.0])
        >>> data = FederatedData.from_clients({"a": herd}, features=["period", "size"])
        >>> model = binomial(totals="size")
        >>> params = model.init(jax.random.key(0), data.spec)
        >>> params.weight.shape, model.predictive(params, jnp.asarray(data.rows.x)).mean.tolist()
        ((1,), [7.0, 6.0])
    """
    roles = Roles(offset=offset, weights=weights, totals=totals, intercept=intercept)
    return generalised_linear("binomial", BINOMIAL, prior=prior, roles=roles)


def poisson(
    *,
    prior: float | None = None,
    offset: Column | None = None,
    weights: Column | None = None,
    intercept: bool = True,
) -> Model:
    """Poisson regression of counts with a log link.

        log E[y] = x'w + b + offset

    Args:
        prior: Standard deviation of a Gaussian prior with mean zero on each weight w, a ridge; the
            intercept has a flat prior. Default: None, flat.
        offset: Column that is added to the predictor as it is, e.g. the logarithm of the time at
            risk, by name or index. Default: none.
        weights: Column of prior weights above 0: a row of weight 2 counts twice. Default: none.
        intercept: Whether there is an intercept. False is R's `0 + ...`.

    Returns:
        A model of data with a numeric outcome that counts.

    Example:
        >>> import jax.numpy as jnp
        >>> params = Linear(jnp.array([1.0]), jnp.log(jnp.array(3.0)))
        >>> round(float(poisson().predictive(params, jnp.zeros((1, 1))).mean[0]), 3)
        3.0
    """
    roles = Roles(offset=offset, weights=weights, intercept=intercept)
    return generalised_linear("poisson", POISSON, prior=prior, roles=roles)


def negative_binomial(
    *,
    dispersion: float | None = None,
    prior: float | None = None,
    offset: Column | None = None,
    weights: Column | None = None,
    intercept: bool = True,
) -> Model:
    """Negative binomial regression of counts that vary more than Poisson ones, with a log link.

        log E[y] = x'w + b + offset,   var y = mu + mu^2 / dispersion

    Args:
        dispersion: The dispersion, theta in R's MASS; smaller means more variance. Default: None,
            which learns it, starting from 1.
        prior: Standard deviation of a Gaussian prior with mean zero on each weight w, a ridge;
            intercept and dispersion have flat priors. Default: None, flat.
        offset: Column that is added to the predictor as it is, by name or index. Default: none.
        weights: Column of prior weights above 0: a row of weight 2 counts twice. Default: none.
        intercept: Whether there is an intercept. False is R's `0 + ...`.

    Returns:
        A model of data with a numeric outcome that counts.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from covey.data.federated import FederatedData
        >>> data = FederatedData.from_clients({"a": (np.eye(2), np.array([0.0, 7.0]))})
        >>> model, x = negative_binomial(), jnp.asarray(data.rows.x)
        >>> counts = model.predictive(model.init(jax.random.key(0), data.spec), x)
        >>> counts.mean.tolist(), counts.variance.tolist()
        ([1.0, 1.0], [2.0, 2.0])
    """
    roles = Roles(offset=offset, weights=weights, intercept=intercept)
    name = "negative_binomial"
    return generalised_linear(name, NEGATIVE_BINOMIAL, scale=dispersion, prior=prior, roles=roles)


def softmax(*, prior: float | None = None) -> Model:
    """Multinomial logistic regression for any number of classes.

        p(k) proportional to exp(x'w_k + b_k)

    Args:
        prior: Standard deviation of a Gaussian prior with mean zero on each weight, a ridge;
            intercepts have a flat prior. Default: None, flat.

    Returns:
        A model of data with classes.

    Example:
        >>> import jax.numpy as jnp
        >>> params = Linear(jnp.zeros((2, 4)), jnp.zeros(4))
        >>> softmax().predictive(params, jnp.ones((1, 2))).mean.tolist()
        [[0.25, 0.25, 0.25, 0.25]]
    """

    def init(key: Key[Array, ""], spec: Spec) -> Linear:
        return zeros(spec, need_classes("softmax", spec))

    def predictive(params: Linear, x: Shaped[Array, " rows *features"]) -> Categorical:
        return Categorical.of_logits(flat(x) @ params.weight + params.bias)

    return from_predictive("softmax", init, predictive)._replace(
        log_prior=ridge("softmax", prior),
        axes=lambda spec: column_axes("weight", spec.features),
    )


def generalised_linear(
    name: str,
    family: Family,
    *,
    scale: float | None = None,
    prior: float | None = None,
    roles: Roles = NO_ROLES,
) -> Model:
    """The generalised linear model of a family.

    Args:
        name: Name in reports and messages.
        family: Family of the outcome, with its link.
        scale: The scale parameter of a family that has one; None learns it.
        prior: Standard deviation of a Gaussian prior on the weights; None is flat.
        roles: Columns that are used otherwise than with a weight.

    Returns:
        A model with parameters `Linear`, or `Noisy` where the noise is learned, or `Coefficients`
        where columns are named or a dispersion is learned.

    Example:
        >>> generalised_linear("counts", POISSON, roles=Roles(offset="log_days")).name
        'counts'
    """
    regression = Regression(name, family, scale, roles)
    regression.check()
    more = roles.kept_in_parameters or (family.scale == "log_dispersion" and scale is None)
    return Model(
        name,
        regression.init,
        regression.log_likelihood,
        regression.predictive,
        log_prior=ridge(name, prior),
        describe=_described if more else None,
        axes=lambda spec: column_axes("weight", regression.labels(spec)),
    )


def ridge(name: str, prior: float | None) -> Callable[[Parameters], Float[Array, ""]] | None:
    """The log-density, up to a constant, of a Gaussian prior on the weights, flat in all else.

    Args:
        name: Name of the model, for messages.
        prior: Standard deviation; None for no prior.

    Returns:
        (params) -> -sum w^2 / (2 prior^2), or None.

    Example:
        >>> import jax.numpy as jnp
        >>> float(ridge("linear", 2.0)(Linear(jnp.array([4.0]), jnp.array(9.0))))
        -2.0
    """
    if prior is None:
        return None
    if not 0 < prior < float("inf"):
        raise ValueError(
            f"{name}: prior is the standard deviation of the weights and must be above 0, got "
            f"{prior:g}; leave it out for a flat prior"
        )
    return lambda params: -0.5 * jnp.sum(jnp.square(params.weight / prior))


def _described(params: Parameters) -> dict[str, Array]:
    """Parameters without their static part, the dispersion as users know it."""
    found = {"weight": params.weight}
    if params.bias is not None:
        found["bias"] = params.bias
    noise, dispersion = scale_of(params, "log_scale"), scale_of(params, "log_dispersion")
    if noise is not None:
        found["log_scale"] = jnp.log(noise)  # as `Noisy` has it
    return found if dispersion is None else found | {"dispersion": dispersion}
