"""Draws as ArviZ's trees, as netCDF, and their summary.

Importing this module imports ArviZ (`arviz_base`, `arviz_stats`), which takes seconds: `posterior`
does so when first asked.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import arviz_base
import jax
import numpy as np
import pandas as pd
import xarray
from arviz_stats.summary import summary
from jaxtyping import PyTree

from covey.core.labels import labels
from covey.core.shard import Axis
from covey.inference.drawing import SHARED_ROUNDS, check_probability
from covey.inference.shared_noise import effective

HIGHEST_R_HAT = 1.05  # above, chains have not found the same distribution
FEWEST_EFFECTIVE = 100  # independent draws; below, the ends of an interval are guesses
FEWEST_DRAWS = 4  # ArviZ halves each chain, and a variance needs two
_COLUMNS = ["ess_bulk", "ess_tail", "r_hat", "mcse_mean"]


def as_tree(
    draws: PyTree,
    clients: Sequence[str] | None,
    attributes: Mapping[str, str | int],
    axes: Mapping[str, Axis],
) -> xarray.DataTree:
    """Draws as (clients, chains, draws, ...) in ArviZ's order, (chain, draw, client, ...). Without
    names there is one client.

    The leaves of nested draws are named by their path; a bare array is called `parameters`. `axes`
    become coordinates.
    """
    leaves = jax.tree_util.tree_leaves_with_path(draws)
    named = {
        jax.tree_util.keystr(path, simple=True, separator=".") or "parameters": np.asarray(leaf)
        for path, leaf in leaves
    }
    known = {name: axis for name, axis in axes.items() if name in named}
    dimensions = {name: [known[name].dimension] if name in known else [] for name in named}
    coordinates = {axis.dimension: list(axis.labels) for axis in known.values()}
    if clients is None:
        values = {name: leaf[0] for name, leaf in named.items()}
    else:
        values = {name: np.moveaxis(leaf, 0, 2) for name, leaf in named.items()}
        coordinates["client"] = list(clients)
        dimensions = {name: ["client", *inner] for name, inner in dimensions.items()}
    return arviz_base.from_dict(
        {"posterior": values},
        sample_dims=["chain", "draw"],
        coords=coordinates,
        dims=dimensions,
        attrs={"posterior": dict(attributes)},
        check_conventions=False,  # it warns of more chains than draws
    )


def summarise(tree: xarray.DataTree, *, probability: float = 0.9) -> pd.DataFrame:
    """One row per parameter (per client and parameter, if the tree has clients), with a warning
    where the draws are too poor, and where a diagnostic is NaN because it cannot be known.

    Columns: mean, sd, the equal-tailed interval, as lower_90 and upper_90 for a probability of 0.9,
    then ess_bulk, ess_tail, r_hat and mcse_mean (Vehtari, Gelman, Simpson, Carpenter and Bürkner
    2021). Where chains went through the same rounds of a server, these are the worse of two
    estimates, one for independent chains and one that allows for noise that they share.
    """
    check_probability(probability)
    chains, draws = (tree["posterior"].sizes[name] for name in ("chain", "draw"))
    exact: Any = None  # ArviZ rounds to two digits by default, and its types know only digits
    with np.errstate(divide="ignore", invalid="ignore"):  # values that never change have no R-hat
        found = summary(
            tree, kind="all", fmt="xarray", ci_prob=probability, ci_kind="eti", round_to=exact
        )
    interval = [f"{side}_{100 * probability:g}" for side in ("lower", "upper")]
    found = found.assign_coords(summary=["mean", "sd", *interval, *_COLUMNS, "mcse_sd"])
    if draws >= FEWEST_DRAWS and SHARED_ROUNDS.items() <= tree["posterior"].attrs.items():
        drawn = tree["posterior"].to_dataset()
        found = found.map(lambda of: _with_shared_noise(of, drawn[of.name]))
    table = pd.concat([_lines(found[name]) for name in found.data_vars]).drop(columns="mcse_sd")
    if "client" in found.dims:  # rows of one client together, in the order of the clients
        clients, _ = pd.factorize(table.index.get_level_values("client"))
        table = table.iloc[np.argsort(clients, kind="stable")]
    if chains * draws == 1:
        table["sd"] = np.nan  # not 0: nothing is known of it
    walked = SHARED_ROUNDS.items() <= tree["posterior"].attrs.items()
    _warn_of_unknown(chains, draws, walked=walked)
    _warn_of_poor(table, several=chains > 1, walked=walked)
    return table


def _with_shared_noise(found: xarray.DataArray, draws: xarray.DataArray) -> xarray.DataArray:
    """The summary of a variable, with the diagnostics of chains that share noise where these are
    worse.
    """
    inner = [dim for dim in found.dims if dim != "summary"]
    values = draws.transpose("chain", "draw", *inner).values
    joint = effective(values.reshape(*values.shape[:2], -1))
    found = found.transpose("summary", *inner).copy()
    for column, worse, value in (
        ("ess_bulk", np.fmin, joint.bulk),
        ("ess_tail", np.fmin, joint.tail),
        ("mcse_mean", np.fmax, joint.mcse),
    ):
        usual = found.sel(summary=column)
        found.loc[{"summary": column}] = worse(usual, value.reshape(usual.shape))
    return found


def netcdf(tree: xarray.DataTree) -> bytes:
    """The draws as a netCDF file.

    It is netCDF 3, which needs no further library and has no groups: the file holds the group
    `posterior`, and `arviz_base.convert_to_datatree(xarray.load_dataset(path))` makes the tree of
    it again.
    """
    posterior = tree["posterior"].to_dataset()
    posterior.attrs = {
        name: str(value) for name, value in posterior.attrs.items()
    }  # a large seed is no netCDF 3 integer
    return bytes(posterior.to_netcdf(engine="scipy"))


def _lines(found: xarray.DataArray) -> pd.DataFrame:
    """A row for each entry of a variable: `slopes[age]`, or `slopes[0]` without labels; by client
    where there are clients.
    """
    inner = [dim for dim in found.dims if dim not in ("summary", "client")]
    clients = [dim for dim in found.dims if dim == "client"]
    numbers = found.transpose("summary", *clients, *inner)
    columns = numbers.values.reshape(numbers.sizes["summary"], -1)
    lines = labels(str(found.name), [numbers[dim].values for dim in inner])
    if clients:
        index = pd.MultiIndex.from_product(
            [found["client"].values.astype(str), lines], names=["client", "parameter"]
        )
    else:
        index = pd.Index(lines, name="parameter")
    return pd.DataFrame(
        columns.T, index=index, columns=[str(name) for name in found["summary"].values]
    )


def _warn_of_unknown(chains: int, draws: int, *, walked: bool) -> None:
    """Warn that a whole column is NaN. A run's chains are not drawn from again."""
    if draws < FEWEST_DRAWS:
        text = (
            "R-hat, effective draws and the Monte Carlo error are NaN: they need at least "
            f"{FEWEST_DRAWS} draws per chain, got {draws}; "
            f"{'run more rounds (run.advance)' if walked else 'take more draws'}"
        )
    elif chains == 1:
        text = "R-hat is NaN: it compares chains, and there is one; take more chains, e.g. chains=4"
        text += " (an option of the method where it has walked one)" if walked else ""
    else:
        return
    warnings.warn(text, stacklevel=5)  # whoever called Posterior.summary


