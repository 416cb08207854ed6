"""Models: how a row's outcome depends on its features, as a likelihood, and how well it is
predicted.

A `Model` is init, per-row log-likelihood and predictive distribution; methods and engines know no
more of it than that. Use one of the catalogue `MODELS`, any Equinox module through `from_equinox`,
or your own functions through `from_function`; models written in NumPyro come through
`covey.models.numpyro`, which has to be imported by name, as NumPyro is an extra. A `MixedModel` has
parameters of each client's own as well; `split_network` makes one of a network.
"""

from collections.abc import Callable

from covey.core.measure import measure
from covey.models.convolution import (
    ConvolutionalNetwork,
    cifar_cnn,
    convolve,
    femnist_cnn,
    max_pool,
)
from covey.models.effects import LAWS, Law, energy, fixed, gaussian, mixture
from covey.models.factor_analysis import FactorAnalysis, factor_analysis
from covey.models.gaussian_mixture import GaussianMixture, gaussian_mixture
from covey.models.latent import LatentModel, Repairs
from covey.models.linear import Linear, Noisy, linear, logistic, poisson, softmax
from covey.models.matrix_completion import Factors, MatrixModel, matrix_completion
from covey.models.mixed import (
    MixedModel,
    NamedSlopes,
    average_of,
    averaged,
    linear_map,
    mixed_linear,
    mixed_logistic,
    mixed_poisson,
    own_parameters,
)
from covey.models.model import Model, from_density, from_function
from covey.models.networks import Perceptron, from_equinox, mlp
from covey.models.poisson_mixture import PoissonMixture, poisson_mixture
from covey.models.predictive import Categorical, Mixture, Normal, Poisson, Predictive, mixture_of
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

MODELS: dict[str, Callable[..., Model]] = {
    "linear": linear,
    "logistic": logistic,
    "softmax": softmax,
    "poisson": poisson,
    "mlp": mlp,
    "femnist_cnn": femnist_cnn,
    "cifar_cnn": cifar_cnn,
    "character_lstm": character_lstm,
}
"""The catalogue: factories by name. The first line of a factory's docstring is its description."""

MIXED_MODELS: dict[str, Callable[..., MixedModel]] = {
    "mixed_linear": mixed_linear,
    "mixed_logistic": mixed_logistic,
    "mixed_poisson": mixed_poisson,
    "linear_map": linear_map,
    "mixed_mlp": mixed_mlp,
    "mixed_femnist_cnn": mixed_femnist_cnn,
    "mixed_cifar_cnn": mixed_cifar_cnn,
    "mixed_character_lstm": mixed_character_lstm,
}
"""Models with effects of each client's own, for the methods that know what to do with them."""

LATENT_MODELS: dict[str, Callable[..., LatentModel]] = {
    "factor_analysis": factor_analysis,
    "gaussian_mixture": gaussian_mixture,
    "poisson_mixture": poisson_mixture,
    "regression_mixture": regression_mixture,
}
"""Models with latent variables, for the methods of the EM family."""

MATRIX_MODELS: dict[str, Callable[..., MatrixModel]] = {"matrix_completion": matrix_completion}
"""Models of a matrix of which observers see some cells, for `fedmissem`."""

__all__ = [
    "LATENT_MODELS",
    "LAWS",
    "MATRIX_MODELS",
    "MIXED_MODELS",
    "MODELS",
    "Categorical",
    "CharacterLSTM",
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
    "NamedSlopes",
    "Noisy",
    "Normal",
    "Perceptron",
    "Poisson",
    "PoissonMixture",
    "Predictive",
    "RegressionMixture",
    "Repairs",
    "average_of",
    "averaged",
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
    "mixed_character_lstm",
    "mixed_cifar_cnn",
    "mixed_femnist_cnn",
    "mixed_linear",
    "mixed_logistic",
    "mixed_mlp",
    "mixed_poisson",
    "mixture",
    "mixture_of",
    "mlp",
    "own_parameters",
    "poisson",
    "poisson_mixture",
    "regression_mixture",
    "softmax",
    "split_network",
]
