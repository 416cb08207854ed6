"""Every method runs between sites as it does in one process, whatever stops and starts again."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import MADE, METHODS, VARIANTS, cohort_for, remembering
from problems import linear_gaussian

from covey.channel import dithering
from covey.core import cohort, protocol
from covey.core.algorithm import Approximation, Posterior
from covey.core.keys import secret_key
from covey.core.protocol import Kind
from covey.core.shard import all_rows
from covey.core.wire import pack, unpack
from covey.data.roster import entry, of_sites
from covey.engines.connection import Connection, Inquiry, greet
from covey.engines.loop import Loop
from covey.engines.questions import ByRounds, Questions
from covey.engines.reception import NoQuorumError
from covey.engines.simulate import Simulation
from covey.engines.transport import MemoryTransport, Mishaps
from sites import DIGEST, STUDY, World


class Point(NamedTuple):
    by: np.ndarray


EVERY = {**MADE, **METHODS, **VARIANTS}
QUANTISING = dithering(levels=100)


@pytest.fixture(scope="module")
def data():
    return linear_gaussian().data.split(validation=0.2, test=0.2, seed=3)


@pytest.fixture(scope="module")
def small():
    """Sites of about one size, which share compiled programs."""
    return linear_gaussian(sizes=(12, 16, 10, 14, 9)).data


def assert_close(one, other, tolerance=1e-4):
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)


def assert_same_rounds(lines, others):
    """Who took part and what was sent exactly, what was reported to float tolerance."""
    for one, other in zip(lines, others, strict=True):
        for name, value in one.items():
            exact = name.startswith(("clients", "bits", "bytes", "lost", "late"))
            tolerance = 0 if exact else 1e-3
            np.testing.assert_allclose(other[name], value, rtol=tolerance, err_msg=name)


def assert_agree(method, data, *, rounds=5, **options):
    """Cohorts exactly, the server's state and the metrics of all clients to float tolerance."""
    world = World(method(), data, **options)
    fast = Simulation(method(), data, seed=11, chunk=2, **options)
    expected, lines = fast.advance(fast.start(), rounds)
    for engine in (world.engine, Loop(method(), data, seed=11, **options)):
        state, own = engine.advance(engine.start(), rounds)
        assert_close(expected.server, state.server)
        assert_same_rounds(lines, own)
        np.testing.assert_array_equal(engine.seen(state), fast.seen(expected))
        assert_close(fast.evaluate(expected), engine.evaluate(state))
    for t, report in enumerate(world.reports[:rounds]):
        assert report.asked == tuple(world.names[at] for at, _ in world.engine.gathering.cohort(t))


@pytest.mark.slow
@pytest.mark.parametrize("method", EVERY.values(), ids=EVERY.keys())
def test_every_method_on_three_engines(method, data):
    assert_agree(method, data, cohort=cohort_for(method()))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_every_method_with_a_quantising_channel(method, data):
    if method().name == "marginal":
        with pytest.raises(ValueError, match="adds up exact terms of all clients"):
            Simulation(method(), data, seed=11, channel=QUANTISING)
    else:
        assert_agree(method, data, channel=QUANTISING, cohort=cohort_for(method()))


@pytest.mark.slow
def test_three_engines(data):
    assert_agree(remembering, data, cohort=cohort.uniform(3), channel=QUANTISING)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_every_method_over_the_protocol(method, small):
    """Against the plain engine, with its compiled programs."""
    scheme = cohort_for(method())
    plain = Loop(method(), small, seed=11, cohort=scheme)
    world = World(
        method(), small, gathering=plain.gathering, workshop=plain.programs, cohort=scheme
    )
    expected, lines = plain.advance(plain.start(), 2)
    state, own = world.engine.advance(world.engine.start(), 2)
    assert_close(expected.server, state.server, 1e-6)
    assert_same_rounds(lines, own)


@pytest.fixture(scope="module")
def three():
    return linear_gaussian(sizes=(12, 16, 10)).data


@pytest.fixture(scope="module")
def fedem(three):
    """A method with a memory, through a quantising channel, after ten rounds."""
    plain = Loop(METHODS["fedem"](), three, seed=11, channel=QUANTISING)
    end, _ = plain.advance(plain.start(), 10)

    def world(**options):
        return World(
            METHODS["fedem"](),
            three,
            gathering=plain.gathering,
            workshop=plain.programs,
            **options,
        )

    return world, end


def gap_of_memory(world, state):
    """The largest value of V - mean V_i."""
    like = world.engine.setup.shapes.node
    held = [unpack(world.node(name, state), like).state.memory for name in world.names]
    mean = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *held)
    gaps = jax.tree.map(lambda v, m: np.abs(np.asarray(v) - m).max(), state.server.memory, mean)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(mean)) > 0.01
    return max(jax.tree.leaves(gaps))


