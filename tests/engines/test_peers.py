"""Peers without a server: against the server's run, against gossip and D-FedEM written in NumPy,
and when peers are absent.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import remembering
from problems import linear_gaussian

from covey import models, topology
from covey.algorithms.fedavg import fedavg
from covey.algorithms.mixture import mixture
from covey.config import configuration
from covey.core import cohort
from covey.core.faults import Faults
from covey.data.federated import FederatedData
from covey.engines.peer_weights import typical_weight
from covey.engines.peers import Peers
from covey.engines.record import Diverged
from covey.engines.simulate import Simulation

STEP = 0.05


def averaging(**options):
    return fedavg(
        models.linear(),
        **({"client_optimizer": optax.sgd(STEP), "batch_size": None, "steps": 1} | options),
    )


@functools.cache
def problem():
    return linear_gaussian(sizes=(7, 40, 12, 30, 25)).data


def coefficients(server):
    return np.column_stack(
        [np.asarray(server.parameters.weight), np.asarray(server.parameters.bias)]
    )


def mixing(**options):
    """D-FedEM, of two linear models."""
    return mixture(
        models.linear(),
        **{
            "components": 2,
            "client_optimizer": optax.sgd(STEP),
            "batch_size": None,
            "steps": 2,
            **options,
        },
    )


@pytest.mark.parametrize(
    "make",
    [remembering, *(pytest.param(one, marks=pytest.mark.slow) for one in (averaging, mixing))],
)
def test_on_the_complete_graph_it_is_the_run_of_a_server(make):
    """For clients of unequal weight too, and for a method that uses every part of the seam."""
    engines = [
        Peers(make(), problem(), topology=topology.complete(), seed=3),
        Simulation(make(), problem(), seed=3),
    ]
    (peers, lines), (server, other) = (engine.advance(engine.start(), 6) for engine in engines)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        peers.server,
        server.server,
    )
    own = jax.tree.leaves(peers.nodes.state.server)
    assert all(np.allclose(leaf, leaf[:1], rtol=1e-4, atol=1e-5) for leaf in own)
    # Sizes are those of other messages; the step is that of each peer alone.
    for name in set(other[-1]) - {"bits_up", "bits_down", "bytes_up", "bytes_down", "step"}:
        assert lines[-1][name] == pytest.approx(other[-1][name], rel=1e-3)
    assert lines[-1]["consensus"] < 1e-5


def gossip(data, mixing, rounds, absent=lambda t: (), shares=None, steps=1, rate=lambda t: 1.0):
    """Every peer takes a gradient step on its own rows, then takes the weighted mean of its
    neighbourhood, `steps` times. `shares`: how many times its step a peer takes.
    """
    theta, shares = np.zeros((data.clients, 4)), np.ones(data.clients) if shares is None else shares
    for t in range(rounds):
        here = ~np.isin(np.arange(data.clients), absent(t))
        stepped = theta.copy()
        for i in np.flatnonzero(here).tolist():
            rows = data.rows_of(i, "train")
            design = np.column_stack([rows.x, np.ones(len(rows.y))])
            gradient = design.T @ (design @ theta[i] - rows.y) / len(rows.y)
            stepped[i] -= rate(t) * shares[i] * STEP * gradient
        w = mixing[t % len(mixing)] * np.outer(here, here)
        np.fill_diagonal(w, 0)
        theta = np.linalg.matrix_power(w + np.diag(1 - w.sum(1)), steps) @ stepped
    return theta


def rows_over_mean():
    return problem().counts("train") / problem().counts("train").mean()


def between_peers(method, **options):
    return Peers(method, problem(), **({"topology": topology.ring(), "seed": 0} | options))


@pytest.fixture(scope="module")
def ring():
    return between_peers(averaging(weighting="equal"))


def test_on_a_ring_it_is_a_step_of_each_and_then_a_mean_of_neighbours(ring):
    state, lines = ring.advance(ring.start(), 7)
    theta = gossip(problem(), topology.ring()(5), 7)
    np.testing.assert_allclose(coefficients(state.nodes.state.server), theta, atol=1e-5)
    np.testing.assert_allclose(
        coefficients(jax.tree.map(lambda leaf: leaf[None], state.server))[0],
        theta.mean(0),
        atol=1e-5,
    )
    distance = np.sqrt(np.mean(np.sum((theta - theta.mean(0)) ** 2, axis=1)))
    assert lines[-1]["consensus"] == pytest.approx(distance, rel=1e-4)
    parameters = 4 * 32
    assert lines[-1]["bits_up"] == 10 * parameters  # the state alone, to two neighbours each
    assert lines[-1]["bytes_up"] == 10 * ring.gossip.bytes > 10 * parameters // 8
    assert lines[-1]["bits_down"] == lines[-1]["bytes_down"] == 0


def test_by_default_the_mean_over_peers_moves_by_the_mean_over_rows():
    """On a ring of clients with 7 to 40 rows, all present; then with some of them absent."""
    engine = between_peers(averaging())
    first = engine.advance(engine.start(), 1)[0].server.parameters
    design = np.column_stack([problem().rows.x, np.ones(len(problem().rows.y))])
    step = STEP * design.T @ problem().rows.y / len(design)
    np.testing.assert_allclose([*first.weight, first.bias], step, atol=1e-6)
    state, _ = engine.advance(engine.start(), 7)
    theta = gossip(problem(), topology.ring()(5), 7, shares=rows_over_mean())
    np.testing.assert_allclose(coefficients(state.nodes.state.server), theta, atol=1e-5)

    away = np.array([[0, 1], [1, 0], [1, 1], [0, 1], [1, 0]], bool)
    some = between_peers(averaging(), cohort=cohort.trace(away))
    state, _ = some.advance(some.start(), 6)
    theta = gossip(
        problem(),
        topology.ring()(5),
        6,
        absent=lambda t: np.flatnonzero(~away[:, t % 2]),
        shares=rows_over_mean(),
    )
    np.testing.assert_allclose(coefficients(state.nodes.state.server), theta, atol=1e-5)


@pytest.mark.slow
def test_who_takes_part_rarely_counts_for_more_when_it_does():
    """E[r_i 1(i takes part)] is the same for all peers, the mean probability."""
    chance = np.array([0.3, 0.9, 0.5, 1.0, 0.7])
    engine = between_peers(averaging(), seed=5, cohort=cohort.bernoulli(chance))
    here, shares, _ = jax.vmap(engine._present)(jnp.arange(8000))
    np.testing.assert_array_equal(here, shares > 0)
    error = np.std(shares, axis=0) / np.sqrt(8000) + 0.7 * 0.6 / np.sqrt(1024 * 5)
    assert np.all(np.abs(np.mean(shares, axis=0) - 0.68) < 4 * error)
    same = engine.setup._replace(sampler=cohort.bernoulli(0.3)(problem().counts("train")))
    assert typical_weight(same) == pytest.approx(1 / 0.3, rel=1e-6)  # r_i = 1 then


def test_weights_of_a_cohort_scale_the_steps():
    weights = np.array([[2.0, 1, 0, 1, 1], [1, 1, 4, 1, 0]])
    engine = between_peers(averaging(weighting="equal"), cohort=cohort.given(weights))
    state, _ = engine.advance(engine.start(), 1)
    theta = gossip(
        problem(), topology.ring()(5), 1, absent=lambda t: [2], shares=weights[0] / (12 / 8)
    )
    np.testing.assert_allclose(coefficients(state.nodes.state.server), theta, atol=1e-6)


@pytest.mark.slow
def test_several_gossip_steps_a_round():
    ring = topology.ring(gossip_steps=3)
    engine = between_peers(averaging(), topology=ring)
    state, lines = engine.advance(engine.start(), 4)
    theta = gossip(problem(), ring(5), 4, shares=rows_over_mean(), steps=3)
    np.testing.assert_allclose(coefficients(state.nodes.state.server), theta, atol=1e-5)
    assert lines[-1]["bits_up"] == 3 * 10 * 4 * 32


def test_a_file_may_ask_for_several_gossip_steps():
    tables = {
        "data": {"name": "heart_disease"},
        "model": {"name": "logistic"},
        "method": {"name": "fedavg"},
        "run": {"engine": "peers", "rounds": 1, "seed": 1},
        "topology": {"name": "grid", "gossip_steps": 4},
    }
    settings = configuration.checked(tables)
    assert settings.tables["topology"]["gossip_steps"] == 4
    assert settings.factories["topology"](**settings.options["topology"]).gossip_steps == 4


@pytest.mark.slow
def test_a_step_that_falls_over_rounds_falls_for_absent_peers_too():
    """Every peer's step in round t is 0.8^t of the first, however often it was absent."""
    away = np.array([[1, 1, 1, 1], [1, 0, 0, 1], [0, 0, 1, 1], [1, 1, 1, 1], [1, 0, 1, 1]], bool)
    falling = optax.sgd(optax.exponential_decay(1.0, 1, 0.8))
    engine = between_peers(
        averaging(weighting="equal", server_optimizer=falling), cohort=cohort.trace(away)
    )
    state, _ = engine.advance(engine.start(), 4)
    theta = gossip(
        problem(),
        topology.ring()(5),
        4,
        absent=lambda t: np.flatnonzero(~away[:, t]),
        rate=lambda t: 0.8**t,
    )
    np.testing.assert_allclose(coefficients(state.nodes.state.server), theta, atol=1e-6)
    assert np.all(np.asarray(jax.tree.leaves(state.nodes.state.server.optimizer)[0]) == 4)


