"""A site's part in the fit of a formula: description, rows, and its own effects in the end."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from covey.algorithms.marginal.rounds import MOST_ROUNDS
from covey.core import atomic_files
from covey.data.roster import entry
from covey.deploy import fit_rows
from covey.deploy.part import Work
from covey.deploy.plain_values import checked
from covey.deploy.refusal import DeclinedError
from covey.deploy.site_file import SiteFile
from covey.deploy.study import Study
from covey.fitting.design import Design
from covey.fitting.enrolment import personal_draws
from covey.fitting.fit import federated
from covey.fitting.methods import Found, check_method, method_of
from covey.fitting.priors import LogPrior, Prior, Statistics
from covey.fitting.result import Fit
from covey.fitting.tables import Table
from covey.kernels.pareto_smoothing import MOST_ASKED

if TYPE_CHECKING:
    from covey.engines.site import Site

MOST_POINTS = 1500  # that `marginal` asks the posterior for at once: half as many again as draws


class SharedPrior(NamedTuple):
    """A log prior as plain values.

    Attributes:
        priors: For each described part, the priors of its values.
        means: Means of the columns over all sites.
        printed: For each term its prior as text; empty where there is none.
    """

    priors: list[tuple[str, list[tuple[str, list[float]]]]]
    means: list[float]
    printed: dict[str, str]

    @classmethod
    def of(cls, prior: LogPrior, printed: dict[str, str]) -> "SharedPrior":
        """The plain values of a prior.

        Args:
            prior: The log prior.
            printed: For each term its prior as text.
        """
        parts = [(part, [(p.name, list(p.arguments)) for p in ps]) for part, ps in prior.priors]
        return cls(parts, list(prior.means), printed)

    def prior(self) -> LogPrior:
        """The log prior."""
        parts = tuple(
            (part, tuple(Prior(name, tuple(arguments)) for name, arguments in priors))
            for part, priors in self.priors
        )
        return LogPrior(parts, tuple(self.means))


class SharedResult(NamedTuple):
    """The part of the result that all sites get, beside draws of the shared parameters.

    Attributes:
        columns: Names of the columns of the summary.
        terms: Its rows: a term's name and values, None where one is not known.
        diagnostics: Values by name.
        traffic: Rounds, questions and bytes per site.
        notes: Cautions for the reader.
    """

    columns: list[str]
    terms: list[tuple[str, list[float | None]]]
    diagnostics: dict[str, Any]
    traffic: dict[str, float]
    notes: list[str]

    def table(self) -> pd.DataFrame:
        """The summary of the shared parameters."""
        values = [[np.nan if v is None else v for v in values] for _, values in self.terms]
        index = pd.Index([term for term, _ in self.terms], name="term")
        return pd.DataFrame(values, index, self.columns)


class FitPart:
    """See `Part`."""

    def __init__(self, site: SiteFile, study: Study, table: Table, position: int):
        self._site, self._study, self._table, self._position = site, study, table, position
        self._design: Design | None = None
        self._rows: fit_rows.FitRows | None = None
        self._shared: SharedPrior | None = None

    def describe(self) -> dict[str, Any]:
        """The site's description of its table; see `fit_rows.described`."""
        return fit_rows.described(self._site, self._study, self._table)

    def agree(self, content: Any) -> dict[str, Any]:
        """Counts and shapes of the site's rows, and the sums that priors are scaled by."""
        self._design = fit_rows.own_design(self._site, self._study, self._table, content)
        self._rows = fit_rows.made(self._site, self._design, self._table)
        statistics = Statistics.of(self._design, self._rows.rows)
        return {"entry": entry(self._data()), "statistics": statistics._asdict()}

    def work(self, content: Any) -> Work:
        """The method, with the prior that the server has chosen."""
        design, fit = self._agreed()[0], self._study.tables["fit"]
        try:
            self._shared = checked(SharedPrior, content)
            check_method(design, fit["method"], fit["estimate"], has_priors="priors" in fit)
            method = method_of(design, fit["method"], fit["estimate"], self._shared.prior())
        except ValueError as error:
            raise DeclinedError("message", f"the method cannot be made: {error}") from None
        return Work(method, None, self._data())

    def decline(self, name: str, number: int, content: Any) -> str | None:
        """The marginal method asks for its posterior alone, a few times, at so many points."""
        fit = self._study.tables["fit"]
        if fit["method"] != "marginal":
            return None
        if fit["estimate"] != "posterior" or name != "gains" or number >= MOST_ASKED:
            return f"{self._site.name} is not asked {name!r:.50}, number {number}, in this study"
        points = np.asarray(getattr(content, "points", 0.0))
        if points.ndim != 2 or len(points) > MOST_POINTS:
            return f"{self._site.name} answers {name!r} at up to {MOST_POINTS} points"
        return None

    @property
    def most_answers(self) -> int | None:
        """The marginal method gives up in time; a server that is resumed repeats some rounds."""
        is_marginal = self._study.tables["fit"]["method"] == "marginal"
        return 2 * MOST_ROUNDS + MOST_ASKED if is_marginal else None

    def write(self, content: Any, member: "Site", folder: Path) -> None:
        """The site's effects, predictions of its rows, and page. Nothing of it is sent.

        Args:
            content: A `SharedResult`.
            member: The site in its rounds, which has heard what the server has published:
                `published` for the method, and `draws` of the shared parameters.
            folder: The folder for the results.
        """
        design, rows = self._agreed()
        published = member.published()
        if published is None or self._shared is None:
            raise DeclinedError("message", "the study has not ended here yet")
        try:
            shared = checked(SharedResult, content)
            draws, sent = np.asarray(published[1]["draws"], float), published[1]["published"]
        except (ValueError, KeyError, TypeError) as error:
            raise DeclinedError("message", f"the result cannot be read: {error}") from None
        name, count, fit = self._site.name, len(rows.rows.y), self._study.tables["fit"]
        total = len(self._table.frame)
        own = replace(design, rows={name: total}, dropped={name: total - count}, filled={name: 0})
        result = Fit(
            design=own,
            estimate=fit["estimate"],
            method=fit["method"],
            priors=self._shared.printed,
            prior=self._shared.prior(),
            found=Found(shared.table(), draws, shared.diagnostics),
            seed=self._study.seed,
            notes=(*shared.notes, f"This page is of {name}, with its own rows and no others."),
            tables={name: rows.table},
            stored={"published": lambda: sent, "traffic": shared.traffic},
        )
        # as where all tables are fitted in one process
        result.site_draws_ = personal_draws(result, {name: rows.rows}, first=self._position)
        result.save(folder)
        fitted = result.fitted().to_csv(index=False)
        atomic_files.write(folder / "predictions.csv", fitted.encode())
        result.report(folder / "report.html")

    def remarks(self) -> Sequence[str]:
        """The count of rows that were left out, and the reason."""
        said = "" if self._rows is None else fit_rows.left_out(self._rows.rare)
        return (said,) if said else ()

    def _agreed(self) -> tuple[Design, fit_rows.FitRows]:
        if self._design is None or self._rows is None:
            raise DeclinedError("message", "the design of the study has not come yet")
        return self._design, self._rows

    def _data(self):
        design, rows = self._agreed()
        data = federated(design, {self._site.name: rows.rows})
        return replace(data, ids=np.array([self._position], np.int64))
