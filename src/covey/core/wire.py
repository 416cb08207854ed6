"""Trees of arrays as checked bytes, and back. No pickle: a reader builds only arrays, of the types
that are named here.

Layout, little-endian: magic, number of leaves; for each leaf its type, rank, shape and raw values;
a CRC-32 of all that. The structure of the tree does not travel: both sides know the method, and
`unpack` checks every leaf against what it expects.
"""

import struct
import zlib

import jax
import numpy as np
from jaxtyping import PyTree

from covey.core import tree

_MAGIC = b"covey\x01"
_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 bfloat16"
_DTYPES = tuple(np.dtype(name) for name in _NAMES.split())


class WireError(ValueError):
    """Bytes that are not what they should be: cut short, changed on the way, or of another
    method.
    """


def pack(value: PyTree) -> bytes:
    """The tree's leaves as bytes."""
    leaves = [np.asarray(leaf, order="C") for leaf in jax.tree.leaves(value)]
    parts = [_MAGIC, struct.pack("<I", len(leaves))]
    for leaf in leaves:
        if leaf.dtype not in _DTYPES:
            raise TypeError(f"a {leaf.dtype} array cannot be sent; allowed are {_NAMES}")
        parts.append(
            struct.pack(f"<BB{leaf.ndim}Q", _DTYPES.index(leaf.dtype), leaf.ndim, *leaf.shape)
        )
        parts.append(leaf.tobytes())
    body = b"".join(parts)
    return body + struct.pack("<I", zlib.crc32(body))


def unpack(data: bytes, like: PyTree) -> PyTree:
    """The tree of `like` (arrays or shapes; -1 is any length) with the values of `data`; WireError
    where they do not fit.
    """
    if len(data) < len(_MAGIC) + 8 or not data.startswith(_MAGIC):
        raise WireError(f"not a message of this format ({len(data)} bytes)")
    body, (checksum,) = data[:-4], struct.unpack("<I", data[-4:])
    if zlib.crc32(body) != checksum:
        raise WireError(
            f"the checksum of {len(data)} bytes does not match: they were cut short or changed on the way"
        )
    expected, structure = jax.tree.flatten(tree.specs(like))
    (number,) = struct.unpack_from("<I", body, len(_MAGIC))
    if number != len(expected):
        raise WireError(
            f"{number} arrays arrived, {len(expected)} were expected: is it another method or model?"
        )
    at = len(_MAGIC) + 4
    leaves = []
    for place, spec in enumerate(expected):
        code, rank = struct.unpack_from("<BB", body, at)
        shape = struct.unpack_from(f"<{rank}Q", body, at + 2)
        at += 2 + 8 * rank
        dtype = _DTYPES[code] if code < len(_DTYPES) else None
        if (
            dtype != spec.dtype
            or rank != len(spec.shape)
            or any(e not in (-1, s) for e, s in zip(spec.shape, shape, strict=True))
        ):
            raise WireError(
                f"array {place} is {dtype}{list(shape)}, {spec.dtype}{list(spec.shape)} was expected"
            )
        values = np.frombuffer(body, spec.dtype, int(np.prod(shape, dtype=np.int64)), at)
        leaves.append(values.reshape(shape))
        at += values.nbytes
    if at != len(body):
        raise WireError(f"{len(body) - at} bytes are left over")
    return jax.tree.unflatten(structure, leaves)
