"""FedAvg and its relatives against what they must do on least squares, where everything is known in
closed form.
"""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import linear_gaussian

from covey import channel, models
from covey.algorithms.apfl import apfl
from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedavg_plus import fedavg_plus
from covey.algorithms.fedper import fedper
from covey.algorithms.fedprox import fedprox
from covey.algorithms.local import local
from covey.algorithms.mb_sgd import mb_sgd
from covey.algorithms.mixture import mixture
from covey.algorithms.pfedme import pfedme
from covey.core import cohort
from covey.engines.simulate import Simulation

PROBLEM = linear_gaussian(sizes=(20, 40, 30, 90, 25))
COUNTS = np.array([20, 40, 30, 90, 25])
STEP = 0.05


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def curvatures():
    """H_i, mu_i of the mean squared loss of each client: F_i(theta) = (theta - mu_i)' H_i (theta -
    mu_i) / 2.
    """
    return [
        (np.linalg.inv(local_.covariance) * PROBLEM.noise**2 / rows, local_.mean)
        for local_, rows in zip(PROBLEM.local, COUNTS, strict=True)
    ]


def parameters(tree):
    return np.concatenate([np.ravel(tree.weight), np.ravel(tree.bias)])


def fit(method, rounds, **options):
    engine = Simulation(method, PROBLEM.data, seed=0, **options)
    state, lines = engine.advance(engine.start(), rounds)
    return engine, state, lines


def fixed_point(steps, proximal=0.0, weights=COUNTS):
    """Where averaging K local gradient steps stands still.

    Client i's K steps lead from theta to theta - A_i H_i (theta - mu_i), A_i = step sum_{k<K} (I -
    step (H_i + proximal I))^k.
    """
    total, moment = 0.0, 0.0
    for (hessian, mean), weight in zip(curvatures(), weights, strict=True):
        contraction = np.eye(4) - STEP * (hessian + proximal * np.eye(4))
        path = STEP * sum(np.linalg.matrix_power(contraction, k) for k in range(steps))
        total, moment = total + weight * path @ hessian, moment + weight * path @ hessian @ mean
    return np.linalg.solve(total, moment)


@pytest.mark.parametrize(
    "steps", [10, *(pytest.param(steps, marks=pytest.mark.slow) for steps in (1, 60))]
)
@pytest.mark.parametrize("weighting", ["rows", pytest.param("equal", marks=pytest.mark.slow)])
def test_fedavg_stands_still_where_theory_says(steps, weighting):
    method = fedavg(
        models.linear(),
        client_optimizer=optax.sgd(STEP),
        batch_size=None,
        steps=steps,
        weighting=weighting,
    )
    _, state, _ = fit(method, 1500)
    expected = fixed_point(steps, weights=COUNTS if weighting == "rows" else np.ones(5))
    np.testing.assert_allclose(parameters(state.server.parameters), expected, rtol=1e-5, atol=1e-6)


def test_local_steps_move_fedavg_away_from_the_optimum():
    distances = [
        np.linalg.norm(fixed_point(steps) - PROBLEM.least_squares) for steps in (1, 10, 60)
    ]
    assert distances[0] < 1e-5 < distances[1] < distances[2]


