"""What rounds and evaluations are compiled from: runs with equal parts share programs, see
`sharing.py`.
"""

from typing import Any, NamedTuple

from covey.core.algorithm import Algorithm, no_state
from covey.core.channel import Channel
from covey.core.cohort import Sampler
from covey.core.faults import Faults
from covey.engines.setup import Setup, Shapes

_NONE: Any = no_state
_NOTHING = Algorithm("", _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE, _NONE)


class RoundParts(NamedTuple):
    """What the rounds of a run are compiled from: neither keys nor data, which are arguments.

    Attributes:
        algorithm: The method, as far as its rounds go.
        channel: What uploads pass through.
        sampler: Who takes part in a round.
        faults: Probabilities of lost, late and repeated messages.
        shapes: Shapes of states and messages.
    """

    algorithm: Algorithm
    channel: Channel
    sampler: Sampler
    faults: Faults
    shapes: Shapes


def round_parts(setup: Setup) -> RoundParts:
    """The parts of a setup that rounds are compiled from."""
    rounds = _rounds_of(setup.algorithm)
    return RoundParts(rounds, setup.channel, setup.sampler, setup.faults, setup.shapes)


def chunk_parts(method: Algorithm, channel: Channel, shapes: Shapes) -> RoundParts:
    """The parts that the round of a chunk is compiled from, whatever the cohort and the faults."""
    return RoundParts(_rounds_of(method), channel, Sampler(0, _NONE), Faults(), shapes)


def _rounds_of(method: Algorithm) -> Algorithm:
    return _NOTHING._replace(
        broadcast=method.broadcast,
        server=method.server,
        init_client=method.init_client,
        client=method.client,
        commit=method.commit,
        used=method.used,
    )


def measuring_part(method: Algorithm) -> Algorithm:
    """The part of a method that measures of its predictions are compiled from."""
    return _NOTHING._replace(predict=method.predict, evaluate=method.evaluate)
