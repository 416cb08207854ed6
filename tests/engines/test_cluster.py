"""Clients in blocks give the run of clients together, also where blocks are lost. Here the blocks
are in this process; `test_ray.py` has them in Ray actors.
"""

from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from methods import MADE, METHODS
from problems import linear_gaussian

import covey
from covey.core import cohort, wire
from covey.core.faults import Faults
from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.engines.block import Hello, Share
from covey.engines.cluster import MOST_LOSSES, Cluster
from covey.engines.crew import LocalCrew, checked, edges_of
from covey.engines.questions import ByRounds, Questions
from covey.engines.ray import RayCrew
from covey.engines.simulate import Simulation

SIZES = (30,) * 4  # blocks of the same shapes, so that little is compiled
TIMES = ("slowest_actor", "slowest_seconds")
ROUNDS = 5


@pytest.fixture(scope="module")
def data():
    return linear_gaussian(sizes=SIZES).data.split(validation=0.2, test=0.2, seed=3)


@cache
def made(name):
    """The same method for the same name, so that programs are compiled once."""
    return (MADE | METHODS)[name]()


def options(scheme=None):
    return {"seed": 7, "cohort": scheme or cohort.bernoulli(0.7), "chunk": 2}


def advanced(engine, rounds=ROUNDS):
    return engine.advance(engine.start(), rounds)


def same(one, other, tolerance=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(
            np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance
        ),
        one,
        other,
    )


def untimed(lines):
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def assert_same_lines(found, expected):
    for one, other in zip(untimed(found), expected, strict=True):
        assert one.keys() == other.keys()
        same(one, other, 1e-4)
        assert all(one[key] == other[key] for key in ("round", "clients", "lost", "bits_up"))


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("remembering", 2),
        pytest.param("fedavg", 4, marks=pytest.mark.slow),
        pytest.param("remembering", 1, marks=pytest.mark.slow),
        pytest.param("remembering", 4, marks=pytest.mark.slow),
        pytest.param("fedavg", 1, marks=pytest.mark.slow),
    ],
)
def test_blocks_give_the_run_of_all_clients_together(name, blocks, data):
    method = made(name)
    whole = Simulation(method, data, **options())
    expected, lines = advanced(whole)
    engine = Cluster(method, data, crew=LocalCrew(data, blocks), **options())
    state, found = advanced(engine)
    assert_same_lines(found, lines)
    assert {int(line["slowest_actor"]) for line in found} <= set(range(blocks))
    snapshot = engine.snapshot(state)
    same(snapshot, whole.snapshot(expected))
    same(engine.evaluate(state, "test"), whole.evaluate(expected, "test"), 1e-4)
    if name != "remembering":
        return
    x = np.zeros((2, 3), np.float32)
    same(engine.predict(state, 3, x).mean, whole.predict(expected, 3, x).mean)
    mixed = np.array([3, 0, 2, 1])
    same(engine.draws(state, mixed, 3), whole.draws(expected, mixed, 3))
    one, new = data.hold_out(["site2"])
    same(engine.evaluate(state, "test", new), whole.evaluate(expected, "test", new), 1e-4)
    assert one.clients == 3


@pytest.mark.slow
def test_blocks_predict_with_the_draws_asked_for(data):
    method = made("fedpop")
    whole = Simulation(method, data, **options())
    engine = Cluster(method, data, crew=LocalCrew(data, 2), **options())
    expected, state = advanced(whole, 1)[0], advanced(engine, 1)[0]
    x = np.zeros((2, 3), np.float32)
    found = engine.predict(state, 3, x, draws=7)
    assert found.members.mean.shape[-1] == 7
    same(found.mean, whole.predict(expected, 3, x, draws=7).mean, 1e-4)
    same(engine.evaluate(state, "test", draws=7), whole.evaluate(expected, "test", draws=7), 1e-3)