@pytest.mark.parametrize("proximal", [pytest.param(0.5, marks=pytest.mark.slow), 5.0])
def test_fedprox_stands_still_where_theory_says(proximal):
    method = fedprox(
        models.linear(),
        proximal=proximal,
        client_optimizer=optax.sgd(STEP),
        batch_size=None,
        steps=20,
    )
    _, state, _ = fit(method, 1500)
    np.testing.assert_allclose(
        parameters(state.server.parameters), fixed_point(20, proximal), rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_fedprox_without_the_term_is_fedavg():
    options = {"client_optimizer": optax.sgd(STEP), "batch_size": 8}
    _, one, _ = fit(fedprox(models.linear(), proximal=0.0, **options), 5)
    _, other, _ = fit(fedavg(models.linear(), **options), 5)
    np.testing.assert_array_equal(
        parameters(one.server.parameters), parameters(other.server.parameters)
    )


def test_mb_sgd_is_gradient_descent_on_the_pooled_rows():
    engine, state, _ = fit(mb_sgd(models.linear(), server_optimizer=optax.sgd(STEP)), 30)
    x, y = PROBLEM.data.rows
    design = np.column_stack([x, np.ones(len(x))])
    theta = np.zeros(4)
    for _ in range(30):
        theta -= STEP * design.T @ (design @ theta - y) / len(y)
    np.testing.assert_allclose(parameters(state.server.parameters), theta, rtol=1e-5)
    state, _ = engine.advance(state, 3000)
    np.testing.assert_allclose(
        parameters(state.server.parameters), PROBLEM.least_squares, rtol=1e-4, atol=1e-5
    )


def test_mb_sgd_minibatches_are_unbiased():
    """Over many rounds with a vanishing step, the mean change is the full gradient's."""
    method = mb_sgd(models.linear(), server_optimizer=optax.sgd(1e-9), batch_size=4)
    _, state, _ = fit(method, 3000)
    moved = -parameters(state.server.parameters) / 1e-9 / 3000
    gradients = [hessian @ (0 - mean) for hessian, mean in curvatures()]
    expected = COUNTS @ np.array(gradients) / COUNTS.sum()
    # Spread of a minibatch gradient: rows' gradients vary by about the size of (y x), a few units;
    # 5 clients average it.
    rows = [-np.column_stack([x, np.ones(len(x))]) * y[:, None] for x, y in clients()]
    variances = [r.var(0, ddof=1) / 4 * (1 - 4 / len(r)) for r in rows]
    error = np.sqrt((COUNTS / COUNTS.sum()) ** 2 @ np.array(variances) / 3000)
    assert np.all(np.abs(moved - expected) < 4 * error)
    assert np.all(error < 0.1)


def clients():
    data = PROBLEM.data
    for start, count in zip(data.starts("train"), data.counts("train"), strict=True):
        yield data.rows.x[start : start + count], data.rows.y[start : start + count]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad"])
def test_server_optimisers_get_the_averaged_change(name):
    server = getattr(optax, name)(0.1)
    plain = fedavg(models.linear(), client_optimizer=optax.sgd(STEP), batch_size=None, steps=3)
    _, one_round, _ = fit(plain, 1)
    # With one round from zero, minus the averaged change is where plain FedAvg stands.
    change = jax.tree.map(jnp.negative, one_round.server.parameters)
    start = jax.tree.map(jnp.zeros_like, change)
    updates, _ = server.update(change, server.init(start), start)
    adaptive = fedavg(
        models.linear(),
        client_optimizer=optax.sgd(STEP),
        server_optimizer=server,
        batch_size=None,
        steps=3,
    )
    _, state, _ = fit(adaptive, 1)
    np.testing.assert_allclose(parameters(state.server.parameters), parameters(updates), rtol=1e-5)


@pytest.mark.slow
def test_partial_participation_has_the_same_mean():
    """One round's averaged change over 200 cohorts; with equal weights and sizes the ratio of sums
    is unbiased.
    """
    method = fedavg(
        models.linear(),
        client_optimizer=optax.sgd(STEP),
        batch_size=None,
        steps=5,
        weighting="equal",
    )
    _, whole, _ = fit(method, 1)
    ends = []
    engine = Simulation(method, PROBLEM.data, seed=0, cohort=cohort.uniform(2))
    start = engine.start()
    for t in range(200):  # the cohort of another round from the same start
        state, _ = engine.advance(start._replace(round=t), 1)
        ends.append(parameters(state.server.parameters))
    error = np.std(ends, 0) / np.sqrt(len(ends))
    assert np.all(np.abs(np.mean(ends, 0) - parameters(whole.server.parameters)) < 4 * error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "omega"),
    [
        pytest.param(channel.rand_k(k=2), 1.0, id="rand_k"),
        pytest.param(channel.dithering(levels=8), 4 / (4 * 8**2), id="dithering"),
    ],
)
def test_a_lossy_channel_adds_noise_to_the_changes_and_none_to_the_weights(codec, omega):
    """With one full-gradient step per round FedAvg is gradient descent, and the channel's noise at
    the optimum keeps it at a mean squared distance of at most V / (1 - r^2): V the variance that
    the noise adds to a step, r the slowest contraction.
    """
    method = fedavg(models.linear(), client_optimizer=optax.sgd(STEP), batch_size=None)
    engine = Simulation(method, PROBLEM.data, seed=0, channel=codec)
    state, squares = engine.start(), []
    for _ in range(4):
        state, _ = engine.advance(state, 500)
        error = parameters(state.server.parameters) - PROBLEM.least_squares
        squares.append(error @ error)
    share = COUNTS / COUNTS.sum()
    changes = [STEP * hessian @ (PROBLEM.least_squares - mean) for hessian, mean in curvatures()]
    variance = sum(w**2 * omega * change @ change for w, change in zip(share, changes, strict=True))
    hessian = sum(w * one for w, (one, _) in zip(share, curvatures(), strict=True))
    contraction = 1 - STEP * np.linalg.eigvalsh(hessian)[0]
    assert np.mean(squares) < variance / (1 - contraction**2)


SGD = {"client_optimizer": optax.sgd(STEP), "batch_size": None}


@pytest.mark.parametrize(
    ("method", "shared"),
    [
        (fedavg(models.linear(), **SGD), lambda server: server.parameters),
        pytest.param(
            mixture(models.linear(), components=1, **SGD),
            lambda server: server.parameters,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            pfedme(models.linear(), proximal=2.0, step=0.4),
            lambda server: server.parameters,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            apfl(models.linear(), **SGD),
            lambda server: server.parameters,
            marks=pytest.mark.slow,
        ),
        (
            fedper(models.split_network(models.linear(), personal="bias"), **SGD),
            lambda server: server.shared.parameters,
        ),
    ],
    ids=["fedavg", "mixture", "pfedme", "apfl", "fedper"],
)
def test_clipping_bounds_a_clients_change(method, shared):
    """With one client the average is its change: as long as the clipping allows."""
    one = PROBLEM.data.subset(np.array([1]))
    engine = Simulation(method, one, seed=0, channel=channel.clipping(maximum=1e-3))
    start = engine.start()
    state, _ = engine.advance(start, 1)
    moved = jax.tree.map(jnp.subtract, shared(start.server), shared(state.server))
    assert optax.tree.norm(moved) == pytest.approx(1e-3, rel=1e-6)


