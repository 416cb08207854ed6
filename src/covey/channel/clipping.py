"""Clipping of an upload's norm."""

import jax
import jax.numpy as jnp

from covey.channel.identity import identity
from covey.channel.vector import in_units, layout_of, length
from covey.core.channel import Channel


def clipping(*, maximum: int | float, then: Channel | None = None) -> Channel:
    """Uploads scaled down to a 2-norm of at most `maximum`; biased.

        C(x) = x min(1, c / ||x||_2),

    x all arrays that the channel is given, as one vector. It bounds, up to rounding, what one
    client can add to an unweighted sum of uploads. It does not bound the parts of an upload that
    do not pass through it: those that a method keeps exact (weights, counts), and those outside of
    `masked`. It adds no noise, so it gives no differential privacy by itself. Biased, so there is
    no omega.

    Args:
        maximum: Largest norm of an upload (c above), in the units of the upload.
        then: Channel for the clipped upload; clipping comes first, as rounding may make a vector
            longer again. Default: `identity()`.

    Returns:
        A channel for `covey.run(channel=...)`.

    Example:
        >>> channel, up = clipping(maximum=1.0), jnp.array([3.0, -4.0])
        >>> payload, _ = channel.encode(jax.random.key(0), channel.init(up), up)
        >>> [round(value, 4) for value in channel.decode(payload).tolist()]
        [0.6, -0.8]
    """
    if not maximum > 0:
        raise ValueError(f"clipping: maximum must be above 0, got {maximum:g}")
    inner = identity() if then is None else then

    def encode(key, state, up):
        dtype = layout_of(up).dtype
        parts = [leaf.ravel().astype(dtype) for leaf in jax.tree.leaves(up)]
        vector = jnp.concatenate([jnp.zeros(1, dtype), *parts])
        # The norm in units of the largest value: that of finite values may overflow otherwise.
        unit = length(vector, "inf")
        norm = length(in_units(vector, unit), 2)
        # Where a value is not finite all stay as they are: they show what is wrong.
        clipped = jnp.isfinite(unit) & (norm * unit > maximum)

        def clip(leaf):
            short = in_units(leaf.astype(dtype), unit) * (maximum / norm)
            return jnp.where(clipped, short.astype(leaf.dtype), leaf)

        return inner.encode(key, state, jax.tree.map(clip, up))

    return Channel(inner.init, encode, inner.decode, inner.bits)
