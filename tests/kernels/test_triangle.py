"""Symmetric matrices as triangles, there and back."""

import jax.numpy as jnp
import numpy as np
import pytest

from covey.kernels.triangle import packed, unpacked


@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (3, 2, 5, 5), (0, 0)])
def test_there_and_back(shape):
    half = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    matrix = half + np.swapaxes(half, -1, -2)
    entries = packed(jnp.asarray(matrix))
    assert entries.shape == (*shape[:-2], shape[-1] * (shape[-1] + 1) // 2)
    np.testing.assert_array_equal(unpacked(entries), matrix)


def test_what_is_no_triangle_is_refused():
    with pytest.raises(ValueError, match="no triangle has 5 entries"):
        unpacked(jnp.zeros(5))