@pytest.mark.parametrize("shared", [True, False])
def test_blocks_write_their_own_clients_and_any_number_of_blocks_goes_on(data, tmp_path, shared):
    method, folder = made("remembering"), tmp_path / "nodes"
    whole = Cluster(method, data, crew=LocalCrew(data, 2), **options())
    expected, lines = advanced(whole, 6)

    def engine(blocks):
        crew = LocalCrew(data, blocks)
        for block in crew.blocks:
            block.sees = lambda path: shared and Path(path).exists()
        return Cluster(method, data, crew=crew, node_directory=folder, **options())

    def checkpoint(engine, state):
        kept = wire.pack(engine.snapshot(state))
        engine.checkpointed()
        return kept

    first = engine(2)
    state, found = advanced(first, 1)
    with nullcontext() if shared else pytest.warns(UserWarning, match="does not see .*nodes"):
        checkpoint(first, state)
    for _ in range(2):
        state, more = first.advance(state, 1)
        found += more
        kept = checkpoint(first, state)
    assert len(list(folder.iterdir())) == (4 if shared else 2)  # of two checkpoints
    state, _ = first.advance(state, 1)
    first.snapshot(state)  # and the process dies before the checkpoint is written
    other = engine(3)
    with nullcontext() if shared else pytest.warns(UserWarning, match="does not see .*nodes"):
        state = other.restore(wire.unpack(kept, other.snapshot_like()))
    state, rest = other.advance(state, 3)
    assert_same_lines(untimed(found + rest), untimed(lines))
    again = other.restore(wire.unpack(checkpoint(other, state), other.snapshot_like()))
    everyone = np.arange(data.clients)
    same(other.draws(again, everyone, 3), whole.draws(expected, everyone, 3))
    assert len({path.name.partition("-")[0] for path in folder.iterdir()}) == 2


def test_states_that_are_not_those_of_the_checkpoint_are_refused(data, tmp_path):
    method, folder = made("remembering"), tmp_path / "nodes"
    engine = Cluster(method, data, crew=LocalCrew(data, 2), node_directory=folder, **options())
    kept = engine.snapshot(advanced(engine, 1)[0])
    one, other = sorted(folder.iterdir())
    one.write_bytes(other.read_bytes())
    with pytest.raises(ValueError, match="is not the file that the checkpoint names"):
        engine.advance(engine.restore(kept), 1)
    one.unlink()
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        engine.advance(engine.restore(kept), 1)


def test_lost_blocks_start_again_and_the_run_ends_as_if_nothing_had_happened(data):
    method, crew = made("remembering"), LocalCrew(data, 2)
    engine = Cluster(method, data, crew=crew, **options())
    expected, lines = advanced(engine, 8)
    undisturbed = engine.snapshot(expected)

    state, found = advanced(engine, 2)
    plain = crew.call
    losses = iter([3, 5, 11])  # calls of rounds, counted from here
    moment, calls = next(losses), 0

    def call(name, arguments, sent=None):
        nonlocal moment, calls
        calls += name == "round"
        if name == "round" and calls == moment:
            crew.blocks[max(arguments)] = None  # the others have moved on by then
            moment = next(losses, None)
            first = min(arguments)
            if first != max(arguments):
                plain(name, {first: arguments[first]}, sent)
        return plain(name, arguments, sent)

    crew.call = call
    with pytest.warns(UserWarning, match=r"lost actor \d .* starts again") as told:
        state, more = engine.advance(state, 6)
    assert len(told) == 3
    assert sum(crew.starts) == 2 + 3
    assert untimed(found + more) == untimed(lines)
    same(engine.snapshot(state), undisturbed, 0)


def test_a_block_that_is_lost_between_rounds_is_brought_back(data):
    crew = LocalCrew(data, 2)
    engine = Cluster(made("remembering"), data, crew=crew, **options())
    state, _ = advanced(engine, 3)
    before = engine.evaluate(state, "test")
    kept = engine.snapshot(state)
    crew.blocks[1] = None
    with pytest.warns(UserWarning, match="lost actor 1"):
        same(engine.evaluate(state, "test"), before, 0)
    crew.restart(0)  # by another engine that has the same crew
    same(engine.snapshot(state), kept, 0)
    again = Cluster(made("remembering"), data, crew=LocalCrew(data, 4), **options())
    resumed = again.restore(wire.unpack(wire.pack(kept), again.snapshot_like()))
    same(again.snapshot(again.advance(resumed, 2)[0]), engine.snapshot(engine.advance(state, 2)[0]))
    with pytest.raises(ValueError, match="an old state of a cluster cannot be continued"):
        engine.advance(state._replace(round=1), 1)


def test_a_slow_block_is_named(data):
    crew = LocalCrew(data, 2)
    engine = Cluster(made("fedavg"), data, crew=crew, **options(cohort.full()))
    state, _ = advanced(engine, 1)  # which compiles
    quick = crew.blocks[1].round

    def slow(*arguments):
        done = quick(*arguments)
        return done._replace(seconds=done.seconds + 60)

    crew.blocks[1].round = slow
    _, found = engine.advance(state, 2)
    assert [line["slowest_actor"] for line in found] == [1, 1]
    assert all(line["slowest_seconds"] > 60 for line in found)


