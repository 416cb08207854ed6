"""Covey: federated Bayesian inference over data that never leaves its owner.

Names are loaded when they are first used, so that `import covey` and `covey --help` are quick.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from covey import channel as channel
    from covey import data as data
    from covey import inference as inference
    from covey import kernels as kernels
    from covey import models as models
    from covey import privacy as privacy
    from covey import testing as testing
    from covey import topology as topology
    from covey.algorithms.apfl import apfl as apfl
    from covey.algorithms.clustered import clustered as clustered
    from covey.algorithms.em import em as em
    from covey.algorithms.fald import fald as fald
    from covey.algorithms.fedavg import fedavg as fedavg
    from covey.algorithms.fedavg_plus import fedavg_plus as fedavg_plus
    from covey.algorithms.fedem import fedem as fedem
    from covey.algorithms.fedmissem import fedmissem as fedmissem
    from covey.algorithms.fedpa import fedpa as fedpa
    from covey.algorithms.fedper import fedper as fedper
    from covey.algorithms.fedpop import fedpop as fedpop
    from covey.algorithms.fedprox import fedprox as fedprox
    from covey.algorithms.fedrep import fedrep as fedrep
    from covey.algorithms.local import local as local
    from covey.algorithms.mb_sgd import mb_sgd as mb_sgd
    from covey.algorithms.mixture import mixture as mixture
    from covey.algorithms.pfedme import pfedme as pfedme
    from covey.algorithms.vr_fedem import vr_fedem as vr_fedem
    from covey.config.model_selection import choose_components as choose_components
    from covey.core import cohort as cohort
    from covey.core.algorithm import Algorithm as Algorithm
    from covey.core.faults import Faults as Faults
    from covey.data.federated import FederatedData as FederatedData
    from covey.datasets.loaders import load as load
    from covey.estimators.imputer import FederatedImputer as FederatedImputer
    from covey.estimators.mixture import FederatedGaussianMixture as FederatedGaussianMixture
    from covey.runs.launch import run as run
    from covey.runs.run import Run as Run

__version__ = version("covey")

_PLACES = {
    "channel": "covey.channel",
    "cohort": "covey.core.cohort",
    "data": "covey.data",
    "inference": "covey.inference",
    "kernels": "covey.kernels",
    "models": "covey.models",
    "privacy": "covey.privacy",
    "testing": "covey.testing",
    "topology": "covey.topology",
    "em": "covey.algorithms.em:em",
    "apfl": "covey.algorithms.apfl:apfl",
    "fald": "covey.algorithms.fald:fald",
    "fedavg": "covey.algorithms.fedavg:fedavg",
    "fedavg_plus": "covey.algorithms.fedavg_plus:fedavg_plus",
    "fedper": "covey.algorithms.fedper:fedper",
    "fedem": "covey.algorithms.fedem:fedem",
    "fedmissem": "covey.algorithms.fedmissem:fedmissem",
    "fedpa": "covey.algorithms.fedpa:fedpa",
    "fedpop": "covey.algorithms.fedpop:fedpop",
    "fedprox": "covey.algorithms.fedprox:fedprox",
    "fedrep": "covey.algorithms.fedrep:fedrep",
    "local": "covey.algorithms.local:local",
    "mb_sgd": "covey.algorithms.mb_sgd:mb_sgd",
    "mixture": "covey.algorithms.mixture:mixture",
    "clustered": "covey.algorithms.clustered:clustered",
    "pfedme": "covey.algorithms.pfedme:pfedme",
    "vr_fedem": "covey.algorithms.vr_fedem:vr_fedem",
    "Algorithm": "covey.core.algorithm:Algorithm",
    "Faults": "covey.core.faults:Faults",
    "FederatedData": "covey.data.federated:FederatedData",
    "FederatedGaussianMixture": "covey.estimators.mixture:FederatedGaussianMixture",
    "choose_components": "covey.config.model_selection:choose_components",
    "FederatedImputer": "covey.estimators.imputer:FederatedImputer",
    "load": "covey.datasets.loaders:load",
    "Run": "covey.runs.run:Run",
    "run": "covey.runs.launch:run",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'covey' has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    value = import_module(module)
    return getattr(value, attribute) if attribute else value


def __dir__() -> list[str]:
    return sorted([*_PLACES, "__version__"])
