"""Published results, run again. Each experiment is a module of this room; the table names it without importing it."""

from covey.experiment.reproduce.frame import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "fedavg-drift": Experiment(
        run="covey.experiment.reproduce.fedavg_drift:run",
        description="FedAvg's fixed point drifts from the optimum with the number of local steps",
        expected_seconds={"quick": 30.0, "full": 300.0},
    ),
    "fedpop-synthetic": Experiment(
        run="covey.experiment.reproduce.fedpop_synthetic:run",
        description="FedPop, FedRep and FedAvg on regressions with shared features and 2 to 10 rows a client (figure 2)",
        expected_seconds={"quick": 90.0, "full": 1200.0},
    ),
    "fedpop-synthetic-grid": Experiment(
        run="covey.experiment.reproduce.fedpop_synthetic:run_grid",
        description="The same with other numbers of clients, columns and effects (figures S1 to S6)",
        expected_seconds={"quick": 90.0, "full": 1200.0},
    ),
    "fedpop-limits": Experiment(
        run="covey.experiment.reproduce.fedpop_limits:run",
        description="FedPop becomes FedAvg as clients stop differing, and FedRep as nothing holds them together",
        expected_seconds={"quick": 60.0, "full": 300.0},
    ),
    "fedpop-glmm": Experiment(
        run="covey.experiment.reproduce.fedpop_glmm:run",
        description="Mixed models of sleepstudy, radon and contraception beside maximum likelihood on the pooled tables",
        expected_seconds={"quick": 60.0, "full": 180.0},
    ),
    "fedpop-small-images": Experiment(
        run="covey.experiment.reproduce.fedpop_images:run_small",
        description="FedSOUL, FedRep, APFL and FedAvg on CIFAR-10 with 5 to 25 images a client (figures 3 and S7)",
        expected_seconds={"quick": 90.0, "full": 15000.0},
    ),
    "fedpop-full-images": Experiment(
        run="covey.experiment.reproduce.fedpop_images:run_table",
        description="The same and local training on CIFAR-10 with all images (table 2)",
        expected_seconds={"quick": 90.0, "full": 8000.0},
    ),
    "fedpop-calibration": Experiment(
        run="covey.experiment.reproduce.fedpop_images:run_calibration",
        description="Reliability and calibration error of FedSOUL and FedRep on CIFAR-10 (figures 4 and S9)",
        expected_seconds={"quick": 90.0, "full": 3000.0},
    ),
    "fedpop-ood": Experiment(
        run="covey.experiment.reproduce.fedpop_images:run_strange",
        description="Predictive entropy of images of another kind: MNIST and CIFAR-10 against three others (figures 4 and S8)",
        expected_seconds={"quick": 90.0, "full": 8000.0},
    ),
    "fedem-birds": Experiment(
        run="covey.experiment.reproduce.fedem_birds:run",
        description="FedMissEM on counts of volunteers: held-out cells beside three baselines, and national trends (figure 2)",
        expected_seconds={"quick": 60.0, "full": 2400.0},
    ),
    "fedem-ebird-scale": Experiment(
        run="covey.experiment.reproduce.fedem_ebird_scale:run",
        description="FedMissEM at the size of the paper's eBird data, 9,721 sites x 525 months: seconds and memory",
        expected_seconds={"quick": 45.0, "full": 180.0},
    ),
}
