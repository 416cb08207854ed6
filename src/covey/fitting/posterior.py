"""Draws of a fit by the names of its terms."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from covey.core import atomic_files
from covey.core.shard import Axis
from covey.fitting.prediction import Draws
from covey.fitting.terms import Terms

if TYPE_CHECKING:
    import xarray

    from covey.fitting.result import Fit

CHAINS = 4


class TermDraws:
    """Draws of some parameters.

    Attributes:
        names: Names of the parameters.
        values: One row per draw.
    """

    def __init__(self, names: tuple[str, ...], values: np.ndarray):
        self.names, self.values = names, values

    def __repr__(self) -> str:
        return f"{len(self.values)} draws of {', '.join(self.names)}"

    def draws(self) -> pd.DataFrame:
        """One row per draw, one column per term."""
        return pd.DataFrame(self.values, columns=list(self.names))

    def summary(self) -> pd.DataFrame:
        """Mean, standard deviation and the ends of the 90 % interval per term."""
        table = self.draws()
        found = pd.DataFrame({"mean": table.mean(), "sd": table.std(ddof=0)})
        return found.assign(q05=table.quantile(0.05), q95=table.quantile(0.95)).rename_axis("term")


class FitPosterior:
    """The posterior of a fit; see `Fit.posterior`.

    Attributes:
        shared: Draws of the shared parameters.
    """

    def __init__(self, fit: "Fit"):
        self._fit, self._terms = fit, Terms.of(fit.design)
        self.shared = TermDraws(self._terms.names, fit.found.draws)

    def __repr__(self) -> str:
        return f"posterior({len(self._terms.names)} terms, {len(self._fit.clients)} sites)"

    def client(self, name: str) -> TermDraws:
        """Draws of a site's deviations from the shared coefficients.

        Args:
            name: The site.
        """
        draws = self._fit.site_draws()
        if name not in draws or not self._terms.effects:
            known = (
                ", ".join(draws if self._terms.effects else ())
                or "none: the model has no random effects"
            )
            raise ValueError(f"there is no site {name!r}; sites are {known}")
        return TermDraws(self._terms.effects, draws[name].effects)

    def trace(self) -> "xarray.DataTree":
        """Draws as ArviZ takes them.

        Returns:
            A tree whose group `posterior` has the variables `coefficients`, `sd`, `cor`, `sigma`
            or `shape`.
        """
        from covey.inference.trace import as_tree

        values, axes = self._variables()
        values.pop("effects", None)  # by site, which the trees of one client have no axis for
        return as_tree({name: value[None] for name, value in values.items()}, None, {}, axes)

    def to_netcdf(self, path: str | Path) -> Path:
        """Write the draws as a netCDF file, with `effects` by site; `xarray.load_dataset(path)`
        reads it.

        With the marginal method, all values of a draw belong together: sums and differences of
        coefficients and effects have the posterior's correlations. The attribute `paired` says so.

        Args:
            path: The file.
        """
        import xarray

        values, axes = self._variables()
        variables = {
            name: (["chain", "draw", *_dimensions(name, axes)], value.astype(np.float32))
            for name, value in values.items()
        }
        coordinates = {axis.dimension: list(axis.labels) for axis in axes.values()}
        if "effects" in values:
            coordinates["client"] = list(self._fit.site_draws())
        paired = _in_common(list(self._fit.site_draws().values())) is not None
        attributes = {
            "formula": self._fit.formula,
            "family": self._fit.family,
            "paired": int(paired or "effects" not in values),
        }
        data = xarray.Dataset(variables, coordinates, attributes)
        atomic_files.write(Path(path), bytes(data.to_netcdf(engine="scipy")))
        return Path(path)

    def _variables(self) -> tuple[dict[str, np.ndarray], dict[str, Axis]]:
        """Draws by variable as (chains, draws, ...), and labels along their last axis."""
        terms, values = self._terms, self.shared.values
        sites = self._fit.site_draws() if terms.effects else {}
        if (paired := _in_common(list(sites.values()))) is not None:
            values = paired
        count = min([len(values), *(len(one.effects) for one in sites.values())])
        count = count // CHAINS * CHAINS
        values = values[np.linspace(0, len(values) - 1, count).astype(int)]
        chains = values.reshape(CHAINS, -1, values.shape[-1])
        by_name = dict(zip(terms.names, np.moveaxis(chains, -1, 0), strict=True))
        groups = {
            "coefficients": (terms.coefficients, "term"),
            "sd": (terms.deviations, "effect"),
            "cor": (terms.correlations, "pair"),
        }
        found = {
            name: np.stack([by_name[one] for one in labels], axis=-1)
            for name, (labels, _) in groups.items()
            if labels
        }
        found |= {name.replace(":", "_"): by_name[name] for name in terms.others}
        if sites:
            each = np.stack([one.effects[:count] for one in sites.values()], axis=1)
            found["effects"] = each.reshape(CHAINS, -1, *each.shape[1:])
        short = {"effect": terms.effects}
        axes = {
            name: Axis(dimension, short.get(dimension, labels))
            for name, (labels, dimension) in groups.items()
            if labels
        }
        return found, axes


def _in_common(sites: Sequence[Draws]) -> np.ndarray | None:
    """Draws of the shared parameters that go with the effects of all sites; None where each site
    has its own.
    """
    if not sites or not np.isfinite(sites[0].shared).all():
        return None
    first = sites[0].shared
    same = all(np.array_equal(one.shared, first) for one in sites[1:])
    return first if same else None


def _dimensions(name: str, axes: dict[str, Axis]) -> list[str]:
    if name == "effects":
        return ["client", "effect"]
    return [axes[name].dimension] if name in axes else []
