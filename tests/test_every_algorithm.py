"""Engines are walked with two methods that use all of the seam; with every method if slow."""

import jax
import numpy as np
import pytest
from methods import MADE, METHODS, cohort_for
from problems import linear_gaussian

from covey.config.catalogue import METHODS as CATALOGUE
from covey.core import cohort, wire
from covey.engines.simulate import Simulation


def walked(*quick):
    """The methods by name, all others if slow."""
    return pytest.mark.parametrize(
        "method",
        [
            pytest.param(method, id=name, marks=[] if name in quick else pytest.mark.slow)
            for name, method in (MADE | METHODS).items()
        ],
    )


every_method, all_of_the_seam = walked(*MADE), walked("remembering")


# The walk draws clients alike that have unequal rows, which is not what FA-LD's second scheme is
# for, and has fewer clients than the marginal method likes.
pytestmark = [
    pytest.mark.filterwarnings("ignore:fald. clients have"),
    pytest.mark.filterwarnings("ignore:marginal. "),
]


def same(one, other, **tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), **tolerance),
        one,
        other,
    )


@pytest.fixture(scope="module")
def data():
    return linear_gaussian().data.split(validation=0.2, test=0.2, seed=3)


def test_the_walk_covers_the_catalogue():
    assert set(METHODS) == set(CATALOGUE)


@every_method
def test_an_empty_cohort_changes_nothing(method, data):
    algorithm = method()
    one = algorithm.name == "fsgld"
    available = np.array([[False, True]] * data.clients)
    every_other_round = cohort.trace(available, cohort_for(algorithm))
    engine = Simulation(algorithm, data, seed=0, cohort=every_other_round)
    start = engine.start()
    state, lines = engine.advance(start, 1)
    same(engine.snapshot(start)._replace(round=1), engine.snapshot(state), rtol=0, atol=0)
    state, more = engine.advance(state, 3)
    assert [line["clients"] for line in lines + more] == [0, 1 if one else data.clients] * 2


@pytest.mark.filterwarnings("ignore:fald. 2 of 5 clients:UserWarning")
@all_of_the_seam
def test_resume_equals_an_uninterrupted_run(method, data):
    assert_resumes(method, data, "device")


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_resume_with_rows_on_the_host(name, data):
    assert_resumes(MADE[name], data, "host")


def assert_resumes(method, data, storage):
    algorithm, traces = method(), []

    def client(*arguments):
        traces.append(arguments)
        return algorithm.client(*arguments)

    def engine():
        return Simulation(
            algorithm._replace(client=client),
            data,
            seed=5,
            cohort=cohort_for(algorithm, cohort.uniform(2)),
            storage=storage,
        )

    whole = engine()
    straight, _ = whole.advance(whole.start(), 2)
    stored = wire.pack(whole.snapshot(straight))
    traced = len(traces)
    straight, lines = whole.advance(straight, 4)
    if storage == "device":  # rows on the host come in chunks of several capacities
        assert len(traces) == traced, "a round was traced again"
    after = engine()
    state, rest = after.advance(after.restore(wire.unpack(stored, after.snapshot_like())), 4)
    assert rest == lines
    same(whole.snapshot(straight), after.snapshot(state), rtol=0, atol=0)
    same(whole.evaluate(straight), after.evaluate(state), rtol=0, atol=0)


@all_of_the_seam
def test_every_chunk_size_and_storage_gives_the_same_run(method, data):
    def run(**options):
        algorithm = method()
        scheme = cohort_for(algorithm, cohort.bernoulli(0.7))
        engine = Simulation(algorithm, data, seed=7, cohort=scheme, **options)
        state, lines = engine.advance(engine.start(), 4)
        return engine.snapshot(state), lines, engine.evaluate(state, "test")

    expected, lines, metrics = run(chunk=1)
    assert len({line["clients"] for line in lines}) > (cohort_for(method()) is None)
    assert all(np.all(np.isfinite(metric.value())) for metric in metrics.values())
    snapshot, other_lines, other_metrics = run(chunk=2, storage="host")
    assert [line["clients"] for line in lines] == [line["clients"] for line in other_lines]
    same(snapshot, expected, rtol=1e-4, atol=1e-5)
    same(other_metrics, metrics, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:mixture. 2 components for 1 clients:UserWarning")
@all_of_the_seam
def test_a_client_does_not_depend_on_the_others_around_it(method, data):
    """Keys follow the client's id: its upload is the same wherever it stands, also where there is
    no other.
    """

    if method().name in ("fsgld", "mocha"):
        pytest.skip("one takes one client at a time, the other starts from Omega = I / b")

    def loss(some):
        engine = Simulation(method(), some, seed=2)
        _, lines = engine.advance(engine.start(), 1)
        assert lines[0]["clients"] == some.clients
        return lines[0].get("train_loss", lines[0].get("drift"))

    alone = [loss(data.subset(np.array([place]))) for place in (1, 4)]
    together = loss(data.subset(np.array([4, 1])))
    np.testing.assert_allclose(np.mean(alone), together, rtol=1e-5)


@every_method
def test_unseen_clients_are_adapted_and_evaluated(method, data):
    rest, new = data.hold_out(["site2"])
    algorithm = method()
    engine = Simulation(algorithm, rest, seed=0, cohort=cohort_for(algorithm))
    state, _ = engine.advance(engine.start(), 5)
    metrics = engine.evaluate(state, "test", data=new)
    for metric in metrics.values():
        assert np.isfinite(metric.value()).tolist() == [True]
    prediction = engine.predict(state, 0, np.zeros((4, 3), np.float32), data=new)
    assert prediction.mean.shape == (4,)
