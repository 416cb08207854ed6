"""Published results, run again. Each experiment is a module of this room; the table names it
without importing it.
"""

from reproductions.result import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "fedavg-drift": Experiment(
        run="reproductions.fedavg_drift:run",
        description="FedAvg's fixed point drifts from the optimum with the number of local steps",
        expected_seconds={"quick": 30.0, "full": 300.0},
    ),
    "fald-local-steps": Experiment(
        run="reproductions.fald_simulations:run_local_steps",
        description="FA-LD: rounds that local steps save, and the bias of too many (figure 1a)",
        expected_seconds={"quick": 40.0, "full": 200.0},
    ),
    "fald-heterogeneity": Experiment(
        run="reproductions.fald_simulations:run_heterogeneity",
        description="FA-LD where clients' data are far apart (figure 1b)",
        expected_seconds={"quick": 20.0, "full": 120.0},
    ),
    "fald-correlation": Experiment(
        run="reproductions.fald_simulations:run_correlation",
        description="FA-LD with noise that clients share (figure 1c)",
        expected_seconds={"quick": 20.0, "full": 90.0},
    ),
    "fald-density": Experiment(
        run="reproductions.fald_simulations:run_density",
        description="FA-LD's draws beside the density of the posterior (figure 1d and e)",
        expected_seconds={"quick": 10.0, "full": 60.0},
    ),
    "fald-partial": Experiment(
        run="reproductions.fald_simulations:run_partial",
        description="FA-LD with some of the devices in a round, by two schemes (figure 3)",
        expected_seconds={"quick": 55.0, "full": 300.0},
    ),
    "fald-mnist": Experiment(
        run="reproductions.fald_images:run_mnist",
        description=(
            "FA-LD, logistic regression on MNIST: accuracy, Brier score and calibration by local "
            "steps (figures 2 and 4)"
        ),
        expected_seconds={"quick": 45.0, "full": 3600.0},
    ),
    "fald-fashion": Experiment(
        run="reproductions.fald_images:run_fashion",
        description="The same on Fashion-MNIST",
        expected_seconds={"quick": 40.0, "full": 3600.0},
    ),
    "fald-privacy": Experiment(
        run="reproductions.fald_privacy:run",
        description=(
            "What FA-LD reveals of a row by rho, S / N and T, by the theorem and by RDP, with "
            "accuracy (section 5)"
        ),
        expected_seconds={"quick": 45.0, "full": 3600.0},
    ),
    "samplers": Experiment(
        run="reproductions.samplers:run",
        description=(
            "Nine posteriors of logistic regression against NUTS: error by rounds, bits and "
            "gradients (no paper has it)"
        ),
        expected_seconds={"quick": 90.0, "full": 3000.0},
    ),
    "fedpa-toy": Experiment(
        run="reproductions.fedpa_toy:run",
        description="FedPA, FedAvg and minibatch SGD on two quadratic losses (figure 1)",
        expected_seconds={"quick": 30.0, "full": 600.0},
    ),
    "fedpa-overhead": Experiment(
        run="reproductions.fedpa_overhead:run",
        description=(
            "Time of a client's round: FedAvg, FedPA and FedPA with the covariance, 100 to 100,000 "
            "features (table 1)"
        ),
        expected_seconds={"quick": 30.0, "full": 600.0},
    ),
    "fedpa-bias": Experiment(
        run="reproductions.fedpa_estimates:run",
        description=(
            "Bias and variance of the deltas of FedAvg and FedPA against local steps and rho "
            "(figure 3)"
        ),
        expected_seconds={"quick": 25.0, "full": 1800.0},
    ),
    "fedpa-ess": Experiment(
        run="reproductions.fedpa_samples:run",
        description=(
            "Effective sample size of averaged iterates against burn-in, steps and step size "
            "(figure 4)"
        ),
        expected_seconds={"quick": 10.0, "full": 300.0},
    ),
    "fedpa-images": Experiment(
        run="reproductions.fedpa_images:run",
        description=(
            "FedAvg with one and ten local epochs, FedPA, AFO and MIME on photographs of clients "
            "with two labels, with a fair search (table 3 at our scale)"
        ),
        expected_seconds={"quick": 80.0, "full": 3000.0},
    ),
    "fedpop-synthetic": Experiment(
        run="reproductions.fedpop_synthetic:run",
        description=(
            "FedPop, FedRep and FedAvg on regressions with shared features and 2 to 10 rows a "
            "client (figure 2)"
        ),
        expected_seconds={"quick": 90.0, "full": 1200.0},
    ),
    "fedpop-synthetic-grid": Experiment(
        run="reproductions.fedpop_synthetic:run_grid",
        description="The same with other counts of clients, columns, effects (figures S1 to S6)",
        expected_seconds={"quick": 90.0, "full": 1200.0},
    ),
    "fedpop-limits": Experiment(
        run="reproductions.fedpop_limits:run",
        description=(
            "FedPop becomes FedAvg as clients stop differing, and FedRep as nothing holds them "
            "together"
        ),
        expected_seconds={"quick": 60.0, "full": 300.0},
    ),
    "fedpop-glmm": Experiment(
        run="reproductions.fedpop_glmm:run",
        description=(
            "Mixed models of sleepstudy, radon and contraception beside maximum likelihood on the "
            "pooled tables"
        ),
        expected_seconds={"quick": 60.0, "full": 180.0},
    ),
    "fedpop-small-images": Experiment(
        run="reproductions.fedpop_images:run_small",
        description=(
            "FedSOUL, FedRep, APFL and FedAvg on CIFAR-10 with 5 to 25 images a client (figures 3 "
            "and S7)"
        ),
        expected_seconds={"quick": 90.0, "full": 15000.0},
    ),
    "fedpop-full-images": Experiment(
        run="reproductions.fedpop_table:run",
        description=(
            "FedSOUL and the twelve others of table 2 on CIFAR-10, with the same search of settings"
        ),
        expected_seconds={"quick": 90.0, "full": 3000.0},
    ),
    "fedpop-calibration": Experiment(
        run="reproductions.fedpop_images:run_calibration",
        description="Calibration of FedSOUL and FedRep on CIFAR-10 (figures 4 and S9)",
        expected_seconds={"quick": 90.0, "full": 3000.0},
    ),
    "fedpop-ood": Experiment(
        run="reproductions.fedpop_images:run_strange",
        description=(
            "Predictive entropy of images of another kind: MNIST and CIFAR-10 against three others "
            "(figures 4 and S8)"
        ),
        expected_seconds={"quick": 90.0, "full": 8000.0},
    ),
    "fedem-gmm-synthetic": Experiment(
        run="reproductions.fedem_mixtures:run_made",
        description=(
            "FedEM and VR-FedEM on a mixture in the plane: the mean field and what the server sees "
            "of it (figure 1)"
        ),
        expected_seconds={"quick": 30.0, "full": 120.0},
    ),
    "fedem-gmm-mnist": Experiment(
        run="reproductions.fedem_mixtures:run_digits",
        description="A mixture of ten Gaussians on MNIST, in 32 bits a number and in 4 (figure 3)",
        expected_seconds={"quick": 60.0, "full": 200.0},
    ),
    "fedem-heterogeneity": Experiment(
        run="reproductions.fedem_mixtures:run_compared",
        description=(
            "Compressed EM with memories and without, clients that are alike and that are not, "
            "three codecs"
        ),
        expected_seconds={"quick": 90.0, "full": 300.0},
    ),
    "mixture-synthetic": Experiment(
        run="reproductions.mixture_synthetic:run",
        description=(
            "FedEM for mixtures and seven others on clients that mix three linear models (tables 2 "
            "and 3, last rows)"
        ),
        expected_seconds={"quick": 60.0, "full": 1000.0},
    ),
    "mixture-digits": Experiment(
        run="reproductions.mixture_real:run_digits",
        description=(
            "FedEM for mixtures and seven others on MNIST by writer and Fashion-MNIST (table 2, "
            "reduced)"
        ),
        expected_seconds={"quick": 60.0, "full": 900.0},
    ),
    "mixture-cifar10": Experiment(
        run="reproductions.mixture_comparisons:run_photographs",
        description=(
            "The same on CIFAR-10 with a small CNN and the same search of settings for all "
            "(table 2, reduced)"
        ),
        expected_seconds={"quick": 80.0, "full": 3000.0},
    ),
    "mixture-mocha": Experiment(
        run="reproductions.mixture_comparisons:run_linear",
        description="FedEM for mixtures, MOCHA and others: linear models (appendix J.2)",
        expected_seconds={"quick": 80.0, "full": 1500.0},
    ),
    "mixture-shakespeare": Experiment(
        run="reproductions.mixture_real:run_shakespeare",
        description="The same on roles of Shakespeare with a character LSTM (table 2, reduced)",
        expected_seconds={"quick": 50.0, "full": 1500.0},
    ),
    "mixture-sampling": Experiment(
        run="reproductions.mixture_figures:run_sampling",
        description=(
            "FedEM for mixtures and FedAvg+ where 10 to 100 % of the clients take part in a round "
            "(figure 1, left)"
        ),
        expected_seconds={"quick": 30.0, "full": 900.0},
    ),
    "mixture-components": Experiment(
        run="reproductions.mixture_figures:run_components",
        description=(
            "One to four components, and the number that held-out likelihood chooses (figure 1, "
            "right)"
        ),
        expected_seconds={"quick": 30.0, "full": 900.0},
    ),
    "mixture-unseen": Experiment(
        run="reproductions.mixture_figures:run_unseen",
        description="Clients that come after training, with few and many rows (appendix J.3)",
        expected_seconds={"quick": 30.0, "full": 900.0},
    ),
    "mixture-budget": Experiment(
        run="reproductions.mixture_figures:run_budget",
        description="FedEM for mixtures with a third of the rounds (appendix J.5)",
        expected_seconds={"quick": 20.0, "full": 900.0},
    ),
    "mixture-decentralised": Experiment(
        run="reproductions.mixture_decentralised:run",
        description="FedEM for mixtures with a server and between peers on four graphs (D-FedEM)",
        expected_seconds={"quick": 30.0, "full": 600.0},
    ),
    "fedem-birds": Experiment(
        run="reproductions.fedem_birds:run",
        description=(
            "FedMissEM on counts of volunteers: held-out cells beside three baselines, and "
            "national trends (figure 2)"
        ),
        expected_seconds={"quick": 60.0, "full": 2400.0},
    ),
    "fedem-ebird-scale": Experiment(
        run="reproductions.fedem_ebird_scale:run",
        description=(
            "FedMissEM at the size of the paper's eBird data, 9,721 sites x 525 months: seconds "
            "and memory"
        ),
        expected_seconds={"quick": 45.0, "full": 180.0},
    ),
}
