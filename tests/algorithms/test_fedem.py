"""FedEM and VR-FedEM against EM and SPIDER-EM written elsewhere, and the claims that compression
rests on.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Oracle

import covey
from covey import models
from covey.algorithms.em import em
from covey.algorithms.fedem import checked_steps, fedem, next_rows
from covey.algorithms.memory import memory_rate_for, need_memory_rate, warm_up_rounds
from covey.algorithms.vr_fedem import vr_fedem
from covey.channel import dithering, rand_k
from covey.core import cohort
from covey.core.faults import Faults
from covey.core.keys import Stream, key_for, root_key
from covey.core.shard import Batch, Rows, Spec, some_rows, whole
from covey.data.federated import FederatedData
from covey.engines.record import Diverged
from covey.engines.simulate import Simulation

MEANS = np.array([[-1.5, 0.5], [0.5, -1.0], [2.0, 2.0]])
START = {
    "means": MEANS,
    "weights": np.array([0.5, 0.3, 0.2]),
    "start_covariance": np.array([[1.0, 0.2], [0.2, 0.7]]),
}


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def mixture_data(sizes=(30, 50, 20, 60), seed=0):
    """Clients that differ: each draws mostly from a component of its own."""
    rng = np.random.default_rng(seed)
    clients = {}
    for number, rows in enumerate(sizes):
        share = np.full(3, 0.15)
        share[number % 3] += 0.55
        z = rng.choice(3, size=rows, p=share)
        x = 1.3 * MEANS[z] + rng.normal(size=(rows, 2)) @ np.array([[0.8, 0.2], [0.0, 0.6]])
        clients[f"c{number}"] = (x.astype(np.float32), np.zeros(rows, np.float32))
    return FederatedData.from_clients(clients)


def tied(**options):
    return models.gaussian_mixture(components=3, covariance="tied", **(START | options))


@functools.cache
def em_engine():
    return Simulation(em(tied()), mixture_data(), seed=0)


def pooled_field(model, data, statistics, theta):
    """h at the server's statistics: mean over all rows of E[s | row; T(s)], minus s."""
    batch = Batch(jax.tree.map(jnp.asarray, data.rows), jnp.ones(len(data.rows.y), bool))
    found = jax.jit(model.statistics)(theta, batch)
    gaps = jax.tree.map(lambda s, shat: np.ravel(s / len(data.rows.y) - shat), found, statistics)
    return float(np.linalg.norm(np.concatenate(jax.tree.leaves(gaps))))


@pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.ConvergenceWarning")
@pytest.mark.parametrize("method", ["em", "fedem"])
def test_without_compression_it_is_classical_em_step_for_step(method):
    """FedEM with memories too: where nothing is lost they have no effect."""
    data, model = mixture_data(), tied()
    engine = (
        em_engine() if method == "em" else Simulation(fedem(model, memory_rate=1.0), data, seed=0)
    )
    state = engine.start()
    x = np.asarray(data.rows.x, np.float64)
    objective = []
    for step in range(1, 6):
        state, lines = engine.advance(state, 1)
        oracle = Oracle(
            3,
            covariance_type="tied",
            max_iter=step,
            tol=0,
            reg_covar=1e-6,
            weights_init=START["weights"],
            means_init=MEANS,
            precisions_init=np.linalg.inv(START["start_covariance"]),
        ).fit(x)
        theta = state.server.theta
        np.testing.assert_allclose(theta.weights, oracle.weights_, atol=1e-8)
        np.testing.assert_allclose(theta.means, oracle.means_, atol=1e-8)
        np.testing.assert_allclose(theta.covariance, oracle.covariances_, atol=1e-8)
        objective.append(-oracle.score(x) + float(model.penalty(theta)))
        assert lines[0]["empty_components"] == lines[0]["singular_covariances"] == 0
    assert np.all(np.diff(objective) < 0)


@pytest.mark.slow
def test_a_second_moment_summed_once_need_not_travel():
    data = mixture_data()
    x = np.asarray(data.rows.x, np.float64)
    engines = [em_engine(), Simulation(em(tied(second_moment=x.T @ x / len(x))), data, seed=0)]
    (one, one_line), (other, other_line) = (
        (state, lines[0]) for state, lines in (e.advance(e.start(), 1) for e in engines)
    )
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-10),
        one.server.theta,
        other.server.theta,
    )
    assert one_line["bits_up"] - other_line["bits_up"] == data.clients * 4 * 64


