"""FedPA against FedAvg in the limits that they share, against matrices, and against posteriors that
are known.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import linear_gaussian

from covey import models
from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedpa import fedpa
from covey.core.keys import Stream, key_for, root_key
from covey.core.shard import Rows, Shard
from covey.data.federated import FederatedData
from covey.engines.record import Diverged
from covey.engines.simulate import Simulation
from covey.inference import predictive_interval
from covey.kernels import hmc, nuts, ornstein_uhlenbeck, sgld, ula
from covey.kernels.descent import mean_gradient
from covey.kernels.iasg import Averaging, burnt_in, next_sample
from covey.runs.launch import run

PROBLEM = linear_gaussian(sizes=(20, 40, 30, 90, 25))
MODEL = models.linear(scale=PROBLEM.noise)
SGD = optax.sgd(0.02, momentum=0.5)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def ends(method, rounds, data=PROBLEM.data, **options):
    engine = Simulation(method, data, seed=0, **options)
    state, lines = engine.advance(engine.start(), rounds)
    return flat(state.server.parameters), lines


def flat(tree):
    return np.concatenate([np.ravel(tree.weight), np.ravel(tree.bias)])


def one_client(place=0):
    data = PROBLEM.data
    rows = Rows(jnp.asarray(data.rows.x), jnp.asarray(data.rows.y))
    return Shard(
        rows, jnp.int32(data.starts("train")[place]), jnp.int32(data.counts("train")[place]), 96
    )


def upload(method, data, theta=None):
    """What a client at theta sends in the first round."""
    state = method.init(jax.random.key(0), PROBLEM.data.spec)
    if theta is not None:
        state = state._replace(parameters=theta)
    client = jax.jit(lambda key, down, data: method.client(key, down, None, data).up)
    return client(jax.random.key(3), method.broadcast(state), data)


@partial(jax.jit, static_argnames="number")
def drawn(key, data, number):
    local = (key, data, mean_gradient(MODEL.log_likelihood), SGD, Averaging(8, 0, None))
    start = MODEL.init(key, PROBLEM.data.spec)  # zeros
    return jax.lax.scan(
        lambda walk, _: next_sample(*local, walk)[::-1], burnt_in(*local, start), length=number
    )[1]


def samples_of(data, number, key=None):
    """The samples of that client, one pass over its rows in batches of eight each."""
    found = drawn(jax.random.key(3) if key is None else key, data, number)
    return np.column_stack([found.weight, found.bias])


def test_one_sample_of_one_step_is_fedavg_to_the_last_bit():
    """Whatever rho is: l = 1 has no covariance. With momentum, minibatches over two passes, and
    clients of unequal size.
    """
    expected, _ = ends(fedavg(MODEL, client_optimizer=SGD, batch_size=16, steps=7), 3)
    for rho in (0.0, 2.0):
        method = fedpa(
            MODEL,
            samples=1,
            rho=rho,
            burn_in_steps=6,
            steps_per_sample=1,
            client_optimizer=SGD,
            batch_size=16,
        )
        found, lines = ends(method, 3)
        np.testing.assert_array_equal(found, expected)
        assert [line["local_steps"] for line in lines] == [7] * 3


def test_no_shrinkage_is_fedavg_of_the_mean_sample():
    up = upload(fedpa(MODEL, samples=4, rho=0, client_optimizer=SGD, batch_size=8), one_client())
    np.testing.assert_allclose(
        flat(up.delta) / up.weight, -samples_of(one_client(), 4).mean(0), rtol=1e-12
    )


@pytest.mark.parametrize("solver", [pytest.param("recursive", marks=pytest.mark.slow), "dense"])
def test_the_delta_is_that_of_the_formula(solver):
    up = upload(
        fedpa(MODEL, samples=4, rho=0.7, client_optimizer=SGD, batch_size=8, solver=solver),
        one_client(),
    )
    x = samples_of(one_client(), 4)
    level = 1 / (1 + 3 * 0.7)
    covariance = level * np.eye(4) + (1 - level) * np.cov(x.T)
    np.testing.assert_allclose(
        flat(up.delta), 20 * np.linalg.solve(covariance, -x.mean(0)), rtol=1e-9
    )
    assert float(up.weight) == 20


@pytest.mark.parametrize("solver", ["recursive", pytest.param("dense", marks=pytest.mark.slow)])
def test_a_chosen_shrinkage_does_not_know_the_scale(solver):
    """The server divides by the sum of the mean precisions, so that a delta has the size of a
    step.
    """
    up = upload(
        fedpa(MODEL, samples=5, rho="oas", client_optimizer=SGD, batch_size=8, solver=solver),
        one_client(),
    )
    x = samples_of(one_client(), 5)
    s = np.cov(x.T)
    square, trace = np.trace(s @ s), np.trace(s)
    share = min(1.0, (square / 2 + trace**2) / (5.5 * (square - trace**2 / 4)))
    precision = np.linalg.inv(share * trace / 4 * np.eye(4) + (1 - share) * s)
    np.testing.assert_allclose(flat(up.delta), 20 * precision @ -x.mean(0), rtol=1e-9)
    np.testing.assert_allclose(up.weight, 20 * np.trace(precision) / 4, rtol=1e-9)
    assert 0.05 < share < 0.95


def test_burn_in_rounds_are_fedavg_with_as_many_steps():
    options = {"client_optimizer": SGD, "batch_size": 16, "server_optimizer": optax.adam(0.1)}
    method = fedpa(MODEL, samples=3, burn_in_rounds=2, **options)
    engine, plain = (
        Simulation(one, PROBLEM.data, seed=0)
        for one in (method, fedavg(MODEL, epochs=3, **options))
    )
    state, lines = engine.advance(engine.start(), 2)
    other, plain_lines = plain.advance(plain.start(), 2)
    np.testing.assert_array_equal(flat(state.server.parameters), flat(other.server.parameters))
    for name in ("train_loss", "local_steps"):
        assert [line[name] for line in lines] == [line[name] for line in plain_lines]
    state, other = engine.advance(state, 1)[0], plain.advance(other, 1)[0]
    assert np.all(flat(state.server.parameters) != flat(other.server.parameters))


@pytest.mark.slow
def test_posterior_averaging_ends_at_the_mode():
    """Exact samples, independent at this step; equal weights, as Sigma_i^-1 grows with the rows by
    itself. FedAvg of the same samples averages the clients' own modes. Noise of the estimates is
    averaged over the last rounds.
    """
    exact = {"kernel": ornstein_uhlenbeck(), "step_size": 6.0, "samples": 60, "weighting": "equal"}
    far = {}
    for name, rho, step in (("fedpa", 1e6, 2e-3), ("fedavg", 0.0, 0.3)):
        method = fedpa(MODEL, rho=rho, server_optimizer=optax.sgd(step), **exact)
        engine = Simulation(method, PROBLEM.data, seed=0)
        state, _ = engine.advance(engine.start(), 60)
        points = []
        for _ in range(30):
            state, _ = engine.advance(state, 1)
            points.append(flat(state.server.parameters))
        far[name] = np.linalg.norm(np.mean(points, 0) - PROBLEM.least_squares)
    mean_of_modes = np.mean([one.mean for one in PROBLEM.local], 0)
    assert far["fedavg"] == pytest.approx(
        np.linalg.norm(mean_of_modes - PROBLEM.least_squares), rel=0.1
    )
    assert far["fedpa"] < far["fedavg"] / 8


@pytest.mark.parametrize(
    ("kernel", "step_size"),
    [
        pytest.param(sgld(batch_size=8), 1e-4, marks=pytest.mark.slow),
        pytest.param(hmc(steps=5), 0.02, marks=pytest.mark.slow),
        pytest.param(nuts(doublings=3), 0.05, marks=pytest.mark.slow),
    ],
    ids=["sgld", "hmc", "nuts"],
)
def test_other_samplers(kernel, step_size):
    """From the mode of a client, samples stay around it: the mean of forty within four standard
    errors (they are correlated).
    """
    place, number = 3, 40
    mean, covariance = PROBLEM.local[place]
    theta = (
        models.linear()
        .init(jax.random.key(0), PROBLEM.data.spec)
        ._replace(weight=jnp.asarray(mean[:3]), bias=jnp.asarray(mean[3]))
    )
    method = fedpa(
        MODEL,
        samples=number,
        rho=0,
        kernel=kernel,
        step_size=step_size,
        burn_in_steps=5,
        steps_per_sample=4,
    )
    up = upload(method, one_client(place), theta)
    off = flat(up.delta) / float(up.weight)
    assert np.all(np.abs(off) < 4 * np.sqrt(np.diag(covariance)))
    assert np.all(np.abs(off) > 0)


@pytest.mark.slow
def test_a_client_with_fewer_rows_than_a_batch_uses_them_all():
    options = {"samples": 3, "rho": 0.5, "client_optimizer": SGD}
    some = upload(fedpa(MODEL, batch_size=64, **options), one_client())
    every = upload(fedpa(MODEL, batch_size=None, **options), one_client())
    np.testing.assert_allclose(flat(some.delta), flat(every.delta), rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler", [{"kernel": ula(), "step_size": 0.1}, {}], ids=["kernel", "iterates"]
)
def test_a_client_without_rows_says_nothing(sampler):
    empty = Shard(one_client().rows, jnp.int32(0), jnp.int32(0), 16)
    up = upload(fedpa(MODEL, samples=3, rho="oas", rank=2, weighting="equal", **sampler), empty)
    np.testing.assert_array_equal(flat(up.delta), np.zeros(4))
    assert float(up.precision.weight) == 0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(up))


def with_huge_rows(places):
    """Some clients with features so large that a step leads out of the numbers."""
    data = PROBLEM.data
    rows = (data.rows_of(place, "train") for place in range(data.clients))
    clients = {
        data.name_of(at): (1e30 * x if at in places else x, y) for at, (x, y) in enumerate(rows)
    }
    return FederatedData.from_clients(clients)


def test_a_chain_that_diverges_is_left_out_counted_and_named():
    method = fedpa(MODEL, samples=2, client_optimizer=SGD, batch_size=16)
    with jax.enable_x64(False):
        with pytest.warns(UserWarning, match="round 1: 1 of the clients, 'site2' among them"):
            done = run(method, with_huge_rows([2]), rounds=2, seed=0, progress=False)
        assert done.metrics["diverged"].tolist() == [1, 1]
        assert done.metrics["diverged_id"].tolist() == [2, 2]
        assert done.metrics["clients"].tolist() == [4, 4]
        assert np.all(np.isfinite(flat(done.state.parameters)))
        with pytest.raises(Diverged, match=r"all 5 uploads .* make the client's step size smaller"):
            run(method, with_huge_rows(range(5)), rounds=2, seed=0, progress=False)


@pytest.fixture(scope="module")
def with_posterior():
    """Nearly exact: independent samples of the exact local posteriors, hardly shrunk, at the
    mode.
    """
    with jax.enable_x64(True):
        exact = {"kernel": ornstein_uhlenbeck(), "step_size": 6.0, "weighting": "equal"}
        method = fedpa(
            MODEL,
            samples=100,
            rho=1e6,
            server_optimizer=optax.sgd(2e-3),
            rank=4,
            decay=0.95,
            predictive_draws=4000,
            **exact,
        )
        return run(method, PROBLEM.data, rounds=60, seed=0, progress=False)


def flat_prior():
    """The posterior of all rows without a prior."""
    return np.linalg.inv(sum(np.linalg.inv(one.covariance) for one in PROBLEM.local))


@pytest.mark.slow
def test_the_posterior_is_that_of_all_rows(with_posterior):
    """The inverse of a covariance of l samples is (l - 1) / (l - d - 2) times too large on average:
    3 % of a deviation here. A round's precision is off by about sqrt(2 / l) / sqrt(clients), 6 %,
    and twenty rounds are averaged.
    """
    covariance = flat_prior()
    draws = jax.tree.map(
        lambda leaf: leaf[0], with_posterior.posterior.shared.draws(4000, chains=1)
    )
    found = np.column_stack([draws.weight, draws.bias])
    np.testing.assert_allclose(found.std(0), np.sqrt(np.diag(covariance)), rtol=0.08)
    root = np.linalg.cholesky(np.linalg.inv(covariance))
    np.testing.assert_allclose(np.cov((found @ root).T), np.eye(4), atol=0.15)
    assert np.all(np.abs(found.mean(0) - PROBLEM.least_squares) < np.sqrt(np.diag(covariance)))


@pytest.mark.slow
def test_predictions_and_traces_come_from_the_posterior(with_posterior):
    x = np.array([[4.0, -3.0, 2.0], [0.0, 0.0, 0.0]])
    predicted = with_posterior.predict(x, client="site0")
    design = np.column_stack([x, np.ones(2)])
    scale = np.sqrt(PROBLEM.noise**2 + np.einsum("ri,ij,rj->r", design, flat_prior(), design))
    np.testing.assert_allclose(np.sqrt(predicted.variance), scale, rtol=0.03)
    np.testing.assert_allclose(
        predicted.mean, design @ flat(with_posterior.state.parameters), atol=0.05
    )
    lower, upper = predictive_interval(predicted, probability=0.9)
    np.testing.assert_allclose(upper - lower, 2 * 1.645 * scale, rtol=0.03)
    tree = with_posterior.posterior.shared.trace(20, chains=2)
    assert dict(tree["posterior"]["weight"].sizes) == {"chain": 2, "draw": 20, "weight_dim_0": 3}


def test_the_sums_make_the_precision_of_the_matrices():
    """Rows as weights, all of a cohort: sum q_i Sigma_i^-1 with q_i of mean one, from the samples
    of each client.
    """
    method = fedpa(MODEL, samples=3, rho=0.5, client_optimizer=SGD, batch_size=8, rank=4, decay=0.0)
    engine = Simulation(method, PROBLEM.data, seed=0)
    state, _ = engine.advance(engine.start(), 1)
    law = engine.broadcast(state).posterior
    found = float(law.level) * (np.eye(4) - law.axes * law.shrunk @ law.axes.T)
    total = np.zeros((4, 4))
    for place, rows in enumerate(PROBLEM.data.counts("train")):
        x = samples_of(one_client(place), 3, key_for(root_key(0), Stream.CLIENT, 0, place))
        total += rows * np.linalg.inv(
            0.5 * np.eye(4) + 0.5 * np.cov(x.T)
        )  # rho_l = 1 / (1 + 2 rho)
    np.testing.assert_allclose(found, 5 * total / 205, rtol=1e-8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"rho": -0.1}, "rho must be at least 0 and finite, got -0.1"),
        ({"rho": float("nan")}, "rho must be at least 0 and finite, got nan"),
        ({"rho": "oas", "samples": 1}, "take samples=2 or more"),
        ({"burn_in_rounds": -1}, "burn_in_rounds must be at least 0, got -1"),
        ({"burn_in_steps": -1}, "burn_in_steps must be at least 0, got -1"),
        ({"steps_per_sample": 0}, "steps_per_sample must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"rank": -1}, "rank must be at least 0, got -1"),
        ({"decay": 1.0}, "decay must be at least 0 and below 1, got 1"),
        ({"predictive_draws": 0}, "predictive_draws must be at least 1, got 0"),
        ({"step_size": 0.1}, "step_size is that of a kernel"),
        ({"kernel": ula()}, "a kernel needs a step_size above 0, got None"),
        (
            {"kernel": ula(), "step_size": 0.1, "client_optimizer": SGD},
            "client_optimizer is for burn-in rounds",
        ),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        fedpa(MODEL, **options)


def test_a_run_is_longer_than_its_burn_in():
    with pytest.raises(
        ValueError, match="fedpa burns in for 5 rounds, and rounds=5 ends before it begins"
    ):
        run(fedpa(MODEL, burn_in_rounds=5), PROBLEM.data, rounds=5, seed=0)


def test_a_dense_covariance_is_for_few_parameters():
    spec = PROBLEM.data.spec
    wide = spec._replace(rows=spec.rows._replace(x=jax.ShapeDtypeStruct((10_001,), jnp.float32)))
    with pytest.raises(
        ValueError, match="for up to 10000 parameters and linear has 10002; use solver='recursive'"
    ):
        fedpa(MODEL, solver="dense").init(jax.random.key(0), wide)


def test_draws_are_for_who_asked_for_them():
    assert fedpa(MODEL).posterior.shared is None
