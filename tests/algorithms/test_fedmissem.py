"""FedMissEM against dense completion written elsewhere, and its promise that the objective never
rises.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from scipy.stats import nbinom

from covey.algorithms.fedmissem import fedmissem
from covey.channel import dithering
from covey.core import cohort, tree
from covey.core.faults import Faults
from covey.data.federated import FederatedData
from covey.engines.loop import Loop
from covey.engines.simulate import Simulation
from covey.models import matrix_completion
from covey.models.cell_families import family_of
from covey.models.matrix_steps import largest_multiplicity

J, L, OBSERVERS = 12, 9, 4
RNG = np.random.default_rng(2)
TRUTH = RNG.normal(size=(J, 2)) @ RNG.normal(size=(2, L)) * 0.7 + 0.3


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def drawn(family, theta, rng):
    return {
        "gaussian": lambda: np.float32(theta + 0.3 * rng.normal(size=theta.shape)),
        "bernoulli": lambda: rng.random(theta.shape) < special.expit(theta),
        "poisson": lambda: rng.poisson(np.exp(theta)),
        "negative_binomial": lambda: rng.poisson(np.exp(theta) * rng.gamma(3, 1 / 3, theta.shape)),
    }[family]()


@functools.cache
def observations(family="gaussian", overlap=True):
    """Cells of the matrix seen by observers; with overlap, some cells by several."""
    rng = np.random.default_rng(3)
    cells = np.argwhere(rng.random((J, L)) < 0.6)
    owner = rng.choice(OBSERVERS, len(cells), p=[0.5, 0.3, 0.15, 0.05])
    if overlap:
        again = rng.choice(len(cells), 20, replace=False)
        cells, owner = (
            np.concatenate([cells, cells[again]]),
            np.concatenate([owner, (owner[again] + 1) % OBSERVERS]),
        )
    y = drawn(family, TRUTH[cells[:, 0], cells[:, 1]], rng)
    return FederatedData.from_arrays(cells, y, owner, classes=2 if family == "bernoulli" else None)


def model_of(family="gaussian", **options):
    """Of a rank above the solution's, where the penalty is convex in the matrix: all descents end
    in the same place.
    """
    return matrix_completion(
        **({"rows": J, "columns": L, "rank": 5, "family": family, "ridge": 1.0} | options)
    )


EFFECTS = {"effect_ridge": 0.3, "offset": 0.2}


def objective(family, data, factors, effects=False):
    """Minus the log-likelihood of all observations without its constants, and the penalty, for a
    ridge of 1.
    """
    (u, v), ((j, k), y) = factors, (np.asarray(data.rows.x).T, np.asarray(data.rows.y, float))
    penalty = 0.5 * (jnp.sum(u**2) + jnp.sum(v**2))
    if effects:
        theta = (0.2 + u[:, :1] + v[:, 0] + u[:, 1:] @ v[:, 1:].T)[j, k]
        penalty = penalty + (0.3 - 1) / 2 * (jnp.sum(u[:, 0] ** 2) + jnp.sum(v[:, 0] ** 2))
    else:
        theta = (u @ v.T)[j, k]
    psi = {
        "gaussian": theta**2 / 2,
        "bernoulli": jnp.logaddexp(0.0, theta),
        "poisson": jnp.exp(theta),
        "negative_binomial": (y + 3) * jnp.log(3 + jnp.exp(theta)),
    }[family]
    return jnp.sum(psi - y * theta) + penalty


@functools.cache
def engine_of(memory_rate):
    """An engine for Gaussian cells, compiled once for all tests."""
    with jax.enable_x64(True):
        return Simulation(fedmissem(model_of(), memory_rate=memory_rate), observations(), seed=0)


def dense_sums(data):
    """How often each cell was observed, and the sum of what was seen there."""
    count, total = np.zeros((J, L)), np.zeros((J, L))
    for (j, k), y in zip(np.asarray(data.rows.x), np.asarray(data.rows.y, float), strict=True):
        count[j, k] += 1
        total[j, k] += y
    return count, total


def soft_impute(data, ridge=1.0):
    """Mazumder, Hastie and Tibshirani (2010): theta = S(theta + P(Y - theta)), S lowers singular
    values by the ridge.
    """
    count, total = dense_sums(data)
    assert count.max() == 1
    theta = np.zeros((J, L))
    for _ in range(1000):
        left, values, right = np.linalg.svd(theta + total - count * theta, full_matrices=False)
        theta = left * np.maximum(values - ridge, 0) @ right
    assert 1 < np.sum(values > ridge) <= 5
    return theta


@pytest.mark.parametrize("form", ["alternating", pytest.param("svd", marks=pytest.mark.slow)])
def test_the_fixed_point_is_that_of_dense_soft_impute(form):
    data = observations(overlap=False)
    engine = Simulation(fedmissem(model_of(), form=form, completions=1), data, seed=0)
    state, _ = engine.advance(engine.start(), 1000)
    u, v = state.server.factors
    np.testing.assert_allclose(u @ v.T, soft_impute(data), atol=1e-6)


def algorithm_seven(data, u, v, rounds, gamma):
    """The paper's algorithm with all cells and nothing compressed: agents send S_c - S, the
    controller averages and takes the thresholded decomposition.
    """
    cells, y = np.asarray(data.rows.x), np.asarray(data.rows.y, float)
    theta = u @ v.T
    s = theta
    for _ in range(rounds):
        field = np.zeros((J, L))
        for agent in range(OBSERVERS):
            start, count = data.starts("train")[agent], data.counts("train")[agent]
            mine = slice(start, start + count)
            own = theta.copy()
            own[tuple(cells[mine].T)] = y[mine]
            field += (own - s) / OBSERVERS
        s = s + gamma * field
        left, values, right = np.linalg.svd(s, full_matrices=False)
        theta = (left * np.maximum(values - 1.0 / OBSERVERS, 0))[:, :5] @ right[:5]
    return s, theta


def test_the_form_svd_is_the_papers_algorithm_step_for_step():
    data = observations()
    engine = Simulation(fedmissem(model_of(), form="svd", step_size=0.3), data, seed=0)
    state = engine.start()
    u, v = (np.asarray(leaf) for leaf in state.server.factors)
    for rounds in (1, 4):
        state, lines = engine.advance(state, rounds)
    s, theta = algorithm_seven(data, u, v, 5, 0.3)
    np.testing.assert_allclose(state.server.statistics, s, atol=1e-10)
    u, v = state.server.factors
    np.testing.assert_allclose(u @ v.T, theta, atol=1e-10)
    assert lines[0]["completions"] == OBSERVERS
    assert lines[0]["bits_up"] == OBSERVERS * 64 * (J * L + 2)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_the_form_svd_ends_where_the_alternating_one_does(family):
    """Poisson cells take T by Newton steps on completed matrices."""
    data = observations(family)
    engine = Simulation(fedmissem(model_of(family), form="svd", completions=2), data, seed=0)
    state, _ = engine.advance(engine.start(), 1000 if family == "gaussian" else 400)
    u, v = state.server.factors
    other = paths(family, "observed")[1].server.factors
    np.testing.assert_allclose(u @ v.T, other.rows @ other.columns.T, atol=1e-3)


def repeated(family):
    """Every cell is observed by each of 8 observers."""
    rng = np.random.default_rng(5)
    cells = np.repeat(np.argwhere(rng.random((J, L)) < 0.6), 8, axis=0)
    y = drawn(family, TRUTH[tuple(cells.T)], rng)
    return FederatedData.from_arrays(cells, y, np.tile(np.arange(8), len(cells) // 8))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gaussian", pytest.param("poisson", marks=pytest.mark.slow)])
def test_too_few_completions_are_raised_until_the_objective_falls(family):
    """With c = 1 where 8 are needed Gaussian factors grow without bound and Poisson ones cycle."""
    data = repeated(family)
    ends = {}
    for completions in (None, 1):
        engine = Simulation(fedmissem(model_of(family), completions=completions), data, seed=0)
        _, lines = engine.advance(engine.start(), 200)
        ends[completions] = lines[-1]["train_loss"]
        assert 1 < lines[-1]["completions"] <= 8
    assert ends[1] == pytest.approx(ends[None], abs=1e-3)


@pytest.mark.slow
def test_observers_who_saw_a_cell_more_than_once_count_as_often():
    """Three observers of one cell each, seen 1, 5 and 2 times: c = 8 where the count of observers
    would be 3.
    """
    cells = np.array([[0, 0]] * 8 + [[2, 1], [2, 2], [3, 1]])
    owner = [0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2]
    data = FederatedData.from_arrays(cells, np.linspace(5, 6, 11), owner)
    counted = jax.jit(largest_multiplicity)
    counts = [float(counted(data.shard(i, "train"))) for i in range(3)]
    assert counts == [1, 5, 2]
    model = matrix_completion(rows=4, columns=3, rank=1, ridge=0.1)
    engine = Simulation(fedmissem(model), data, seed=0)
    _, lines = engine.advance(engine.start(), 60)
    losses = [line["train_loss"] for line in lines]
    assert lines[-1]["completions"] == 8
    assert losses[-1] < min(losses[:20])


@pytest.mark.slow
@pytest.mark.parametrize("lines", [9, 5])
def test_an_upload_may_be_about_some_lines(lines):
    """Lines of one side do not depend on each other: a pass over all of them is the same, in more
    rounds and with the same values sent.
    """
    blocks = -(-J // lines) + -(-L // lines)
    method = fedmissem(model_of(), lines_per_upload=lines, memory_rate=0.5)
    some = Simulation(method, observations(), seed=0)
    ends, bits = [], []
    for engine, rounds in ((engine_of(0.5), 8), (some, 4 * blocks)):
        state, records = engine.advance(engine.start(), rounds)
        ends.append(state.server.factors)
        bits.append(sum(record["bits_up"] for record in records))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), *ends)
    assert bits[0] == OBSERVERS * 64 * 4 * (5 * (J + L) + 2 * 2)
    assert bits[1] == OBSERVERS * 64 * 4 * (5 * (J + L) + 2 * blocks)


def test_an_upload_has_the_lines_of_its_round_and_no_others():
    """The columns of a tall matrix are few: neither engine sends them padded to the rows."""
    engines = [engine_of(0.5), Loop(fedmissem(model_of(), memory_rate=0.5), observations(), seed=0)]
    (first, counted), (second, sent) = (engine.advance(engine.start(), 3) for engine in engines)
    assert [line["bits_up"] for line in counted] == [
        OBSERVERS * 64 * (5 * side + 2) for side in (J, L, J)
    ]
    assert [line["bytes_up"] for line in counted] == [line["bytes_up"] for line in sent]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), first.server, second.server
    )


def test_a_lossy_channel_does_not_touch_how_often_cells_were_seen():
    """Completions are the sum of the observers' multiplicities, here one each."""
    engine = Simulation(fedmissem(model_of()), observations(), seed=0, channel=dithering(levels=3))
    _, lines = engine.advance(engine.start(), 4)
    assert [line["completions"] for line in lines] == [OBSERVERS] * 4


