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


def one_client(client=0):
    data = PROBLEM.data
    rows = Rows(jnp.asarray(data.rows.x), jnp.asarray(data.rows.y))
    return Shard(
        rows, jnp.int32(data.starts("train")[client]), jnp.int32(data.counts("train")[client]), 96
    )


def upload(method, data, theta=None):
    """What a client at theta sends in the first round."""
    state = method.init(jax.random.key(0), PROBLEM.data.spec)
    if theta is not None:
        state = state._replace(parameters=theta)
    client = jax.jit(lambda key, down, data: method.client(key, down, None, data))
    local = client(jax.random.key(3), method.broadcast(state), data)
    np.testing.assert_array_equal(local.weight, data.count)
    return local.up


@partial(jax.jit, static_argnames="count")
def drawn(key, data, count):
    local = (key, data, mean_gradient(MODEL.log_likelihood), SGD, Averaging(8, 0, None))
    start = MODEL.init(key, PROBLEM.data.spec)  # zeros
    return jax.lax.scan(
        lambda walk, _: next_sample(*local, walk)[::-1], burnt_in(*local, start), length=count
    )[1]


def samples_of(data, count, key=None):
    """The samples of that client, one pass over its rows in batches of eight each."""
    found = drawn(jax.random.key(3) if key is None else key, data, count)
    return np.column_stack([found.weight, found.bias])


@pytest.mark.slow
@pytest.mark.parametrize("rho", [2.0, 0.0])
def test_one_sample_of_one_step_is_fedavg_to_the_last_bit(rho):
    """Whatever rho is: l = 1 has no covariance. With momentum, minibatches over two passes, and
    clients of unequal size.
    """
    expected, _ = ends(fedavg(MODEL, client_optimizer=SGD, batch_size=16, steps=7), 3)
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
    np.testing.assert_allclose(flat(up.delta), -samples_of(one_client(), 4).mean(0), rtol=1e-12)
    assert float(up.scale) == 1


def shrunk(x, rho):
    """Sigma of some samples, by matrices. The shares of "oas" and "rblw" are those of Chen et al.
    (2010), equations 23 and 17.
    """
    count, size = x.shape
    s = np.cov(x.T)
    if not isinstance(rho, str):
        level = 1 / (1 + (count - 1) * rho)
        return level * np.eye(size) + (1 - level) * s
    square, trace = np.trace(s @ s), np.trace(s)
    above, below = {
        "oas": (1 - 2 / size, count + 1 - 2 / size),
        "rblw": ((count - 2) / count, count + 2),
    }[rho]
    share = min(1.0, (above * square + trace**2) / (below * (square - trace**2 / size)))
    assert 0.05 < share < 0.95
    return share * trace / size * np.eye(size) + (1 - share) * s


@pytest.mark.parametrize(
    ("rho", "count", "solver"),
    [
        (0.7, 4, "dense"),
        ("rblw", 6, "recursive"),
        pytest.param(0.7, 4, "recursive", marks=pytest.mark.slow),
        pytest.param(2.0, 6, "dense", marks=pytest.mark.slow),
        pytest.param("oas", 5, "recursive", marks=pytest.mark.slow),
        pytest.param("oas", 5, "dense", marks=pytest.mark.slow),
    ],
)
def test_the_delta_is_that_of_the_formula(rho, count, solver):
    """And its scale is the largest eigenvalue of Sigma^-1, with fewer samples than the four
    parameters and with more.
    """
    options = {"samples": count, "rho": rho, "client_optimizer": SGD, "batch_size": 8}
    up = upload(fedpa(MODEL, solver=solver, **options), one_client())
    x = samples_of(one_client(), count)
    precision = np.linalg.inv(shrunk(x, rho))
    np.testing.assert_allclose(flat(up.delta), precision @ -x.mean(0), rtol=1e-8)
    np.testing.assert_allclose(up.scale, np.linalg.eigvalsh(precision)[-1], rtol=1e-8)