def test_a_mixture_between_peers_is_the_decentralised_em_of_its_paper():
    """Algorithm 2 of Marfoq et al. with one gradient step as local solver, in NumPy."""
    data, ring = problem(), topology.ring()
    engine = Peers(mixing(weighting="equal", steps=1), data, topology=ring, seed=1)
    state = engine.start()
    theta = components(state.nodes.state.server)  # peers x components x coefficients
    pi = np.full((5, 2), 0.5)
    for _ in range(6):
        for i in range(5):
            rows = data.rows_of(i, "train")
            design = np.column_stack([rows.x, np.ones(len(rows.y))])
            off = design @ theta[i].T - rows.y[:, None]
            q = pi[i] * np.exp(-(off**2) / 2)
            q /= q.sum(1, keepdims=True)
            pi[i] = q.mean(0)
            theta[i] -= STEP * (q * off).T @ design / len(rows.y)
        theta = np.einsum("ij,jmd->imd", ring(5)[0], theta)
    state, _ = engine.advance(state, 6)
    np.testing.assert_allclose(components(state.nodes.state.server), theta, atol=2e-5)
    np.testing.assert_allclose(state.nodes.state.own.weights, pi, atol=2e-5)


def components(server):
    return np.concatenate(
        [np.asarray(server.parameters.weight), np.asarray(server.parameters.bias)[..., None]],
        axis=-1,
        dtype=np.float64,
    )