@pytest.mark.parametrize("dispersion", [0.5, 1e6])
def test_the_negative_binomial_is_that_of_scipy(dispersion):
    theta, y = jnp.linspace(-2.0, 3.0, 6), jnp.array([0.0, 1, 0, 7, 3, 40])
    law, mean = family_of("negative_binomial", dispersion), np.exp(theta)
    wanted = nbinom.logpmf(y, dispersion, dispersion / (dispersion + mean))
    np.testing.assert_allclose(law.predictive(theta).log_prob(y), wanted, rtol=1e-6)
    np.testing.assert_allclose(law.predictive(theta).variance, mean + mean**2 / dispersion)

    def log_prob(theta, y):
        return law.predictive(theta[None]).log_prob(y[None])[0]

    gradient = jax.jit(jax.vmap(jax.grad(log_prob)))(theta, y)
    np.testing.assert_allclose(law.score(theta, y), gradient, atol=1e-6)
    bent = jax.jit(jax.vmap(jax.grad(law.score)))(theta, y)
    np.testing.assert_allclose(law.curvature(theta, y), -bent, atol=1e-6)


def test_two_rounds_are_two_half_steps_on_completed_matrices():
    """S is dense here: the mean over observers of their completed matrices, as in the paper's
    algorithm.
    """
    data, engine = observations(), engine_of(0.0)
    state = engine.start()
    u, v = (np.asarray(leaf) for leaf in state.server.factors)
    cells, y = np.asarray(data.rows.x), np.asarray(data.rows.y, float)

    def completed(u, v):
        whole = np.stack([u @ v.T] * OBSERVERS)
        for number in range(OBSERVERS):
            start, count = data.starts("train")[number], data.counts("train")[number]
            mine = slice(start, start + count)
            whole[number][tuple(cells[mine].T)] = y[mine]
        return whole.mean(0)

    eye = 1.0 / OBSERVERS * np.eye(5)
    u = completed(u, v) @ v @ np.linalg.inv(v.T @ v + eye)
    v = completed(u, v).T @ u @ np.linalg.inv(u.T @ u + eye)
    state, _ = engine.advance(state, 2)
    np.testing.assert_allclose(state.server.factors.rows, u, atol=1e-10)
    np.testing.assert_allclose(state.server.factors.columns, v, atol=1e-10)


