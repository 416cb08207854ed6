"""The definition that the generalised linear models and the mixed ones share: parameters, predictor
and log-likelihood of a family of outcomes.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, Shaped

from covey.core.shard import Axis, Rows, Spec
from covey.models import groups
from covey.models.columns import NO_ROLES, Columns, Roles
from covey.models.families import Family, Given
from covey.models.model import flat, flat_size
from covey.models.predictive import Normal, Predictive


class Linear(NamedTuple):
    """Parameters of a linear predictor: weights and intercept, with one column per class in
    `softmax`.
    """

    weight: Float[Array, " features *classes"]
    bias: Float[Array, "*classes"]


class Noisy(NamedTuple):
    """Weights and intercept, and the logarithm of the noise's standard deviation."""

    weight: Float[Array, " features"]
    bias: Float[Array, ""]
    log_scale: Float[Array, ""]


class Coefficients(NamedTuple):
    """Parameters of a model that names columns, or whose family or groups need more than `Noisy`.

    A likelihood sees rows, which have no names: the columns are found when the parameters are made
    from the data's Spec, and stay among them as a static part that is not learned.

    Attributes:
        weight: Weight of each column of the design.
        bias: Intercept; None where the model has none.
        log_scale: Logarithm of the noise's standard deviation; None where it is not learned.
        log_dispersion: Logarithm of the negative binomial's dispersion; None likewise.
        log_groups: Logarithm of the standard deviation of the effects of groups inside a client;
            None where the model has no such groups.
        columns: The columns by their role.
    """

    weight: Float[Array, " design"]
    bias: Float[Array, ""] | None
    log_scale: Float[Array, ""] | None
    log_dispersion: Float[Array, ""] | None
    log_groups: Float[Array, ""] | None
    columns: Columns


Parameters: TypeAlias = Linear | Noisy | Coefficients


