"""Faults between a client and the server, drawn from the seed: messages lost, late or repeated."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from covey.core.keys import Integer, Stream, key_for

ARRIVES, LOST_DOWN, LOST_UP, LATE, REPEATED = range(5)
_ROUNDING = 1e-9  # of probabilities that should add up to one


class Faults(NamedTuple):
    """Probabilities of faults, for each client and round independently.

    Attributes:
        dropout: A message is lost: the broadcast or, as often, the upload.
        straggler: The upload arrives after the round has closed, and is refused.
        repeat: Both messages arrive twice; the second copy must change nothing.

    Example:
        >>> Faults(dropout=0.1, straggler=0.05).checked()
        Faults(dropout=0.1, straggler=0.05, repeat=0.0)
    """

    dropout: float = 0.0
    straggler: float = 0.0
    repeat: float = 0.0

    def checked(self) -> "Faults":
        """The faults, if a run with them is possible.

        Raises:
            ValueError: the values are not probabilities, or no upload would ever arrive.
        """
        if not (min(self) >= 0 and sum(self) <= 1 + _ROUNDING):
            raise ValueError(
                f"faults: probabilities must be at least 0 and add up to at most 1, got {self}"
            )
        if self.dropout + self.straggler >= 1:
            raise ValueError(
                f"faults: dropout={self.dropout:g} and straggler={self.straggler:g} add up to 1: "
                "every message would be lost or late, and no upload would ever arrive; "
                "choose less than 1 together"
            )
        return self


def fate(faults: Faults, root: Key[Array, ""], t: Integer, client_id: Integer) -> Int[Array, ""]:
    """The fate of a client's messages in a round.

    Args:
        faults: Probabilities of each fault.
        root: Key of the run, from `keys.root_key`.
        t: Round, counted from 0.
        client_id: Stable integer of the client.

    Returns:
        One of ARRIVES, LOST_DOWN, LOST_UP, LATE and REPEATED.

    Example:
        >>> int(fate(Faults(), jax.random.key(0), 0, 3)) == ARRIVES
        True
    """
    draw = jax.random.uniform(key_for(root, Stream.FAULT, t, client_id))
    chances = (faults.dropout / 2, faults.dropout / 2, faults.straggler, faults.repeat)
    index = jnp.searchsorted(jnp.cumsum(jnp.asarray(chances, jnp.float32)), draw, side="right")
    return jnp.asarray((LOST_DOWN, LOST_UP, LATE, REPEATED, ARRIVES))[index]