@functools.cache
def paths(family, curvature, effects=False):
    """The objective after each of some rounds, and the state after many."""
    data, more = observations(family), EFFECTS if effects else {}
    with jax.enable_x64(True):
        engine = Simulation(
            fedmissem(model_of(family, curvature=curvature, **more), completions=2), data, seed=1
        )
        value = jax.jit(lambda factors: objective(family, data, factors, effects))
        state = engine.start()
        path = [value(state.server.factors)]
        for _ in range(15):
            state, _ = engine.advance(state, 1)
            path.append(value(state.server.factors))
        return np.asarray(path), engine.advance(
            state, 1500 if curvature == "completed" else 5000 if effects else 600
        )[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "curvature", "effects"),
    [
        ("gaussian", "completed", False),
        ("gaussian", "observed", False),
        ("poisson", "completed", False),
        ("poisson", "observed", False),
        ("negative_binomial", "observed", False),
        ("bernoulli", "observed", True),
        ("gaussian", "completed", True),
        ("poisson", "observed", True),
        ("bernoulli", "completed", False),
        ("bernoulli", "observed", False),
    ],
)
def test_the_objective_never_rises_and_ends_where_its_gradient_is_zero(family, curvature, effects):
    path, state = paths(family, curvature, effects)
    data = observations(family)
    assert dense_sums(data)[0].max() == 2  # completions
    assert np.all(np.diff(path) <= 1e-9)
    assert path[0] - path[-1] > 5
    gradient = jax.jit(jax.grad(lambda factors: objective(family, data, factors, effects)))
    for leaf in gradient(state.server.factors):
        np.testing.assert_allclose(leaf, 0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["poisson", "gaussian", "bernoulli"])
