"""Questions to all clients, asked of engines whose sites remember what they have answered."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from covey.data.federated import FederatedData
from covey.engines.loop import Loop
from covey.engines.questions import ByRounds, Questions
from covey.engines.simulate import Simulation


def scaled_sum(key, factor, data):
    """`factor` times the client's number of rows."""
    return factor * data.count


@pytest.mark.parametrize("engine", [Simulation, Loop])
def test_a_question_is_answered_again_when_it_is_asked_with_other_values(engine):
    """Also by a site of the engine `loop`, which repeats an answer when a message is repeated."""
    rows = {name: (np.zeros((count, 1)), np.zeros(count)) for name, count in (("a", 2), ("b", 3))}
    data = FederatedData.from_clients(rows)
    ask = Questions(ByRounds(partial(engine, data=data, seed=0))).asker({"sum": scaled_sum})
    assert [float(ask("sum", jnp.asarray(factor))) for factor in (1.0, 2.0, 4.0)] == [5, 10, 20]