def _warn_of_poor(table: pd.DataFrame, *, several: bool, walked: bool) -> None:
    """Warn where chains disagree or are worth few draws. Parameters that never change have no R-hat
    and are no reason; neither are NaN, which `_warn_of_unknown` explains.
    """
    r_hat, spread = table["r_hat"].to_numpy(), table["sd"].to_numpy()
    effective = np.minimum(table["ess_bulk"].to_numpy(), table["ess_tail"].to_numpy())
    lost = ~np.isfinite(table["mean"].to_numpy())
    apart, few = several & (r_hat > HIGHEST_R_HAT), effective < FEWEST_EFFECTIVE
    poor = np.flatnonzero(lost | ((apart | few) & (spread != 0)))
    if not poor.size:
        return
    first = table.index[poor[0]]
    found = [
        *([f"R-hat up to {np.nanmax(r_hat[poor]):.3g}"] if np.any(apart[poor]) else []),
        *([f"effective draws down to {np.nanmin(effective[poor]):.0f}"] if few[poor].any() else []),
        *([f"{lost.sum()} with draws that are not finite"] if lost.any() else []),
    ]
    advice = (
        "run more rounds (run.advance), or again with a longer burn-in or another step size"
        if walked
        else "take more draws, or run with more rounds, a longer burn-in or another step size"
    )
    warnings.warn(
        f"the draws of {poor.size} of {len(table)} parameters are poor, the first of "
        f"{first if isinstance(first, str) else ' '.join(first)} ({', '.join(found)}): {advice}",
        stacklevel=5,  # whoever called Posterior.summary
    )
