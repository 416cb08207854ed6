"""Models: how a row's outcome depends on its features, as a likelihood with a predictive
distribution.

A `Model` has parameters that all clients share; a `MixedModel` has random effects for each client
as well. Use one of the catalogue (`MODELS`, `MIXED_MODELS`), any Equinox module through
`from_equinox`, any Flax NNX module through `from_flax`, or your own functions through
`from_function`. Models written in NumPyro come through `covey.models.numpyro`, which is imported by
name, as NumPyro is an extra.
"""

from covey.core.measure import measure
from covey.models.catalogue import (
    LATENT_MODELS,
    MATRIX_MODELS,
    MIXED_MODELS,
    MODELS,
    need,
)
from covey.models.convolution import (
    ConvolutionalNetwork,
    cifar_cnn,
    convolve,
    femnist_cnn,
    max_pool,
)
from covey.models.effects import LAWS, Law, energy, fixed, gaussian, mixture
from covey.models.factor_analysis import FactorAnalysis, factor_analysis
from covey.models.flax import from_flax
from covey.models.gaussian_mixture import GaussianMixture, gaussian_mixture
from covey.models.latent import LatentModel, Repairs
from covey.models.linear import (
    Coefficients,
    Linear,
    Noisy,
    binomial,
    linear,
    logistic,
    negative_binomial,
    poisson,
    softmax,
)
from covey.models.linear_map import linear_map
from covey.models.matrix_completion import Factors, MatrixModel, matrix_completion
from covey.models.mixed import (
    MixedModel,
    averaged,
    mixed_binomial,
    mixed_linear,
    mixed_logistic,
    mixed_negative_binomial,
    mixed_poisson,
    own_parameters,
)
from covey.models.model import Model, from_density, from_function
from covey.models.networks import Perceptron, from_equinox, mlp
from covey.models.poisson_mixture import PoissonMixture, poisson_mixture
from covey.models.predictive import (
    Binomial,
    Categorical,
    Mixture,
    NegativeBinomial,
    Normal,
    Poisson,
    Predictive,
    mixture_of,
)
from covey.models.recurrent import CharacterLSTM, character_lstm
from covey.models.regression_mixture import RegressionMixture, regression_mixture
from covey.models.split import (
    divide,
    join,
    mixed_character_lstm,
    mixed_cifar_cnn,
    mixed_femnist_cnn,
    mixed_mlp,
    split_network,
)

__all__ = [
    "LATENT_MODELS",
    "LAWS",
    "MATRIX_MODELS",
    "MIXED_MODELS",
    "MODELS",
    "Binomial",
    "Categorical",
    "CharacterLSTM",
    "Coefficients",
    "ConvolutionalNetwork",
    "FactorAnalysis",
    "Factors",
    "GaussianMixture",
    "LatentModel",
    "Law",
    "Linear",
    "MatrixModel",
    "MixedModel",
    "Mixture",
    "Model",
    "NegativeBinomial",
    "Noisy",
    "Normal",
    "Perceptron",
    "Poisson",
    "PoissonMixture",
    "Predictive",
    "RegressionMixture",
    "Repairs",
    "averaged",
    "binomial",
    "character_lstm",
    "cifar_cnn",
    "convolve",
    "divide",
    "energy",
    "factor_analysis",
    "femnist_cnn",
    "fixed",
    "from_density",
    "from_equinox",
    "from_flax",
    "from_function",
    "gaussian",
    "gaussian_mixture",
    "join",
    "linear",
    "linear_map",
    "logistic",
    "matrix_completion",
    "max_pool",
    "measure",
    "mixed_binomial",
    "mixed_character_lstm",
    "mixed_cifar_cnn",
    "mixed_femnist_cnn",
    "mixed_linear",
    "mixed_logistic",
    "mixed_mlp",
    "mixed_negative_binomial",
    "mixed_poisson",
    "mixture",
    "mixture_of",
    "mlp",
    "need",
    "negative_binomial",
    "own_parameters",
    "poisson",
    "poisson_mixture",
    "regression_mixture",
    "softmax",
    "split_network",
]
