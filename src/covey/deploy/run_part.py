"""A site's part in a method of a configuration: sums for scaling, rows, its own predictions."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd

from covey.config.configuration import method_of
from covey.config.parts import channel_of
from covey.core import atomic_files
from covey.core.metrics import values
from covey.data.federated import SPLITS, FederatedData
from covey.data.roster import entry
from covey.deploy import run_rows
from covey.deploy.part import Work
from covey.deploy.policy import check_rows
from covey.deploy.refusal import DeclinedError
from covey.deploy.site_file import SiteFile
from covey.deploy.study import Study
from covey.fitting.tables import Table
from covey.report import page
from covey.report.content import Content, Settings
from covey.runs import toml

if TYPE_CHECKING:
    from covey.engines.site import Site


_DRAWS = 1000  # of a site's own parameters, where the method has a posterior of them


class RunPart:
    """See `Part`."""

    def __init__(self, site: SiteFile, study: Study, table: Table, position: int):
        self._site, self._study, self._table, self._position = site, study, table, position
        self._data: FederatedData | None = None

    def describe(self) -> dict[str, Any]:
        """The site's description of its columns; see `run_rows.described`."""
        return run_rows.described(self._site, self._study, self._table, self._position)

    def agree(self, content: Any) -> dict[str, Any]:
        """Counts and shapes of the site's rows, on the scale of all sites."""
        scaling = run_rows.scaling_from_json(self._study, content)
        args = (self._site, self._study, self._table, self._position)
        self._data = run_rows.data_of(*args, scaling)
        check_rows(self._site, int(self._data.counts("train").sum()))
        return {"entry": entry(self._data)}

    def work(self, content: Any) -> Work:
        """The method and the channel of the configuration."""
        if self._data is None:
            raise DeclinedError("message", "the scaling of the study has not come yet")
        run_rows.check_batches(self._site, self._study)
        made = self._study.configuration()
        channel = channel_of(made.factories["channel"], **made.options["channel"])
        return Work(method_of(made), channel, self._data)

    def decline(self, name: str, number: int, content: Any) -> str | None:
        """Nothing is declined: the questions of a method depend on its rounds."""
        return None

    @property
    def most_answers(self) -> int | None:
        """Not known: rounds that failed are repeated, and methods ask as often as they need."""
        return None

    def write(self, content: Any, member: "Site", folder: Path) -> None:
        """Metrics and predictions of the site's own rows, draws of its own parameters, a page.

        Args:
            content: Nothing.
            member: The site in its rounds, which has heard what the server has published.
            folder: The folder for the results.
        """
        published = member.published()
        if published is None or self._data is None:
            raise DeclinedError("message", "the study has not ended here yet")
        round_, down = published
        folder.mkdir(parents=True, exist_ok=True)
        measured, predicted = [], []
        for split in SPLITS:
            count = int(self._data.counts(split)[0])
            if not count:
                continue
            found = values(jax.device_get(member.evaluate(round_, down, split)))
            measured.append(
                {"split": split, "rows": count} | {k: float(v) for k, v in found.items()}
            )
            rows = self._data.rows_of(0, split)
            mean = np.asarray(member.predict(round_, down, rows.x).mean)
            predicted.append(_predictions(split, np.asarray(rows.y), mean))
        metrics = pd.DataFrame(measured)
        _write_csv(folder / "metrics.csv", metrics)
        _write_csv(folder / "predictions.csv", pd.concat(predicted, ignore_index=True))
        drawn = _draws(member, round_, down)
        if drawn:
            buffer = io.BytesIO()
            np.savez(buffer, allow_pickle=False, **drawn)
            atomic_files.write(folder / "draws.npz", buffer.getvalue())
        page.write(self._content(round_, metrics), folder / "report.html")

    def _content(self, round_: int, metrics: pd.DataFrame) -> Content:
        study, name = self._study, self._site.name
        said = [
            f"{study.method} with the model {study.tables['model']['name']} ended after {round_} "
            f"rounds. This page is of {name}, with its own rows and no others."
        ]
        for line in metrics.to_dict("records"):
            shown = ", ".join(
                f"{key} {value:.4g}" for key, value in line.items() if key not in ("split", "rows")
            )
            said.append(
                f"On {line['rows']} {line['split']} row{'s' * (line['rows'] != 1)}: {shown}."
            )
        flat = toml.flat(study.tables).items()
        settings = pd.DataFrame([(k, str(v)) for k, v in flat], columns=["setting", "value"])
        rows = sum(int(line["rows"]) for line in metrics.to_dict("records"))
        facts = (("rounds", str(round_)), ("rows", str(rows)))
        return Content(
            title=study.name,
            subtitle=f"{study.method} at {name}",
            facts=facts,
            sentences=tuple(said),
            settings=Settings(settings),
        )

    def remarks(self) -> Sequence[str]:
        """Nothing: all rows are used."""
        return ()


def _predictions(split: str, observed: np.ndarray, mean: np.ndarray) -> pd.DataFrame:
    """Outcomes beside their predicted means, or the probability of each label."""
    table = pd.DataFrame({"split": split, "observed": observed})
    if mean.ndim == 1:
        return table.assign(mean=mean)
    return table.assign(
        **{f"probability_{label}": mean[:, label] for label in range(mean.shape[1])}
    )


def _draws(member: "Site", round_: int, down: Any) -> dict[str, np.ndarray]:
    """Draws of the site's own parameters by their place in the method's tree."""
    if member.workshop.programs(b"").draws is None:
        return {}
    found = jax.device_get(member.draws(round_, down, _DRAWS, 0))
    leaves = jax.tree_util.tree_leaves_with_path(found)
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or "draws": np.asarray(leaf)
        for path, leaf in leaves
    }


def _write_csv(path: Path, table: pd.DataFrame) -> None:
    atomic_files.write(path, table.to_csv(index=False).encode())