def test_both_curvatures_reach_the_same_optimum(family):
    ends = [paths(family, curvature)[1].server.factors for curvature in ("completed", "observed")]
    first, second = (np.asarray(u @ v.T) for u, v in ends)
    np.testing.assert_allclose(first, second, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "atol"), [(300, 1e-3), pytest.param(1500, 1e-5, marks=pytest.mark.slow)]
)
def test_compressed_uploads_of_some_observers_lead_to_the_same_matrix(rounds, atol):
    data = observations(overlap=False)
    method = fedmissem(model_of(curvature="observed"), step_size=0.2, memory_rate=0.3)
    engine = Simulation(
        method,
        data,
        seed=5,
        cohort=cohort.bernoulli(0.7),
        channel=dithering(levels=15),
        faults=Faults(dropout=0.1),
        chunk=4,
    )
    state, lines = engine.advance(engine.start(), rounds)
    assert sum(line["lost"] for line in lines) > rounds / 15
    u, v = state.server.factors
    np.testing.assert_allclose(u @ v.T, soft_impute(data), atol=atol)
    summed = jax.tree.map(lambda leaf: np.asarray(leaf).sum(0), state.nodes.state.memory)
    jax.tree.map(
        lambda m, total: np.testing.assert_allclose(m, total, atol=1e-8),
        state.server.memory,
        summed,
    )
    assert np.abs(summed.columns.gradient).max() > 0.1