def test_every_peer_is_judged_and_predicts_with_its_own_state(ring):
    state, _ = ring.advance(ring.start(), 7)
    data, theta = problem(), gossip(problem(), topology.ring()(5), 7)
    errors = ring.evaluate(state, "train")["mse"].value()
    for i in range(data.clients):
        rows = data.rows_of(i, "train")
        off = np.asarray(rows.x) @ theta[i, :3] + theta[i, 3] - rows.y
        assert errors[i] == pytest.approx(np.mean(off**2), rel=1e-4)
        np.testing.assert_allclose(ring.predict(state, i, rows.x).mean, off + rows.y, atol=1e-4)
    newcomer = ring.predict(
        state, 0, data.rows_of(0, "train").x, data=data
    )  # of other data: it gets the mean
    np.testing.assert_allclose(
        newcomer.mean, data.rows_of(0, "train").x @ theta.mean(0)[:3] + theta.mean(0)[3], atol=1e-4
    )


@pytest.mark.slow
def test_networks_that_change_are_used_in_turn():
    changing = topology.erdos_renyi(probability=0.6, rounds=3)
    engine = between_peers(averaging(weighting="equal"), topology=changing)
    state, _ = engine.advance(engine.start(), 5)
    np.testing.assert_allclose(
        coefficients(state.nodes.state.server), gossip(problem(), changing(5), 5), atol=1e-5
    )


