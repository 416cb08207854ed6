"""FedPop for generalised linear mixed models, where every group of a table is a client.

    sleepstudy      reaction times of 18 persons over days without sleep; correlated random
                    intercept and slope
    radon           log radon in homes of 85 counties; floor, and the county's uranium; random
                    intercept
    contraception   use of it by women of 60 districts; age, town or country, children; random
                    intercept, logistic

FedPop is compared with the maximum likelihood fit of the pooled table: exact for the linear models,
and by Gauss-Hermite quadrature with 30 nodes for the logistic one, as R's glmer does with nAGQ =
30. Maxima are found by BFGS in double precision. For sleepstudy the values of lme4 (maximum
likelihood) are in the column of the paper. The noise is learned as well. Standard errors are those
of `run.posterior.shared`, from the observed information of all clients.

Days and milliseconds are divided by 5 and 25 on the way, which changes no fit but its units. Data
come from COVEY_DATA_DIR.
"""

from dataclasses import replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import plotly.graph_objects as go
from jaxtyping import Array, Float
from scipy.optimize import minimize

import covey
from covey.algorithms.fedpop import fedpop
from covey.core.labels import labels
from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.datasets.loaders import load
from covey.inference.shared import SharedApproximation
from covey.kernels import ornstein_uhlenbeck
from covey.models import gaussian, mixed_linear, mixed_logistic
from reproductions.result import Claim, Report, Row, Scale, with_changes

NODES = 30


class Case(NamedTuple):
    """A table and its model.

    Attributes:
        name: Name of the data set.
        outcome: Kind of the outcome.
        slopes: Columns with a random slope.
        units: Units of the outcome and of the features.
        published: Published estimates by name.
    """

    name: str
    outcome: Literal["number", "label"]
    slopes: tuple[int, ...] = ()
    units: tuple[float, float] = (1.0, 1.0)
    published: dict[str, float] = {}  # noqa: RUF012  # never written to


class Fit(NamedTuple):
    """The maximum of the pooled likelihood."""

    coefficients: Float[Array, " columns"]  # intercept first
    root: Float[Array, "effects effects"]  # Cholesky factor of the effects' covariance
    noise: Float[Array, ""]


CASES = (
    Case(
        "sleepstudy",
        "number",
        slopes=(0,),
        units=(25.0, 5.0),
        published={
            "intercept": 251.405,
            "weights[Days]": 10.467,
            "deviation[intercept]": 23.781,
            "deviation[Days]": 5.717,
            "correlation[intercept, Days]": 0.081,
            "noise": 25.592,
        },
    ),
    Case("radon", "number"),
    Case("contraception", "label"),
)


class Size(NamedTuple):
    """How long a fit is."""

    rounds: int


SIZES: dict[Scale, Size] = {"quick": Size(600), "full": Size(2000)}


def run(scale: Scale, report: Report) -> tuple[list[Row], list[Claim], go.Figure]:
    """Fits of the three tables, value by value."""
    size = with_changes(SIZES[scale])
    rows, claims, tables = [], [], {}
    for case in CASES:
        report(f"{case.name}: FedPop, {size.rounds} rounds")
        data = rescaled(load(case.name), case.units)
        ours = in_units(fitted(case, data, size.rounds), case)
        report(f"{case.name}: the pooled fit")
        pooled = in_units(tabulated(maximum_likelihood(case, data), case, data), case)
        tables[case.name] = ours.assign(pooled=pooled["estimate"])
        errors, exact = ours["se"].to_dict(), pooled["estimate"].to_dict()
        for name, estimate in ours["estimate"].to_dict().items():
            published = case.published.get(str(name))
            rows.append(Row(f"{case.name}, {name}", published, estimate, errors[name], 1))
            rows.append(Row(f"{case.name}, {name}, pooled", published, exact[name], None, 1))
        claims += _claims(case, tables[case.name])
    return rows, claims, figure(tables)


def fitted(case: Case, data: FederatedData, rounds: int) -> pd.DataFrame:
    """FedPop's estimates with standard errors."""
    model = (
        mixed_linear(slopes=case.slopes)
        if case.outcome == "number"
        else mixed_logistic(slopes=case.slopes)
    )
    # Gradients are huge where the fit begins, at zero; a shorter memory of their squares forgets
    # that in time.
    ascent = optax.adam(optax.cosine_decay_schedule(0.1, rounds), b2=0.95)
    method = fedpop(
        model,
        step_size=1.0,
        draws=50,
        kernel=ornstein_uhlenbeck(),
        effects=gaussian(covariance="full"),
        phi_optimizer=ascent,
        beta_optimizer=ascent,
        adapt_burn_in=10,
    )
    done = covey.run(method, data, rounds=rounds, seed=0, progress=False)
    shared = done.posterior.shared
    if not isinstance(shared, SharedApproximation):
        raise TypeError(f"{case.name}: FedPop's posterior should be a law, got {shared!r}")
    found, axes = shared.law, shared.origin.axes

    def named(values: dict[str, np.ndarray]) -> dict[str, float]:
        return {
            label: float(number)
            for name, value in values.items()
            for label, number in zip(
                labels(name, [axes[name].labels] if name in axes else []),
                value.ravel(),
                strict=True,
            )
        }

    return pd.DataFrame({"estimate": named(found.estimate), "se": named(found.error)})


