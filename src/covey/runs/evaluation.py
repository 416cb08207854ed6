"""The result of an evaluation: over all rows together, for each client, and for the clients with
the worst metrics.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from covey.core.metrics import Calibration, Metric, merge, values
from covey.data.federated import SPLITS, FederatedData, Split
from covey.data.roster import Roster
from covey.inference import calibration


@dataclass(frozen=True)
class Evaluation:
    """Metrics of every client on one split of its rows, after a round.

    metrics: the mergeable metrics by name, stacked over the clients of `data`.
    """

    round: int
    split: Split
    data: FederatedData | Roster
    metrics: dict[str, Metric]

    @cached_property
    def pooled(self) -> dict[str, float]:
        """Each metric over the rows of all clients together."""
        return {name: float(value) for name, value in values(merge(self.metrics)).items()}

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row per client: its id and name, its rows in each split, its metrics."""
        data = self.data
        columns: dict[str, object] = {
            "client": np.asarray(data.ids),
            "name": [data.name_of(at) for at in range(data.clients)],
        }
        for split in SPLITS:
            columns[f"{split}_rows"] = np.asarray(data.counts(split))
        return pd.DataFrame(columns | values(self.metrics))

    @property
    def bottom_decile(self) -> float:
        """The accuracy of the (T/10)-th worst of T clients, as Marfoq et al. (2021) report it; of
        the worst if T < 10.

        Clients without rows in the split are left out.
        """
        if "accuracy" not in self.metrics:
            raise ValueError(
                "there is no accuracy to rank clients by; the metrics are "
                f"{', '.join(self.metrics)}"
            )
        accuracy = self.metrics["accuracy"].value()
        ranked = np.sort(accuracy[~np.isnan(accuracy)])
        return float(ranked[max(len(ranked) // 10, 1) - 1])

    def reliability(self, client: str | int | None = None) -> pd.DataFrame:
        """Confidence and accuracy by bin, of one client (its name or id) or of all together; see
        `inference.calibration`.
        """
        bins = self._bins
        if client is not None:
            position = self.data.position_of(client)
            bins = Calibration(*(leaf[position] for leaf in bins))
        return calibration.reliability(bins)

    @property
    def calibration_errors(self) -> calibration.CalibrationErrors:
        """Expected calibration errors: pooled, of each client, and their mean."""
        return calibration.calibration_errors(self._bins)

    @property
    def _bins(self) -> Calibration:
        for metric in self.metrics.values():
            if isinstance(metric, Calibration):
                return metric
        raise ValueError(
            "calibration is of labels, and there are none here; the metrics are "
            f"{', '.join(self.metrics)}"
        )

    def __repr__(self) -> str:
        of = self.data.clients
        shown = ", ".join(f"{name} {value:.4g}" for name, value in self.pooled.items())
        return (
            f"Evaluation({self.split} rows of {of} client{'s' * (of != 1)} after {self.round} "
            f"round{'s' * (self.round != 1)}: {shown})"
        )
