import jax
import numpy as np
import optax
import pytest
from problems import linear_gaussian

from covey import models
from covey.algorithms.fedavg import fedavg
from covey.algorithms.local import local
from covey.core import cohort, wire
from covey.core.faults import Faults
from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.engines.loop import Loop
from covey.engines.record import Diverged
from covey.engines.round import bands_of, bucket_size
from covey.engines.simulate import Simulation

STEP = optax.sgd(0.05)


def wild(scale: float) -> FederatedData:
    """Client `far` has features so large that any step overflows."""
    rng = np.random.default_rng(0)
    clients = {
        str(i): (
            rng.normal(size=(10, 2)).astype(np.float32),
            rng.normal(size=10).astype(np.float32),
        )
        for i in range(4)
    }
    clients["far"] = (np.full((10, 2), scale, np.float32), np.ones(10, np.float32))
    return FederatedData.from_clients(clients)


@pytest.mark.parametrize(
    ("engine", "make"),
    [
        (Simulation, fedavg),
        (Loop, local),
        pytest.param(Simulation, local, marks=pytest.mark.slow),
        pytest.param(Loop, fedavg, marks=pytest.mark.slow),
    ],
)
def test_a_diverging_client_is_left_out_counted_and_named(engine, make):
    method = make(models.linear(), client_optimizer=STEP, epochs=3)
    with_it = engine(method, wild(1e30), seed=0)
    state, lines = with_it.advance(with_it.start(), 3)
    assert [line["diverged"] for line in lines] == [1, 1, 1]
    assert [line["diverged_id"] for line in lines] == [4, 4, 4]
    assert [line["clients"] for line in lines] == [4, 4, 4]
    without = engine(method, wild(1e30).subset(np.arange(4)), seed=0)
    other, _ = without.advance(without.start(), 3)
    np.testing.assert_allclose(
        flat(with_it.broadcast(state)), flat(without.broadcast(other)), rtol=1e-5
    )
    if make is local:  # what it computed is dropped, too
        assert not with_it.snapshot(state).seen[4]


def flat(parameters):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(parameters)])


@pytest.mark.parametrize("engine", [Simulation, Loop])
def test_all_clients_diverging_stops_the_run(engine):
    data = wild(1e30).subset(np.array([4]))
    run = engine(fedavg(models.linear(), client_optimizer=STEP), data, seed=0)
    with pytest.raises(Diverged, match=r"round \d: none of the 1 uploads was finite"):
        run.advance(run.start(), 2)


def test_bits_are_counted_as_sent():
    data = linear_gaussian().data
    engine = Simulation(
        fedavg(models.linear(), client_optimizer=STEP), data, seed=0, cohort=cohort.uniform(3)
    )
    _, lines = engine.advance(engine.start(), 2)
    assert lines[0]["bits_down"] == 3 * 32 * 4
    assert lines[0]["bits_up"] == 3 * 32 * 5
    faulty = Simulation(
        fedavg(models.linear(), client_optimizer=STEP), data, seed=0, faults=Faults(0.3, 0.2, 0.3)
    )
    _, lines = faulty.advance(faulty.start(), 20)
    assert sum(line["lost"] for line in lines) > 0
    assert sum(line["late"] for line in lines) > 0


def test_bands_bound_every_cohort():
    rng = np.random.default_rng(0)
    counts = np.clip(rng.lognormal(4, 1.5, 200).astype(int), 1, 2000)
    for slots, chunk in ((200, 16), (30, 8), (7, 1), (10, 4)):
        bands = bands_of(counts, slots, chunk)
        capacity = np.concatenate([np.full(band.chunks * chunk, band.capacity) for band in bands])
        assert len(capacity) >= slots
        for _ in range(50):
            some = np.sort(rng.choice(counts, slots, replace=False))[::-1]
            assert np.all(some <= capacity[:slots])


def test_bands_are_few_and_little_is_spare():
    """Of sizes as those of American counties: seven capacities, of which few cost much."""
    rng = np.random.default_rng(1)
    counts = np.clip(rng.lognormal(2.5, 1.2, 400).astype(int), 1, 700)
    bands = bands_of(counts, 400, 16)
    largest = [bucket_size(int(rows)) for rows in np.sort(counts)[::-1][::16]]
    assert len(bands) < len(set(largest))
    assert sum(band.chunks for band in bands) == len(largest)
    assert sum(band.chunks * band.capacity for band in bands) <= 1.125 * sum(largest)


def test_the_grid_is_tight():
    values = [bucket_size(rows) for rows in range(1, 3000)]
    assert all(value >= rows for rows, value in enumerate(values, 1))
    assert all(value <= 1.51 * rows for rows, value in enumerate(values, 1) if rows > 64)
    assert len(set(values)) < 18


def test_states_on_disk_give_the_run_of_states_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 40, 3000)
    x = rng.normal(size=(sizes.sum(), 3)).astype(np.float32)
    data = FederatedData.from_rows(Rows(x, x.sum(1)), sizes)
    method = local(models.linear(), client_optimizer=STEP, batch_size=8)

    def engine(**options):
        return Simulation(
            method, data, seed=0, cohort=cohort.uniform(60), storage="host", **options
        )

    memory, disk = engine(), engine(node_directory=tmp_path / "nodes")
    expected, lines = memory.advance(memory.start(), 6)
    state, first = disk.advance(disk.start(), 2)
    stored = wire.pack(disk.snapshot(state))
    disk.checkpointed()
    disk.advance(state, 2)  # and the process dies
    again = engine(node_directory=tmp_path / "nodes")
    state, rest = again.advance(again.restore(wire.unpack(stored, again.snapshot_like())), 4)
    assert first + rest == lines
    everyone = np.arange(data.clients)
    one, other = memory.driver.take(expected, everyone), again.driver.take(state, everyone)
    np.testing.assert_array_equal(flat(one), flat(other))
    np.testing.assert_array_equal(again.seen(state), memory.seen(expected))
    used = sum(path.stat().st_size for path in (tmp_path / "nodes").iterdir())
    assert used < 100_000  # 360 of 3,000 clients have taken part


def test_evaluation_needs_rows():
    engine = Simulation(fedavg(models.linear()), linear_gaussian().data, seed=0)
    with pytest.raises(ValueError, match="no validation rows: split them first"):
        engine.evaluate(engine.start())


def test_a_cohort_larger_than_the_population():
    with pytest.raises(ValueError, match="6 clients was asked for, but the data have 5"):
        Simulation(
            fedavg(models.linear()), linear_gaussian().data, seed=0, cohort=cohort.uniform(6)
        )


def test_a_client_without_rows_predicts_where_nobody_has_any():
    """Also where its data hold no row at all, on every engine that evaluates."""
    data = linear_gaussian().data
    nobody = data.subset([0]).limited(train_rows=0, seed=0)
    engine = Simulation(fedavg(models.linear()), data, seed=0)
    state, _ = engine.advance(engine.start(), 1)
    found = engine.predict(state, 0, np.zeros((2, 3), np.float32), data=nobody)
    assert np.all(np.isfinite(found.mean))
    with pytest.raises(ValueError, match="no client has training rows"):
        Simulation(fedavg(models.linear()), nobody, seed=0)
