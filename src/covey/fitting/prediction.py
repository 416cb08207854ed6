"""Predictions from draws of the parameters, in NumPy: means and quantiles by row."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from covey.fitting.design import OFFSET, TOTALS, Design, Rows
from covey.fitting.families import LINKS
from covey.fitting.tables import Site, Table, sites_in, word
from covey.fitting.terms import Terms

_BISECTIONS = 40
_CELLS = 2_000_000  # rows times draws that are computed together
_FAR = 10.0  # standard deviations from the mean of the fitted rows


class Draws(NamedTuple):
    """Draws of the shared parameters and of one site's effects, in pairs.

    Attributes:
        shared: One row per draw, in the order of `Terms.names`; deviations and correlations of
            effects may be NaN where the effects are drawn already.
        effects: One row per draw, in the order of the design's effects.
        groups: For each group inside the site that has rows, one value per draw.
    """

    shared: np.ndarray
    effects: np.ndarray
    groups: Mapping[str, np.ndarray] = {}

    def thinned(self, count: int) -> "Draws":
        """At most `count` draws, evenly chosen.

        Args:
            count: Count of draws.
        """
        if len(self.shared) <= count:
            return self
        index = np.linspace(0, len(self.shared) - 1, count).round().astype(int)
        groups = {name: values[index] for name, values in self.groups.items()}
        return Draws(self.shared[index], self.effects[index], groups)


def effects_of_a_new_site(terms: Terms, shared: np.ndarray, seed: int) -> Draws:
    """Draws of the effects of a site without rows: those of the population.

    Args:
        terms: Names of the parameters.
        shared: Draws of the shared parameters.
        seed: Seed of the effects.

    Example:
        >>> terms = Terms(True, (), ("Intercept",), False, None, None)
        >>> shared = np.column_stack([np.zeros(4000), np.full(4000, 2.0)])  # sd 2
        >>> effects_of_a_new_site(terms, shared, 0).effects.std().round(1)
        np.float64(2.0)
    """
    count = len(terms.effects)
    random = np.random.default_rng(seed)
    white = random.standard_normal((len(shared), count))
    by_name = dict(zip(terms.names, shared.T, strict=True))
    if not count:
        return Draws(shared, white)
    sd = np.column_stack([by_name[name] for name in terms.deviations])
    sd = np.nan_to_num(sd)
    if not terms.correlations:
        return Draws(shared, white * sd)
    matrix = np.tile(np.eye(count), (len(shared), 1, 1))
    one, other = np.triu_indices(count, 1)
    cor = np.nan_to_num(np.column_stack([by_name[name] for name in terms.correlations]))
    matrix[:, one, other] = matrix[:, other, one] = np.clip(cor, -0.999999, 0.999999)
    value, axes = np.linalg.eigh(
        matrix
    )  # estimates may be on the boundary, without a Cholesky root
    root = axes * np.sqrt(np.maximum(value, 0.0))[:, None, :]
    return Draws(shared, sd * np.einsum("dij,dj->di", root, white))


def linear_predictor(design: Design, x: np.ndarray, draws: Draws) -> np.ndarray:
    """The linear predictor without groups inside the site, rows by draws.

    Args:
        design: The design.
        x: Rows, with the columns `design.features`.
        draws: Draws of parameters and effects.
    """
    terms = Terms.of(design)
    columns = dict(zip(design.features, x.T, strict=True))
    size = len(terms.coefficients)
    fixed = np.column_stack(
        [np.ones(len(x)) if name == "Intercept" else columns[name] for name in terms.coefficients]
        or [np.zeros((len(x), 0))]
    )
    found = fixed @ draws.shared[:, :size].T
    if terms.effects:
        random = np.column_stack(
            [np.ones(len(x)) if name == "Intercept" else columns[name] for name in terms.effects]
        )
        found += random @ draws.effects.T
    if OFFSET in columns:
        found += columns[OFFSET][:, None]
    return found


def predictor(
    design: Design, x: np.ndarray, draws: Draws, labels: np.ndarray | None = None, seed: int = 0
) -> np.ndarray:
    """The linear predictor, rows by draws.

    Args:
        design: The design.
        x: Rows, with the columns `design.features`.
        draws: Draws of parameters and effects.
        labels: The group of each row inside the site. Rows of a group that the draws do not know,
            and all rows where it is None, are of unseen groups.
        seed: Seed of the effects of unseen groups.
    """
    found = linear_predictor(design, x, draws)
    if design.group is None:
        return found
    by_name = dict(zip(Terms.of(design).names, draws.shared.T, strict=True))
    deviation = by_name[f"sd({design.group}:Intercept)"]
    effects = np.random.default_rng(seed).standard_normal(found.shape) * deviation
    for at, label in enumerate([] if labels is None else labels.tolist()):
        if label in draws.groups:
            effects[at] = draws.groups[label]
    return found + effects


def predicted(
    design: Design,
    x: np.ndarray,
    draws: Draws,
    probabilities: Sequence[float],
    labels: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and quantiles of each row.

    Args:
        design: The design.
        x: Rows, with the columns `design.features`.
        draws: Draws of parameters and effects.
        probabilities: Those of the quantiles.
        labels: The group of each row inside the site; see `predictor`.

    Returns:
        Means by row, and quantiles (rows, probabilities): of the probability of the event for two
        values, of the outcome for others.
    """
    block = max(1, _CELLS // max(len(draws.shared), 1))
    pieces = [
        _block(
            design,
            x[start : start + block],
            draws,
            probabilities,
            None if labels is None else labels[start : start + block],
        )
        for start in range(0, len(x), block)
    ]
    if not pieces:
        return np.zeros(0), np.zeros((0, len(probabilities)))
    means, quantiles = zip(*pieces, strict=True)
    return np.concatenate(means), np.concatenate(quantiles)


def _block(
    design: Design,
    x: np.ndarray,
    draws: Draws,
    probabilities: Sequence[float],
    labels: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    eta = predictor(design, x, draws, labels)
    mean = mean_of(design.family, eta)
    if design.family == "bernoulli":
        return mean.mean(1), np.quantile(mean, probabilities, axis=1).T
    by_name = dict(zip(Terms.of(design).names, draws.shared.T, strict=True))
    if design.family == "gaussian":
        sigma = by_name["sigma"]
        low, high = ((eta + side * 9 * sigma) for side in (-1, 1))

        def outcome(y):
            return special.ndtr((y[:, None] - eta) / sigma).mean(1)

        return eta.mean(1), _quantiles(outcome, low.min(1), high.max(1), probabilities, whole=False)
    below = np.full(len(x), -1.0)
    if design.family == "binomial":
        total = x[:, design.features.index(TOTALS)][:, None]

        def successes(y):
            return _binomial_cdf(y[:, None], total, eta).mean(1)

        quantiles = _quantiles(successes, below, total[:, 0], probabilities, whole=True)
        return (total * mean).mean(1), quantiles
    shape = by_name.get("shape")
    spread = np.sqrt(mean + (0 if shape is None else mean**2 / shape))
    high = np.ceil((mean + 12 * spread + 10).max(1))

    def counts(y):
        return _count_cdf(y[:, None], mean, shape).mean(1)

    return mean.mean(1), _quantiles(counts, below, high, probabilities, whole=True)


def _count_cdf(y: np.ndarray, mean: np.ndarray, shape: np.ndarray | None) -> np.ndarray:
    count = np.maximum(np.floor(y), 0.0)
    if shape is None:
        each = special.pdtr(count, mean)
    else:
        each = special.betainc(shape, count + 1, shape / (shape + mean))
    return np.where(y < 0, 0.0, each)


def mean_of(family: str, eta: np.ndarray) -> np.ndarray:
    """The mean of an outcome (of one trial) at a linear predictor.

    Args:
        family: The family.
        eta: The linear predictor.
    """
    link = LINKS.get(family, "log")
    if link == "identity":
        return eta
    return special.expit(eta) if link == "logit" else np.exp(np.minimum(eta, 50.0))


def _binomial_cdf(y: np.ndarray, total: np.ndarray, logit: np.ndarray) -> np.ndarray:
    count = np.clip(np.floor(y), -1, total)
    inside = special.betainc(
        np.maximum(total - count, 1.0), np.maximum(count, 0.0) + 1, special.expit(-logit)
    )
    return np.where(count < 0, 0.0, np.where(count >= total, 1.0, inside))


def _quantiles(
    cdf: Callable[[np.ndarray], np.ndarray],
    low: np.ndarray,
    high: np.ndarray,
    probabilities: Sequence[float],
    *,
    whole: bool,
) -> np.ndarray:
    """The smallest values whose distribution function reaches the probabilities, by bisection."""
    found = []
    for probability in probabilities:
        below, above = low.copy(), high.copy()
        for _ in range(_BISECTIONS):
            middle = np.floor((below + above) / 2) if whole else (below + above) / 2
            reached = cdf(middle) >= probability - 1e-14
            below, above = np.where(reached, below, middle), np.where(reached, middle, above)
            if np.all(above - below <= (1.0 if whole else 1e-9 * (1 + np.abs(above)))):
                break
        found.append(above)
    return np.column_stack(found)


def sites_of(
    table: Table,
    column: str | None,
    kept: np.ndarray,
    known: Sequence[str],
    client: Site | None = None,
) -> dict[Site | None, np.ndarray]:
    """Which of the rows belong to which site, by their index; None is a new site.

    Args:
        table: New rows.
        column: The column that names the sites; None where a fit has no effects of sites.
        kept: Rows that are predicted.
        known: The sites of the fit.
        client: The site of all rows, if the user names one. A column that says otherwise is
            warned of.
    """
    every = np.arange(len(kept))
    if column is None or column not in table.frame:
        return {client: every}
    words = sites_in(table, column)
    names = np.array([words[row] or "none" for row in kept], str)
    if client is not None:
        others = sorted({*names.tolist()} - {"none", word(client)})
        if others:
            count = int(np.isin(names, others).sum())
            warnings.warn(
                f"{column} is {', '.join(others[:3])} in {count} of the rows, and "
                f"client={client!r} says otherwise: all are predicted as rows of {client!r}; leave "
                f"client out to predict each row as its {column} says",
                stacklevel=3,
            )
        return {client: every}
    new = ~np.isin(names, known)
    if new.any():
        others = sorted(set(names[new].tolist()))
        warnings.warn(
            f"{column} is {', '.join(others[:3])} in {int(new.sum())} of the rows, which is no "
            "site of this fit: they are predicted as rows of a new site",
            stacklevel=3,
        )
    of = {name: every[names == name] for name in known} | {None: every[new]}
    return {name: index for name, index in of.items() if len(index)}


def warn_of_far_rows(
    design: Design, rows: Rows, means: Sequence[float], spread: Mapping[str, float]
) -> None:
    """Warn of new rows that are nowhere near those of the fit: of other units, say.

    Args:
        design: The design.
        rows: The new rows.
        means: Mean of each column over all sites of the fit.
        spread: Its standard deviation; empty where it is not known.
    """
    if not spread:
        return
    by_name = dict(zip(design.features, rows.x.T, strict=True))
    for name, mean in zip(design.columns, means, strict=True):
        values, sd = by_name[name], spread[name]
        if not sd > 0 or ":" in name or np.isin(values, (0, 1)).all():
            continue
        far = np.flatnonzero(np.abs(values - mean) > _FAR * sd)
        if len(far):
            center, scale = design.scaled.get(name, (0.0, 1.0))
            scale = 1.0 if scale is None else scale
            warnings.warn(
                f"{design.needs.scaled.get(name, name)!r} is {center + scale * values[far[0]]:.4g} "
                f"in row {rows.kept[far[0]]}, more than {_FAR:g} standard deviations from the rows "
                f"of the fit (mean {center + scale * mean:.4g}, sd {scale * sd:.2g}; "
                f"{len(far)} such row{'s' * (len(far) > 1)}): are its units the same?",
                stacklevel=3,
            )


def probabilities_of(intervals: Sequence[float]) -> list[float]:
    """The probabilities of the ends of equal-tailed intervals, in order.

    Args:
        intervals: Probabilities of the intervals.

    Example:
        >>> [round(one, 3) for one in probabilities_of((0.5, 0.9))]
        [0.05, 0.25, 0.75, 0.95]
    """
    for one in intervals:
        if not 0 < one < 1:
            raise ValueError(f"intervals are probabilities between 0 and 1, got {one!r}")
    return sorted({round((1 + side * one) / 2, 10) for one in intervals for side in (-1, 1)})


def quantile_name(probability: float) -> str:
    """The name of a quantile's column.

    Args:
        probability: Its probability.

    Example:
        >>> quantile_name(0.05), quantile_name(0.975)
        ('q05', 'q97.5')
    """
    whole, dot, rest = f"{100 * probability:.6g}".partition(".")
    return f"q{whole.zfill(2)}{dot}{rest}"


def as_table(
    means: np.ndarray,
    quantiles: np.ndarray,
    probabilities: Sequence[float],
    kept: np.ndarray,
    size: int,
) -> pd.DataFrame:
    """Predictions as a table with one row per row of the new data; NaN where there is none.

    Args:
        means: Means.
        quantiles: Quantiles (rows, probabilities).
        probabilities: Those of the quantiles.
        kept: Which rows of the new data these are.
        size: Rows of the new data.
    """
    table = pd.DataFrame(np.nan, range(size), ["mean", *map(quantile_name, probabilities)])
    table.iloc[kept] = np.column_stack([means, quantiles])
    return table
