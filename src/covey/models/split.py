"""A network cut in two: a body phi that all clients share, and a personal head for each client.

FedPop puts a prior on the head; FedRep and FedPer train one for each client. The reverse cut of
LG-FedAvg (personal features, shared last layer) is `shared="output"`.
"""

import math
from dataclasses import dataclass
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree, Shaped

from covey.core.shard import Rows, Spec
from covey.models.convolution import cifar_cnn, femnist_cnn
from covey.models.mixed import MixedModel
from covey.models.model import Model
from covey.models.networks import Outcome, mlp
from covey.models.predictive import Predictive
from covey.models.recurrent import character_lstm

Names: TypeAlias = str | tuple[str, ...]
_ALL = "all"


@jax.tree_util.register_static
@dataclass(frozen=True)
class Placeholder:
    """A placeholder for an array of the head. It has no values: the leaves of a body are the shared
    arrays only.
    """

    shape: tuple[int, ...]
    dtype: np.dtype


def split_network(
    model: Model, *, personal: Names = "output", shared: Names | None = None
) -> MixedModel:
    """A network with a shared body and a personal head for each client.

    The arrays of the head, one after the other, are the effects z of the mixed model. Body and head
    that start from the same key are parts of the same network.

    Args:
        model: A model whose parameters have named fields, such as `mlp()` or one of `from_equinox`.
        personal: Names of the fields of the head, as `divide` reads them. Default: "output", the
            last layer. () leaves nothing personal, as in FedAvg; "all" leaves nothing shared, as in
            local training.
        shared: Names of the fields of the body, in place of `personal`: all others are then
            personal, as in LG-FedAvg. Default: None, by `personal`.

    Returns:
        A mixed model for `fedpop`, `fedrep` and `fedper`.

    Example:
        >>> import jax
        >>> import numpy as np
        >>> from covey.data.federated import FederatedData
        >>> data = FederatedData.from_clients({"a": (np.eye(3), np.array([0, 1, 1]))}, classes=2)
        >>> model = split_network(mlp(hidden=(8,)))
        >>> model.init_effects(jax.random.key(0), data.spec).shape  # 8 x 2 weights and 2 biases
        (18,)
    """

    def halves(key: Key[Array, ""], spec: Spec) -> tuple[PyTree, Float[Array, " head"]]:
        params = model.init(key, spec)
        return divide(params, personal if shared is None else all_but(params, shared))

    def init(key: Key[Array, ""], spec: Spec) -> PyTree:
        return halves(key, spec)[0]

    def init_effects(key: Key[Array, ""], spec: Spec) -> Float[Array, " head"]:
        return halves(key, spec)[1]

    def log_likelihood(phi: PyTree, z: Float[Array, " head"], rows: Rows) -> Float[Array, " rows"]:
        return model.log_likelihood(join(phi, z), rows)

    def predictive(
        phi: PyTree, z: Float[Array, " head"], x: Shaped[Array, " rows *features"]
    ) -> Predictive:
        return model.predictive(join(phi, z), x)

    limits = {(): ", nothing personal", _ALL: ", nothing shared"}
    limit = limits.get(personal, "") if shared is None else ""
    return MixedModel(f"mixed_{model.name}{limit}", init, init_effects, log_likelihood, predictive)


def divide(params: PyTree, personal: Names) -> tuple[PyTree, Float[Array, " head"]]:
    """Cut the parameters of a network into a body and a head.

    Args:
        params: Parameters with named fields.
        personal: Names of the fields of the head. A name is a field wherever it occurs in the
            network ("output"), or a path with dots ("dense.output", "hidden.1", "output.bias").
            "all" is every array and () none.

    Returns:
        The body, with a `Placeholder` for each array of the head, and the head as a vector.

    Example:
        >>> import jax.numpy as jnp
        >>> body, head = divide({"hidden": jnp.ones(3), "output": jnp.zeros(2)}, "output")
        >>> head.tolist(), join(body, head + 1)["output"].tolist()
        ([0.0, 0.0], [1.0, 1.0])
    """
    leaves, structure = jax.tree.flatten(params)
    own = [True] * len(leaves) if personal == _ALL else _named(_paths(params), personal)
    body = [
        Placeholder(leaf.shape, leaf.dtype) if mine else leaf
        for leaf, mine in zip(leaves, own, strict=True)
    ]
    head, _ = ravel_pytree([leaf for leaf, mine in zip(leaves, own, strict=True) if mine])
    return jax.tree.unflatten(structure, body), head


def all_but(params: PyTree, shared: Names) -> tuple[str, ...]:
    """The names of all arrays of a network but some, for `divide`.

    Args:
        params: Parameters with named fields.
        shared: Names of the fields to leave out, as `divide` reads them.

    Returns:
        The path of each other array.

    Example:
        >>> import jax.numpy as jnp
        >>> all_but({"first": jnp.ones(3), "second": jnp.ones(3), "output": jnp.ones(2)}, "output")
        ('first', 'second')
    """
    paths = _paths(params)
    named = zip(paths, _named(paths, shared, option="shared"), strict=True)
    return tuple(path for path, is_shared in named if not is_shared)