def independent_spider(data, rounds, *, inner, batch_size, step_size, seed):
    """SPIDER-EM for a Gaussian mixture with a known covariance, in numpy; only its minibatches are
    drawn as the client does.
    """
    x = np.asarray(data.rows.x, np.float64)
    precision = np.linalg.inv(START["start_covariance"])

    def mean_statistics(rows, weights, means):
        gap = rows[:, None] - means
        score = np.log(weights) - 0.5 * np.einsum("nki,ij,nkj->nk", gap, precision, gap)
        r = np.exp(score - score.max(1, keepdims=True))
        r /= r.sum(1, keepdims=True)
        return np.concatenate([r.mean(0), (r.T @ rows / len(rows)).ravel()])

    def maximum(s):
        return s[:3] / s[:3].sum(), s[3:].reshape(3, 2) / s[:3, None]

    shat = np.concatenate([START["weights"], (START["weights"][:, None] * MEANS).ravel()])
    estimate, before = None, None
    for step in range(rounds):
        now = maximum(shat)
        if step % inner == 0:
            estimate = mean_statistics(x, *now)
        else:
            key = key_for(root_key(seed), Stream.CLIENT, step, int(data.ids[0]))
            rows = np.asarray(some_rows(key, whole(data.rows), batch_size).rows.x, np.float64)
            estimate = estimate + mean_statistics(rows, *now) - mean_statistics(rows, *before)
        before = now
        shat = shat + step_size * (estimate - shat)
    return shat


def test_vr_fedem_with_one_client_is_spider_em():
    data = mixture_data(sizes=(64,))
    options = {"inner": 5, "batch_size": 7, "step_size": 0.3}
    model = models.gaussian_mixture(components=3, covariance="known", **START)
    engine = Simulation(vr_fedem(model, memory_rate=0.7, **options), data, seed=4)
    state, _ = engine.advance(engine.start(), 13)
    got = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.server.statistics)])
    np.testing.assert_allclose(got, independent_spider(data, 13, seed=4, **options), atol=1e-12)


@pytest.mark.parametrize("method", ["fedem", pytest.param("vr_fedem", marks=pytest.mark.slow)])
def test_the_memory_of_the_server_is_the_mean_of_the_clients(method):
    """Over 400 rounds of partial participation, compression and lost uploads."""
    data = mixture_data()
    model = models.gaussian_mixture(components=3, covariance="known", **START)
    make = {
        "fedem": lambda: fedem(model, step_size=0.05, batch_size=5, memory_rate=0.5),
        "vr_fedem": lambda: vr_fedem(
            model, step_size=0.05, batch_size=5, memory_rate=0.5, inner=10
        ),
    }[method]
    engine = Simulation(
        make(),
        data,
        seed=1,
        cohort=cohort.bernoulli(0.5),
        channel=dithering(levels=7),
        faults=Faults(dropout=0.2),
        chunk=4,
    )
    state, lines = engine.advance(engine.start(), 400)
    assert sum(line["lost"] for line in lines) > 120  # half of them uploads, a tenth of 800
    clients = jax.tree.map(lambda leaf: np.asarray(leaf).mean(0), state.nodes.state.memory)
    assert np.abs(state.nodes.state.memory.first).max() > 0.1
    jax.tree.map(
        lambda v, mean: np.testing.assert_allclose(v, mean, atol=1e-6), state.server.memory, clients
    )


@pytest.mark.slow
@pytest.mark.parametrize("participation", [1.0, 0.75])
def test_memories_make_compressed_em_converge_and_without_them_it_stalls(participation):
    data = mixture_data()
    model = tied()
    norms = {}
    methods = {"fedem": lambda: fedem(model, step_size=0.3, memory_rate=0.5)}
    if participation == 1:
        methods["naive"] = lambda: em(model, step_size=0.3)
    for name, method in methods.items():
        engine = Simulation(
            method(),
            data,
            seed=2,
            cohort=cohort.bernoulli(participation),
            channel=dithering(levels=7),
            chunk=4,
        )
        state, _ = engine.advance(engine.start(), 600)
        norms[name] = pooled_field(model, data, state.server.statistics, state.server.theta)
    assert norms["fedem"] < 1e-10
    assert norms.get("naive", 1.0) > 1e-3


@pytest.mark.slow
def test_variance_reduction_reaches_further_than_minibatches():
    data = mixture_data()
    model = tied()
    field = {}
    for name, method in (
        ("fedem", fedem(model, step_size=0.1, batch_size=5)),
        ("vr_fedem", vr_fedem(model, step_size=0.1, batch_size=5, inner=10)),
    ):
        engine = Simulation(method, data, seed=3, channel=dithering(levels=7), chunk=4)
        _, lines = engine.advance(engine.start(), 300)
        field[name] = np.mean([line["field_norm"] for line in lines[-20:]])
    assert field["fedem"] > 10 * field["vr_fedem"]


