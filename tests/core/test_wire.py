"""Bytes come back as they were, or not at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from covey.core import wire

TREE = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": (np.int64(7), np.array([True, False])),
    "c": np.zeros((0, 4)),
}
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
    for place in rng.integers(0, 8 * len(data), 200):
        broken = bytearray(data)
        broken[place // 8] ^= 1 << (place % 8)
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
    ("other", "message"),
    [
        (
            {**TREE, "a": np.zeros((3, 2), np.float32)},
            r"array 0 is float32\[2, 3\], float32\[3, 2\] was expected",
        ),
        ({**TREE, "a": np.zeros((2, 3), np.float64)}, r"float64\[2, 3\] was expected"),
        ({**TREE, "d": np.zeros(1)}, "4 arrays arrived, 5 were expected"),
    ],
)
def test_another_tree_is_refused(other, message):
    with pytest.raises(wire.WireError, match=message):
        wire.unpack(wire.pack(TREE), other)


def test_any_length():
    like = jax.ShapeDtypeStruct((-1, 3), np.float32)
    np.testing.assert_array_equal(wire.unpack(wire.pack(TREE["a"]), like), TREE["a"])


def test_objects_are_not_sent():
    with pytest.raises(TypeError, match="object array cannot be sent"):
        wire.pack(np.array([{}]))