def saved(world, state):
    """A checkpoint of the server, on disk."""
    bytes_ = pack(world.engine.snapshot(state))
    world.engine.checkpointed()
    return bytes_


def restored(world, checkpoint):
    engine = world.restart_server()
    return engine.restore(unpack(checkpoint, engine.snapshot_like()))


def test_a_server_restarted_at_round_5_with_sites_at_10(fedem):
    make, end = fedem
    world = make()
    state, _ = world.engine.advance(world.engine.start(), 5)
    checkpoint = saved(world, state)
    state, _ = world.engine.advance(state, 5)
    assert_close(end.server, state.server, 1e-6)
    state = restored(world, checkpoint)
    assert state.round == 5
    state, lines = world.engine.advance(state, 5)
    assert all(line["clients"] == 3 and not line["refused"] for line in lines)
    assert_close(end.server, state.server, 1e-6)  # as if nothing had happened
    assert gap_of_memory(world, state) < 1e-5


def test_sites_and_the_server_restart_at_any_time(fedem):
    make, end = fedem
    world = make()
    state = world.engine.start()
    for t in range(10):
        checkpoint = saved(world, state)
        if t % 3 == 1:  # the server dies after the round, before its next checkpoint
            world.engine.advance(state, 1)
            state = restored(world, checkpoint)
        if t % 3 == 2:
            world.restart_site(world.names[t % 2])
        state, _ = world.engine.advance(state, 1)
        assert gap_of_memory(world, state) < 1e-5
    assert_close(end.server, state.server, 1e-6)


def test_a_memory_stays_the_mean_whatever_is_lost_late_or_repeated(fedem):
    make, _ = fedem
    mishaps = Mishaps(lose_down=0.2, lose_up=0.2, repeat=0.2, delay=0.2)
    world = make(mishaps=mishaps, quorum=1)
    world.attempts = 1
    state, moved = world.restart_server().start(), 0
    for _ in range(12):
        try:
            state, lines = world.engine.advance(state, 1)
        except NoQuorumError:
            continue
        moved += lines[0]["clients"] < 3
        if (state.accepted >= 0).all():
            assert gap_of_memory(world, state) < 1e-5
    assert moved > 4
    assert (state.accepted >= 0).all()


def test_a_restarted_server_without_a_checkpoint_starts_anew(fedem):
    make, end = fedem
    world = make()
    world.engine.advance(world.engine.start(), 3)
    engine = world.restart_server()
    state, _ = engine.advance(engine.start(), 10)
    assert_close(end.server, state.server, 1e-6)


def test_noise_is_fresh_after_a_rollback_where_the_secret_is_the_sites_own(fedem):
    make, _ = fedem
    world = make()
    for name in world.names:
        world.settings[name] = {"secret": secret_key()}
        world.restart_site(name)
    state = world.engine.start()
    checkpoint = saved(world, state)
    first, _ = world.engine.advance(state, 1)
    again, _ = world.engine.advance(restored(world, checkpoint), 1)
    one, other = (jax.tree.leaves(end.server.memory)[0] for end in (first, again))
    assert np.any(np.asarray(one) != np.asarray(other))
    assert gap_of_memory(world, again) < 1e-5


def test_a_dead_site_and_a_quorum(fedem):
    make, _ = fedem
    world = make(quorum=2)
    state, _ = world.engine.advance(world.engine.start(), 2)
    world.transport.killed.add("site1")
    state, lines = world.engine.advance(state, 2)
    assert [(line["clients"], line["lost"]) for line in lines] == [(2, 1)] * 2
    assert gap_of_memory(world, state) < 1e-5
    world.transport.killed.add("site0")
    with pytest.raises(NoQuorumError, match=r"round 5: 1 of 3 .*'site0' did not answer in time"):
        world.engine.advance(state, 1)
    world.transport.killed.clear()  # both are back, and nothing was lost
    state, lines = world.engine.advance(state, 1)
    assert lines[0]["clients"] == 3
    assert gap_of_memory(world, state) < 1e-5


def test_a_round_that_fails_after_others_loses_none_of_them(fedem):
    make, _ = fedem
    world = make()
    handle = world.transport.handlers["site2"]

    def until_round_3(message):
        return handle(message) if len(world.reports) < 3 else b"nonsense"

    world.transport.handlers["site2"] = until_round_3
    with pytest.warns(UserWarning, match="site 'site2' sent an answer that cannot be used"):
        state, lines = world.engine.advance(world.engine.start(), 5)
    assert (state.round, len(lines)) == (3, 3)
    with pytest.raises(NoQuorumError, match="too few for a message"):
        world.engine.advance(state, 5)


def test_the_server_that_was_started_last_has_the_sites(fedem):
    make, _ = fedem
    world = make()
    first = world.engine
    state, _ = first.advance(first.start(), 1)
    second = world.restart_server()
    other, _ = second.advance(second.start(), 1)
    with (
        pytest.raises(NoQuorumError, match="a server that was started later"),
        pytest.warns(UserWarning, match="a server that was started later"),
    ):
        first.advance(state, 1)
    assert second.advance(other, 1)[1][0]["clients"] == 3