def test_a_stream_goes_through_the_rows_in_order_and_starts_again():
    data = whole(Rows(np.arange(5.0)[:, None], np.zeros(5)))
    taken = [
        np.asarray(next_rows(data, jnp.int32(at), 3).rows.x).ravel().tolist() for at in (0, 3, 1)
    ]
    assert taken == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    assert next_rows(data, jnp.int32(0), 8).mask.sum() == 5


def test_step_sizes():
    falling, own = (
        checked_steps("fedem", 0.5, 0.7, None),
        checked_steps("fedem", lambda step: 0.1 * step, 0.0, None),
    )
    np.testing.assert_allclose(
        [falling(step) for step in (0, 1, 9)], [0.5, 0.5 / 2**0.7, 0.5 / 10**0.7]
    )
    assert own(3) == pytest.approx(0.3)


def told(method, omega):
    """The method, told the channel's omega as an engine tells it."""

    class Told(Spec):
        pass

    Told.omega = omega
    return method._replace(init=lambda key, spec: method.init(key, Told(*spec[:5])))


def vr(model, **options):
    return vr_fedem(model, inner=10, batch_size=20, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*memory_rate=0.5 is above")
@pytest.mark.parametrize("make", [fedem, vr])
def test_by_default_the_memory_rate_is_the_one_the_channel_allows(make):
    """One of 13 values travels, omega = 12: at the rate 0.5 the memories grow until nothing is
    finite.
    """
    data, options = mixture_data(), {"step_size": 0.05}
    ends = {}
    for name, method in (
        ("default", told(make(tied(), **options), 12.0)),
        ("too fast", make(tied(), memory_rate=0.5, **options)),
    ):
        engine = Simulation(method, data, seed=2, channel=rand_k(k=1), chunk=4)
        try:
            state, lines = engine.advance(engine.start(), 300)
            assert float(state.server.memory_rate) == pytest.approx(1 / 13)
            ends[name] = lines[-1]["field_norm"]
        except Diverged as error:
            ends[name] = len(error.lines)
    assert ends["default"] < 0.1
    assert ends["too fast"] < 100  # rounds, and then the run stopped


def test_a_memory_rate_that_the_channel_does_not_allow_is_warned_of():
    assert memory_rate_for(None, 0.0) == 1.0
    assert memory_rate_for(None, 3.0) == 0.25
    assert memory_rate_for(0.25, 3.0) == 0.25
    assert memory_rate_for(0.5, None) == 0.5
    server = told(fedem(tied()), 12.0).init(jax.random.key(0), mixture_data().spec)
    assert float(server.memory_rate) == pytest.approx(1 / 13)
    with pytest.warns(UserWarning, match=r"memory_rate=0.5 is above 1 / \(1 \+ omega\) = 0.25"):
        need_memory_rate("fedem", 0.5, 3.0)
    with pytest.raises(
        ValueError, match=r"the channel is biased .* give one, e.g. memory_rate=0.1"
    ):
        need_memory_rate("fedem", None, None)


@pytest.mark.filterwarnings("ignore:.*memory_rate=0.5 is above")
def test_a_run_that_diverges_names_the_memory_rate():
    method = fedem(tied(), step_size=0.1, memory_rate=0.5)
    with pytest.raises(Diverged, match=r"memory_rate=0.5, and a channel with the bound omega"):
        covey.run(method, mixture_data(), rounds=100, seed=2, channel=rand_k(k=1))
    down = em(tied()).broadcast(em(tied()).init(jax.random.key(0), mixture_data().spec))
    assert "em has no memories" in em(tied()).hooks.diagnose(down, None)


@functools.cache
def compiled_statistics(model):
    return jax.jit(model.statistics)


def local_field(model, data, client, statistics, theta):
    """c_i h_i at the server's statistics."""
    start, count = data.starts("train")[client], data.counts("train")[client]
    rows = np.arange(len(data.rows.y))
    own = jnp.asarray((start <= rows) & (rows < start + count))
    found = compiled_statistics(model)(theta, Batch(jax.tree.map(jnp.asarray, data.rows), own))
    return jax.tree.map(lambda s, shat: np.asarray(s - count * shat), found, statistics)


def test_rounds_that_teach_the_first_field():
    assert warm_up_rounds("first", 1 / 4.5) == 19
    assert (warm_up_rounds("first", 1.0), warm_up_rounds("zero", 0.2)) == (1, 0)


@pytest.mark.parametrize("make", [fedem, pytest.param(vr, marks=pytest.mark.slow)])
def test_memories_that_start_at_the_first_field_as_in_the_paper(make):
    """Without compression one round teaches them h_i(S_0), all rows used; then the paper's rounds
    follow, the same as without memories.
    """
    data = mixture_data()
    model = models.gaussian_mixture(components=3, covariance="known", **START)
    options = {"batch_size": 5} if make is fedem else {}
    method = told(make(model, memory_init="first", step_size=0.2, **options), 0.0)
    engine = Simulation(method, data, seed=1, chunk=4)
    start = engine.start()
    state, lines = engine.advance(start, 1)
    same = functools.partial(np.testing.assert_allclose, atol=1e-10)
    jax.tree.map(same, state.server.statistics, start.server.statistics)
    for client in range(data.clients):
        wanted = local_field(model, data, client, start.server.statistics, start.server.theta)
        jax.tree.map(
            lambda v, h, client=client: same(v[client], h), state.nodes.state.memory, wanted
        )
    means = jax.tree.map(lambda leaf: np.asarray(leaf).mean(0), state.nodes.state.memory)
    jax.tree.map(same, state.server.memory, means)
    assert lines[0]["bits_up"] == data.clients * 9 * 64  # what the start costs, once
    moved, _ = engine.advance(state, 1)
    assert float(np.abs(moved.server.statistics.first - start.server.statistics.first).max()) > 0.01


@pytest.mark.slow
def test_through_a_lossy_channel_the_first_field_is_learnt_to_a_hundredth():
    """Two of nine values travel, omega = 3.5: E|h_i - V_i|^2 falls by 1 - alpha per round, for 100
    clients that draw independently.
    """
    data = mixture_data(sizes=(20,) * 100)
    model = models.gaussian_mixture(components=3, covariance="known", **START)
    rounds = warm_up_rounds("first", 1 / 4.5)
    method = told(fedem(model, memory_init="first", step_size=0.2, batch_size=5), 3.5)
    engine = Simulation(method, data, seed=0, channel=rand_k(k=2), chunk=100)
    start = engine.start()
    state, _ = engine.advance(start, rounds)
    jax.tree.map(np.testing.assert_array_equal, state.server.statistics, start.server.statistics)
    means = jax.tree.map(lambda leaf: np.asarray(leaf).mean(0), state.nodes.state.memory)
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, atol=1e-10), state.server.memory, means
    )
    left = []
    for client in range(data.clients):
        wanted = local_field(model, data, client, start.server.statistics, start.server.theta)
        got = jax.tree.map(lambda leaf, client=client: leaf[client], state.nodes.state.memory)
        left.append(squared(jax.tree.map(np.subtract, got, wanted)) / squared(wanted))
    error = np.std(left) / np.sqrt(len(left))
    assert 0 < np.mean(left) < 0.01 + 3 * error
    assert error < 0.01


