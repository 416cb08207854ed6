"""Clipping: an upload whose norm is too large is scaled down to the largest allowed.

    C(x) = x min(1, c / ||x||_2),

over all numbers of the upload together. It bounds what one client can do to a sum, which is what
privacy needs, and it stands before another channel, as rounding may make a vector longer again.
Biased: no omega.
"""

import jax
import jax.numpy as jnp

from covey.channel.identity import identity
from covey.channel.vector import layout_of, length
from covey.core.node import Channel


def clipping(*, maximum: int | float, then: Channel | None = None) -> Channel:
    """Uploads scaled down to a 2-norm of at most `maximum`, then sent through `then` (default: as
    they are); biased.
    """
    if not maximum > 0:
        raise ValueError(f"clipping: maximum must be above 0, got {maximum:g}")
    inner = identity() if then is None else then

    def encode(key, state, up):
        dtype, leaves = layout_of(up).dtype, jax.tree.leaves(up)
        whole = length(
            jnp.concatenate(
                [jnp.zeros(1, dtype), *(leaf.ravel().astype(dtype) for leaf in leaves)]
            ),
            2,
        )
        # A norm that is not finite keeps the numbers as they are: they show themselves what is
        # wrong.
        scale = jnp.where(jnp.isfinite(whole) & (whole > maximum), maximum / whole, 1)
        return inner.encode(
            key, state, jax.tree.map(lambda leaf: leaf * scale.astype(leaf.dtype), up)
        )

    return Channel(inner.init, encode, inner.decode, inner.bits)
