"""Networks: dense layers, the multilayer perceptron, and any Equinox module of a user.

Our networks are Equinox modules whose leaves are all arrays, so a module is its own parameters. The
last layer of each is called `output`: methods that personalise it find it there.
"""

from collections.abc import Callable
from typing import Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree, Shaped

from covey.core.shard import Spec
from covey.models.model import (
    Model,
    checked,
    flat,
    flat_size,
    from_predictive,
    need_classes,
    need_number,
    scaled,
)
from covey.models.predictive import Categorical, Normal, Poisson, Predictive

Outcome: TypeAlias = Literal["classes", "number", "count"]


class Dense(eqx.Module):
    """Dense layer x W + b, initialised from U(-1/sqrt(inputs), 1/sqrt(inputs)), PyTorch's default.

    Example:
        >>> import jax
        >>> Dense(jax.random.key(0), 3, 2).weight.shape
        (3, 2)
    """

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, key: Key[Array, ""], inputs: int, outputs: int):
        weight_key, bias_key = jax.random.split(key)
        self.weight = uniform(weight_key, (inputs, outputs), inputs)
        self.bias = uniform(bias_key, (outputs,), inputs)

    def __call__(self, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
        """The affine map of each row."""
        return x @ self.weight + self.bias


class Perceptron(eqx.Module):
    """Dense layers with ReLU between them, the network of `mlp`.

    Example:
        >>> import jax
        >>> network = Perceptron(jax.random.key(0), inputs=4, hidden=(8,), outputs=3)
        >>> network(jax.numpy.ones((2, 4))).shape
        (2, 3)
    """

    hidden: tuple[Dense, ...]
    output: Dense

    def __init__(self, key: Key[Array, ""], inputs: int, hidden: tuple[int, ...], outputs: int):
        *hidden_keys, output_key = jax.random.split(key, len(hidden) + 1)
        widths = (inputs, *hidden)
        self.hidden = tuple(
            Dense(*layer) for layer in zip(hidden_keys, widths[:-1], hidden, strict=True)
        )
        self.output = Dense(output_key, widths[-1], outputs)

    def __call__(self, x: Float[Array, "rows inputs"]) -> Float[Array, "rows outputs"]:
        """The outputs before any link."""
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return self.output(x)


def mlp(
    *,
    hidden: tuple[int, ...] = (200, 200),
    outcome: Outcome = "classes",
    scale: float | None = None,
) -> Model:
    """Multilayer perceptron with ReLU activations.

    Args:
        hidden: Units of each hidden layer. Default: (200, 200), the 2NN of McMahan et al.
        outcome: Kind of the outcome: "classes" (the default), "number" or "count", as in
            `from_equinox`.
        scale: Standard deviation of the noise where the outcome is a number. Default: 1.

    Returns:
        A model for any method that takes a `Model`.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from covey.data.federated import FederatedData
        >>> data = FederatedData.from_clients({"a": (np.eye(3), np.array([0, 1, 1]))}, classes=2)
        >>> mlp(hidden=(8,)).init(jax.random.key(0), data.spec).output.weight.shape
        (8, 2)

    Reference: McMahan et al. (2017), Communication-efficient learning of deep networks from
    decentralized data.
    """
    check_widths("mlp", "hidden", hidden)
    read = reader("mlp", outcome, scale)

    def init(key: Key[Array, ""], spec: Spec) -> Perceptron:
        return Perceptron(key, flat_size(spec), hidden, outputs_of("mlp", outcome, spec))

    def predictive(params: Perceptron, x: Shaped[Array, " rows *features"]) -> Predictive:
        return read(params(flat(x).astype(params.output.weight.dtype)))

    return from_predictive("mlp", init, predictive)


def from_equinox(
    build: Callable[[Key[Array, ""]], eqx.Module],
    *,
    outcome: Outcome = "classes",
    scale: float | None = None,
    batched: bool = False,
    name: str | None = None,
) -> Model:
    """Any Equinox module as a model: its arrays are the parameters.

    Everything else in the module (activations, sizes) is fixed by `build`. The likelihood has no
    randomness: a module with dropout must be in inference mode. Pixels (uint8) arrive scaled to
    [0, 1].

    Args:
        build: (key) -> module. The module maps one row x to an output.
        outcome: Meaning of the output. "classes" (the default): one logit per class, or a single
            one where there are two; "number": the mean of a Gaussian; "count": the log rate of a
            Poisson.
        scale: Standard deviation of the Gaussian where the outcome is a number. Default: 1.
        batched: Whether the module maps all rows at once instead of one row. Default: False.
        name: Name in reports. Default: the name of `build`.

    Returns:
        A model for any method that takes a `Model`.

    Example:
        >>> import equinox as eqx
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from covey.core.shard import Rows
        >>> model = from_equinox(lambda key: eqx.nn.Linear(4, 3, key=key), name="one layer")
        >>> rows = Rows(jax.ShapeDtypeStruct((4,), float), jax.ShapeDtypeStruct((), int))
        >>> params = model.init(jax.random.key(0), Spec(rows, classes=3))
        >>> model.predictive(params, jnp.ones((2, 4))).mean.shape
        (2, 3)
    """
    label = name or getattr(build, "__name__", "module").strip("<>")
    # What is not an array cannot leave a traced function, so the skeleton is made here once and the
    # parameters fill it.
    shapes = eqx.filter_eval_shape(build, jax.random.key(0))
    _, skeleton = eqx.partition(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def output(
        params: PyTree, x: Shaped[Array, " rows *features"]
    ) -> Float[Array, " rows *outputs"]:
        module = eqx.combine(params, skeleton)
        return (module if batched else jax.vmap(module))(scaled(x))

    def start(key: Key[Array, ""]) -> PyTree:
        return eqx.filter(build(key), eqx.is_array)

    return of_outputs(label, outcome, scale, start, output)


def of_outputs(
    label: str,
    outcome: Outcome,
    scale: float | None,
    start: Callable[[Key[Array, ""]], PyTree],
    output: Callable[[PyTree, Shaped[Array, " rows *features"]], Float[Array, " rows *outputs"]],
) -> Model:
    """The model of a network that others have written, with a check of its outputs.

    Args:
        label: Name in reports and messages.
        outcome: Meaning of an output, as in `from_equinox`.
        scale: Standard deviation of the Gaussian where the outcome is a number.
        start: (key) -> parameters.
        output: (parameters, rows) -> outputs.
    """
    read = reader(label, outcome, scale)

    def init(key: Key[Array, ""], spec: Spec) -> PyTree:
        expected = outputs_of(label, outcome, spec)
        params = start(key)
        rows = 3
        x = jax.ShapeDtypeStruct((rows, *spec.rows.x.shape), spec.rows.x.dtype)
        shape = jax.eval_shape(output, params, x).shape
        single = expected == 1 or (outcome == "classes" and expected == 2)
        if shape != (rows, expected) and not (single and shape in ((rows,), (rows, 1))):
            raise ValueError(
                f"{label}: the module's output for {rows} rows has shape {shape}; for outcome "
                f"{outcome!r} of these data it must be ({rows}, {expected})"
                + (f" or ({rows},)" if single else "")
            )
        return params

    return checked(from_predictive(label, init, lambda params, x: read(output(params, x))))


def reader(
    name: str, outcome: str, scale: float | None
) -> Callable[[Float[Array, " rows *outputs"]], Predictive]:
    """The predictive distribution that an output means."""
    if outcome not in ("classes", "number", "count"):
        raise ValueError(f"{name}: outcome must be 'classes', 'number' or 'count', got {outcome!r}")
    if scale is not None and outcome != "number":
        raise ValueError(
            f"{name}: scale is the noise of outcome 'number' and means nothing for {outcome!r}; "
            "leave it out"
        )
    if scale is not None and scale <= 0:
        raise ValueError(
            f"{name}: scale is a standard deviation and must be above 0, got {scale:g}"
        )

    def read(output: Float[Array, " rows *outputs"]) -> Predictive:
        if outcome == "classes" and output.ndim == 2 and output.shape[-1] > 1:
            return Categorical.of_logits(output)
        single = output.reshape(output.shape[0])
        if outcome == "classes":
            return Categorical.of_logit(single)
        return (
            Poisson(single)
            if outcome == "count"
            else Normal(single, jnp.full_like(single, 1.0 if scale is None else scale))
        )

    return read


def outputs_of(name: str, outcome: Outcome, spec: Spec) -> int:
    """The number of outputs per row of a network for this outcome."""
    if outcome == "classes":
        return need_classes(name, spec)
    need_number(name, spec)
    return 1


def uniform(key: Key[Array, ""], shape: tuple[int, ...], fan_in: int) -> Float[Array, "*shape"]:
    """Draws from U(-1/sqrt(fan_in), 1/sqrt(fan_in))."""
    bound = 1 / np.sqrt(fan_in)
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def check_widths(name: str, option: str, widths: tuple[int, ...]) -> None:
    """A ValueError for sizes of layers that are not positive."""
    if any(width < 1 for width in widths):
        raise ValueError(f"{name}: {option} must be positive sizes, got {widths}")
