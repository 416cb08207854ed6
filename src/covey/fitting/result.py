"""The results of a fit, in the terms of its formula and in the units of its tables."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from covey.fitting.comparison import compare, left_out
from covey.fitting.design import Design
from covey.fitting.enrolment import add_client, personal_draws
from covey.fitting.expressions import nearest
from covey.fitting.groups import group_table
from covey.fitting.methods import Estimate, Found
from covey.fitting.prediction import (
    Draws,
    as_table,
    effects_of_a_new_site,
    predicted,
    probabilities_of,
    sites_of,
    warn_of_far_rows,
)
from covey.fitting.priors import LogPrior
from covey.fitting.sentences import Summary, sentences_of
from covey.fitting.tables import Site, Table, TableSource, read_table, word
from covey.fitting.tables_again import tables_again
from covey.fitting.terms import Terms

if TYPE_CHECKING:
    from covey.fitting.posterior import FitPosterior
    from covey.runs.run import Run

_INTERVALS = (0.5, 0.9)


@dataclass
class Fit:
    """A fitted regression with random effects; made by `covey.fit` and `covey.load_fit`.

    Attributes:
        design: Columns, levels and scales, the same for all sites.
        estimate: "posterior", "ml" or "reml".
        method: The method's name.
        priors: For each term its prior, as text; empty where there is none.
        prior: The log prior.
        found: The shared parameters: table, draws and diagnostics.
        seed: Seed of everything random.
        notes: Cautions about the tables.
        run: The run; None for a fit that was loaded.
        tables: The sites' tables; None for a fit that was loaded.
        added: Draws of sites that were added without a refit.
        site_draws_: Draws of the sites that took part, once they are known.
        stored: What a loaded fit read beside these.
    """

    design: Design
    estimate: Estimate
    method: str
    priors: dict[str, str]
    prior: LogPrior
    found: Found
    seed: int
    notes: tuple[str, ...] = ()
    run: "Run | None" = None
    tables: dict[str, Table] | None = None
    added: dict[str, Draws] = field(default_factory=dict)
    site_draws_: dict[str, Draws] | None = None
    stored: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Fit({self.formula}, {self.family}, {self.estimate}, {len(self.clients)} sites, "
            f"{self.used_rows} rows)"
        )

    @property
    def formula(self) -> str:
        """The formula."""
        return self.design.text

    @property
    def family(self) -> str:
        """The family of the outcome."""
        return self.design.family

    @property
    def clients(self) -> list[str]:
        """Names of the sites, those that were added last."""
        return list(self.design.rows)

    @property
    def used_rows(self) -> int:
        """Rows of all sites that are used."""
        return sum(self.design.rows.values()) - sum(self.design.dropped.values())

    @property
    def coefficient_names(self) -> tuple[str, ...]:
        """Names of the fixed effects."""
        return Terms.of(self.design).coefficients

    @property
    def published(self) -> Any:
        """The state that a site needs to find its own effects."""
        if self.run is not None:
            return self.run.published
        if "published" not in self.stored:
            raise ValueError(
                f"this fit was loaded and {self.method} keeps nothing to personalise it with; fit "
                "again with the new site"
            )
        return self.stored["published"]()

    def all_tables(self) -> dict[str, Table]:
        """The tables of all sites, for a refit."""
        if self.tables is None:
            data_path = self.stored.get("data_path")
            if data_path is None or not Path(data_path).exists():
                at = "" if data_path is None else f", and {data_path} is not there any more"
                raise ValueError(
                    f"a fit that was loaded has no rows{at}; give the tables: "
                    "covey.load_fit(folder, data=...)"
                )
            self.tables = tables_again(self, data_path)
        return self.tables

    def summary(self) -> pd.DataFrame:
        """The shared parameters: one row per term.

        Returns:
            A table with `mean`, `sd`, `q05` and `q95` (for "ml" and "reml": estimate, standard
            error and the ends of the 90 % Wald interval) and diagnostics. Printed, it comes with
            sentences: rounds, bytes, messages of each site, rows dropped, convergence.
        """
        table = Summary(self.found.table)
        table.attrs["sentences"] = sentences_of(self)
        table.attrs["k_hat"] = self.found.diagnostics.get("k_hat")
        return table

    def site_draws(self) -> dict[str, Draws]:
        """Draws of the shared parameters and of the effects, in pairs, by site."""
        if self.site_draws_ is None:
            rows = {
                name: self.design.rows_of(table)
                for name, table in self.all_tables().items()
                if name not in self.added
            }
            self.site_draws_ = personal_draws(self, rows)
        return self.site_draws_ | self.added

    def effects(self) -> pd.DataFrame:
        """The deviation of each site from the shared coefficients.

        Returns:
            A table with columns client, term, mean, sd, q05 and q95, in the units of the term.
        """
        return self._by_site(lambda draws: draws.effects)

    def coefficients(self) -> pd.DataFrame:
        """Each site's own coefficients: the shared ones plus its deviations.

        Returns:
            A table with columns client, term, mean, sd, q05 and q95, for terms that vary.
        """
        terms = Terms.of(self.design)
        index = {name: at for at, name in enumerate(terms.coefficients)}

        def own(draws: Draws) -> np.ndarray:
            shared = [
                draws.shared[:, index[name]] if name in index else np.zeros(len(draws.shared))
                for name in terms.effects
            ]
            return np.column_stack(shared) + draws.effects

        return self._by_site(own)

    def group_effects(self) -> pd.DataFrame:
        """The deviation of each group inside a site, such as a ward, from its site.

        Returns:
            A table with columns client, group, mean, sd, q05 and q95; empty without such groups.
        """
        return group_table(self.site_draws())

    def _by_site(self, values_of: Any) -> pd.DataFrame:
        terms = Terms.of(self.design)
        names = ["mean", "sd", "q05", "q95"]
        sites = self.site_draws() if terms.effects else {}
        if not sites:
            return pd.DataFrame(columns=["client", "term", *names])
        pieces = []
        for site, draws in sites.items():
            values = values_of(draws)
            low, high = np.quantile(values, (0.05, 0.95), axis=0)
            columns = dict(zip(names, (values.mean(0), values.std(0), low, high), strict=True))
            pieces.append(pd.DataFrame({"client": site, "term": list(terms.effects)} | columns))
        return pd.concat(pieces, ignore_index=True)

    @cached_property
    def posterior(self) -> "FitPosterior":
        """Draws by the names of the terms: `.shared`, `.client(name)`, `.to_netcdf(path)`."""
        from covey.fitting.posterior import FitPosterior

        return FitPosterior(self)

    def draws_for(self, client: Site | None) -> Draws:
        """Draws that predictions for a site use: its own, or those of a new site.

        Args:
            client: The site; None is a new site.
        """
        client = None if client is None else word(client)
        if client is not None and client not in self.clients:
            raise ValueError(
                f"there is no site {client!r}{nearest(client, self.clients)}; sites are "
                f"{', '.join(self.clients)}; leave the site out (client=None) for a new one"
            )
        terms = Terms.of(self.design)
        if not terms.effects and (client is None or self.design.group is None):
            shared = self.found.draws
            return Draws(shared, np.zeros((len(shared), 0))).thinned(1000)
        if client is not None:
            known = self.site_draws()
            if client not in known:
                raise ValueError(
                    f"the effects of {client!r} are known there alone: each site of a study has "
                    "its own fit; leave client out to predict for a new site"
                )
            return known[client]
        return effects_of_a_new_site(terms, self.found.draws, self.seed).thinned(1000)

    def predict(
        self,
        table: TableSource,
        client: Site | None = None,
        *,
        intervals: Sequence[float] = _INTERVALS,
        new_levels: str = "error",
    ) -> pd.DataFrame:
        """Predictions for new rows.

        Args:
            table: New rows: a data frame, or a CSV or Parquet file, with the columns of the formula
                in any order. The outcome is not needed.
            client: The site that the rows are of. Its groups, such as wards, have their own effects
                where it had rows of them. Default: what the column of the sites says, where the
                table has it; otherwise a new site, whose effects vary as those of the population.
            intervals: Probabilities of the intervals. Default: 50 and 90 %.
            new_levels: "error" (default) names a factor level that no site had; "reference"
                predicts it as the factor's first level.

        Returns:
            One row per row: `mean`, and the ends of the intervals: q05, q25, q75, q95. For two
            values these are the probability of the event and an interval of that probability; for
            others of the outcome. Rows with missing values are NaN, with a warning.
        """
        if new_levels not in ("error", "reference"):
            raise ValueError(f"new_levels must be 'error' or 'reference', got {new_levels!r}")
        read = read_table(table, "new rows")
        rows = self.design.rows_of(read, with_outcome=False, new_levels=new_levels)
        gone = len(read.frame) - len(rows.kept)
        if gone:
            warnings.warn(
                f"{gone} of {len(read.frame)} rows have missing values and no prediction; fit with "
                "missing='impute' to fill them in",
                stacklevel=2,
            )
        spread = self.stored.get("spread", {})
        warn_of_far_rows(self.design, rows, self.prior.means, spread)
        wanted = probabilities_of(intervals)
        means, quantiles = np.zeros(len(rows.x)), np.zeros((len(rows.x), len(wanted)))
        has_effects = bool(Terms.of(self.design).effects or self.design.group)
        column = self.design.client if has_effects else None
        of_site = sites_of(read, column, rows.kept, self.clients, client)
        for site, of in of_site.items():
            labels = None if rows.labels is None else rows.labels[of]
            means[of], quantiles[of] = predicted(
                self.design, rows.x[of], self.draws_for(site), wanted, labels
            )
        found = as_table(means, quantiles, wanted, rows.kept, len(read.frame))
        if isinstance(table, pd.DataFrame):
            found.index = table.index
        return found

    def fitted(self) -> pd.DataFrame:
        """Predictions for the training rows, which stay with their sites.

        Returns:
            A table with columns client, observed, mean, q05, q25, q75 and q95.
        """
        wanted, pieces = probabilities_of(_INTERVALS), []
        for site, table in self.all_tables().items():
            rows = self.design.rows_of(table)
            draws = self.draws_for(site)
            means, quantiles = predicted(self.design, rows.x, draws, wanted, rows.labels)
            one = as_table(means, quantiles, wanted, np.arange(len(means)), len(means))
            one.insert(0, "observed", rows.y)
            one.insert(0, "client", site)
            pieces.append(one)
        return pd.concat(pieces, ignore_index=True)

    def add_client(
        self, name: Site, table: TableSource | None = None, *, refit: bool = False
    ) -> "Fit":
        """The fit with one more site.

        Args:
            name: The new site.
            table: Its table: many rows, a few, or none (None).
            refit: False (default) finds its effects from the posterior of the shared parameters,
                which stay as they are, and nothing leaves the site. True fits again with its rows,
                from the present maximum.

        Returns:
            A new fit; this one stays as it is.
        """
        return add_client(self, name, table, refit=refit)

    def compare(self, other: "Fit") -> pd.DataFrame:
        """This fit and another one of the same rows, side by side.

        Args:
            other: The other fit.

        Returns:
            One row per fit: log-likelihood, AIC and BIC; for "ml" and "reml" the likelihood ratio
            test where one model is inside the other, for "posterior" how well each site is
            predicted from all others. `attrs["test"]` says what was compared.
        """
        return compare(self, other)

    def left_out(self) -> dict[str, float]:
        """The predictive density of each site's rows, given those of all other sites.

        Each site weights draws of the posterior by one over its own likelihood: one round.
        """
        if "left_out" not in self.stored:
            self.stored["left_out"] = left_out(self)
        return self.stored["left_out"]

    def diagnostics(self) -> dict[str, Any]:
        """Rounds, bytes, k-hat, effective draws, and in words what to know about the fit."""
        known = {key: value for key, value in self.found.diagnostics.items() if value is not None}
        return self.traffic | known | {"warnings": list(self.notes)}

    @property
    def traffic(self) -> dict[str, Any]:
        """Rounds, questions, and the bytes that one site received and sent, its description of
        its table included.
        """
        if self.run is None:
            return self.stored.get("traffic", {})
        metrics, asked, sites = self.run.metrics, self.run.questions, self.run.data.clients
        up, down = (
            sum(float(np.sum(np.asarray(table[name]))) for table in (metrics, asked) if len(table))
            for name in ("bytes_up", "bytes_down")
        )
        return {
            "rounds": self.run.round,
            "questions": len(asked),
            "bytes_up": up / sites + self.stored.get("described", 0.0),
            "bytes_down": down / sites,
        }

    def report(self, path: str | Path) -> Path:
        """Write the report of the fit, one HTML file.

        Args:
            path: The file.
        """
        from covey.report.from_fit import write

        return write(self, Path(path))

    def save(self, folder: str | Path) -> Path:
        """Save the fit in a folder, for `covey.load_fit`: tables, draws and design, no rows.

        Args:
            folder: The folder; it is made where it does not exist.
        """
        from covey.fitting.store import save

        return save(self, Path(folder))