@pytest.mark.slow
def test_minibatches_are_unbiased_and_memories_change_nothing_where_nothing_is_lost():
    data = observations()
    whole = [engine_of(rate) for rate in (0.0, 0.5)]
    without, with_memory = (engine.advance(engine.start(), 6)[0].server.factors for engine in whole)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), without, with_memory)
    remembering = whole[1].setup.algorithm
    first, shard = remembering.broadcast(whole[1].start().server), data.shard(0, "train")
    local = jax.jit(
        lambda key: remembering.client(
            key, first, remembering.init_client(key, first, shard), shard
        )
    )(jax.random.key(0))
    memory = remembering.commit(local.pending, local.up)
    np.testing.assert_allclose(memory.memory.rows.gradient, 0.5 * local.up.sums.gradient)
    assert not np.any(memory.memory.columns.gradient)  # it was the rows' turn
    method = fedmissem(model_of(), batch_size=5, memory_rate=0.0)
    state, shard = method.init(jax.random.key(0), data.spec), data.shard(0, "train")
    down = method.broadcast(state)
    nobody = method.init_client(jax.random.key(0), down, shard)

    def gradient(method, key):
        return method.client(key, down, nobody, shard).up.sums.gradient

    draws = jax.jit(jax.vmap(functools.partial(gradient, method)))(
        jax.random.split(jax.random.key(1), 4000)
    )
    all_cells = functools.partial(gradient, fedmissem(model_of(), memory_rate=0.0))
    exact = jax.jit(all_cells)(jax.random.key(0))
    error = np.asarray(draws).std(0) / np.sqrt(len(draws))
    assert np.all(np.abs(np.asarray(draws).mean(0) - exact) <= 5 * error + 1e-12)


@pytest.mark.slow
def test_held_out_counts_are_predicted_better_than_by_their_row():
    rng = np.random.default_rng(7)
    rows, columns = 60, 24
    theta = (
        1.0
        + 0.3 * rng.normal(size=(rows, 1))
        + np.outer(rng.normal(size=rows), np.sin(np.arange(columns) / 3))
    )
    cells = np.argwhere(rng.random((rows, columns)) < 0.6)
    y = rng.poisson(np.exp(theta[cells[:, 0], cells[:, 1]]))
    data = FederatedData.from_arrays(cells, y, rng.integers(0, 10, len(cells))).split(
        validation=0.0, test=0.2, seed=0
    )
    model = matrix_completion(
        rows=rows, columns=columns, rank=2, family="poisson", ridge=3.0, curvature="observed"
    )
    engine = Simulation(fedmissem(model), data, seed=0)
    state, _ = engine.advance(engine.start(), 40)
    metric = engine.evaluate(state, "test")["nll"]
    fitted = float(np.sum(metric.total) / np.sum(metric.count))
    train, test = (data.rows_in(part) for part in ("train", "test"))
    site = np.asarray(train.x)[:, 0]
    mean = (np.bincount(site, train.y, rows) + 1) / (np.bincount(site, minlength=rows) + 1)
    rate = mean[np.asarray(test.x)[:, 0]]
    by_row = -np.mean(test.y * np.log(rate) - rate - special.gammaln(np.asarray(test.y) + 1))
    assert fitted < by_row - 0.1