def test_a_server_whose_clock_is_behind_finds_a_later_epoch(fedem):
    make, _ = fedem
    world = make()
    world.engine.connection.new_epoch(10**12)
    world.engine.advance(world.engine.start(), 1)
    engine = world.restart_server()
    _, lines = engine.advance(engine.start(), 1)
    assert lines[0]["clients"] == 3
    assert engine.connection.epoch > 10**12


def test_a_checkpoint_that_the_sites_no_longer_have_is_named(fedem):
    make, _ = fedem
    world = make()
    state, _ = world.engine.advance(world.engine.start(), 1)
    oldest = saved(world, state)
    for _ in range(3):  # two checkpoints are kept, and this is none of them
        state, _ = world.engine.advance(state, 1)
        saved(world, state)
    state, _ = world.engine.advance(state, 1)
    back = restored(world, oldest)
    with (
        pytest.warns(UserWarning, match="store is of another time"),
        pytest.raises(NoQuorumError, match=r"continues from round 0 of epoch .* has round"),
    ):
        world.engine.advance(back, 1)


def test_sites_that_report_nothing_take_part(fedem):
    make, end = fedem
    world = make()
    for name in world.names[:2]:
        world.settings[name] = {"report": lambda what, values: None}
        world.restart_site(name)
    world.restart_server()
    state, lines = world.engine.advance(world.engine.start(), 10)
    assert_close(end.server, state.server, 1e-6)
    metrics = world.engine.evaluate(state, "train")
    for metric in metrics.values():
        assert np.isnan(metric.value()).tolist() == [True, True, False]
    world.settings[world.names[2]] = {"report": lambda what, values: None}
    world.restart_site(world.names[2])
    _, lines = world.engine.advance(state, 1)
    assert lines[0]["clients"] == 3


def test_predictions_and_draws_are_the_sites_own(fedem):
    make, _ = fedem
    world = make()
    state = world.engine.start()
    for ask in (
        lambda: world.engine.predict(state, 1, np.zeros((1, 3))),
        lambda: world.engine.draws(state, np.array([1]), 5),
    ):
        with pytest.raises(ValueError, match="of 'site1' are made at the site"):
            ask()
    with pytest.raises(ValueError, match="only their owners see them"):
        world.engine.evaluate(state, "test", world.data)


def test_a_question_is_a_sum_over_all_sites(three):
    """Named, with content of any shape, keyed as in one process; without a site there is none."""

    def rows(key, sent, data):
        values = all_rows(data)
        total = jnp.sum(jnp.where(values.mask, values.rows.y, 0.0))
        return {"y": sent.by * total, "noise": jax.random.normal(key)}

    law = Approximation(lambda *_: None, lambda *_: None, queries={"rows": rows})
    method = remembering()._replace(posterior=Posterior(shared=law))
    world = World(method, three)
    asker = Questions(Inquiry(world.connection(), three.roster)).asker({"rows": rows})
    sent = Point(np.array([2.0, -1.0], np.float32))
    expected = Questions(ByRounds(lambda method: Simulation(method, three, seed=11))).asker(
        {"rows": rows}
    )
    assert_close(expected("rows", sent), asker("rows", sent))
    world.transport.killed.add("site2")
    with pytest.raises(NoQuorumError, match=r"the sum 'rows' needs all 3 sites; 'site2' did not"):
        asker("rows", sent)
    with pytest.raises(NoQuorumError, match="knows no query 'other'; there are rows"):
        Questions(Inquiry(world.connection(), three.roster)).asker({"other": rows})("other", sent)


def test_sites_are_greeted_before_there_is_a_roster(three):
    def site(position):
        said = entry(three.subset([position]))

        def handle(message):
            envelope, body = protocol.open_envelope(message)
            assert (envelope.kind, protocol.unpack_text(body)) == (Kind.HELLO, {"study": "x"})
            return protocol.seal(envelope.answer(message), protocol.pack_text(said))

        return handle

    names = [three.name_of(at) for at in range(3)]
    transport = MemoryTransport({name: site(at) for at, name in enumerate(names)})
    connection = Connection(transport, study=STUDY, digest=DIGEST)
    said = greet(connection, [*names, "nobody"], {"study": "x"})
    roster = of_sites(said)
    assert roster.counts("train").tolist() == three.counts("train").tolist()
    assert roster.spec.rows == three.spec.rows
    assert list(roster.names) == names
    said[names[1]]["spec"]["features"] = ["age", "dose", "sex"]
    with pytest.raises(ValueError, match="site 'site1' has other columns than site 'site0'"):
        of_sites(said)
    said[names[1]]["rows"] = {"train": -1}
    with pytest.raises(ValueError, match="site"):
        of_sites(said)
