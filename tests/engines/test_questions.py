"""Questions to all clients, asked of engines whose sites remember what they have answered."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.core.keys import root_key
from covey.data.federated import FederatedData
from covey.engines.loop import Loop
from covey.engines.questions import ByRounds, Questions
from covey.engines.simulate import Simulation
from covey.engines.site_programs import Asked, Queries


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


def test_a_site_answers_in_the_precision_of_the_question():
    """A process of its own does not know that the server has turned double precision on."""
    data = FederatedData.from_clients({"a": (np.zeros((2, 1)), np.zeros(2))}).shard(0, "train")
    queries = Queries({"sum": scaled_sum}, root_key(0))
    for factor in (np.float64(1 + 2**-40), np.float32(1)):
        asked = Asked(np.int32(0), factor)
        answer, finite = queries.answer("sum", root_key(0), 0, asked, data)
        (found,) = jax.tree.leaves(answer.sent.payload)
        assert bool(finite)
        assert (found.dtype, float(found)) == (factor.dtype, 2 * float(factor))
