"""The frame of the compressors: an upload as one vector, coded, and the vector as an upload again.

A compressor sees all leaves of an upload, end to end, as one vector of d values; `masked` and
`partition` choose what it sees. Its payload is a `Parcel`: the arrays that travel, and a `Layout`
that both sides know and that does not travel. A simulation decodes the payload itself, so real
bytes decode to the same values.

An input that is not finite must not come out finite, as engines find a diverged client by that:
`poisoned` ensures it.
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
from covey.core.channel import Channel

Norm: TypeAlias = Literal[1, 2, "inf"]
Vector: TypeAlias = Float[Array, " d"]


@dataclass(frozen=True)
class Layout:
    """The structure of the upload, and the shapes and types of its leaves."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Length of the vector (d)."""
        return sum(map(math.prod, self.shapes))

    @property
    def dtype(self) -> Any:
        """Type of the vector: one that holds every leaf."""
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
    """The channel of a codec for vectors.

    Args:
        encode: (key, state, vector) -> (code, state).
        decode: (code, layout) -> vector.
        init: (layout) -> state. Default: no state.
        omega: (d) -> the variance bound; None for a biased codec.

    Returns:
        A channel for uploads of any structure.

    Example:
        >>> half = by_vector(
        ...     lambda key, state, vector: (vector.astype(jnp.float16), state),
        ...     lambda code, layout: code.astype(layout.dtype),
        ...     omega=None,
        ... )
        >>> up = {"a": jnp.ones(3), "b": jnp.float32(2.0)}
        >>> payload, _ = half.encode(jax.random.key(0), half.init(up), up)
        >>> half.bits(payload), float(half.decode(payload)["b"])
        (64, 2.0)
    """

    def encode_upload(key, state, up):
        layout = layout_of(up)
        if layout.size == 0:
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
    """The layout of an upload, from its arrays or from their shapes.

    Example:
        >>> layout_of({"a": jnp.ones((2, 3)), "b": jnp.float32(2.0)}).size
        7
    """
    leaves, structure = jax.tree.flatten(tree.specs(up))
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(
                f"only floats can be compressed, the upload has {leaf.dtype}; "
                "name the parts to compress, with `masked` or with `part` in a configuration"
            )
    return Layout(
        structure, tuple(leaf.shape for leaf in leaves), tuple(str(leaf.dtype) for leaf in leaves)
    )


def length(values: Float[Array, "*blocks d"], norm: Norm) -> Float[Array, "*blocks"]:
    """The norm over the last axis.

    Values are divided by the largest first, so that squares neither overflow nor vanish.

    Example:
        >>> float(length(jnp.array([3e30, 4e30]), 2)) == float(jnp.float32(5e30))
        True
    """
    largest = jnp.max(jnp.abs(values), axis=-1)
    if norm == "inf":
        return largest
    scaled = fractions(values, largest)
    return largest * (jnp.sum(scaled, -1) if norm == 1 else jnp.sqrt(jnp.sum(scaled**2, -1)))


def fractions(
    values: Float[Array, "*blocks d"], length: Float[Array, "*blocks"]
) -> Float[Array, "*blocks d"]:
    """|x| / length, in [0, 1]; zero in a block of zeros.

    Example:
        >>> fractions(jnp.array([3.0, -4.0]), jnp.array(8.0)).tolist()
        [0.375, 0.5]
    """
    return jnp.abs(in_units(values, length[..., None]))


def in_units(values: Float[Array, "*s"], unit: Float[Array, "*u"]) -> Float[Array, "*t"]:
    """Values divided by a unit, also the largest floats; as they are where the unit is zero.

    XLA multiplies by a reciprocal, and that of a float32 above 2^126 counts as zero: values and
    unit are first divided by four there.

    Example:
        >>> in_units(jnp.array([3e38, -1.5e38]), jnp.array(3e38)).tolist()
        [1.0, -0.5]
    """
    shrink = jnp.where(unit > 1, 0.25, 1).astype(unit.dtype)
    return (values * shrink) / (jnp.where(unit > 0, unit, 1) * shrink)


def poisoned(values: Float[Array, " k"], vector: Vector) -> Float[Array, " k"]:
    """`values`, or NaN where `vector` has a value that is not finite, which may not be sent.

    Example:
        >>> poisoned(jnp.array([1.0]), jnp.array([1.0, jnp.inf])).tolist()
        [nan]
    """
    return jnp.where(jnp.all(jnp.isfinite(vector)), values, jnp.nan)


def check_norm(name: str, norm: object) -> None:
    """Raise a ValueError for a norm that is not 1, 2 or "inf"."""
    if norm not in (1, 2, "inf"):
        raise ValueError(f'{name}: norm must be 1, 2 or "inf", got {norm!r}')
