"""The catalogue: factories of models by name, and the check that a method is given the model it
needs.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import NamedTuple

from covey.models.convolution import cifar_cnn, femnist_cnn
from covey.models.factor_analysis import factor_analysis
from covey.models.gaussian_mixture import gaussian_mixture
from covey.models.latent import LatentModel
from covey.models.linear import binomial, linear, logistic, negative_binomial, poisson, softmax
from covey.models.linear_map import linear_map
from covey.models.matrix_completion import MatrixModel, matrix_completion
from covey.models.mixed import (
    MixedModel,
    mixed_binomial,
    mixed_linear,
    mixed_logistic,
    mixed_negative_binomial,
    mixed_poisson,
)
from covey.models.model import Model
from covey.models.networks import mlp
from covey.models.poisson_mixture import poisson_mixture
from covey.models.recurrent import character_lstm
from covey.models.regression_mixture import regression_mixture
from covey.models.split import (
    mixed_character_lstm,
    mixed_cifar_cnn,
    mixed_femnist_cnn,
    mixed_mlp,
)

MODELS: dict[str, Callable[..., Model]] = {
    "linear": linear,
    "logistic": logistic,
    "softmax": softmax,
    "binomial": binomial,
    "poisson": poisson,
    "negative_binomial": negative_binomial,
    "mlp": mlp,
    "femnist_cnn": femnist_cnn,
    "cifar_cnn": cifar_cnn,
    "character_lstm": character_lstm,
}
"""Factories by name. The first line of a factory's docstring is its description."""

MIXED_MODELS: dict[str, Callable[..., MixedModel]] = {
    "mixed_linear": mixed_linear,
    "mixed_logistic": mixed_logistic,
    "mixed_binomial": mixed_binomial,
    "mixed_poisson": mixed_poisson,
    "mixed_negative_binomial": mixed_negative_binomial,
    "linear_map": linear_map,
    "mixed_mlp": mixed_mlp,
    "mixed_femnist_cnn": mixed_femnist_cnn,
    "mixed_cifar_cnn": mixed_cifar_cnn,
    "mixed_character_lstm": mixed_character_lstm,
}
"""Models with random effects for each client."""

LATENT_MODELS: dict[str, Callable[..., LatentModel]] = {
    "factor_analysis": factor_analysis,
    "gaussian_mixture": gaussian_mixture,
    "poisson_mixture": poisson_mixture,
    "regression_mixture": regression_mixture,
}
"""Models with latent variables, for the methods of the EM family."""

MATRIX_MODELS: dict[str, Callable[..., MatrixModel]] = {"matrix_completion": matrix_completion}
"""Models of a matrix of which observers see some cells, for `fedmissem`."""


_MINIBATCHES = ("fedper", "fedrep")
_LIKELIHOOD_ONLY = (
    "apfl",
    "clustered",
    "ditto",
    "fedavg",
    "fedavg_plus",
    "fedbe",
    "fedprox",
    "l2gd",
    "lg_fedavg",
    "local",
    "mb_sgd",
    "mime",
    "mimelite",
    "mixture",
    "mocha",
    "per_fedavg",
    "pfedme",
    "scaffold",
)


class _Kind(NamedTuple):
    description: str
    factories: Mapping[str, Callable[..., object]]
    others: tuple[str, ...] = ()


_KINDS: dict[type, _Kind] = {
    Model: _Kind(
        "a model whose parameters all clients share",
        MODELS,
        (
            "from_equinox(module)",
            "from_flax(module)",
            "from_function(...)",
            "numpyro.from_numpyro(model, spec)",
        ),
    ),
    MixedModel: _Kind(
        "a mixed model, with random effects for each client",
        MIXED_MODELS,
        ("split_network(model)", "numpyro.client_plate(model, spec)"),
    ),
    LatentModel: _Kind("a model with latent variables", LATENT_MODELS),
    MatrixModel: _Kind("a model of a partly observed matrix", MATRIX_MODELS),
}


def need(model: object, kind: type, method: str) -> None:
    """Raise a ValueError where a method is given something else than the kind of model it needs.

    Args:
        model: The argument as the user gave it.
        kind: `Model`, `MixedModel`, `LatentModel` or `MatrixModel`.
        method: Name of the method, for the message.

    Example:
        >>> need(mixed_logistic(), MixedModel, "fedpop")
        >>> need(logistic, Model, "fedavg")
        Traceback (most recent call last):
        ...
        ValueError: fedavg: the model is the function logistic itself; call it: logistic()
    """
    if isinstance(model, kind):
        _check_use(model, method)
        return
    description, factories, others = _KINDS[kind]
    called = getattr(model, "name", None) or getattr(model, "__name__", None) or model
    if called in factories:  # an uncalled factory, or its name
        what = f"the text {model!r}" if isinstance(model, str) else f"the function {called} itself"
        raise ValueError(f"{method}: the model is {what}; call it: {called}()")
    near = f"mixed_{called}"
    first = f"{near}(), or another of " if near in factories else ""
    known = ", ".join([*(f"{name}()" for name in factories), *others])
    raise ValueError(
        f"{method}: {description}, is needed, got {_described(model)}; use {first}the factories of "
        f"covey.models: {known}"
    )


def _check_use(model: object, method: str) -> None:
    """An error or a warning where a method does not use a part of the model that it takes."""
    if isinstance(model, MixedModel) and model.groups is not None and method in _MINIBATCHES:
        raise ValueError(
            f"{method} learns from minibatches, which cut the groups {model.groups!r} of "
            f"{model.name} apart; use fedpop, or leave groups= out"
        )
    if isinstance(model, Model) and model.log_prior is not None and method in _LIKELIHOOD_ONLY:
        warnings.warn(
            f"{method} maximises the likelihood and does not use the prior of {model.name}; fald "
            "does",
            stacklevel=4,
        )


def _described(model: object) -> str:
    for kind, (description, factories, _) in _KINDS.items():
        if isinstance(model, kind):
            return f"{getattr(model, 'name', 'a model')!r}, {description}"
        if getattr(model, "__name__", None) in factories:
            return f"the function {getattr(model, '__name__', '')}, which makes {description}"
    return f"{model!r} of type {type(model).__name__}"
