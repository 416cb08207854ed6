"""The server's part in the fit of a formula: one design of all descriptions, priors, the result."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.deploy.fit_part import SharedPrior, SharedResult
from covey.deploy.fit_said import description_of, statistics_of
from covey.deploy.plan import Outcome, Program
from covey.deploy.study import Study
from covey.fitting.cautions import collected, warn_of, warn_of_priors, warn_of_rows
from covey.fitting.checks import check_sums
from covey.fitting.combination import combine
from covey.fitting.description import Description
from covey.fitting.design import Design
from covey.fitting.methods import check_method, found_by, method_of
from covey.fitting.priors import LogPrior, chosen_priors, printed, spread_of
from covey.fitting.result import Fit
from covey.fitting.terms import Terms
from covey.runs.schedule import RunOptions

if TYPE_CHECKING:
    from covey.runs.run import Run


class FitPlan:
    """See `Plan`."""

    def __init__(self, study: Study):
        self._study, self._fit = study, study.tables["fit"]
        self._design: Design | None = None
        self._described: list[Description] = []
        self._prior: LogPrior | None = None
        self._spread: dict[str, float] = {}
        self._printed: dict[str, str] = {}
        self._notes: list[str] = []
        self._bytes = 0.0

    def agree(self, said: Mapping[str, Any]) -> Any:
        """One design of all descriptions. Counts of a site are not sent to the others."""
        fit, formula = self._fit, self._study.formula
        assert formula is not None
        described = [description_of(self._study, name, one) for name, one in said.items()]
        self._bytes = sum(len(json.dumps(one)) for one in said.values()) / len(said)
        options = {"missing": fit["missing"], "weights": fit.get("weights")}
        self._design = combine(described, formula, family=fit.get("family"), **options)
        check_method(self._design, fit["method"], fit["estimate"], has_priors="priors" in fit)
        self._described, self._notes = described, warn_of(described, formula, fit.get("family"))
        self._notes += [
            f"{one.site} leaves out its rows with rare values of {', '.join(one.withheld)}."
            for one in described
            if one.withheld
        ]
        return replace(self._design, rows={}, dropped={}, filled={}).to_json()

    def share(self, said: Mapping[str, Any]) -> Any:
        """Priors, scaled by sums over all sites."""
        design = self._design
        assert design is not None
        each = {name: statistics_of(design, name, one) for name, one in said.items()}
        total = reduce(add, each.values())
        check_sums(design, total, list(said), estimate=self._fit["estimate"])
        # Digests of rows stay at the sites: small tables could be guessed from them.
        self._notes += warn_of_rows(design, self._described, each, {})
        chosen = chosen_priors(design, total, self._fit.get("priors"))
        self._prior = LogPrior.of(design, total, chosen)
        self._spread = spread_of(design, total)
        has_prior = self._fit["estimate"] == "posterior" and self._fit["method"] != "fedpop"
        self._printed = printed(chosen) if has_prior else {}
        used = {name: int(one["entry"]["rows"]["train"]) for name, one in said.items()}
        rows = {name: max(design.rows[name], used[name]) for name in said}
        dropped = {name: rows[name] - used[name] for name in said}
        self._design = replace(design, rows=rows, dropped=dropped)
        return SharedPrior.of(self._prior, self._printed)._asdict()

    def program(self, *, progress: bool) -> Program:
        """The method of the fit, until it has settled."""
        assert self._design is not None
        assert self._prior is not None
        fit = self._fit
        method = method_of(self._design, fit["method"], fit["estimate"], self._prior)
        options = RunOptions(None, "train", 1, progress)
        said = {key: value for key, value in fit.items() if key not in ("method", "seed")}
        settings = {"method": {"name": fit["method"]}, "fit": said}
        return Program(method, None, None, None, None, options, settings)

    def outcome(self, run: "Run", folder: Path) -> Outcome:
        """The fit without any site's effects, which the sites find themselves."""
        assert self._design is not None
        assert self._prior is not None
        with collected(self._notes, Terms.of(self._design).parts):
            found = found_by(run, self._design, self._fit["method"])
        if self._printed:
            self._notes += warn_of_priors(self._prior, self._design, found.draws)
        result = Fit(
            design=self._design,
            estimate=self._fit["estimate"],
            method=self._fit["method"],
            priors=self._printed,
            prior=self._prior,
            found=found,
            seed=self._study.seed,
            notes=tuple(self._notes),
            run=run,
            site_draws_={},
            stored={"described": self._bytes, "spread": self._spread},
        )
        result.save(folder)
        result.report(folder / "report.html")
        table, sites = found.table, len(self._design.rows)
        shared = SharedResult(
            list(table.columns),
            [
                (str(term), [float(v) if np.isfinite(v) else None for v in row])
                for term, row in zip(table.index, table.to_numpy(float), strict=True)
            ],
            {key: _plain(value) for key, value in found.diagnostics.items()},
            {key: float(value) for key, value in result.traffic.items()},
            [f"{sites} site{'s' * (sites != 1)} took part.", *self._notes],
        )
        down = {"published": run.published, "draws": found.draws.astype(np.float32)}
        return Outcome(result, down, shared._asdict())


def _plain(value: Any) -> Any:
    """A diagnostic that JSON can hold: a number that is not finite becomes None."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value
