"""A fit in a folder: tables to read, draws, and what predictions and new sites need. No rows.

summary.csv    the shared parameters
effects.csv    the sites' deviations
groups.csv     deviations of groups inside of sites, where the formula has such
fit.json       design, priors, diagnostics, versions
draws.npz      draws, for predictions
posterior.nc   draws, for ArviZ
published.bin  what a new site needs to find its effects
config.toml    settings and versions
"""

import io
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from covey.core import atomic_files
from covey.fitting.design import Design
from covey.fitting.methods import Found, method_of
from covey.fitting.prediction import Draws
from covey.fitting.priors import LogPrior, Prior
from covey.fitting.tables import TableSource
from covey.fitting.tables_again import tables_again

if TYPE_CHECKING:
    from covey.data.federated import FederatedData
    from covey.fitting.result import Fit

FORMAT = 1


def save(fit: "Fit", folder: Path) -> Path:
    """Write a fit to a folder; see `Fit.save`.

    Args:
        fit: The fit.
        folder: The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _refuse_another(fit, folder)
    sites = fit.site_draws()
    _write_csv(folder / "summary.csv", fit.found.table.reset_index())
    _write_csv(folder / "effects.csv", fit.effects())
    arrays = {"shared": fit.found.draws}
    if sites:
        arrays["site_shared"] = np.stack([one.shared for one in sites.values()])
        arrays["site_effects"] = np.stack([one.effects for one in sites.values()])
    groups = {site: list(one.groups) for site, one in sites.items() if one.groups}
    if groups:
        _write_csv(folder / "groups.csv", fit.group_effects())
        every = [values for one in sites.values() for values in one.groups.values()]
        arrays["groups"] = np.stack(every)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{k: v.astype(np.float32) for k, v in arrays.items()})
    atomic_files.write(folder / "draws.npz", buffer.getvalue())
    fit.posterior.to_netcdf(folder / "posterior.nc")
    if fit.method == "marginal":
        _write_published(fit, folder / "published.bin")
    if not (folder / "config.toml").exists():
        _write_config(fit, folder / "config.toml")
    content = {
        "format": FORMAT,
        "covey": version("covey"),
        "estimate": fit.estimate,
        "method": fit.method,
        "seed": fit.seed,
        "design": fit.design.to_json(),
        "priors": fit.priors,
        "prior": {"priors": fit.prior.priors, "means": fit.prior.means},
        "diagnostics": fit.found.diagnostics,
        "traffic": fit.traffic,
        "notes": fit.notes,
        "sites": list(sites),
        "groups": groups,
        "added": list(fit.added),
        "left_out": fit.stored.get("left_out"),
        "data_path": fit.stored.get("data_path"),
        "added_paths": fit.stored.get("added_paths", {}),
        "digests": fit.stored.get("digests", {}),
        "outcomes": fit.stored.get("outcomes", {}),
        "spread": fit.stored.get("spread", {}),
        "record": _record(fit),
    }
    text = json.dumps(content, indent=1, default=_plain)
    atomic_files.write(folder / "fit.json", text.encode())
    return folder


def _refuse_another(fit: "Fit", folder: Path) -> None:
    """An error for a folder that holds another fit, whose files would be mixed with this one's."""
    if not (folder / "fit.json").exists():
        return
    there, digests = _read(folder), fit.stored.get("digests", {})
    same = there["design"]["text"] == fit.formula and all(
        digests.get(site) == digest for site, digest in there.get("digests", {}).items()
    )
    if not same or (there["estimate"], there["method"]) != (fit.estimate, fit.method):
        raise ValueError(
            f"{folder} holds another fit ({there['design']['text']}); choose another folder"
        )


