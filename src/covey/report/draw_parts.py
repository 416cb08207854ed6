"""The section of posterior draws: densities, traces, diagnostics in words."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from covey.core.labels import labels
from covey.report.content import Draws
from covey.report.words import Judgement, judge_chains, judge_k_hat

_PLOTTED = 12  # parameters; more make the page long, and all are in the table
_POINTS = 96  # of a density
_TRACED = 150  # draws of a chain
DIAGNOSTICS = ["r_hat", "ess_bulk", "ess_tail"]


def flat_draws(tree: Any) -> dict[str, np.ndarray]:
    """Draws by parameter, each as (chains, draws), from the tree of a trace.

    Args:
        tree: The result of `posterior.shared.trace()`.

    Returns:
        Arrays by the names that summaries use, e.g. `weights[age]`.
    """
    found = {}
    for name, array in tree["posterior"].data_vars.items():
        inner = [dim for dim in array.dims if dim not in ("chain", "draw")]
        values = array.transpose("chain", "draw", *inner)
        columns = values.values.reshape(*values.values.shape[:2], -1)
        names = labels(str(name), [values[dim].values for dim in inner])
        found |= {label: columns[..., index] for index, label in enumerate(names)}
    return found


def draws_section(
    draws: Mapping[str, np.ndarray], diagnostics: pd.DataFrame, k_hat: float | None = None
) -> Draws:
    """The section of posterior draws.

    Args:
        draws: By parameter, an array (chains, draws); the first dozen are plotted.
        diagnostics: One row per parameter: parameter, and r_hat, ess_bulk, ess_tail or ess.
        k_hat: Reliability of importance weights. Default: the draws have none.

    Returns:
        The section; its first sentence says whether the draws can be trusted.

    Example:
        >>> drawn = {"age": np.random.default_rng(0).normal(size=(2, 50))}
        >>> table = pd.DataFrame({"parameter": ["age"], "r_hat": [1.0]})
        >>> section = draws_section(drawn, table.assign(ess_bulk=400.0, ess_tail=400.0))
        >>> section.poor, len(section.trace)
        (False, 100)
    """
    judged = [] if k_hat is None else [judge_k_hat(k_hat)]
    judged += judge_chains(diagnostics)
    shown = dict(list(draws.items())[:_PLOTTED])
    sentences = _in_order(judged)
    if len(shown) < len(draws):
        sentences = (*sentences, f"The first {_PLOTTED} of {len(draws)} parameters are plotted.")
    return Draws(
        pd.concat([_density(name, values) for name, values in shown.items()], ignore_index=True),
        pd.concat([_trace(name, values) for name, values in shown.items()], ignore_index=True),
        diagnostics,
        sentences,
        any(one.poor for one in judged),
    )


def _in_order(judged: list[Judgement]) -> tuple[str, ...]:
    """Judgements that ask for caution first."""
    return tuple(one.sentence for one in sorted(judged, key=lambda one: not one.poor))


def _density(name: str, values: np.ndarray) -> pd.DataFrame:
    """A kernel density estimate between the outermost draws; a spike for a constant."""
    flat = np.asarray(values, float).ravel()
    flat = flat[np.isfinite(flat)]
    if flat.size < 2 or np.ptp(flat) < 1e-12 * max(1.0, np.abs(flat).max()):
        points, density = flat[:1], np.ones(min(flat.size, 1))
    else:
        from scipy.stats import gaussian_kde  # takes a second to import

        low, high = np.quantile(flat, [0.002, 0.998])
        points = np.linspace(low, high, _POINTS)
        density = gaussian_kde(flat[:: max(1, flat.size // 2000)])(points)
    return pd.DataFrame({"parameter": name, "value": points, "density": density})


def _trace(name: str, values: np.ndarray) -> pd.DataFrame:
    """Evenly spaced draws of each chain."""
    chains, count = values.shape
    at = np.unique(np.linspace(0, count - 1, min(count, _TRACED)).astype(int))
    return pd.DataFrame(
        {
            "parameter": name,
            "chain": np.repeat(np.arange(1, chains + 1), len(at)),
            "draw": np.tile(at + 1, chains),
            "value": values[:, at].ravel(),
        }
    )