class Regression(NamedTuple):
    """A generalised linear regression as pure functions of its parameters.

    Attributes:
        name: Name in reports and messages.
        family: Family of the outcome, with its link.
        scale: The family's scale parameter; None learns it.
        roles: Columns that are used otherwise than with a weight.
    """

    name: str
    family: Family
    scale: float | None = None
    roles: Roles = NO_ROLES

    def check(self) -> None:
        """Raise a ValueError for options that do not fit each other."""
        if self.scale is not None and not 0 < self.scale < float("inf"):
            what = {
                "log_scale": "scale is a standard deviation and",
                "log_dispersion": "dispersion",
            }.get(self.family.scale or "", "scale")
            raise ValueError(f"{self.name}: {what} must be above 0, got {self.scale:g}")
        self.roles.check(self.name)

    def init(self, key: Key[Array, ""], spec: Spec) -> Parameters:
        """Parameters at zero: log-likelihoods are concave, a random start would add noise only."""
        self.family.need(self.name, spec)
        columns = self.roles.find(self.name, spec)
        self._check_rows(columns, spec)
        zero = jnp.zeros(())
        learned = self.family.scale if self.scale is None else None
        weight = jnp.zeros(len(columns.design))
        if not self.roles.kept_in_parameters and learned != "log_dispersion":
            return Noisy(weight, zero, zero) if learned else Linear(weight, zero)
        return Coefficients(
            weight,
            zero if self.roles.intercept else None,
            log_scale=zero if learned == "log_scale" else None,
            log_dispersion=zero if learned == "log_dispersion" else None,
            log_groups=None if columns.groups is None else zero,
            columns=columns,
        )

    def predictor(
        self, params: Parameters, x: Shaped[Array, " rows *features"]
    ) -> Float[Array, " rows"]:
        """The linear predictor x'w + b, with the offset added."""
        if isinstance(params, Coefficients):
            found = params.columns.predictor(params.weight, x)
            return found if params.bias is None else found + params.bias
        # A product of matrices stays one under vmap over clients; multiplying and summing took 1.3
        # to 1.9 times as long.
        return flat(x) @ params.weight + params.bias

    def predictive(self, params: Parameters, x: Shaped[Array, " rows *features"]) -> Predictive:
        """The distribution of the outcomes of some rows."""
        found = self.outcomes(params, self.predictor(params, x), x)
        if isinstance(found, Normal):  # an impossible weight makes the noise unknown
            known = self.usable(params, x)
            return found._replace(scale=jnp.where(known, found.scale, jnp.nan))
        return found

    def log_likelihood(self, params: Parameters, rows: Rows) -> Float[Array, " rows"]:
        """The log-likelihood by row; NaN where a prior weight is not above 0, or where there are
        more successes than trials.
        """
        return self.usable_terms(params, self.predictor(params, rows.x), rows)

    def usable_terms(
        self, params: Parameters, predictor: Float[Array, " rows"], rows: Rows
    ) -> Float[Array, " rows"]:
        """The log-likelihood by row where the predictor has these values; NaN as above."""
        terms = self.terms(params, predictor, rows)
        return jnp.where(self.usable(params, rows.x), terms, jnp.nan)

    def terms(
        self, params: Parameters, predictor: Float[Array, " rows"], rows: Rows
    ) -> Float[Array, " rows"]:
        """The log-likelihood by row where the predictor has these values. A weight that is not
        above 0 counts as 1.
        """
        if self.family.log_prob is None:
            terms = self.outcomes(params, predictor, rows.x).log_prob(rows.y)
        else:
            terms = self.family.log_prob(predictor, rows.y)
        weights = self._weights(params, rows.x)
        return terms if weights is None or self.family.divides else weights * terms

    def outcomes(
        self,
        params: Parameters,
        predictor: Float[Array, " rows"],
        x: Shaped[Array, " rows *features"],
    ) -> Predictive:
        """The distribution of the outcomes where the predictor has these values."""
        learned = None if self.family.scale is None else scale_of(params, self.family.scale)
        totals = params.columns.values("totals", x) if isinstance(params, Coefficients) else None
        scale = self.scale if learned is None else learned
        return self.family.predictive(predictor, Given(scale, totals, self._weights(params, x)))

    def grouped_log_likelihood(self, params: Parameters, rows: Rows) -> Float[Array, " rows"]:
        """The log-likelihood of rows in groups, the effects of the groups integrated out. Terms add
        up over whole groups, see `covey.models.groups`.
        """
        codes, tau = self._grouping(params, rows.x)
        by_group, predictor = groups.groups_of(codes), self.predictor(params, rows.x)
        outcomes = self.outcomes(params, predictor, rows.x)
        if isinstance(outcomes, Normal):
            terms = groups.gaussian_terms(by_group, rows.y - outcomes.mean, outcomes.scale, tau)
        else:
            held = jax.lax.stop_gradient(params)
            terms = groups.quadrature_terms(
                by_group,
                lambda at: self.terms(params, at, rows),
                lambda at: self.terms(held, at, rows),
                predictor,
                tau,
                groups.counted_rows(rows),
            )
        return jnp.where(self.usable(params, rows.x), terms, jnp.nan)

    def unseen_groups(self, params: Parameters, x: Shaped[Array, " rows *features"]) -> Predictive:
        """The distribution of the outcomes of rows of unseen groups."""
        _, tau = self._grouping(params, x)
        return groups.unseen_group(
            lambda at: self.outcomes(params, at, x), self.predictor(params, x), tau
        )

    def labels(self, spec: Spec) -> tuple[str, ...] | None:
        """Names of the columns with a weight; None where columns have no names."""
        if spec.features is None or not self.roles.special:
            return spec.features
        return tuple(spec.features[index] for index in self.roles.find(self.name, spec).design)

    def slope_labels(self, spec: Spec) -> tuple[str, ...]:
        """Names of the columns with a random slope, which data with named columns have."""
        columns, names = self.roles.find(self.name, spec), spec.features or ()
        return tuple(names[(columns.design + columns.random)[at]] for at in columns.slopes)

    def _grouping(
        self, params: Parameters, x: Array
    ) -> tuple[Float[Array, " rows"], Float[Array, ""]]:
        """The group of each row, and the standard deviation of the groups' effects."""
        codes = params.columns.values("groups", x) if isinstance(params, Coefficients) else None
        tau = scale_of(params, "log_groups")
        if codes is None or tau is None:
            raise ValueError(
                f"{self.name}: these parameters do not know the column of the groups; take phi "
                "from the model's own init"
            )
        return codes, tau

    def _check_rows(self, columns: Columns, spec: Spec) -> None:
        """Raise a ValueError for impossible outcomes, weights or totals, where rows are at hand."""
        if spec.first_row is None:
            return
        where = spec.first_row(lambda rows: _no_count(rows.y)) if self.family.counts else None
        if where is not None:
            raise ValueError(
                f"{self.name}: outcomes are counts (0, 1, 2, ...), and there is another value: "
                f"{where}; correct or remove it, or use a model of other outcomes"
            )
        for role, (is_wrong, what) in _IMPOSSIBLE.items():
            index = getattr(columns, role)
            if index is None:
                continue
            where = spec.first_row(
                lambda rows, index=index, is_wrong=is_wrong: is_wrong(
                    rows.x.reshape(len(rows.x), -1)[:, index], rows.y
                )
            )
            if where is not None:
                raise ValueError(
                    f"{self.name}: {what}: {role}={getattr(self.roles, role)!r}, {where}; correct "
                    "or remove it"
                )

    def _weights(self, params: Parameters, x: Array) -> Float[Array, " rows"] | None:
        """Prior weights, with 1 in place of impossible ones: derivatives then stay finite where
        a mask hides the row.
        """
        found = params.columns.values("weights", x) if isinstance(params, Coefficients) else None
        return None if found is None else jnp.where(found > 0, found, 1.0)

    def usable(
        self, params: Parameters, x: Shaped[Array, " rows *features"]
    ) -> Bool[Array, " rows"] | Bool[Array, ""]:
        """Which rows have a prior weight above 0."""
        found = params.columns.values("weights", x) if isinstance(params, Coefficients) else None
        return jnp.bool_(True) if found is None else found > 0


