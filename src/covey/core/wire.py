"""Trees of arrays as checked bytes, for messages, checkpoints and files of draws. No pickle.

Layout: 4 bytes identify the arrays, then their raw values end to end, then 4 bytes of CRC-32 of
all before. The identity is a CRC-32 of the format and of every array's type and shape. Shapes and
the structure of the tree do not travel: both sides know the method, so the reader's `like` fixes
them, and nothing is allocated by what a message claims about itself.
"""

import math
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from covey.core import tree

_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16"
DTYPES = tuple(_NAMES.split())  # of arrays that can be sent
_DTYPES = tuple(map(np.dtype, DTYPES))
_WORD = struct.Struct("<I")
_OVERHEAD = 2 * _WORD.size
_FORMAT = "covey 2"
_EARLIER = b"covey\x01"  # how messages of format 1 begin
_MOST_LISTED = 6


class WireError(ValueError):
    """Bytes that cannot be read: cut short, changed on the way, or of another method or model."""


def pack(value: PyTree, *, checksum: bool = True) -> bytes:
    """Turn a tree of arrays into bytes that `unpack` can check.

    Args:
        value: Tree of arrays, on the host or on a device; Python scalars become JAX's default
            types.
        checksum: Whether to add one; it can be left out inside of an envelope, which has its own.

    Returns:
        The message: the values as they lie in memory (little-endian) and 8 bytes more, or 4
        without a checksum.

    Raises:
        TypeError: an array has a type that is not allowed, such as object.

    Example:
        >>> message = pack({"mean": np.zeros(3, np.float32), "count": np.int32(7)})
        >>> len(message)
        24
        >>> int(unpack(message, {"mean": np.zeros(3, np.float32), "count": np.int32(0)})["count"])
        7
    """
    arrays = _arrays(value)
    parts = [
        np.asarray(leaf, array.dtype).tobytes()
        for leaf, array in zip(jax.tree.leaves(value), arrays, strict=True)
    ]
    body = b"".join([_WORD.pack(_identity(arrays)), *parts])
    return body + _WORD.pack(zlib.crc32(body)) if checksum else body


def unpack(data: bytes, like: PyTree, *, checksum: bool = True) -> PyTree:
    """Read a message that `pack` made, and check it against what is expected.

    Args:
        data: The bytes of the message.
        like: Tree of arrays, or of their shapes and types, that the message should hold. Axes of
            length -1 may have any length, the same for all of them: it follows from the length
            of the message.
        checksum: Whether the message has one.

    Returns:
        The tree of `like` with the values of the message, as read-only numpy arrays.

    Raises:
        WireError: the message was cut short or changed on the way, or holds other arrays.

    Example:
        >>> message = pack(np.arange(6.0).reshape(2, 3))
        >>> unpack(message, jax.ShapeDtypeStruct((-1, 3), np.float64)).shape
        (2, 3)
        >>> unpack(message[:-1], jax.ShapeDtypeStruct((-1, 3), np.float64))
        Traceback (most recent call last):
        covey.core.wire.WireError: the checksum of 55 bytes does not match: they were cut short...
    """
    if data.startswith(_EARLIER):
        raise WireError(
            "the bytes are in format 1, of an earlier version of Covey; this version reads format 2"
        )
    if len(data) < (_OVERHEAD if checksum else _WORD.size):
        raise WireError(f"{len(data)} bytes are too few for a message")
    body = memoryview(data)[: -_WORD.size] if checksum else memoryview(data)
    if checksum and zlib.crc32(body) != _WORD.unpack(data[-_WORD.size :])[0]:
        raise WireError(
            f"the checksum of {len(data)} bytes does not match: "
            "they were cut short or changed on the way"
        )
    values, expected = body[_WORD.size :], _arrays(like)
    found = _with_length(expected, len(values))
    if found is None or _WORD.unpack_from(body)[0] != _identity(found):
        raise WireError(
            f"the message has {len(values)} bytes of values in arrays of other types or shapes; "
            f"{_listed(expected)} was expected: is it of another method, model or channel?"
        )
    leaves, start = [], 0
    for array in found:
        part = values[start : start + array.bytes]
        start += array.bytes
        if array.dtype == bool and np.any(np.frombuffer(part, np.uint8) > 1):
            raise WireError(f"{array} has values other than false and true")
        leaves.append(np.frombuffer(part, array.dtype).reshape(array.shape))
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def size(value: PyTree, *, checksum: bool = True) -> int:
    """The bytes of a message, found without packing it.

    Args:
        value: Tree of arrays, or of their shapes and types (`jax.eval_shape`).
        checksum: Whether the message has one.

    Returns:
        `len(pack(value))`.

    Example:
        >>> size({"mean": jax.ShapeDtypeStruct((10, 20), np.float32)})
        808
    """
    overhead = _OVERHEAD if checksum else _WORD.size
    return overhead + sum(array.bytes for array in _arrays(value))


class _Array(NamedTuple):
    """The type and shape of an array, as text: `float32[10, 20]`."""

    dtype: np.dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def of_length(self, length: int) -> "_Array":
        """With `length` in place of -1."""
        return self._replace(shape=tuple(length if n == -1 else n for n in self.shape))


def _arrays(value: PyTree) -> list[_Array]:
    arrays = [_Array(spec.dtype, spec.shape) for spec in jax.tree.leaves(tree.specs(value))]
    for array in arrays:
        if array.dtype not in _DTYPES:
            raise TypeError(f"a {array.dtype} array cannot be sent; allowed are {_NAMES}")
        if array.shape.count(-1) > 1:
            raise ValueError(f"only one axis of an array may have any length, got {array}")
    return arrays


def _identity(arrays: Sequence[_Array]) -> int:
    return zlib.crc32("\n".join([_FORMAT, *map(str, arrays)]).encode())


def _with_length(arrays: Sequence[_Array], total: int) -> list[_Array] | None:
    """The arrays with the length for -1 that gives `total` bytes; None where there is none."""
    at_zero, at_one = (sum(one.of_length(n).bytes for one in arrays) for n in (0, 1))
    length, rest = divmod(total - at_zero, at_one - at_zero or 1)
    if rest or length < 0 or (length and at_zero == at_one):
        return None
    return [array.of_length(length) for array in arrays]


def _listed(arrays: Sequence[_Array]) -> str:
    more = len(arrays) - _MOST_LISTED
    listed = [str(array) for array in arrays[:_MOST_LISTED]]
    return ", ".join(listed + ([f"and {more} more"] if more > 0 else [])) or "no array"