def test_local_is_gradient_descent_on_every_clients_own_rows():
    method = local(models.linear(), client_optimizer=optax.sgd(STEP), batch_size=None, steps=100)
    _, state, lines = fit(method, 10)
    for index, (hessian, mean) in enumerate(curvatures()):
        mine = jax.tree.map(lambda leaf, at=index: leaf[at], state.nodes.state.parameters)
        expected = mean - np.linalg.matrix_power(np.eye(4) - STEP * hessian, 1000) @ mean
        np.testing.assert_allclose(parameters(mine), expected, rtol=1e-5, atol=1e-6)
    assert all(line["bits_up"] == 0 for line in lines)


def test_fedavg_plus_trains_as_fedavg_and_predicts_after_tuning():
    options = {"client_optimizer": optax.sgd(STEP), "batch_size": None, "epochs": 5}
    engine, state, _ = fit(fedavg_plus(models.linear(), tune_epochs=3, **options), 4)
    _, plain, _ = fit(fedavg(models.linear(), **options), 4)
    theta = parameters(state.server.parameters)
    np.testing.assert_array_equal(theta, parameters(plain.server.parameters))
    hessian, mean = curvatures()[2]
    tuned = mean + np.linalg.matrix_power(np.eye(4) - STEP * hessian, 3) @ (theta - mean)
    x = np.random.default_rng(0).normal(size=(5, 3))
    predicted = engine.predict(state, 2, x).mean
    np.testing.assert_allclose(
        predicted, np.column_stack([x, np.ones(5)]) @ tuned, rtol=1e-5, atol=1e-6
    )


def test_fedprox_is_stable_by_default_for_any_penalty():
    _, state, _ = fit(fedprox(models.linear(), proximal=1e3, batch_size=None, steps=50), 3)
    assert np.all(np.isfinite(parameters(state.server.parameters)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fedavg(models.linear(), batch_size=0), "batch_size must be at least 1, got 0"),
        (lambda: fedavg(models.linear(), epochs=0), "fedavg: epochs must be at least 1, got 0"),
        (lambda: fedavg(models.linear(), steps=-1), "steps must be at least 1, got -1"),
        (lambda: fedavg_plus(models.linear(), tune_epochs=0), "fedavg_plus: tune_epochs must be"),
        (lambda: local(models.linear(), adapt_epochs=0), "local: adapt_epochs must be at least 1"),
        (lambda: mb_sgd(models.linear(), batch_size=0), "mb_sgd: batch_size must be at least 1"),
        (lambda: fedprox(models.linear(), proximal=-1.0), "proximal must be at least 0 and finite"),
        (lambda: fedprox(models.linear(), proximal=np.nan), "at least 0 and finite, got nan"),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


WRONG = {
    "fedavg(models.mixed_linear())": "fedavg: a model .* is needed, got 'mixed_linear'",
    "apfl(models.mixed_linear())": "apfl: a model .* is needed, got 'mixed_linear'",
    "fedrep(models.linear())": "fedrep: a mixed model.* is needed, got 'linear'",
    "fedper(7)": "fedper: a mixed model.* is needed, got 7 of type int",
    "mixture(models.logistic)": r"mixture: the model is the function logistic .* logistic\(\)",
    "fedavg(LINEAR, epochs=1.5)": "fedavg: epochs must be a whole number, got 1.5",
    "fedavg(LINEAR, epochs=None)": "fedavg: epochs must be a whole number, got None",
    "mixture(LINEAR, components=2.0)": "mixture: components must be a whole number, got 2.0",
    "fedavg(LINEAR, client_optimizer=optax.sgd)": r"client_optimizer .* optax.sgd\(0.1\)",
    "fedprox(LINEAR, proximal=1, server_optimizer=0.1)": "fedprox: server_optimizer .* got 0.1",
    "apfl(LINEAR, weighting='row')": "apfl: weighting must be 'rows' or 'equal', got 'row'",
}


def test_wrong_models_and_options_are_refused_in_one_line():
    """In a process of its own: in tests the types of arguments are checked before these checks."""
    code = """
import sys, optax
from covey import apfl, fedavg, fedper, fedprox, fedrep, mixture, models
LINEAR = models.linear()
for call in sys.argv[1:]:
    try:
        eval(call)
    except ValueError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *WRONG], capture_output=True, text=True, check=True
    )
    for line, message in zip(done.stdout.splitlines(), WRONG.values(), strict=True):
        assert re.match(f"(.*: )?{message}", line), line