def load_fit(
    folder: str | Path,
    *,
    data: "Mapping[str, TableSource] | TableSource | FederatedData | None" = None,
) -> "Fit":
    """A fit that was saved, by `Fit.save` or `covey.fit(out=...)`.

    Args:
        folder: The folder.
        data: The sites' tables, as `covey.fit` takes them; only for `fitted()` and for adding a
            site with a refit. Default: none.

    Returns:
        The fit: it summarises, predicts and adds sites as before it was saved.

    Raises:
        ValueError: The folder holds no fit, or one of another version.

    Example:
        >>> import covey
        >>> covey.load_fit("nowhere")
        Traceback (most recent call last):
        ...
        ValueError: nowhere holds no fit: it has no fit.json; give the folder of covey.fit(out=...)
    """
    from covey.fitting.result import Fit

    folder = Path(folder)
    content = _read(folder)
    design = Design.from_json(content["design"])
    table = pd.read_csv(folder / "summary.csv", keep_default_na=False, na_values=[""])
    with np.load(folder / "draws.npz", allow_pickle=False) as arrays:
        found = {name: arrays[name].astype(float) for name in arrays.files}
    groups, known = iter(found.get("groups", ())), content.get("groups", {})
    sites = {
        name: Draws(
            found["site_shared"][at],
            found["site_effects"][at],
            {group: next(groups) for group in known.get(name, ())},
        )
        for at, name in enumerate(content["sites"])
    }
    added = {name: sites[name] for name in content["added"]}
    stored: dict[str, Any] = {"traffic": content["traffic"]}
    for name in ("left_out", "data_path", "added_paths", "digests", "outcomes", "spread", "record"):
        if content.get(name) is not None:
            stored[name] = content[name]
    prior = LogPrior(
        tuple(
            (part, tuple(Prior(name, tuple(values)) for name, values in priors))
            for part, priors in content["prior"]["priors"]
        ),
        tuple(content["prior"]["means"]),
    )
    fit = Fit(
        design=design,
        estimate=content["estimate"],
        method=content["method"],
        priors=content["priors"],
        prior=prior,
        found=Found(table.set_index("term"), found["shared"], content["diagnostics"]),
        seed=content["seed"],
        notes=tuple(content["notes"]),
        added=added,
        site_draws_={name: one for name, one in sites.items() if name not in added},
        stored=stored,
    )
    if (folder / "published.bin").exists():
        stored["published"] = lambda: _published(fit, folder / "published.bin")
    if data is not None:
        fit.tables = tables_again(fit, data)
    return fit


def _read(folder: Path) -> dict[str, Any]:
    path = folder / "fit.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no fit: it has no fit.json; give the folder of covey.fit(out=...)"
        )
    try:
        content = json.loads(path.read_text())
        kind, by = content["format"], content["covey"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); fit again") from None
    if kind != FORMAT:
        raise ValueError(
            f"{folder} was written by covey {by} in format {kind}, and this version, "
            f"{version('covey')}, reads format {FORMAT}; fit again, or use covey {by}"
        )
    return content


def _record(fit: "Fit") -> dict[str, Any] | None:
    """The facts about the run for the report, so that a loaded fit has the same report."""
    from covey.report.from_fit import record_of

    found = record_of(fit)
    if found is None:
        return None
    return {
        name: [
            {key: None if pd.isna(value) else value for key, value in row.items()}
            for row in table.to_dict("records")
        ]
        for name, table in found.items()
    }


def _write_csv(path: Path, table: pd.DataFrame) -> None:
    atomic_files.write(path, table.to_csv(index=False).encode())


def _write_config(fit: "Fit", path: Path) -> None:
    from covey.runs import toml
    from covey.runs.environment import versions

    design = fit.design
    known = {"formula": design.text, "family": design.family, "estimate": fit.estimate}
    tables = {
        "method": {"name": fit.method},
        "fit": known | {"missing": design.missing},
        "run": {"seed": fit.seed},
        "environment": versions(),
    }
    atomic_files.write(path, toml.text_of(tables).encode())


def _write_published(fit: "Fit", path: Path) -> None:
    import jax

    from covey.core import wire

    atomic_files.write(path, wire.pack(jax.device_get(fit.published)))


def _published(fit: "Fit", path: Path) -> Any:
    """The state that new sites need, read with the shapes of the method."""
    import jax
    import jax.numpy as jnp

    from covey.algorithms.marginal.state import Published
    from covey.core import wire
    from covey.core.shard import Rows, Spec

    design = fit.design
    two = design.family == "bernoulli"
    x = jax.ShapeDtypeStruct((len(design.features),), np.float32)
    row = Rows(x, jax.ShapeDtypeStruct((), np.int32 if two else np.float32))
    spec = Spec(row, 2 if two else None, features=design.features)
    method = method_of(design, fit.method, fit.estimate, fit.prior)
    state = jax.eval_shape(lambda key: method.init(key, spec), jax.random.key(0))
    like = Published(state)
    if fit.estimate == "posterior":
        size = state.climb.point.shape[0]
        like = like._replace(points=jax.ShapeDtypeStruct((-1, size), np.float32))
    return jax.tree.map(jnp.asarray, wire.unpack(path.read_bytes(), like))


def _plain(value: Any) -> Any:
    """Values that JSON does not know."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