def squared(statistics):
    return sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(statistics))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 0.0}, r"step_size must be in \(0, 1\]"),
        ({"step_size": 1.5}, r"step_size must be in \(0, 1\]"),
        ({"decay": -1.0}, "decay at least 0"),
        ({"memory_rate": 1.5}, "memory_rate must be from 0 to 1"),
        (
            {"memory_init": "first", "memory_rate": 0.0},
            "needs memories, and memory_rate=0 has none",
        ),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"oracle": "stream"}, "a stream needs batch_size"),
        ({"step_size": lambda step: 0.1, "decay": 1.0}, "leave out decay"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        fedem(tied(), **options)
    with pytest.raises(ValueError, match="inner must be at least 1, got 0"):
        vr_fedem(tied(), inner=0, batch_size=5)


def test_clients_of_another_width_are_named():
    with pytest.raises(ValueError, match=r"'a' has shape \(2,\) .*row, 'b' has \(3,\)"):
        FederatedData.from_clients(
            {"a": (np.zeros((4, 2)), np.zeros(4)), "b": (np.zeros((4, 3)), np.zeros(4))}
        )
    with pytest.raises(
        ValueError,
        match=r"start_covariance must have the shape \(1, 1\) for these data, got \(2, 2\)",
    ):
        Simulation(
            em(tied()), FederatedData.from_clients({"a": (np.zeros((4, 1)), np.zeros(4))}), seed=0
        )


def test_a_client_with_negative_counts_is_left_out_and_named():
    rng = np.random.default_rng(0)
    clients = {
        f"c{i}": (rng.poisson(3.0, (20, 2)).astype(np.float32), np.zeros(20)) for i in range(4)
    }
    clients["c2"][0][5, 1] = -1
    data = FederatedData.from_clients(clients)
    engine = Simulation(em(models.poisson_mixture(components=2, typical=3.0)), data, seed=0)
    state, lines = engine.advance(engine.start(), 2)
    assert [(line["clients"], line["diverged_id"]) for line in lines] == [(3, 2), (3, 2)]
    assert np.all(np.isfinite(state.server.theta.rates))