def maximum_likelihood(case: Case, data: FederatedData) -> Fit:
    """The fit of the pooled table."""
    with jax.enable_x64(True):
        groups = [
            jax.tree.map(lambda leaf: jnp.asarray(leaf, float), data.rows_of(at, "train"))
            for at in range(data.clients)
        ]
        columns, effects = groups[0].x.shape[1] + 1, 1 + len(case.slopes)
        lower = np.tril_indices(effects, -1)

        def unpack(parameters):
            coefficients, rest = parameters[:columns], parameters[columns:]
            root = (
                jnp.diag(jnp.exp(rest[:effects]))
                .at[lower]
                .set(rest[effects : effects + len(lower[0])])
            )
            return Fit(coefficients, root, jnp.exp(rest[-1]))

        def loss(parameters):
            fit, log_marginal = (
                unpack(parameters),
                _linear if case.outcome == "number" else _logistic,
            )
            return -sum(log_marginal(fit, group, case.slopes) for group in groups) / len(
                data.rows.y
            )

        start = np.zeros(columns + effects + len(lower[0]) + 1)
        gradient = jax.jit(jax.grad(loss))
        found = minimize(
            jax.jit(loss),
            start,
            jac=gradient,
            method="BFGS",
            options={"gtol": 1e-6, "maxiter": 500},
        )
        if np.abs(gradient(found.x)).max() > 1e-4:
            raise ValueError(
                f"{case.name}: the pooled fit did not end at a maximum: {found.message}"
            )
        return unpack(jnp.asarray(found.x))


def _linear(fit: Fit, group: Rows, slopes: tuple[int, ...]) -> Float[Array, ""]:
    """The log-density of a group's outcomes, effects integrated out."""
    design = jnp.column_stack([jnp.ones(len(group.y)), group.x[:, list(slopes)]]) @ fit.root
    mean = fit.coefficients[0] + group.x @ fit.coefficients[1:]
    covariance = fit.noise**2 * jnp.eye(len(group.y)) + design @ design.T
    return jnp.asarray(jax.scipy.stats.multivariate_normal.logpdf(group.y, mean, covariance))


def _logistic(fit: Fit, group: Rows, slopes: tuple[int, ...]) -> Float[Array, ""]:
    """The same of labels, by quadrature; random intercepts only."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    logit = fit.coefficients[0] + group.x @ fit.coefficients[1:] + (fit.root[0, 0] * nodes)[:, None]
    each = jnp.sum(jax.nn.log_sigmoid((2 * group.y - 1) * logit), axis=1)
    return jnp.asarray(jax.nn.logsumexp(each, b=weights / np.sqrt(2 * np.pi)))


def rescaled(data: FederatedData, units: tuple[float, float]) -> FederatedData:
    """Outcome and features divided by their units."""
    y, x = (np.float32(unit) for unit in units)
    return replace(
        data,
        rows=Rows(data.rows.x / x, data.rows.y / y if data.spec.classes is None else data.rows.y),
    )


def in_units(table: pd.DataFrame, case: Case) -> pd.DataFrame:
    """A table of estimates in the units of the data."""
    y, x = case.units

    def unit(name: str) -> float:
        if name in ("intercept", "noise", "deviation[intercept]"):
            return y
        return y / x if name.startswith(("weights", "deviation")) else 1.0

    return table.mul(pd.Series({name: unit(str(name)) for name in table.index}), axis=0)


def tabulated(fit: Fit, case: Case, data: FederatedData) -> pd.DataFrame:
    """A fit by the names that `run.posterior.shared` has for its values."""
    root = np.asarray(fit.root)
    covariance = root @ root.T
    deviation = np.sqrt(np.diag(covariance))
    effects = _effects(case, data)
    numbers = {"intercept": fit.coefficients[0]}
    numbers |= {
        f"weights[{name}]": value
        for name, value in zip(_columns(data), fit.coefficients[1:], strict=True)
    }
    numbers |= {"noise": fit.noise} | {
        f"deviation[{name}]": value for name, value in zip(effects, deviation, strict=True)
    }
    if len(effects) > 1:
        numbers[f"correlation[{effects[0]}, {effects[1]}]"] = covariance[0, 1] / np.prod(
            deviation[:2]
        )
    return pd.DataFrame({"estimate": {name: float(value) for name, value in numbers.items()}})


def figure(tables: dict[str, pd.DataFrame]) -> go.Figure:
    """How far each value is from the pooled fit, in its standard errors."""
    chart = go.Figure()
    for name, table in tables.items():
        off = (table["estimate"] - table["pooled"]) / table["se"]
        chart.add_trace(
            go.Bar(
                x=off, y=[f"{name}: {label}" for label in table.index], orientation="h", name=name
            )
        )
    chart.update_layout(
        title="FedPop beside the pooled fit, in standard errors",
        template="plotly_white",
        height=700,
    )
    chart.update_xaxes(title="difference / standard error", range=[-1, 1])
    return chart


def _claims(case: Case, table: pd.DataFrame) -> list[Claim]:
    """Fixed effects within 2 % (or a tenth of their standard error, if small), deviations and noise
    within 10 %.
    """
    shared = table.loc[
        [
            name
            for name in table.index
            if not str(name).startswith(("deviation", "noise", "correlation"))
        ]
    ]
    spread = table.loc[
        [name for name in table.index if str(name).startswith(("deviation", "noise"))]
    ]
    off = (shared["estimate"] - shared["pooled"]).abs() / np.maximum(
        shared["pooled"].abs(), 5 * shared["se"]
    )
    wide = (spread["estimate"] / spread["pooled"] - 1).abs()
    return [
        Claim(
            f"{case.name}: fixed effects, largest difference to the pooled fit",
            float(off.max()),
            0.02,
            bool(off.max() < 0.02),
        ),
        Claim(
            f"{case.name}: deviations, largest difference",
            float(wide.max()),
            0.1,
            bool(wide.max() < 0.1),
        ),
    ]


def _effects(case: Case, data: FederatedData) -> list[str]:
    """Names of the effects of a group."""
    return ["intercept", *(_columns(data)[index] for index in case.slopes)]


def _columns(data: FederatedData) -> tuple[str, ...]:
    return data.features or ()
