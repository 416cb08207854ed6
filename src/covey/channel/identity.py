"""The channel that changes nothing."""

from covey.core.algorithm import no_state
from covey.core.node import Channel


def identity() -> Channel:
    """Uploads travel as they are."""
    return Channel(
        init=no_state,
        encode=lambda key, state, up: (up, state),
        decode=lambda payload: payload,
        omega=lambda up: 0.0,
    )
