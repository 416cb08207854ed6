"""Models: their interface, their construction, and the checks of their data."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree, Shaped

from covey.core import tree
from covey.core.shard import Axis, Rows, Spec
from covey.models.predictive import Predictive

_TRIED = 3  # rows on which the shapes of a model are checked


class Model(NamedTuple):
    """A likelihood p(y | x, params) as pure functions, for methods in which clients share params.

    The prior belongs to the method, unless the model has its own. The factories of `covey.models`
    make models; `from_function` makes one of your own functions.

    Attributes:
        name: Name in reports.
        init: (key, spec) -> params, a pytree of floating-point arrays and nothing else. Data that
            do not fit raise a ValueError.
        log_likelihood: (params, rows) -> log p(y | x) by row, with all normalising constants.
        predictive: (params, x) -> the predictive distribution of the outcomes of the rows x.
        log_prior: (params) -> log p(params) up to a constant, for methods that sample a posterior;
            counted once, not once per client.
        describe: (params) -> {name: value}: parameters as users know them; None where params need
            no further description.
        axes: (spec) -> {name: Axis}: labels of what is described, such as the columns of x; None
            where there are no labels.
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
    """A model made of your own functions.

    `init` checks that the functions fit each other, by shapes alone, before a run begins.

    Args:
        log_likelihood: (params, rows) -> log p(y | x, params), one value per row, with all
            normalising constants. `rows.x` and `rows.y` are arrays with the row as leading axis.
        init: (key, spec) -> params, a pytree of floating-point arrays; `spec` has the shapes of one
            row, see `covey.core.shard.Spec`.
        predictive: (params, x) -> the predictive distribution of the outcomes of the rows x: a
            `Categorical`, `Normal`, `Poisson`, `NegativeBinomial`, `Binomial` or `Mixture` of
            `covey.models`.
        name: Name in reports.

    Returns:
        A model for any method that takes a `Model`.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from covey.models.predictive import Poisson
        >>> def predict(rate, x):
        ...     return Poisson(jnp.broadcast_to(rate, len(x)))
        >>> counts = from_function(
        ...     lambda rate, rows: predict(rate, rows.x).log_prob(rows.y),
        ...     init=lambda key, spec: jnp.zeros(()),
        ...     predictive=predict,
        ...     name="one rate",
        ... )
        >>> rows = Rows(jnp.ones((2, 1)), jnp.array([0, 3]))
        >>> counts.log_likelihood(jnp.zeros(()), rows).round(3).tolist()
        [-1.0, -2.7920000553131104]
    """
    return checked(Model(name, init, log_likelihood, predictive))


def from_density(
    log_density: Callable[[PyTree, PyTree], Float[Array, " rows"]], start: PyTree, name: str
) -> Model:
    """A model that predicts nothing: a log-density of parameters, one term per row.

    For posteriors that are known in closed form, or through a summary of each client's rows such as
    its mean and precision.

    Args:
        log_density: (params, rows) -> one term of the log-density per row; a row may be any pytree.
        start: Parameters at which methods start.
        name: Name in reports.

    Returns:
        A model for methods that sample or maximise; predicting with it raises a ValueError.

    Example:
        >>> import jax.numpy as jnp
        >>> model = from_density(lambda at, rows: -0.5 * (rows - at) ** 2, 0.0, "mean")
        >>> model.log_likelihood(jnp.asarray(1.0), jnp.array([1.0, 3.0])).tolist()
        [-0.0, -2.0]
    """

    def predictive(params: PyTree, x: Shaped[Array, " rows *features"]) -> Predictive:
        raise ValueError(
            f"{name} is a log-density of parameters and predicts nothing; use from_function() for "
            "a model that does"
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
                    f"{model.name}: parameters must be floating-point arrays, but "
                    f"{jax.tree_util.keystr(path)} is {kind}; keep what is not learned outside of "
                    "the parameters (in Equinox: a static field)"
                )
        rows = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((_TRIED, *leaf.shape), leaf.dtype), spec.rows
        )
        shape = jax.eval_shape(model.log_likelihood, tree.specs(params), rows).shape
        if shape != (_TRIED,):
            raise ValueError(
                f"{model.name}: log_likelihood of {_TRIED} rows has shape {shape}; return one "
                f"value per row, shape ({_TRIED},), neither their sum nor their mean"
            )
        return params

    return model._replace(init=init)


def scaled(x: Shaped[Array, " rows *features"]) -> Shaped[Array, " rows *features"]:
    """Pixels (uint8, as images are stored) scaled to [0, 1]; any other array as it is."""
    return x.astype(float) / 255 if x.dtype == jnp.uint8 else x


def flat(x: Shaped[Array, " rows *features"]) -> Shaped[Array, "rows features"]:
    """Rows of any shape as vectors, pixels scaled."""
    return scaled(x).reshape(x.shape[0], math.prod(x.shape[1:]))


def flat_size(spec: Spec) -> int:
    """The length of a row that `flat` makes."""
    return math.prod(spec.rows.x.shape)


def need_classes(name: str, spec: Spec) -> int:
    """The number of classes of data with one label per row; a ValueError for other data."""
    if spec.classes is None:
        raise ValueError(
            f"{name}: these data have a numeric outcome, not classes; use linear() or poisson(); "
            "or, for labels 0, 1, ..., say how many there are when you make the data (classes=2)"
        )
    _need_one_outcome(name, spec)
    if not jnp.issubdtype(spec.rows.y.dtype, jnp.integer):
        raise ValueError(
            f"{name}: labels must be integers 0 to {spec.classes - 1}, these are "
            f"{spec.rows.y.dtype}; cast them"
        )
    return spec.classes


def need_number(name: str, spec: Spec) -> None:
    """A ValueError for data that do not have one numeric outcome per row."""
    if spec.classes is not None:
        raise ValueError(
            f"{name}: these data have {spec.classes} classes, not a numeric outcome; use "
            "logistic(), softmax() or a network"
        )
    _need_one_outcome(name, spec)


def _need_one_outcome(name: str, spec: Spec) -> None:
    if spec.rows.y.shape != ():
        raise ValueError(
            f"{name}: one outcome per row is modelled, these rows have outcomes of shape "
            f"{spec.rows.y.shape}"
        )
