"""Covey: federated Bayesian inference over data that never leaves its owner.

A formula and one table per site, for those who know lme4:

    found = covey.fit("ill ~ age + sex + (1 | hospital)", "hospitals/")
    found.summary()

A run takes a method with its model and the rows of clients:

    data, _ = covey.load("heart_disease").split(test=0.2, seed=1).standardised()
    run = covey.run(covey.fedavg(covey.models.logistic()), data, rounds=20, seed=1)

Methods. Each is a factory that takes a model; `help(covey.fedavg)` has its options.

    Posteriors
        dg_lmc       DG-LMC: Gibbs steps between a shared draw and one near it at each client
        fald         FA-LD: chains of federated Langevin steps sample the shared posterior
        fedbe        FedBE: an ensemble from a Gaussian over the clients' models, distilled
        fedpa        FedPA: averages corrected by posterior samples of each client
        fedpop       FedPop: mixed effects with their posterior for each client
        fsgld        FSGLD: chains that walk from client to client, with conducive gradients
        marginal     ML, REML or the posterior of a mixed model, in about a dozen rounds
        qlsd         QLSD: Langevin steps along compressed gradients
        qlsd_plus    QLSD++: QLSD with variance reduction and memories
    EM
        em           classical EM by sums over clients, without memories
        fedem        FedEM: EM on sufficient statistics, with compression and partial cohorts
        fedmissem    FedMissEM: completion of a matrix of which observers see some cells
        vr_fedem     VR-FedEM: FedEM with variance reduction
    One shared model
        fedavg       FedAvg: local training and averages; FedAdam with a server optimiser
        fedprox      FedProx: FedAvg with a proximal term
        mb_sgd       minibatch SGD: one gradient per client and round
        mime         Mime: local steps that mimic those of a server with momentum
        mimelite     MimeLite: FedAvg with the momentum of the server
        scaffold     SCAFFOLD: FedAvg with control variates against client drift
    Personal models
        apfl         APFL: a personal model mixed with the shared one
        clustered    clustered FL: clients that contradict each other are divided
        ditto        Ditto: FedAvg, and a personal model near it
        fedavg_plus  FedAvg+: FedAvg, fine-tuned by each client before it predicts
        fedper       FedPer: shared and personal layers, trained together
        fedrep       FedRep: a shared representation and personal heads, trained in turn
        l2gd         L2GD: personal models pulled towards their mean at random times
        lg_fedavg    LG-FedAvg: personal layers below a shared head
        local        every client alone, the baseline
        mixture      FedEM for mixtures: shared components, mixed by each client's weights
        mocha        MOCHA: linear models with a learned covariance, by dual coordinates
        per_fedavg   Per-FedAvg: a shared model one gradient step from a personal one
        pfedme       pFedMe: personal models near a shared one

Data and runs
    fit, Fit, load_fit  a formula on one table per site; what was found; a fit that was saved
    load               a public data set by name
    FederatedData      the rows of clients
    run, Run           run a method; its metrics, posterior, predictions and evaluations
    Algorithm          the type of a method, to write your own
    Faults             probabilities of lost, late and repeated messages
    choose_components  how many components a `mixture` needs
    log_to_mlflow      log a run or a fit to MLflow

Estimators in the manner of scikit-learn
    FederatedClassifier, FederatedRegressor, FederatedGaussianMixture, FederatedImputer

Modules
    models     likelihoods, mixed models, models with latent variables
    cohort     who takes part in a round
    channel    compression of uploads
    privacy    mechanisms, accountants, budgets
    topology   graphs of peers
    kernels    local optimisation and sampling
    inference  diagnostics, calibration, coverage
    data       federated data, splits, partitions
    testing    the contract that every method keeps

Names are loaded when they are first used, so that `import covey` does not import JAX.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from covey import channel, data, inference, kernels, models, privacy, testing, topology
    from covey.algorithms.apfl import apfl
    from covey.algorithms.clustered import clustered
    from covey.algorithms.dg_lmc import dg_lmc
    from covey.algorithms.ditto import ditto
    from covey.algorithms.em import em
    from covey.algorithms.fald import fald
    from covey.algorithms.fedavg import fedavg
    from covey.algorithms.fedavg_plus import fedavg_plus
    from covey.algorithms.fedbe import fedbe
    from covey.algorithms.fedem import fedem
    from covey.algorithms.fedmissem import fedmissem
    from covey.algorithms.fedpa import fedpa
    from covey.algorithms.fedper import fedper
    from covey.algorithms.fedpop import fedpop
    from covey.algorithms.fedprox import fedprox
    from covey.algorithms.fedrep import fedrep
    from covey.algorithms.fsgld import fsgld
    from covey.algorithms.l2gd import l2gd
    from covey.algorithms.lg_fedavg import lg_fedavg
    from covey.algorithms.local import local
    from covey.algorithms.marginal import marginal
    from covey.algorithms.mb_sgd import mb_sgd
    from covey.algorithms.mime import mime
    from covey.algorithms.mimelite import mimelite
    from covey.algorithms.mixture import mixture
    from covey.algorithms.mocha import mocha
    from covey.algorithms.per_fedavg import per_fedavg
    from covey.algorithms.pfedme import pfedme
    from covey.algorithms.qlsd import qlsd
    from covey.algorithms.qlsd_plus import qlsd_plus
    from covey.algorithms.scaffold import scaffold
    from covey.algorithms.vr_fedem import vr_fedem
    from covey.config.model_selection import choose_components
    from covey.core import cohort
    from covey.core.algorithm import Algorithm
    from covey.core.faults import Faults
    from covey.data.federated import FederatedData
    from covey.datasets.loaders import load
    from covey.estimators.imputer import FederatedImputer
    from covey.estimators.mixture import FederatedGaussianMixture
    from covey.fitting.estimators import FederatedClassifier, FederatedRegressor
    from covey.fitting.fit import fit
    from covey.fitting.result import Fit
    from covey.fitting.store import load_fit
    from covey.runs.launch import run
    from covey.runs.run import Run
    from covey.tracking import log_to_mlflow

__all__ = [
    "Algorithm",
    "Faults",
    "FederatedClassifier",
    "FederatedData",
    "FederatedGaussianMixture",
    "FederatedImputer",
    "FederatedRegressor",
    "Fit",
    "Run",
    "__version__",
    "apfl",
    "channel",
    "choose_components",
    "clustered",
    "cohort",
    "data",
    "dg_lmc",
    "ditto",
    "em",
    "fald",
    "fedavg",
    "fedavg_plus",
    "fedbe",
    "fedem",
    "fedmissem",
    "fedpa",
    "fedper",
    "fedpop",
    "fedprox",
    "fedrep",
    "fit",
    "fsgld",
    "inference",
    "kernels",
    "l2gd",
    "lg_fedavg",
    "load",
    "load_fit",
    "local",
    "log_to_mlflow",
    "marginal",
    "mb_sgd",
    "mime",
    "mimelite",
    "mixture",
    "mocha",
    "models",
    "per_fedavg",
    "pfedme",
    "privacy",
    "qlsd",
    "qlsd_plus",
    "run",
    "scaffold",
    "testing",
    "topology",
    "vr_fedem",
]

__version__ = version("covey")

_ELSEWHERE = {  # the rest are modules of the package, or methods in the file of their name
    "Algorithm": "covey.core.algorithm:Algorithm",
    "Faults": "covey.core.faults:Faults",
    "FederatedClassifier": "covey.fitting.estimators:FederatedClassifier",
    "FederatedData": "covey.data.federated:FederatedData",
    "FederatedGaussianMixture": "covey.estimators.mixture:FederatedGaussianMixture",
    "FederatedImputer": "covey.estimators.imputer:FederatedImputer",
    "FederatedRegressor": "covey.fitting.estimators:FederatedRegressor",
    "Fit": "covey.fitting.result:Fit",
    "Run": "covey.runs.run:Run",
    "choose_components": "covey.config.model_selection:choose_components",
    "cohort": "covey.core.cohort",
    "fit": "covey.fitting.fit:fit",
    "load": "covey.datasets.loaders:load",
    "load_fit": "covey.fitting.store:load_fit",
    "log_to_mlflow": "covey.tracking:log_to_mlflow",
    "run": "covey.runs.launch:run",
}
_MODULES = ("channel", "data", "inference", "kernels", "models", "privacy", "testing", "topology")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'covey' has no attribute {name!r}")
    default = f"covey.{name}" if name in _MODULES else f"covey.algorithms.{name}:{name}"
    module, _, attribute = _ELSEWHERE.get(name, default).partition(":")
    value = import_module(module)
    return getattr(value, attribute) if attribute else value


def __dir__() -> list[str]:
    return sorted(__all__)
