"""Bytes come back as they were, or not at all."""

import collections
import random
import struct
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from covey.core import tree, wire

TREE = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": (np.int64(7), np.array([True, False])),
    "c": np.zeros((0, 4)),
}


def checked(body: bytes | bytearray) -> bytes:
    """The body with its checksum."""
    return bytes(body) + struct.pack("<I", zlib.crc32(body))


DTYPES = [np.float32, np.float64, np.int8, np.int64, np.uint16, np.bool_, np.float16]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.sampled_from(DTYPES).flatmap(
            lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
        ),
        max_size=4,
    )
)
def test_round_trip(arrays):
    back = wire.unpack(wire.pack(arrays), arrays)
    for one, other in zip(arrays, back, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_device_arrays_and_bfloat16():
    value = jnp.linspace(-1, 1, 5).astype(jnp.bfloat16)
    np.testing.assert_array_equal(wire.unpack(wire.pack(value), value), value)


def test_any_flipped_bit_is_noticed():
    data = wire.pack(TREE)
    rng = np.random.default_rng(0)
    for position in rng.integers(0, 8 * len(data), 200):
        broken = bytearray(data)
        broken[position // 8] ^= 1 << (position % 8)
        with pytest.raises(wire.WireError):
            wire.unpack(bytes(broken), TREE)


def test_any_cut_is_noticed():
    data = wire.pack(TREE)
    for length in range(len(data)):
        with pytest.raises(wire.WireError):
            wire.unpack(data[:length], TREE)
    with pytest.raises(wire.WireError):
        wire.unpack(data + b"\0", TREE)


@pytest.mark.parametrize(
    "other",
    [
        {**TREE, "a": np.zeros((3, 2), np.float32)},
        {**TREE, "a": np.zeros((2, 3), np.int32)},
        {**TREE, "a": np.zeros((2, 3), np.float64)},
        {**TREE, "c": np.zeros((4, 0))},
        {**TREE, "d": np.zeros(1)},
        {**TREE, "d": np.zeros((0, 2))},
        {"a": TREE["a"]},
        {**TREE, "a": jax.ShapeDtypeStruct((-1, 2), np.float32)},
    ],
)
def test_other_arrays_are_refused(other):
    """Also where the number of bytes is the same."""
    with pytest.raises(wire.WireError, match="was expected: is it of another method, model"):
        wire.unpack(wire.pack(TREE), other)


def test_what_was_expected_is_listed():
    expected = r"34 bytes of values .*; float32\[2, 3\], uint8\[\] was expected"
    with pytest.raises(wire.WireError, match=expected):
        wire.unpack(wire.pack(TREE), (TREE["a"], np.uint8(1)))
    with pytest.raises(wire.WireError, match=r"bool\[\], and 2 more was expected"):
        wire.unpack(wire.pack(TREE), [np.bool_(True)] * 8)


def test_any_length():
    like = jax.ShapeDtypeStruct((-1, 3), np.float32)
    np.testing.assert_array_equal(wire.unpack(wire.pack(TREE["a"]), like), TREE["a"])
    with pytest.raises(ValueError, match=r"only one axis .* any length, got float32\[-1, -1\]"):
        wire.unpack(wire.pack(TREE["a"]), jax.ShapeDtypeStruct((-1, -1), np.float32))


def test_a_bool_is_false_or_true():
    changed = bytearray(wire.pack(np.array([True, False]))[:-4])
    changed[-1] = 2
    with pytest.raises(wire.WireError, match=r"bool\[2\] has values other than false and true"):
        wire.unpack(checked(changed), np.zeros(2, bool))


def test_a_file_of_the_earlier_format_is_named():
    with pytest.raises(wire.WireError, match="format 1, of an earlier version"):
        wire.unpack(checked(b"covey\x01" + bytes(4)), ())


@pytest.mark.parametrize("value", [TREE, (), jnp.zeros((3, 2), jnp.bfloat16), {"a": 1, "b": 2.0}])
def test_size_is_that_of_the_message(value):
    assert wire.size(value) == wire.size(tree.specs(value)) == len(wire.pack(value))


def test_objects_are_not_sent():
    with pytest.raises(TypeError, match="object array cannot be sent"):
        wire.pack(np.array([{}]))


FREE = {"x": jax.ShapeDtypeStruct((-1, 3), np.float32), "n": jax.ShapeDtypeStruct((-1,), np.int64)}
MUTATED = {
    "several arrays": (TREE, TREE),
    "upload": ((np.float32(3), np.arange(105, dtype=np.uint8), np.bool_(True)),) * 2,
    "nothing": ((), ()),
    "any length": ({"x": np.ones((4, 3), np.float32), "n": np.arange(4)}, FREE),
    "empty": ({"x": np.ones((0, 3), np.float32), "n": np.arange(0)}, FREE),
}


def mutated(body: bytes, rng: random.Random) -> bytes:
    """A body with some bytes changed, cut out, repeated or added."""
    for _ in range(rng.randint(1, 3)):
        at, length = rng.randint(0, len(body)), rng.randint(0, 12)
        strange = rng.choice([rng.randbytes(length), b"\xff" * length, b"\0" * length])
        body = rng.choice(
            [
                body[:at] + strange + body[at + length :],
                body[:at] + body[at + length :],
                body[:at] + strange + body[at:],
                body[:at] + body[max(at - length, 0) :],
            ]
        )
    return body


def fits(value, like) -> bool:
    return jax.tree.structure(value) == jax.tree.structure(like) and all(
        one.dtype == spec.dtype
        and one.ndim == len(spec.shape)
        and all(length in (-1, here) for length, here in zip(spec.shape, one.shape, strict=True))
        for one, spec in zip(jax.tree.leaves(value), jax.tree.leaves(like), strict=True)
    )


@pytest.mark.parametrize("count", [5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutated_messages_with_a_valid_checksum_are_refused_or_fit(count):
    """Seeded mutations: a WireError, or a value of the expected types and shapes."""
    rng = random.Random(0)
    seen = collections.Counter()
    for value, like in MUTATED.values():
        body = wire.pack(value)[:-4]
        for _ in range(count // len(MUTATED)):
            data = checked(mutated(body, rng))
            try:
                found = wire.unpack(data, like)
            except wire.WireError:
                seen["refused"] += 1
            except Exception as error:
                seen[type(error).__name__] += 1
            else:
                seen["fits" if fits(found, like) else "does not fit"] += 1
                assert sum(leaf.nbytes for leaf in jax.tree.leaves(found)) <= len(data)
    assert set(seen) == {"refused", "fits"}, seen
