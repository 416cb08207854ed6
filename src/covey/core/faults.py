"""What goes wrong between a site and the server, drawn from the seed: messages lost, late, or
delivered twice.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from covey.core.keys import Integer, Stream, key_for

ARRIVES, LOST_DOWN, LOST_UP, LATE, REPEATED = range(5)


class Faults(NamedTuple):
    """Probabilities, for each client and round.

    dropout: the broadcast or, as often, the upload is lost.
    straggler: the upload comes after the round is closed; it is refused, as the round it answers is
        over.
    repeat: the messages arrive twice; the second copy must change nothing.
    """

    dropout: float = 0.0
    straggler: float = 0.0
    repeat: float = 0.0

    def checked(self) -> "Faults":
        """Itself, or an error."""
        if min(self) < 0 or sum(self) > 1:
            raise ValueError(
                f"faults: probabilities must be at least 0 and add up to at most 1, got {self}"
            )
        return self


def fate(faults: Faults, root: Key[Array, ""], t: Integer, client_id: Integer) -> Int[Array, ""]:
    """What happens to this client's messages in round t: one of the five fates above."""
    draw = jax.random.uniform(key_for(root, Stream.FAULT, t, client_id))
    chances = (faults.dropout / 2, faults.dropout / 2, faults.straggler, faults.repeat)
    place = jnp.searchsorted(jnp.cumsum(jnp.asarray(chances, jnp.float32)), draw, side="right")
    return jnp.asarray((LOST_DOWN, LOST_UP, LATE, REPEATED, ARRIVES))[place]
