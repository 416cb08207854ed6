"""Every method gives the same run vectorised and one client at a time over bytes, whatever goes
wrong on the way.
"""

import jax
import numpy as np
import pytest
from methods import MADE, METHODS, cohort_for, remembering
from problems import linear_gaussian

from covey.channel import bfloat16, dithering, identity, masked, partition, top_k
from covey.core import cohort
from covey.core.faults import Faults
from covey.engines.loop import Loop
from covey.engines.simulate import Simulation

EVERY = MADE | METHODS
AVAILABLE = np.random.default_rng(0).random((5, 4)) < 0.6
COHORTS = {
    "full": cohort.full(),
    "bernoulli": cohort.bernoulli(np.array([0.3, 0.9, 0.5, 0.6, 1.0])),
    "uniform": cohort.uniform(3),
    "weighted": cohort.weighted(4),
    "trace": cohort.trace(AVAILABLE, cohort.uniform(4)),
}


@pytest.fixture(scope="module")
def data():
    return linear_gaussian().data.split(validation=0.2, test=0.2, seed=3)


def assert_agree(method, data, rounds=4, tolerance=1e-5, **options):
    fast = Simulation(method(), data, seed=11, chunk=2, **options)
    plain = Loop(method(), data, seed=11, **options)
    fast_state, fast_lines = fast.advance(fast.start(), rounds)
    plain_state, plain_lines = plain.advance(plain.start(), rounds)
    for one, other in zip(fast_lines, plain_lines, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_allclose(other[name], value, rtol=10 * tolerance, err_msg=name)
    together = (
        (fast.snapshot(fast_state), fast.evaluate(fast_state)),
        (plain.snapshot(plain_state), plain.evaluate(plain_state)),
    )
    for one, other in zip(*map(jax.tree.leaves, together), strict=True):
        np.testing.assert_allclose(other, one, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("name", ["forgetting", pytest.param("fedpop", marks=pytest.mark.slow)])
def test_methods(name, data):
    """All others in `engines/test_sites.py`, beside sites."""
    method = EVERY[name]
    assert_agree(method, data, cohort=cohort_for(method()))


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param(scheme, id=name, marks=() if name == "uniform" else pytest.mark.slow)
        for name, scheme in COHORTS.items()
    ],
)
def test_cohorts_with_lost_late_and_repeated_messages(scheme, data):
    faults = Faults(dropout=0.3, straggler=0.2, repeat=0.3)
    assert_agree(remembering, data, rounds=8, cohort=scheme, faults=faults)


@pytest.mark.slow
@pytest.mark.parametrize("method", MADE)
def test_a_lossy_channel(method, data):
    # A rounding that falls the other way changes a number by up to 2^-7 of its size.
    assert_agree(
        EVERY[method], data, channel=bfloat16(), faults=Faults(dropout=0.3), tolerance=2**-7
    )


def test_a_memory_moves_by_what_was_sent(data):
    """Through a lossy channel and lost uploads, the changes of all memories add up to what the
    server has summed.
    """
    engine = Simulation(remembering(), data, seed=0, channel=bfloat16(), faults=Faults(dropout=0.4))
    state, _ = engine.advance(engine.start(), 4)  # until everyone has a memory
    before = engine.snapshot(state)
    assert before.seen.all()
    state, more = engine.advance(state, 6)
    after = engine.snapshot(state)
    assert sum(line["lost"] for line in more) > 5
    moved = np.asarray(after.nodes.state) - np.asarray(before.nodes.state)
    summed = np.asarray(after.server.memory) - np.asarray(before.server.memory)
    np.testing.assert_allclose(moved.sum(0) / 0.5, summed / 0.1, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_channel_by_part(data):
    channel = partition({"count": identity(), "move": bfloat16()})
    assert_agree(MADE["forgetting"], data, channel=channel, tolerance=2**-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "channel"),
    [
        ("remembering", top_k(k=1)),  # whose memory must survive lost uploads too
        pytest.param("fedpop", masked("phi", dithering(levels=7)), marks=pytest.mark.slow),
    ],
    ids=["top_k", "masked"],
)
def test_compressors(method, channel, data):
    assert_agree(EVERY[method], data, channel=channel, faults=Faults(dropout=0.3))


@pytest.mark.slow
def test_draws(data):
    rest, new = data.hold_out(["site2"])
    engines = [
        engine(remembering(), rest, seed=1, cohort=cohort.uniform(2))
        for engine in (Simulation, Loop)
    ]
    states = [engine.advance(engine.start(), 1)[0] for engine in engines]
    # Two that took part and two that did not, in an order of their own.
    mixed = np.array([3, 0, 2, 1])
    known = [
        engine.draws(state, mixed, 5, chains=(0, 7))
        for engine, state in zip(engines, states, strict=True)
    ]
    assert known[0].shape == (4, 2, 5, 3)
    np.testing.assert_allclose(*known, rtol=1e-5)
    assert np.all(np.abs(known[0][:, 0] - known[0][:, 1]) > 0)  # chains are not copies
    for engine, state in zip(
        engines, states, strict=True
    ):  # a client's draws do not depend on who else is asked for
        np.testing.assert_allclose(
            engine.draws(state, np.array([2]), 5, chains=(7,))[0, 0], known[0][2, 1], rtol=1e-5
        )
    unseen = [
        engine.draws(state, np.array([0]), 5, data=new)
        for engine, state in zip(engines, states, strict=True)
    ]
    np.testing.assert_allclose(*unseen, rtol=1e-5)
    without = Simulation(METHODS["fedavg"](), data, seed=1)
    with pytest.raises(ValueError, match="fedavg has no posterior of a client"):
        without.draws(without.start(), np.array([0]), 5)


@pytest.mark.parametrize(
    "name", ["remembering", pytest.param("forgetting", marks=pytest.mark.slow)]
)
def test_prediction(name, data):
    x, method = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32), MADE[name]
    engines = (
        Simulation(method(), data, seed=1),
        Loop(method(), data, seed=1, channel=identity()),
    )
    means = [e.predict(e.advance(e.start(), 2)[0], 3, x).mean for e in engines]
    np.testing.assert_allclose(*means, rtol=1e-4, atol=1e-5)
