"""The channel that changes nothing."""

from covey.core.algorithm import no_state
from covey.core.channel import Channel


def identity() -> Channel:
    """Uploads travel as they are.

    Returns:
        A channel for `covey.run(channel=...)`; the default. omega = 0.

    Example:
        >>> import jax
        >>> payload, _ = identity().encode(jax.random.key(0), (), jax.numpy.arange(3.0))
        >>> identity().decode(payload).tolist(), identity().bits(payload)
        ([0.0, 1.0, 2.0], 96)
    """
    return _IDENTITY  # one object, so that runs share compiled programs


_IDENTITY = Channel(
    init=no_state,
    encode=lambda key, state, up: (up, state),
    decode=lambda payload: payload,
    omega=lambda up: 0.0,
)