def join(body: PyTree, head: Float[Array, " head"]) -> PyTree:
    """The parameters of a network from its body and head, the inverse of `divide`.

    Args:
        body: The body that `divide` made.
        head: The head as a vector.

    Returns:
        The parameters, with the head's arrays in the body's placeholders.

    Example:
        >>> import jax.numpy as jnp
        >>> params = {"hidden": jnp.ones(3), "output": jnp.zeros(2)}
        >>> join(*divide(params, "hidden"))["hidden"].tolist()
        [1.0, 1.0, 1.0]
    """
    leaves, structure = jax.tree.flatten(body, is_leaf=lambda node: isinstance(node, Placeholder))
    sizes = [math.prod(leaf.shape) for leaf in leaves if isinstance(leaf, Placeholder)]
    if sum(sizes) != head.shape[0]:
        raise ValueError(
            f"a head of length {head.shape[0]} was given, this body needs one of {sum(sizes)}"
        )
    pieces = iter(jnp.split(head, np.cumsum(sizes)[:-1]) if sizes else [])
    filled = [
        next(pieces).reshape(leaf.shape).astype(leaf.dtype)
        if isinstance(leaf, Placeholder)
        else leaf
        for leaf in leaves
    ]
    return jax.tree.unflatten(structure, filled)


def mixed_mlp(
    *,
    hidden: tuple[int, ...] = (200, 200),
    outcome: Outcome = "classes",
    scale: float | None = None,
    personal: Names = "output",
) -> MixedModel:
    """Multilayer perceptron with personal layers for each client, by default the last.

    Args:
        hidden: Units of each hidden layer. Default: (200, 200).
        outcome: Kind of the outcome: "classes" (the default), "number" or "count".
        scale: Standard deviation of the noise where the outcome is a number. Default: 1.
        personal: Names of the personal layers, as in `split_network`. Default: "output".

    Returns:
        A mixed model for `fedpop`, `fedrep` and `fedper`.

    Example:
        >>> mixed_mlp(hidden=(8,)).name
        'mixed_mlp'
    """
    return split_network(mlp(hidden=hidden, outcome=outcome, scale=scale), personal=personal)


def mixed_femnist_cnn(
    *,
    channels: tuple[int, ...] = (32, 64),
    hidden: tuple[int, ...] = (2048,),
    personal: Names = "output",
) -> MixedModel:
    """The network `femnist_cnn` with personal layers for each client, by default the last.

    Args:
        channels: Output channels of each convolution. Default: (32, 64).
        hidden: Units of each hidden dense layer. Default: (2048,).
        personal: Names of the personal layers, as in `split_network`. Default: "output".

    Returns:
        A mixed model of images for `fedpop`, `fedrep` and `fedper`.

    Example:
        >>> mixed_femnist_cnn(channels=(2, 3), hidden=(8,)).name
        'mixed_femnist_cnn'
    """
    return split_network(femnist_cnn(channels=channels, hidden=hidden), personal=personal)


def mixed_cifar_cnn(
    *,
    channels: tuple[int, ...] = (64, 64),
    hidden: tuple[int, ...] = (120, 64),
    personal: Names = "output",
) -> MixedModel:
    """The five-layer `cifar_cnn` with a personal last layer, as in FedRep and FedPop.

    Args:
        channels: Output channels of each convolution. Default: (64, 64).
        hidden: Units of each hidden dense layer. Default: (120, 64), which leaves 650 effects for
            the ten classes of CIFAR-10.
        personal: Names of the personal layers, as in `split_network`. Default: "output".

    Returns:
        A mixed model of images for `fedpop`, `fedrep` and `fedper`.

    Example:
        >>> mixed_cifar_cnn(channels=(2, 3)).name
        'mixed_cifar_cnn'
    """
    return split_network(cifar_cnn(channels=channels, hidden=hidden), personal=personal)


def mixed_character_lstm(
    *, embedding: int = 8, hidden: int = 256, layers: int = 2, personal: Names = "output"
) -> MixedModel:
    """The network `character_lstm` with personal layers for each client, by default the last.

    Args:
        embedding: Dimension of the embedding of a character. Default: 8.
        hidden: Units of each LSTM layer. Default: 256.
        layers: Number of LSTM layers. Default: 2.
        personal: Names of the personal layers, as in `split_network`. Default: "output".

    Returns:
        A mixed model of text for `fedpop`, `fedrep` and `fedper`.

    Example:
        >>> mixed_character_lstm(hidden=16).name
        'mixed_character_lstm'
    """
    return split_network(
        character_lstm(embedding=embedding, hidden=hidden, layers=layers), personal=personal
    )


def _paths(params: PyTree) -> list[str]:
    """The path of each array, with dots."""
    found = jax.tree_util.tree_leaves_with_path(params)
    return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in found]


def _named(paths: list[str], given: Names, option: str = "personal") -> list[bool]:
    """Which arrays have one of the names on their path."""
    names = (given,) if isinstance(given, str) else given
    by_name = {name: [f".{name}." in f".{path}." for path in paths] for name in names}
    for name, matches in by_name.items():
        if not any(matches):
            known = ", ".join(path or "one without a name" for path in paths)
            raise ValueError(
                f"{option}: this network has no field {name!r}; its arrays are {known}"
            )
    own = (
        [any(matches) for matches in zip(*by_name.values(), strict=True)]
        if names
        else [False] * len(paths)
    )
    if own and all(own):
        own_all = option == "personal"
        left, instead = ("shared", '"all"') if own_all else ("personal", "personal=()")
        raise ValueError(
            f"{option}: {', '.join(names)} is every array of this network and nothing is {left}; "
            f"say {instead} to mean it"
        )
    return own