def test_who_is_absent_keeps_its_state_and_comes_back():
    away = np.ones((5, 4), bool)
    away[2, 1:3] = away[0, 2] = False
    engine = between_peers(averaging(weighting="equal"), cohort=cohort.trace(away))
    theta = gossip(problem(), topology.ring()(5), 4, absent=lambda t: np.flatnonzero(~away[:, t]))
    state, lines = engine.advance(engine.start(), 4)
    np.testing.assert_allclose(coefficients(state.nodes.state.server), theta, atol=1e-5)
    assert [line["clients"] for line in lines] == [5, 4, 3, 5]


@pytest.mark.slow
def test_a_ring_of_64_with_a_tenth_absent_comes_together():
    rng = np.random.default_rng(0)
    data = FederatedData.from_arrays(
        rng.normal(size=(640, 2)), rng.normal(size=640), np.repeat(np.arange(64), 10)
    )
    falling = averaging(weighting="equal", client_optimizer=optax.sgd(0.0))  # nothing but mixing
    engine = Peers(falling, data, topology=topology.ring(), seed=0, cohort=cohort.bernoulli(0.9))
    state = engine.start()
    apart = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), state.nodes.state.server
    )
    state = state._replace(
        nodes=state.nodes._replace(state=state.nodes.state._replace(server=apart))
    )
    mean = coefficients(apart).mean(0)
    state, lines = engine.advance(state, 1000)
    distance = np.array([line["consensus"] for line in lines])
    assert np.all(np.diff(distance) < 0)
    assert distance[-1] < 0.1 * distance[0]
    assert 0.88 < np.mean([line["clients"] for line in lines]) / 64 < 0.92
    np.testing.assert_allclose(coefficients(state.nodes.state.server).mean(0), mean, atol=1e-4)


def test_a_checkpoint_goes_on_as_if_there_had_been_none(ring):
    state, _ = ring.advance(ring.start(), 3)
    again = ring.restore(jax.tree.map(np.asarray, ring.snapshot(state)))
    one, other = ring.advance(state, 2)[0], ring.advance(again, 2)[0]
    jax.tree.map(np.testing.assert_array_equal, one.nodes, other.nodes)
    like = jax.tree.map(lambda leaf: (leaf.shape, np.dtype(leaf.dtype)), ring.snapshot_like())
    assert like == jax.tree.map(
        lambda leaf: (np.shape(leaf), np.asarray(leaf).dtype), ring.snapshot(one)
    )


def test_a_peer_whose_values_are_not_finite_is_left_out_and_named():
    clients = {f"c{i}": (np.ones((4, 1), np.float32), np.full(4, i, np.float32)) for i in range(4)}
    clients["c2"][0][:] = clients["c2"][1][:] = 1e30
    data = FederatedData.from_clients(clients)
    engine = Peers(
        averaging(), data, topology=topology.complete(), seed=0, faults=Faults(dropout=0.01)
    )
    state, lines = engine.advance(engine.start(), 3)
    assert [(line["clients"], line["diverged_id"]) for line in lines] == [(3, 2)] * 3
    assert np.all(np.isfinite(coefficients(state.nodes.state.server)))


@pytest.mark.slow
def test_a_peer_alone_whose_values_are_not_finite_ends_the_run():
    data = FederatedData.from_clients({"c": (np.full((4, 1), 1e30), np.full(4, 1e30))})
    engine = Peers(averaging(), data, topology=topology.complete(), seed=0)
    with pytest.raises(Diverged, match="none of the 1 uploads was finite"):
        engine.advance(engine.start(), 1)