def test_blocks_that_are_lost_again_and_again_end_the_run(data):
    crew = LocalCrew(data, 2)
    engine = Cluster(made("fedavg"), data, crew=crew, **options())
    crew.restart = lambda block: None
    crew.blocks[0] = None
    with (
        pytest.warns(UserWarning, match="lost actor 0"),
        pytest.raises(OSError, match=f"lost {MOST_LOSSES + 1} times .* lack of memory"),
    ):
        advanced(engine, 1)


@pytest.mark.slow
def test_lost_and_repeated_messages(data):
    faults = Faults(dropout=0.3, repeat=0.2)
    whole = Simulation(made("fedpop"), data, faults=faults, **options(cohort.full()))
    engine = Cluster(
        made("fedpop"), data, crew=LocalCrew(data, 3), faults=faults, **options(cohort.full())
    )
    assert_same_lines(advanced(engine)[1], advanced(whole)[1])


def test_edges_cut_clients_into_blocks_with_alike_rows():
    rng = np.random.default_rng(0)
    for _ in range(50):
        sizes = rng.integers(1, 60, rng.integers(2, 30))
        rows = Rows(np.zeros((sizes.sum(), 1), np.float32), np.zeros(sizes.sum()))
        data = FederatedData.from_rows(rows, sizes)
        blocks = int(rng.integers(1, len(sizes) + 1))
        edges = edges_of(data, blocks)
        assert edges[0] == 0
        assert edges[-1] == len(sizes)
        assert len(edges) == blocks + 1
        assert np.all(np.diff(edges) > 0)
        loads = np.add.reduceat(sizes + 1, edges[:-1])
        if blocks * 4 < len(sizes):
            assert loads.max() <= loads.mean() + sizes.max() + 1


def test_memory_mapped_rows_are_opened_by_the_block(data, tmp_path):
    data.save(tmp_path / "rows")
    mapped = FederatedData.open(tmp_path / "rows")
    share = Share.of(mapped.subset(np.array([2, 3])), "host")
    assert "x.npy" in str(share.data[0])  # a path, not rows
    opened = share.opened("here")
    expected = data.subset(np.array([2, 3]))
    np.testing.assert_array_equal(opened.rows.x, expected.rows.x)
    np.testing.assert_array_equal(opened.rows.y, expected.rows.y)
    (tmp_path / "rows" / "x.npy").unlink()
    with pytest.raises(ValueError, match=r"x\.npy cannot be opened on node \S+: No such file"):
        LocalCrew(mapped, 2)


@pytest.mark.parametrize("name", ["covey", "jax"])
def test_another_version_is_refused_by_name(name):
    hello = Hello("node7", 1, covey.__version__, jax.__version__)
    assert checked(hello) is hello
    with pytest.raises(ValueError, match=f"node node7 has {name} 0.0.1 and this process"):
        checked(hello._replace(**{name: "0.0.1"}))


def test_more_actors_than_clients(data):
    with pytest.raises(ValueError, match="5 actors were asked for and there are 4 clients"):
        RayCrew(data, actors=5)


def test_ray_that_is_not_installed(data, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'covey\[cluster\]'"):
        RayCrew(data)


def test_an_address_that_does_not_answer(data):
    with pytest.raises(OSError, match=r"no Ray cluster answers at 127.0.0.1:9: start one"):
        RayCrew(data, actors=2, address="127.0.0.1:9")
    with pytest.raises(ValueError, match="address must be host:port"):
        RayCrew(data, actors=2, address="somewhere")


def test_options_of_a_cluster_are_for_a_cluster(data):
    with pytest.raises(ValueError, match="are for engine='ray', not for 'simulate'"):
        covey.run(made("fedavg"), data, rounds=1, actors=2)


class Elsewhere(LocalCrew):
    """Blocks that do not know which precision the driver has turned on, as in another process."""

    def call(self, name, arguments, sent=None):
        with jax.enable_x64(False):
            return super().call(name, arguments, sent)


def test_a_question_is_answered_in_its_own_precision(data):
    crew = Elsewhere(data, 2)
    rounds = ByRounds(partial(Cluster, data=data, crew=crew, seed=0))
    ask = Questions(rounds).asker({"sum": lambda key, factor, data: factor * data.count})
    with jax.enable_x64(True):
        found = float(ask("sum", jnp.float64(1 + 2**-40)))
    assert found == (1 + 2**-40) * data.counts("train").sum()