# What no row may have in a column of a role: (its values, outcomes) -> which rows, and in words.
_IMPOSSIBLE: dict[str, tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], str]] = {
    "offset": (lambda values, y: np.isnan(values), "an offset is missing"),
    "weights": (lambda values, y: ~(values > 0), "a weight must be above 0"),
    "totals": (lambda values, y: ~(values >= y), "an outcome is above its total"),
    "groups": (
        lambda values, y: ~(np.abs(values) < 2**24),
        "codes of groups must be below 16,777,216, beyond which single precision merges them",
    ),
}


def _no_count(y: np.ndarray) -> np.ndarray:
    """Which outcomes are not counts; missing ones are reported elsewhere."""
    return (y < 0) | (np.isfinite(y) & (y != np.floor(y)))


def scale_of(
    params: Parameters, name: Literal["log_scale", "log_dispersion", "log_groups"]
) -> Float[Array, ""] | None:
    """The exponential of a parameter that is learned by its logarithm; None where it is not."""
    value = getattr(params, name, None)
    return None if value is None else jnp.exp(value)


def column_axes(name: str, labels: tuple[str, ...] | None) -> dict[str, Axis]:
    """The axis of the weights, where columns have names."""
    return {} if labels is None else {name: Axis("column", labels)}


def zeros(spec: Spec, *classes: int) -> Linear:
    """Weights and intercepts at zero, one column per class."""
    return Linear(jnp.zeros((flat_size(spec), *classes)), jnp.zeros(classes))
