"""A network cut in two: a body phi that all clients share, and a head of each client's own.

The head is what the names in `personal` say, by default the last layer; its arrays, one after the
other, are the vector z of a `MixedModel`. With it FedPop puts a prior on the head, FedRep and
FedPer train one for each client, and the reverse cut of LG-FedAvg (own features, shared last layer)
is `personal=("convolutions", "hidden")`.

The two ends are limits that are asked for by name: `personal=()` leaves nothing personal, one model
for all as in FedAvg, and `personal="all"` nothing shared, a model for each client as in local
training.
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
class Place:
    """Where an array of the head belongs. It has no values: the leaves of a body are the shared
    arrays and nothing else.
    """

    shape: tuple[int, ...]
    dtype: np.dtype


def split_network(model: Model, *, personal: Names = "output") -> MixedModel:
    """Any model whose parameters have named fields, cut into a shared body and a personal head.

    `personal` names the fields of the head as `divide` reads them. Body and head of the same key
    are of the same network.
    """

    def init(key: Key[Array, ""], spec: Spec) -> PyTree:
        return divide(model.init(key, spec), personal)[0]

    def init_effects(key: Key[Array, ""], spec: Spec) -> Float[Array, " head"]:
        return divide(model.init(key, spec), personal)[1]

    def log_likelihood(phi: PyTree, z: Float[Array, " head"], rows: Rows) -> Float[Array, " rows"]:
        return model.log_likelihood(join(phi, z), rows)

    def predictive(
        phi: PyTree, z: Float[Array, " head"], x: Shaped[Array, " rows *features"]
    ) -> Predictive:
        return model.predictive(join(phi, z), x)

    limit = {(): ", nothing personal", _ALL: ", nothing shared"}.get(personal, "")
    return MixedModel(f"mixed_{model.name}{limit}", init, init_effects, log_likelihood, predictive)


def divide(params: PyTree, personal: Names) -> tuple[PyTree, Float[Array, " head"]]:
    """The body, with a `Place` for each array of the head, and the head as a vector.

    A name is a field wherever it occurs in the network ("output"), or some on the way to an array
    with dots between them ("dense.output", "hidden.1", "output.bias"). "all" is every array and ()
    none.
    """
    found, structure = jax.tree_util.tree_flatten_with_path(params)
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in found]
    leaves = [leaf for _, leaf in found]
    own = (
        [True] * len(leaves)
        if personal == _ALL
        else _named(paths, (personal,) if isinstance(personal, str) else personal)
    )
    body = [
        Place(leaf.shape, leaf.dtype) if mine else leaf
        for leaf, mine in zip(leaves, own, strict=True)
    ]
    head, _ = ravel_pytree([leaf for leaf, mine in zip(leaves, own, strict=True) if mine])
    return jax.tree.unflatten(structure, body), head


def join(body: PyTree, head: Float[Array, " head"]) -> PyTree:
    """The network again: the head's arrays at their places."""
    leaves, structure = jax.tree.flatten(body, is_leaf=lambda node: isinstance(node, Place))
    sizes = [math.prod(leaf.shape) for leaf in leaves if isinstance(leaf, Place)]
    if sum(sizes) != head.shape[0]:
        raise ValueError(
            f"a head of {head.shape[0]} numbers was given, this body has places for {sum(sizes)}"
        )
    pieces = iter(jnp.split(head, np.cumsum(sizes)[:-1]) if sizes else [])
    filled = [
        next(pieces).reshape(leaf.shape).astype(leaf.dtype) if isinstance(leaf, Place) else leaf
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
    """The perceptron `mlp`, with layers of each client's own: by default the last."""
    return split_network(mlp(hidden=hidden, outcome=outcome, scale=scale), personal=personal)


def mixed_femnist_cnn(
    *,
    channels: tuple[int, ...] = (32, 64),
    hidden: tuple[int, ...] = (2048,),
    personal: Names = "output",
) -> MixedModel:
    """The network `femnist_cnn`, with layers of each client's own: by default the last."""
    return split_network(femnist_cnn(channels=channels, hidden=hidden), personal=personal)


def mixed_cifar_cnn(
    *,
    channels: tuple[int, ...] = (64, 64),
    hidden: tuple[int, ...] = (120, 64),
    personal: Names = "output",
) -> MixedModel:
    """The five-layer `cifar_cnn` with a last layer of each client's own, as in FedRep and FedPop
    (650 effects for CIFAR-10).
    """
    return split_network(cifar_cnn(channels=channels, hidden=hidden), personal=personal)


def mixed_character_lstm(
    *, embedding: int = 8, hidden: int = 256, layers: int = 2, personal: Names = "output"
) -> MixedModel:
    """The network `character_lstm`, with layers of each client's own: by default the last."""
    return split_network(
        character_lstm(embedding=embedding, hidden=hidden, layers=layers), personal=personal
    )


def _named(paths: list[str], names: tuple[str, ...]) -> list[bool]:
    """Which arrays have one of the names on their path."""
    by_name = {name: [f".{name}." in f".{path}." for path in paths] for name in names}
    for name, matches in by_name.items():
        if not any(matches):
            known = ", ".join(path or "one without a name" for path in paths)
            raise ValueError(
                f"personal: this network has no field {name!r}; its arrays are {known}"
            )
    own = (
        [any(matches) for matches in zip(*by_name.values(), strict=True)]
        if names
        else [False] * len(paths)
    )
    if own and all(own):
        raise ValueError(
            f'personal: {", ".join(names)} is every array of this network and nothing is shared; say "all" to mean it'
        )
    return own
