"""After a fit: traces and summaries, standard errors, calibration, coverage, out-of-distribution
detection.

`Run.posterior` and `Run.evaluate(...)` lead here; these functions also take draws and predictions
of any other origin.
"""

from covey.inference.calibration import CalibrationErrors, calibration_errors, reliability
from covey.inference.coverage import (
    RankCheck,
    interval_coverage,
    mixture_interval,
    predictive_interval,
    rank_check,
    ranks,
)
from covey.inference.initialisation import spectral_start
from covey.inference.out_of_distribution import auroc, entropy, max_probability_score
from covey.inference.posterior import ClientPosterior, RunPosterior
from covey.inference.shared import SharedApproximation, SharedChains
from covey.inference.smoothing import local_linear
from covey.inference.wasserstein import distance_of_draws, gaussian_distance

__all__ = [
    "CalibrationErrors",
    "ClientPosterior",
    "RankCheck",
    "RunPosterior",
    "SharedApproximation",
    "SharedChains",
    "auroc",
    "calibration_errors",
    "distance_of_draws",
    "entropy",
    "gaussian_distance",
    "interval_coverage",
    "local_linear",
    "max_probability_score",
    "mixture_interval",
    "predictive_interval",
    "rank_check",
    "ranks",
    "reliability",
    "spectral_start",
]
