"""The frame of the compressors: an upload as one vector, coded, and the vector as an upload again.

A compressor sees all leaves of an upload, laid end to end, as one vector of d numbers; `only` and
`partition` choose what it sees. Its payload is a `Parcel`: the arrays that travel, and a `Layout`
that both sides know and that does not. What decodes in a simulation is therefore the payload
itself, and real bytes decode to the same numbers.

An input that is not finite must not come out finite, as engines find a diverged client by that:
`poisoned` sees to it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from covey.core import tree
from covey.core.algorithm import Empty, Message
from covey.core.node import Channel

Norm: TypeAlias = Literal[1, 2, "inf"]
Vector: TypeAlias = Float[Array, " d"]


@dataclass(frozen=True)
class Layout:
    """What the vector is made of: the structure of the upload, and the shapes and types of its
    leaves.
    """

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def size(self) -> int:
        """d, the length of the vector."""
        return sum(map(math.prod, self.shapes))

    @property
    def dtype(self) -> Any:
        """The type of the vector: one that holds every leaf."""
        return jnp.result_type(*self.dtypes) if self.dtypes else jnp.result_type(float)


@partial(jax.tree_util.register_dataclass, data_fields=("code",), meta_fields=("layout",))
@dataclass(frozen=True)
class Parcel:
    """A payload: `code` travels, `layout` is known to both sides."""

    code: PyTree
    layout: Layout = field(metadata={"static": True})


def by_vector(
    encode: Callable[..., tuple[PyTree, PyTree]],
    decode: Callable[[PyTree, Layout], Vector],
    *,
    init: Callable[[Layout], PyTree] = lambda layout: Empty(),
    omega: Callable[[int], float] | None,
) -> Channel:
    """The channel of a vector codec.

    encode: (key, state, vector) -> (code, state).
    decode: (code, layout) -> vector.
    init: (layout) -> state.
    omega: (d) -> the variance bound; None for a biased codec.
    """

    def encode_upload(key, state, up):
        layout = layout_of(up)
        if layout.size == 0:  # nothing to say
            return Parcel((), layout), state
        parts = [leaf.ravel().astype(layout.dtype) for leaf in jax.tree.leaves(up)]
        code, state = encode(key, state, jnp.concatenate(parts))
        return Parcel(code, layout), state

    def decode_upload(parcel):
        layout = parcel.layout
        vector = decode(parcel.code, layout) if layout.size else jnp.zeros(0, layout.dtype)
        starts = np.cumsum([0, *map(math.prod, layout.shapes)])
        leaves = [
            vector[start : start + math.prod(shape)].reshape(shape).astype(dtype)
            for start, shape, dtype in zip(starts, layout.shapes, layout.dtypes, strict=False)
        ]
        return jax.tree.unflatten(layout.structure, leaves)

    def omega_of(up: Message) -> float:
        size = tree.size(up)
        return omega(size) if omega is not None and size else 0.0

    return Channel(
        lambda up: init(layout_of(up)),
        encode_upload,
        decode_upload,
        omega=None if omega is None else omega_of,
    )


def layout_of(up: Message) -> Layout:
    """The layout of an upload, from its arrays or from their shapes."""
    leaves, structure = jax.tree.flatten(tree.specs(up))
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"only floats can be compressed, the upload has {leaf.dtype}; choose the parts with `part`"
            )
    return Layout(
        structure, tuple(leaf.shape for leaf in leaves), tuple(str(leaf.dtype) for leaf in leaves)
    )


def length(values: Float[Array, "*blocks d"], norm: Norm) -> Float[Array, "*blocks"]:
    """The norm over the last axis, scaled by the largest entry so that squares neither overflow nor
    vanish.
    """
    largest = jnp.max(jnp.abs(values), axis=-1)
    if norm == "inf":
        return largest
    scaled = jnp.abs(values) / jnp.where(largest > 0, largest, 1)[..., None]
    return largest * (jnp.sum(scaled, -1) if norm == 1 else jnp.sqrt(jnp.sum(scaled**2, -1)))


def fractions(
    values: Float[Array, "*blocks d"], length: Float[Array, "*blocks"]
) -> Float[Array, "*blocks d"]:
    """|x| / length, in [0, 1]; zero in a block of zeros."""
    return jnp.abs(values) / jnp.where(length > 0, length, 1)[..., None]


def poisoned(values: Float[Array, " k"], vector: Vector) -> Float[Array, " k"]:
    """`values`, or NaN where `vector` has a number that is not finite: some codecs would not have
    sent it.
    """
    return jnp.where(jnp.all(jnp.isfinite(vector)), values, jnp.nan)


def check_norm(name: str, norm: object) -> None:
    """A ValueError for a norm that there is not."""
    if norm not in (1, 2, "inf"):
        raise ValueError(f'{name}: norm must be 1, 2 or "inf", got {norm!r}')
