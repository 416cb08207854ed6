"""Priors by the name of a term: their text, their defaults, and the log density that a fit uses.

The prior of `Intercept` is that of the linear predictor where every column is at its mean over all
sites, as in rstanarm and brms: an intercept at age 0 says little.
"""

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from covey.core import toml_files
from covey.fitting.description import Moments
from covey.fitting.design import GROUPS, OFFSET, Design, Rows
from covey.fitting.expressions import nearest
from covey.fitting.families import LINKS
from covey.fitting.terms import Terms

ARGUMENTS = {  # of each distribution; those of scales must be above 0
    "flat": (),
    "normal": ("mean", "sd"),
    "student_t": ("freedom", "mean", "scale"),
    "cauchy": ("mean", "scale"),
    "laplace": ("mean", "scale"),
    "half_normal": ("scale",),
    "half_student_t": ("freedom", "location", "scale"),
    "half_cauchy": ("scale",),
    "exponential": ("rate",),
    "gamma": ("shape", "rate"),
    "lognormal": ("mean", "sd"),
    "lkj": ("shape",),
}
_POSITIVE = ("half_normal", "half_student_t", "half_cauchy", "exponential", "gamma", "lognormal")
_WEAK = 2.5
_TIED = 0.15  # standard deviations that are left where all other coefficients are known
_UNCHANGED = 0.3  # prior standard deviations of which a posterior has learned little


class Prior(NamedTuple):
    """A distribution by name, with its arguments."""

    name: str
    arguments: tuple[float, ...] = ()

    def __str__(self) -> str:
        if self.name == "flat":
            return "flat"
        return f"{self.name}({', '.join(f'{value:g}' for value in self.arguments)})"


def read_prior(term: str, text: str) -> Prior:
    """A prior from its text.

    Args:
        term: The term, for messages.
        text: E.g. "normal(0, 1)" or "flat".

    Example:
        >>> read_prior("age", "normal(0, 0.5)")
        Prior(name='normal', arguments=(0.0, 0.5))
    """
    known = ", ".join(
        f"{name}({', '.join(parts)})" if parts else name for name, parts in ARGUMENTS.items()
    )
    wrong = f"the prior of {term!r} is {text!r}; write one of {known}"
    name, bracket, rest = str(text).strip().partition("(")
    name = name.strip()
    if name not in ARGUMENTS or (bracket and not rest.endswith(")")):
        raise ValueError(wrong)
    try:
        given = ast.literal_eval(f"({rest[:-1]},)") if bracket and rest[:-1].strip() else ()
        values = tuple(float(value) for value in given)
    except (ValueError, SyntaxError, TypeError):
        raise ValueError(wrong) from None
    if len(values) != len(ARGUMENTS[name]):
        raise ValueError(wrong)
    for part, value in zip(ARGUMENTS[name], values, strict=True):
        if part not in ("mean", "location") and not value > 0:
            raise ValueError(f"the prior of {term!r} is {text!r}: its {part} must be above 0")
    if name == "half_student_t" and values[1] != 0:
        raise ValueError(f"the prior of {term!r} is {text!r}: a half Student t has the location 0")
    return Prior(name, values)


class Statistics(NamedTuple):
    """Sums over sites, by which priors are scaled.

    Attributes:
        columns: Moments of each column of the rows.
        binary: Whether each column has the values 0 and 1 only.
        varies: Whether each column varies inside some site.
        outcome: Moments of the outcome.
    """

    columns: dict[str, Moments]
    binary: dict[str, bool]
    varies: dict[str, bool]
    outcome: Moments

    @classmethod
    def of(cls, design: Design, rows: Rows) -> "Statistics":
        """Those of one site.

        Args:
            design: The design.
            rows: The site's rows.
        """
        by_name = dict(zip(design.features, rows.x.T, strict=True))
        by_name.pop(GROUPS, None)  # nobody needs sums of labels, and they tell sizes of groups
        return cls(
            {name: Moments.of(values) for name, values in by_name.items()},
            {name: bool(np.isin(values, (0, 1)).all()) for name, values in by_name.items()},
            {name: bool(len(values) and np.ptp(values) > 0) for name, values in by_name.items()},
            Moments.of(rows.y),
        )

    def __add__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, other: "Statistics"
    ) -> "Statistics":
        return Statistics(
            {name: one + other.columns[name] for name, one in self.columns.items()},
            {name: one and other.binary[name] for name, one in self.binary.items()},
            {name: one or other.varies[name] for name, one in self.varies.items()},
            self.outcome + other.outcome,
        )


