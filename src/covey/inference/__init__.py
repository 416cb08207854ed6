"""What to make of a posterior or of predictions: traces and summaries, calibration, coverage, and rows unlike the rest.

`Run.posterior` and `Run.evaluate(...)` lead here; these functions also take draws and predictions of any other origin.
"""

from covey.inference.calibration import CalibrationErrors, calibration_errors, reliability
from covey.inference.coverage import RankCheck, interval_coverage, mixture_interval, predictive_interval, rank_check, ranks
from covey.inference.out_of_distribution import auroc, entropy, max_probability_score
from covey.inference.posterior import Posterior

__all__ = [
    "CalibrationErrors",
    "Posterior",
    "RankCheck",
    "auroc",
    "calibration_errors",
    "entropy",
    "interval_coverage",
    "max_probability_score",
    "mixture_interval",
    "predictive_interval",
    "rank_check",
    "ranks",
    "reliability",
]