def test_no_observer_sends_or_keeps_a_matrix():
    """At the size of the paper's data: a line of `rank` numbers for each site; both sides' memories
    at the client.
    """
    data = FederatedData.from_arrays(np.zeros((10, 2), int), np.arange(10.0), np.arange(10))
    engine = Simulation(
        fedmissem(matrix_completion(rows=9721, columns=525, rank=2, family="poisson")), data, seed=0
    )
    assert tree.size(engine.setup.shapes.up) == 9721 * 2 + 2
    assert tree.size(engine.setup.shapes.node.state) == (9721 + 525) * 2 + 1
    assert tree.size(engine.setup.shapes.down) == (9721 + 525) * 2 + 3


@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        ("gaussian", [((J, 0), 1.0), ((0, -1), 1.0), ((0.5, 0), 1.0)]),
        pytest.param("poisson", [((1, 1), -1.0), ((1, 1), 0.5)], marks=pytest.mark.slow),
    ],
)
def test_what_is_no_observation_is_left_out_and_named(family, wrong):
    good = observations("poisson")
    x = np.concatenate([good.rows.x, [cell for cell, _ in wrong]])
    y = np.concatenate([good.rows.y, [value for _, value in wrong]])
    data = FederatedData.from_arrays(
        x, y, np.concatenate([np.zeros(len(good.rows.y), int), 7 + np.arange(len(wrong))])
    )
    engine = Simulation(fedmissem(model_of(family)), data, seed=0)
    _, lines = engine.advance(engine.start(), 2)
    assert [line["diverged"] for line in lines] == [len(wrong)] * 2
    method = engine.setup.algorithm
    down = method.broadcast(engine.start().server)
    assert "1 of its rows are not observations of a 12 x 9 matrix" in method.hooks.diagnose(
        down, data.shard(1, "train")
    )
    assert "memory_rate=" in method.hooks.diagnose(down, data.shard(0, "train"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: model_of(rank=10), "rank must be from 1 to 9 for a matrix of 12 x 9, got 10"),
        (lambda: model_of(ridge=-1.0), "ridge must be at least 0"),
        (lambda: model_of(ridge=0.0, curvature="observed"), 'above 0 with curvature="observed"'),
        (lambda: fedmissem(model_of(), completions=0), "completions must be at least 1, got 0"),
        (lambda: fedmissem(model_of(), step_size=0.0), r"fedmissem: step_size must be in \(0, 1\]"),
        (
            lambda: model_of("bernoulli").init(jax.random.key(0), observations("poisson").spec),
            "not classes",
        ),
        (
            lambda: model_of(row_factors=[[1.0]]).init(jax.random.key(0), observations().spec),
            r"shape \(12, 5\)",
        ),
        (
            lambda: model_of().init(
                jax.random.key(0),
                FederatedData.from_arrays(np.zeros((2, 3)), np.zeros(2), [0, 1]).spec,
            ),
            r"two whole numbers, the cell's row and column; these are of shape \(3,\)",
        ),
        (
            lambda: model_of(rank=0),
            "rank must be from 1 to 9 for a matrix of 12 x 9, got 0; 0 goes with effect_ridge",
        ),
        (lambda: model_of(effect_ridge=-1.0), "effect_ridge must be at least 0"),
        (lambda: model_of("negative_binomial"), 'give curvature="observed"'),
        (lambda: model_of(dispersion=0.0), "dispersion must be above 0 and finite, got 0"),
        (
            lambda: fedmissem(model_of(), lines_per_upload=13),
            "lines_per_upload must be from 1 to 12 for a matrix of 12 x 9, got 13",
        ),
        (
            lambda: fedmissem(model_of(), form="svd", lines_per_upload=3),
            'lines_per_upload is for form="alternating"',
        ),
        (
            lambda: fedmissem(model_of(curvature="observed"), form="svd"),
            'use a model with curvature="completed"',
        ),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()