def spread_of(design: Design, statistics: Statistics) -> dict[str, float]:
    """The standard deviation of each column over all sites.

    Args:
        design: The design.
        statistics: Sums over sites.
    """
    return {name: statistics.columns[name].sd for name in design.columns}


def default_priors(design: Design, statistics: Statistics) -> dict[str, Prior]:
    """Weakly informative priors, scaled by standard deviations over all sites.

    Args:
        design: The design.
        statistics: Sums over sites.

    Returns:
        For each term: a coefficient is normal with standard deviation 2.5 units of the linear
        predictor (the outcome's standard deviation, or 1 on the scale of a link) per standard
        deviation of its column, or per unit of a column of 0 and 1; standard deviations are half
        Student t with 3 degrees of freedom and the same scales; correlations are LKJ(2).
    """
    terms, link = Terms.of(design), LINKS.get(design.family, "log")
    outcome = statistics.outcome
    unit = _rounded(outcome.sd) if link == "identity" else 1.0
    unit = unit if unit > 0 else 1.0

    def per_unit(name: str) -> float:
        if name == "Intercept" or statistics.binary.get(name, False):
            return _WEAK * unit
        spread = statistics.columns[name].sd
        return _rounded(_WEAK * unit / spread) if spread > 0 else _WEAK * unit

    middle = {"identity": outcome.mean, "logit": 0.0}.get(link)
    if middle is None:
        offset = statistics.columns[OFFSET].mean if OFFSET in statistics.columns else 0.0
        middle = math.log(max(outcome.mean, 1e-3)) - offset
    found = {
        name: Prior("normal", (_rounded(middle) if name == "Intercept" else 0.0, per_unit(name)))
        for name in terms.coefficients
    }
    for name, label in zip(terms.effects, terms.deviations, strict=True):
        found[label] = Prior("half_student_t", (3.0, 0.0, per_unit(name)))
    if terms.correlations:
        found["cor"] = Prior("lkj", (2.0,))
    for label in terms.others:
        found[label] = Prior("half_student_t", (3.0, 0.0, _WEAK * unit))
    if terms.scale == "shape":
        found["shape"] = Prior("lognormal", (0.0, 2.0))
    return found


def chosen_priors(
    design: Design, statistics: Statistics, given: "Mapping[str, str] | str | Path | None"
) -> dict[str, Prior]:
    """The priors of a fit: defaults, and what the user has changed.

    Args:
        design: The design.
        statistics: Sums over sites.
        given: By term, or the path of a TOML file with such a table; "b" stands for all
            coefficients but the intercept, and "sd" for all standard deviations of effects.
    """
    found = default_priors(design, statistics)
    terms = Terms.of(design)
    if isinstance(given, (str, Path)):
        given = _from_file(Path(given))
    classes = {"b": terms.columns, "sd": terms.deviations}
    wide = sorted((given or {}).items(), key=lambda pair: pair[0] not in classes)
    for term, text in wide:
        prior = read_prior(term, text)
        for name in classes.get(term, (term,)):
            if name not in found:
                raise ValueError(
                    f"priors: there is no term {name!r}{nearest(name, list(found))} Terms are "
                    f"{', '.join(found)}"
                )
            positive = name.startswith("sd(") or name in ("sigma", "shape")
            allowed = (prior.name == "lkj") == (name == "cor") or prior.name == "flat"
            if not allowed or (positive and prior.name not in (*_POSITIVE, "flat")):
                kinds = ", ".join(("lkj",) if name == "cor" else _POSITIVE)
                raise ValueError(f"priors: {prior} is none of {name!r}; use {kinds} or flat")
            if name in terms.coefficients and prior.name in _POSITIVE:
                raise ValueError(f"priors: {prior} is for parameters above 0, and {name!r} is any")
            found[name] = prior
    return found


