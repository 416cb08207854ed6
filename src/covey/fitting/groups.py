"""Effects of groups inside a site, such as the wards of a hospital, given the site's rows.

The methods integrate them out. Given the parameters and the site's own effects, groups are
independent and each has one value v,

    p(v | rows) ~ N(v; 0, tau^2) prod_r p(y_r | eta_r + v),

which is drawn from a grid around its mode, one value for each draw of the parameters.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from covey.fitting.design import TOTALS, WEIGHTS, Design, Rows
from covey.fitting.prediction import Draws, linear_predictor, mean_of
from covey.fitting.terms import Terms

_CELLS = 2_000_000  # rows times draws that are computed together
_STEPS = 30  # of Fisher scoring, for the mode
_NODES = np.linspace(-6.0, 6.0, 49)  # of the grid, in standard deviations at the mode


class _Outcome(NamedTuple):
    """Rows by draws, with rows of a group next to each other."""

    family: str
    y: np.ndarray  # a column
    eta: np.ndarray
    weights: np.ndarray  # a column
    totals: np.ndarray  # a column
    scale: np.ndarray  # sigma or the shape of each draw
    starts: np.ndarray  # first row of each group

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Sums over the rows of each group."""
        return np.add.reduceat(self.weights * values, self.starts, axis=0)

    def at(self, v: np.ndarray) -> np.ndarray:
        """The linear predictor with the groups' effects."""
        counts = np.diff([*self.starts, len(self.y)])
        return self.eta + np.repeat(v, counts, axis=0)

    def score(self, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The derivative of the log-likelihood in v, and its expected curvature."""
        mean = mean_of(self.family, self.at(v))
        if self.family == "gaussian":
            precision = self.scale**-2.0
            return self.sums((self.y - mean) * precision), self.sums(precision + 0 * mean)
        if self.family in ("bernoulli", "binomial"):
            rest = self.y - self.totals * mean
            return self.sums(rest), self.sums(self.totals * mean * (1 - mean))
        if self.family == "poisson":
            return self.sums(self.y - mean), self.sums(mean)
        shrink = self.scale / (self.scale + mean)
        return self.sums((self.y - mean) * shrink), self.sums(mean * shrink)

    def log_likelihood(self, v: np.ndarray) -> np.ndarray:
        """Up to a constant."""
        eta = self.at(v)
        if self.family == "gaussian":
            return self.sums(-((self.y - eta) ** 2) / (2 * self.scale**2))
        if self.family in ("bernoulli", "binomial"):
            return self.sums(self.y * eta - self.totals * np.logaddexp(0.0, eta))
        eta = np.minimum(eta, 50.0)
        if self.family == "poisson":
            return self.sums(self.y * eta - np.exp(eta))
        log_total = np.logaddexp(np.log(self.scale), eta)
        return self.sums(self.y * eta - (self.y + self.scale) * log_total)


def with_groups(design: Design, rows: Rows, draws: Draws, seed: int) -> Draws:
    """A site's draws, with effects of the groups that its rows name.

    Args:
        design: The design.
        rows: The site's rows.
        draws: Draws of the parameters and of the site's effects.
        seed: Seed of the groups' effects.

    Returns:
        The draws; they are as before where the design has no groups.
    """
    if design.group is None or rows.labels is None or not len(rows.y):
        return draws
    by_name = dict(zip(Terms.of(design).names, draws.shared.T, strict=True))
    # At least a little, to divide by; NaN stays, so that effects of an unfinished fit are NaN.
    tau = np.maximum(by_name[f"sd({design.group}:Intercept)"], 1e-12)
    scale = by_name.get("sigma", by_name.get("shape", np.ones(len(tau))))
    order = np.argsort(rows.labels, kind="stable")
    names, starts = np.unique(rows.labels[order], return_index=True)
    random = np.random.default_rng(seed)
    columns = dict(zip(design.features, rows.x[order].T, strict=True))
    ones = np.ones(len(order))
    found = {}
    for first, last in _blocks(starts, len(order), max(1, _CELLS // len(tau))):
        at = slice(starts[first], starts[last] if last < len(starts) else len(order))
        outcome = _Outcome(
            design.family,
            rows.y[order][at, None],
            linear_predictor(design, rows.x[order][at], draws),
            columns.get(WEIGHTS, ones)[at, None],
            columns.get(TOTALS, ones)[at, None],
            scale,
            starts[first:last] - starts[first],
        )
        drawn = _drawn(outcome, tau, random.uniform(size=(last - first, len(tau))))
        found |= dict(zip(names[first:last].tolist(), drawn, strict=True))
    return draws._replace(groups=found)


def group_table(sites: Mapping[str, Draws]) -> pd.DataFrame:
    """Mean, standard deviation and 90 % interval of the effect of each group.

    Args:
        sites: Draws of each site.

    Example:
        >>> one = Draws(np.zeros((3, 1)), np.zeros((3, 0)), {"w1": np.array([1.0, 2.0, 3.0])})
        >>> group_table({"bern": one})[["client", "group", "mean"]].to_numpy().tolist()
        [['bern', 'w1', 2.0]]
    """
    rows = [
        {"client": site, "group": group, "mean": values.mean(), "sd": values.std()}
        | dict(zip(("q05", "q95"), np.quantile(values, (0.05, 0.95)), strict=True))
        for site, draws in sites.items()
        for group, values in draws.groups.items()
    ]
    return pd.DataFrame(rows, columns=["client", "group", "mean", "sd", "q05", "q95"])


def _blocks(starts: np.ndarray, size: int, most: int) -> list[tuple[int, int]]:
    """Runs of whole groups with up to `most` rows together, or of one group."""
    ends = [*starts[1:], size]
    found, first = [], 0
    for at in range(len(starts)):
        if at > first and ends[at] - starts[first] > most:
            found.append((first, at))
            first = at
    return [*found, (first, len(starts))]


def _drawn(outcome: _Outcome, tau: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """One value for each group and draw, by the distribution function on a grid."""
    v = np.zeros_like(uniform)
    for _ in range(_STEPS):
        score, curvature = outcome.score(v)
        step = (score - v / tau**2) / (curvature + tau**-2.0)
        v += np.clip(step, -2.0, 2.0) if outcome.family != "gaussian" else step
        if np.all(np.abs(step) < 1e-3 * tau):
            break
    sd = (outcome.score(v)[1] + tau**-2.0) ** -0.5
    # Where outcomes are rare, one tail is as wide as the prior's.
    sd = np.minimum(2 * sd, tau) if outcome.family != "gaussian" else sd
    nodes = v[..., None] + sd[..., None] * _NODES
    each = [
        outcome.log_likelihood(nodes[..., at]) - (nodes[..., at] / tau) ** 2 / 2
        for at in range(len(_NODES))
    ]
    return _inverted(nodes, np.stack(each, axis=-1), uniform)


def _inverted(nodes: np.ndarray, log_density: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Where distribution functions reach some values; densities are linear between the nodes."""
    density = np.exp(log_density - log_density.max(-1, keepdims=True))
    left, right = density[..., :-1], density[..., 1:]
    below = np.cumsum((left + right) / 2, axis=-1)
    wanted = uniform * below[..., -1]
    at = np.minimum(np.sum(below < wanted[..., None], axis=-1), left.shape[-1] - 1)[..., None]

    def here(values: np.ndarray) -> np.ndarray:
        return np.take_along_axis(values, at, -1)[..., 0]

    low, high = here(left), here(right)
    rest = np.maximum(wanted - here(below) + (low + high) / 2, 0.0)
    # The part t of the interval with low t + (high - low) t^2 / 2 = rest.
    root = np.sqrt(np.maximum(low**2 + 2 * (high - low) * rest, 0.0))
    part = 2 * rest / np.maximum(low + root, 1e-300)
    return here(nodes) + np.clip(part, 0.0, 1.0) * (nodes[..., 1] - nodes[..., 0])
