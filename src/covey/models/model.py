"""What a model is, how one is made, and what every model asks of its data."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree, Shaped

from covey.core import tree
from covey.core.shard import Axis, Rows, Spec
from covey.models.predictive import Predictive


class Model(NamedTuple):
    """A likelihood p(y | x, params) as pure functions; a prior is the method's, unless the model
    has its own.

    name: what reports call it.
    init: (key, spec) -> params, a pytree of floating-point arrays and nothing else. Data that do
        not fit raise a ValueError.
    log_likelihood: (params, rows) -> log p(y | x) by row, with all normalising constants.
    predictive: (params, x) -> the predictive distribution of the outcomes of the rows x.
    log_prior: (params) -> log p(params) up to a constant, for methods that sample a posterior;
        counted once, not once a client.
    describe: (params) -> {name: value}: parameters as users know them; None where params are all
        there is.
    axes: (spec) -> {name: Axis}: labels of what is described, such as the columns of x; None where
        there are numbers only.
    """

    name: str
    init: Callable[[Key[Array, ""], Spec], PyTree]
    log_likelihood: Callable[[PyTree, Rows], Float[Array, " rows"]]
    predictive: Callable[[PyTree, Shaped[Array, " rows *features"]], Predictive]
    log_prior: Callable[[PyTree], Float[Array, ""]] | None = None
    describe: Callable[[PyTree], dict[str, Array]] | None = None
    axes: Callable[[Spec], dict[str, Axis]] | None = None


def from_predictive(
    name: str,
    init: Callable[[Key[Array, ""], Spec], PyTree],
    predictive: Callable[[PyTree, Shaped[Array, " rows *features"]], Predictive],
) -> Model:
    """The model whose log-likelihood is its predictive's log-probability: one formula for learning
    and for scoring.
    """

    def log_likelihood(params: PyTree, rows: Rows) -> Float[Array, " rows"]:
        return predictive(params, rows.x).log_prob(rows.y)

    return Model(name, init, log_likelihood, predictive)


def from_function(
    log_likelihood: Callable[[PyTree, Rows], Float[Array, " rows"]],
    init: Callable[[Key[Array, ""], Spec], PyTree],
    predictive: Callable[[PyTree, Shaped[Array, " rows *features"]], Predictive],
    name: str,
) -> Model:
    """A model of your own functions; `init` checks that they fit each other, by shapes alone,
    before a run begins.
    """
    return checked(Model(name, init, log_likelihood, predictive))


def from_density(
    log_density: Callable[[PyTree, PyTree], Float[Array, " rows"]], start: PyTree, name: str
) -> Model:
    """A model that predicts nothing: a log-density of parameters, one term a row, whatever a row
    is; and where to start.

    For posteriors that are known in closed form or through a summary of each client's rows, say its
    mean and precision.
    """

    def predictive(params: PyTree, x: Shaped[Array, " rows *features"]) -> Predictive:
        raise ValueError(
            f"{name} is a log-density of parameters and predicts nothing; use from_function() for a model that does"
        )

    return checked(
        Model(
            name,
            lambda key, spec: jax.tree.map(lambda leaf: jnp.asarray(leaf, float), start),
            log_density,
            predictive,
        )
    )


def checked(model: Model) -> Model:
    """The model with an `init` that raises a ValueError where the functions do not keep what
    `Model` promises.
    """

    def init(key: Key[Array, ""], spec: Spec) -> PyTree:
        params = model.init(key, spec)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            if not (isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)):
                kind = (
                    f"an array of {leaf.dtype}"
                    if isinstance(leaf, jax.Array)
                    else f"a {type(leaf).__name__}"
                )
                raise ValueError(
                    f"{model.name}: parameters must be floating-point arrays, but {jax.tree_util.keystr(path)} is {kind}; "
                    "keep what is not learned outside of the parameters (in Equinox: a static field)"
                )
        number = 3
        rows = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((number, *leaf.shape), leaf.dtype), spec.rows
        )
        shape = jax.eval_shape(model.log_likelihood, tree.specs(params), rows).shape
        if shape != (number,):
            raise ValueError(
                f"{model.name}: log_likelihood of {number} rows has shape {shape}; return one number a row, "
                f"shape ({number},), neither their sum nor their mean"
            )
        return params

    return model._replace(init=init)


def scaled(x: Shaped[Array, " rows *features"]) -> Shaped[Array, " rows *features"]:
    """uint8 is how images are stored: pixels become numbers in [0, 1]. Anything else is left as it
    is.
    """
    return x.astype(float) / 255 if x.dtype == jnp.uint8 else x


def flat(x: Shaped[Array, " rows *features"]) -> Shaped[Array, "rows features"]:
    """Rows of any shape as vectors, pixels scaled."""
    return scaled(x).reshape(x.shape[0], math.prod(x.shape[1:]))


def flat_size(spec: Spec) -> int:
    """The length of a row that `flat` makes."""
    return math.prod(spec.rows.x.shape)


def need_classes(name: str, spec: Spec) -> int:
    """The number of labels of data whose outcome is one label a row."""
    if spec.classes is None:
        raise ValueError(
            f"{name}: these data have a numeric outcome, not classes; use linear() or poisson()"
        )
    _need_one_outcome(name, spec)
    if not jnp.issubdtype(spec.rows.y.dtype, jnp.integer):
        raise ValueError(
            f"{name}: labels must be integers 0 to {spec.classes - 1}, these are {spec.rows.y.dtype}; cast them"
        )
    return spec.classes


def need_number(name: str, spec: Spec) -> None:
    """Data whose outcome is one number a row."""
    if spec.classes is not None:
        raise ValueError(
            f"{name}: these data have {spec.classes} classes, not a numeric outcome; use logistic(), softmax() or a network"
        )
    _need_one_outcome(name, spec)


def _need_one_outcome(name: str, spec: Spec) -> None:
    if spec.rows.y.shape != ():
        raise ValueError(
            f"{name}: one outcome a row is modelled, these rows have outcomes of shape {spec.rows.y.shape}"
        )