def _from_file(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise ValueError(f"priors: there is no file {path}")
    read = toml_files.read(path)
    table = read.get("priors", read)
    return {str(term): str(text) for term, text in table.items()}


def _rounded(value: float) -> float:
    """Three significant digits: the prior is exactly what is printed."""
    return float(f"{value:.3g}")


@dataclass(frozen=True)
class LogPrior:
    """The log density of the described parameters, up to a constant; see `covey.marginal`.

    Attributes:
        priors: For each described part, the priors of its values.
        means: Means of the columns over all sites.
    """

    priors: tuple[tuple[str, tuple[Prior, ...]], ...]
    means: tuple[float, ...]

    @classmethod
    def of(cls, design: Design, statistics: Statistics, priors: Mapping[str, Prior]) -> "LogPrior":
        """The log density of some priors.

        Args:
            design: The design.
            statistics: Sums over sites, for the means of the columns.
            priors: By term.
        """
        terms = Terms.of(design)
        parts = {
            part: (priors["cor"],) if part == "cor" else tuple(priors[name] for name in names)
            for part, names in terms.parts.items()
        }
        means = tuple(statistics.columns[name].mean for name in design.columns)
        return cls(tuple(parts.items()), means)

    def __call__(self, described: Mapping[str, Any]) -> Any:
        """The log density of described parameters."""
        import jax.numpy as jnp

        total = jnp.zeros(())
        for part, priors in self.priors:
            values = described[part]
            if part == "cor":
                total += _lkj(values, priors[0])
                continue
            if part == "intercept" and self.means:
                values = values + jnp.asarray(self.means) @ described["weights"]
            values = jnp.reshape(values, -1)
            for name in dict.fromkeys(prior.name for prior in priors):
                index = [at for at, prior in enumerate(priors) if prior.name == name]
                arguments = np.array([priors[at].arguments for at in index], float).T
                if name != "flat":
                    total += jnp.sum(_LOG_DENSITY[name](values[np.array(index)], *arguments))
        return total


def _lkj(values: Any, prior: Prior) -> Any:
    import jax.numpy as jnp

    if prior.name == "flat":
        return jnp.zeros(())
    size = round((1 + math.sqrt(1 + 8 * len(values))) / 2)
    upper = jnp.zeros((size, size), values.dtype).at[np.triu_indices(size, 1)].set(values)
    matrix = upper + upper.T + jnp.eye(size, dtype=values.dtype)
    return (prior.arguments[0] - 1) * jnp.linalg.slogdet(matrix)[1]


def _log(value: Any) -> Any:
    import jax.numpy as jnp

    return jnp.log(value)


def _student(value: Any, freedom: Any, mean: Any, scale: Any) -> Any:
    return -(freedom + 1) / 2 * _log(1 + ((value - mean) / scale) ** 2 / freedom)


_LOG_DENSITY = {  # up to a constant
    "normal": lambda value, mean, sd: -(((value - mean) / sd) ** 2) / 2,
    "student_t": _student,
    "cauchy": lambda value, mean, scale: _student(value, 1.0, mean, scale),
    "laplace": lambda value, mean, scale: -abs(value - mean) / scale,
    "half_normal": lambda value, scale: -((value / scale) ** 2) / 2,
    "half_student_t": _student,
    "half_cauchy": lambda value, scale: _student(value, 1.0, 0.0, scale),
    "exponential": lambda value, rate: -rate * value,
    "gamma": lambda value, shape, rate: (shape - 1) * _log(value) - rate * value,
    "lognormal": lambda value, mean, sd: -(((_log(value) - mean) / sd) ** 2) / 2 - _log(value),
}


def printed(priors: Mapping[str, Prior]) -> dict[str, str]:
    """Priors as text, by term.

    Args:
        priors: By term.
    """
    return {name: str(prior) for name, prior in priors.items()}


def decided_by_priors(prior: LogPrior, terms: Terms, draws: np.ndarray) -> list[str]:
    """Collinear columns of which the data know a combination only: far less is known of each alone
    than with all others fixed, and hardly more than its prior says.

    Args:
        prior: The log prior.
        terms: Names of the parameters.
        draws: Draws of the posterior, in the order of the terms.

    Returns:
        The names of their terms.
    """
    each = dict(prior.priors).get("weights", ())
    normal = [at for at, one in enumerate(each) if one.name == "normal"]
    if len(normal) < 2:
        return []
    found = np.cov(draws[:, [at + terms.intercept for at in normal]].T)
    sd = np.sqrt(np.diag(found))
    with np.errstate(divide="ignore", invalid="ignore"):
        of_each = sd / [each[at].arguments[1] for at in normal]
        alone = 1 / np.diag(np.linalg.pinv(found / np.outer(sd, sd)))  # share of the variance
    loose = (alone < _TIED**2) & (of_each > _UNCHANGED)
    return [terms.columns[at] for at, is_so in zip(normal, loose, strict=True) if is_so]
