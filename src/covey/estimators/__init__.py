"""Estimators in the manner of scikit-learn: options first, then `fit` on federated data. They stand
on the engines.
"""

from covey.estimators.imputer import FederatedImputer
from covey.estimators.mixture import FederatedGaussianMixture

__all__ = ["FederatedGaussianMixture", "FederatedImputer"]
