"""Two fits of the same rows, side by side."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from covey.fitting.result import Fit

_COUNTS = {"poisson", "negative_binomial"}  # of the same counts
_POINTS = 1000  # draws of the posterior that sites are asked about


def compare(one: "Fit", other: "Fit") -> pd.DataFrame:
    """Two fits side by side; see `Fit.compare`.

    Args:
        one: A fit.
        other: Another one, of the same rows.
    """
    for fit in (one, other):
        if fit.method != "marginal":
            raise ValueError(
                f"fits are compared by their marginal likelihood; {fit.method} has none"
            )
    if one.estimate != other.estimate:
        raise ValueError(
            f"fits of one kind are compared, these are {one.estimate!r} and {other.estimate!r}; "
            "fit both with the same estimate"
        )
    facts = [fit.found.diagnostics for fit in (one, other)]
    if facts[0]["rows"] != facts[1]["rows"]:
        raise ValueError(
            f"fits are compared on the same rows, these have {facts[0]['rows']} and "
            f"{facts[1]['rows']}: missing values of a column may have dropped some; use "
            "missing='impute' in both, or leave the rows out"
        )
    _check_outcomes(one, other)
    names = ["this", "other"]
    table = pd.DataFrame(
        {
            "formula": [one.formula, other.formula],
            "parameters": [fact["parameters"] for fact in facts],
            "log_likelihood": [fact["log_likelihood"] for fact in facts],
            "aic": [fact["aic"] for fact in facts],
            "bic": [fact["bic"] for fact in facts],
        },
        index=pd.Index(names, name="fit"),
    )
    return (
        _left_out(table, one, other) if one.estimate == "posterior" else _tested(table, one, other)
    )


def _check_outcomes(one: "Fit", other: "Fit") -> None:
    """An error for fits of other outcomes: likelihoods of these cannot be compared."""
    left = [fit.design.formula.outcome for fit in (one, other)]
    if left[0] != left[1]:
        shown = [" and ".join(each.expressions) for each in left]
        raise ValueError(f"fits of one outcome are compared, these have {shown[0]} and {shown[1]}")
    if one.family != other.family and {one.family, other.family} != _COUNTS:
        raise ValueError(
            f"likelihoods of the families {one.family!r} and {other.family!r} cannot be compared"
        )
    if one.design.weights != other.design.weights:
        raise ValueError(
            f"fits with the same weights are compared, these have weights={one.design.weights!r} "
            f"and {other.design.weights!r}"
        )
    known = [fit.stored.get("outcomes", {}) for fit in (one, other)]
    differ = [site for site in known[0] if known[0][site] != known[1].get(site, known[0][site])]
    if differ or set(known[0]) != set(known[1]):
        site = (differ or sorted(set(known[0]) ^ set(known[1])))[0]
        raise ValueError(
            f"fits are compared on the same rows, and those of site {site!r} differ: missing "
            "values may have dropped some; use missing='impute' in both"
        )


def _tested(table: pd.DataFrame, one: "Fit", other: "Fit") -> pd.DataFrame:
    """With the likelihood ratio test, where one model is inside the other."""
    from scipy.stats import chi2

    larger, smaller = sorted((one, other), key=lambda fit: -fit.found.diagnostics["parameters"])
    big, small = larger.found.diagnostics, smaller.found.diagnostics
    freedom = big["parameters"] - small["parameters"]
    table["chi2"], table["df"], table["p"] = np.nan, np.nan, np.nan
    inside = set(smaller.found.table.index) <= set(larger.found.table.index)
    inside = inside and sorted(one.design.formula.offsets) == sorted(other.design.formula.offsets)
    same = larger.coefficient_names == smaller.coefficient_names
    if not inside or not freedom or (one.estimate == "reml" and not same):
        why = "REML likelihoods of different fixed effects cannot be compared; fit with 'ml'"
        table.attrs["test"] = why if inside and freedom else "no model is inside the other"
        return table
    statistic = max(2 * (big["log_likelihood"] - small["log_likelihood"]), 0.0)
    row = table.index[0 if larger is one else 1]
    table.loc[row, ["chi2", "df", "p"]] = statistic, freedom, float(chi2.sf(statistic, freedom))
    extra = set(larger.found.table.index) - set(smaller.found.table.index)
    bound = any(name.startswith("sd(") for name in extra)
    table.attrs["test"] = "likelihood ratio test of the smaller model" + (
        "; a standard deviation of 0 is at the boundary, so that p is too large" if bound else ""
    )
    return table


def _left_out(table: pd.DataFrame, one: "Fit", other: "Fit") -> pd.DataFrame:
    """With the predictive density of each site's rows, given all others."""
    found = [fit.left_out() for fit in (one, other)]
    table["elpd_loo"] = [each["log_density"] for each in found]
    table["se"] = [each["se"] for each in found]
    table["unreliable_sites"] = [each["unreliable"] for each in found]
    table.attrs["test"] = "log predictive density of each site's rows, given all other sites"
    return table


def left_out(fit: "Fit") -> dict[str, float]:
    """Sums over sites of the predictive density of their rows, given those of all others.

    Args:
        fit: The fit, with the tables of its sites.
    """
    import jax

    from covey.algorithms.marginal.client import Points
    from covey.algorithms.marginal.parameters import Coordinates
    from covey.algorithms.marginal.state import theta_of
    from covey.core.algorithm import Approximation
    from covey.fitting.enrolment import shard_of
    from covey.fitting.methods import method_of

    if fit.estimate != "posterior" or fit.method != "marginal":
        raise ValueError("leaving sites out needs estimate='posterior' with method='marginal'")
    method = method_of(fit.design, fit.method, fit.estimate, fit.prior)
    shared = method.posterior.shared
    assert isinstance(shared, Approximation)
    published = fit.published
    kind = Coordinates("full" if fit.design.correlated else "diagonal", positive=True)
    state = published.state
    theta = jax.jit(lambda state: theta_of(state, kind, state.climb.point))(state)
    sent = Points(theta, state.unit, published.points[:_POINTS])
    answer = jax.jit(shared.queries["leave_out"])
    key, each = jax.random.key(fit.seed), []
    for site, table in fit.all_tables().items():
        rows = fit.design.rows_of(table)
        if len(rows.y) and site not in fit.added:
            each.append(jax.device_get(answer(key, sent, shard_of(fit.design, rows))))
    values = np.array([float(one.value) for one in each])
    spread = np.std(values, ddof=1) if len(values) > 1 else np.nan
    return {
        "log_density": float(values.sum()),
        "se": float(np.sqrt(len(values)) * spread),
        "unreliable": int(sum(float(one.unreliable) for one in each)),
    }
