"""Uploads without the entries that a round does not use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.core import tree
from covey.core.trimming import filled, trimmed, unsent_bytes

UP = {
    "sums": {"gradient": np.pad(np.ones((2, 3)), [(0, 3), (0, 0)]), "curvature": np.zeros((0, 9))},
    "loss": np.array(2.0),
}


@pytest.mark.parametrize("lines", [2, 4, 5])
def test_what_was_cut_off_comes_back_as_zeros(lines):
    sent = trimmed(UP, {"sums": lines})
    assert sent["sums"]["gradient"].shape == (lines, 3)
    assert sent["sums"]["curvature"].shape == (0, 9)
    jax.tree.map(np.testing.assert_array_equal, filled(sent, UP), UP)


def test_shapes_and_bytes_are_those_of_what_is_sent():
    used = {"sums": jnp.int32(2)}
    assert trimmed(tree.specs(UP), used) == tree.specs(trimmed(UP, used))
    saved = tree.bits(UP) - tree.bits(trimmed(UP, used))
    assert 8 * int(jax.jit(lambda lines: unsent_bytes(UP, {"sums": lines}))(2)) == saved > 0


def test_parts_that_are_not_named_are_sent_whole():
    assert unsent_bytes(UP, {}) == 0
    assert jax.tree.map(np.shape, trimmed(UP, {})) == jax.tree.map(np.shape, UP)
