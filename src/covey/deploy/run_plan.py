"""The server's part in a method of a configuration: columns compared, one scaling, the run."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from covey.config.configuration import method_of
from covey.config.parts import channel_of
from covey.deploy import run_rows
from covey.deploy.plan import Outcome, Program
from covey.deploy.study import Study
from covey.privacy.ledger import Budget
from covey.runs.schedule import RunOptions

if TYPE_CHECKING:
    from covey.runs.run import Run


class RunPlan:
    """See `Plan`."""

    def __init__(self, study: Study):
        self._study = study

    def agree(self, said: Mapping[str, Any]) -> Any:
        """Means and scales over all sites, where the study standardises."""
        found = {name: run_rows.said_of(self._study, name, one) for name, one in said.items()}
        run_rows.check_said(self._study, found)
        return run_rows.scaling_to_json(run_rows.scaling_of(self._study, found))

    def share(self, said: Mapping[str, Any]) -> Any:
        """Nothing: the configuration says all."""
        return None

    def program(self, *, progress: bool) -> Program:
        """The method as the configuration describes it."""
        made = self._study.configuration()
        given = made.options["run"]
        options = RunOptions(
            given.get("evaluate_every"),
            given.get("split", "validation"),
            given.get("checkpoint_every") or 1,
            progress,
        )
        settings = {"columns": self._study.tables["columns"]} | {
            name: table for name, table in made.tables.items() if name not in ("data", "faults")
        }
        return Program(
            method_of(made),
            made.factories["cohort"](**made.options["cohort"]),
            channel_of(made.factories["channel"], **made.options["channel"]),
            Budget(**made.options["privacy"]) if "privacy" in made.factories else None,
            given.get("rounds"),
            options,
            settings,
        )

    def outcome(self, run: "Run", folder: Path) -> Outcome:
        """The run, whose directory is written already."""
        return Outcome(run, run.published, None)
