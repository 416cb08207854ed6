"""Published results, run again. Each experiment is a module of this room; the table names it without importing it."""

from covey.experiment.reproduce.frame import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "fedavg-drift": Experiment(
        run="covey.experiment.reproduce.fedavg_drift:run",
        description="FedAvg's fixed point drifts from the optimum with the number of local steps",
        expected_seconds={"quick": 30.0, "full": 300.0},
    ),
}
