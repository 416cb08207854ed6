"""The computations of a server with separate clients: cohorts, sums, its own step."""

from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from covey.core import tree
from covey.core.algorithm import Aggregate, Message, State
from covey.core.keys import Stream, key_for
from covey.core.protocol import Reason, Refusal
from covey.core.wire import WireError
from covey.engines import round as round_of
from covey.engines.messages import Answer, unpack_answer, used_by
from covey.engines.reception import Reception
from covey.engines.record import Counts, Record
from covey.engines.round import Tally
from covey.engines.setup import Setup


class Gathering:
    """The compiled functions of the server. Engines of one process may share them.

    Attributes:
        setup: The constants of a run.
        like: The shapes of an answer.
    """

    def __init__(self, setup: Setup):
        self.setup = setup
        self.like = Answer(setup.shapes.sent, setup.shapes.client_info)
        self._used = partial(used_by, setup.algorithm, setup.channel)
        self._cohort = jax.jit(setup.sampler.sample)
        self._add = jax.jit(self._added)
        self._decodes = jax.jit(lambda sent: tree.is_finite(round_of.received(setup.channel, sent)))
        self._close = jax.jit(partial(round_of.close_round, setup))

    def start(self) -> State:
        """The server's state before the first round."""
        return self.setup.first_server()

    def broadcast(self, server: State) -> Message:
        """The message to the clients of a round."""
        return jax.device_get(self.setup.algorithm.broadcast(server))

    def cohort(self, t: int) -> list[tuple[int, float]]:
        """Positions of the clients of round t, and their weights."""
        found = self._cohort(key_for(self.setup.root, Stream.COHORT, t), t)
        index, weight, mask = map(np.asarray, (found.index, found.weight, found.mask))
        return [(int(at), float(w)) for at, w in zip(index[mask], weight[mask], strict=True)]

    def usable(
        self,
        found: Reception,
        weights: Mapping[str, float],
        down: Message,
        rows: Mapping[str, int] | None = None,
    ) -> dict[str, Answer]:
        """The answers to a broadcast that count, in the order of `weights`.

        What is not of the right shapes is damaged, and what does not decode to finite values has
        diverged, whatever the site says of it; the reception is told. Where the training rows of
        each site are given, an upload counts for what so many can: no method weighs a client by
        more than its rows, and one more.
        """
        good, used = {}, self._used(down)
        for name in [name for name in weights if name in found.answers]:
            try:
                answer = unpack_answer(found.answers[name], self.like, used)
            except WireError as error:
                found.spoil(name, str(error))
                continue
            most = None if rows is None else rows[name] + 1
            weight = answer.sent.weight
            if not self._decodes(answer.sent):
                found.refuse(name, Refusal(Reason.DIVERGED, "the upload is not finite"))
            elif weight is not None and most is not None and not 0 <= weight <= most:
                found.spoil(name, f"its upload counts for {weight:g}, and not for 0 to {most}")
            else:
                good[name] = answer
        return good

    def close(
        self,
        t: int,
        server: State,
        heard: Sequence[tuple[Answer, float]],
        counts: Counts,
    ) -> tuple[State, Record]:
        """The server's step of round t.

        Args:
            t: The round.
            server: The server's state before.
            heard: The answers that count, and the weights of their clients.
            counts: Counts of the messages by outcome; `clients` counts all who were heard, and
                `diverged` those of them whose values are not finite.

        Returns:
            The new state, and a record of the round. Infos are means over those who report them.
        """
        tally = round_of.empty_tally(self.setup.shapes)
        for answer, weight in heard:
            info = _nothing(tally.info) if answer.info is None else answer.info
            tally = self._add(tally, answer._replace(info=info), weight)
        reporting = sum(answer.info is not None for answer, _ in heard)
        scale = len(heard) / reporting if reporting else np.nan
        if scale != 1:
            tally = tally._replace(info=jax.tree.map(lambda total: scale * total, tally.info))
        tally = tally._replace(
            diverged=jnp.int32(counts.diverged), diverged_id=jnp.int32(counts.diverged_id)
        )
        return self._close(self.setup.root, t, server, tally, counts)

    def _added(self, tally: Tally, answer: Answer, weight: Float[Array, ""]) -> Tally:
        sent, own = round_of.received(self.setup.channel, answer.sent)
        share = weight * own
        one = Aggregate(jax.tree.map(lambda leaf: share * leaf, sent), sent, share, jnp.ones(()))
        return tally._replace(
            aggregate=jax.tree.map(jnp.add, tally.aggregate, one),
            info=jax.tree.map(jnp.add, tally.info, answer.info),
        )


def _nothing(info):
    return jax.tree.map(jnp.zeros_like, info)