@pytest.mark.slow
def test_the_paper_s_delta_is_not_normalised():
    """One round of the server from zero, rows as weights: with the scales, and without them."""
    options = {"samples": 3, "rho": 0.5, "client_optimizer": SGD, "batch_size": 8}
    counts = PROBLEM.data.counts("train")
    deltas = []
    for client in range(5):
        x = samples_of(one_client(client), 3, key_for(root_key(0), Stream.CLIENT, 0, client))
        deltas.append(np.linalg.solve(shrunk(x, 0.5), -x.mean(0)))
    mean = counts @ np.stack(deltas) / counts.sum()
    found, _ = ends(fedpa(MODEL, normalised=False, **options), 1)
    np.testing.assert_allclose(found, -mean, rtol=1e-8)
    found, _ = ends(fedpa(MODEL, **options), 1)
    np.testing.assert_allclose(found, -mean / 2, rtol=1e-8)  # rho_l = 1 / (1 + 2 rho)


@pytest.mark.parametrize(
    ("rho", "count"),
    [(100.0, 5), pytest.param(1.0, 20, marks=pytest.mark.slow)],
)
def test_the_server_s_step_depends_neither_on_rho_nor_on_the_samples(rho, count):
    """A step of 1, from zero, whose distance to the least squares is 0.9: the paper's delta
    diverges, or is thousands away.
    """
    method = fedpa(
        MODEL,
        rho=rho,
        samples=count,
        client_optimizer=optax.sgd(0.02),
        minibatches="independent",
        batch_size=8,
    )
    found, _ = ends(method, 30)
    assert np.linalg.norm(found - PROBLEM.least_squares) < 0.45
    assert np.linalg.norm(PROBLEM.least_squares) > 0.85


@pytest.mark.slow
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
    for name, rho, step in (("fedpa", 1e6, 1.0), ("fedavg", 0.0, 0.3)):
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
    client, count = 3, 40
    mean, covariance = PROBLEM.local[client]
    theta = (
        models.linear()
        .init(jax.random.key(0), PROBLEM.data.spec)
        ._replace(weight=jnp.asarray(mean[:3]), bias=jnp.asarray(mean[3]))
    )
    method = fedpa(
        MODEL,
        samples=count,
        rho=0,
        kernel=kernel,
        step_size=step_size,
        burn_in_steps=5,
        steps_per_sample=4,
    )
    up = upload(method, one_client(client), theta)
    off = flat(up.delta)
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
    method = fedpa(MODEL, samples=3, rho="oas", weighting="rows", **sampler)
    up = upload(method, empty)
    np.testing.assert_array_equal(flat(up.delta), np.zeros(4))
    assert float(up.scale) == 1
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(up))


def with_huge_rows(broken):
    """Some clients with features so large that a step leads out of the numbers."""
    data = PROBLEM.data
    rows = (data.rows_of(client, "train") for client in range(data.clients))
    clients = {
        data.name_of(at): (1e30 * x if at in broken else x, y) for at, (x, y) in enumerate(rows)
    }
    return FederatedData.from_clients(clients)


def test_a_chain_that_diverges_is_left_out_counted_and_named():
    method = fedpa(MODEL, samples=2, client_optimizer=SGD, batch_size=16)
    with jax.enable_x64(False):
        with pytest.warns(UserWarning, match="round 1: 1 of the clients .*client 'site2'"):
            done = run(method, with_huge_rows([2]), rounds=2, seed=0, progress=False)
        assert done.metrics["diverged"].tolist() == [1, 1]
        assert done.metrics["diverged_id"].tolist() == [2, 2]
        assert done.metrics["clients"].tolist() == [4, 4]
        assert np.all(np.isfinite(flat(done.state.parameters)))
        with pytest.raises(
            Diverged, match=r"none of the 5 uploads .* make the client's step size smaller"
        ):
            run(method, with_huge_rows(range(5)), rounds=2, seed=0, progress=False)


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
        ({"rho": "rblw", "samples": 1}, "rho='rblw' is chosen from how samples differ"),
        ({"minibatches": "independent", "batch_size": None}, "batch_size=None takes all rows"),
        (
            {"kernel": ula(), "step_size": 0.1, "minibatches": "independent"},
            "minibatches is for averaged iterates",
        ),
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


def test_no_rank_is_no_posterior():
    assert fedpa(MODEL, rank=0).posterior.shared is None
