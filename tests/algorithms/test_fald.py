"""FA-LD against an SGLD written on its own, and against laws that are known in closed form."""

import warnings
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray
from problems import linear_gaussian

from covey import models
from covey.algorithms.fald import fald
from covey.algorithms.fald_walk import Down
from covey.core import cohort
from covey.core.keys import Stream, key_for, root_key, without_replacement
from covey.core.shard import Shard
from covey.data.federated import FederatedData
from covey.engines.record import Diverged
from covey.engines.simulate import Simulation
from covey.inference.trace import summarise
from covey.runs.launch import run

SIZES = np.array([20, 40, 30, 90, 25])
PROBLEM = linear_gaussian(sizes=tuple(SIZES.tolist()))
SHARE = SIZES / SIZES.sum()
NOISE, PRIOR = PROBLEM.noise, 1.0
MODEL = models.linear(scale=NOISE)


def clients():
    """Design matrices and outcomes, (w, b) as the columns."""
    data = PROBLEM.data
    for client in range(data.clients):
        x, y = data.rows_of(client, "train")
        yield np.column_stack([x, np.ones(len(x))]).astype(float), y.astype(float)


def flat(theta):
    """(numbers, chains)."""
    return np.concatenate([np.asarray(theta.weight), np.asarray(theta.bias)[None]])


def own_noise(seed, t, client, step, size, chains):
    key = jax.random.split(key_for(root_key(seed), Stream.CLIENT, t, client))[1]
    return np.asarray(jax.random.normal(jax.random.fold_in(key, step), (size, chains)))


def own_batch(seed, t, client, step, chains, rows, size):
    key = jax.random.split(key_for(root_key(seed), Stream.CLIENT, t, client))[0]
    keys = jax.random.split(jax.random.fold_in(key, step), chains)
    return np.asarray(jax.vmap(lambda key: without_replacement(key, rows, size))(keys))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [6, None])
def test_one_step_of_everyone_without_shared_noise_is_sgld_draw_for_draw(batch_size):
    """Pooled rows, one gradient, one noise: theta - eta (grad f + noise of minibatches) + sqrt(2
    eta tau) xi.
    """
    seed, eta, tau, chains, rounds = 3, 2e-4, 0.7, 2, 3
    with jax.enable_x64(True):
        method = fald(
            MODEL,
            step_size=eta,
            local_steps=1,
            batch_size=batch_size,
            temperature=tau,
            prior=PRIOR,
            chains=chains,
            keep=rounds,
        )
        done = run(method, PROBLEM.data, rounds=rounds, seed=seed, progress=False)
        ours = done.posterior.shared.draws()
        theta = np.zeros((4, chains))
        for t in range(rounds):
            gradient, xi = theta / PRIOR**2, 0.0
            for client, (design, y) in enumerate(clients()):
                xi = xi + np.sqrt(SHARE[client]) * own_noise(seed, t, client, 0, 4, chains)
                batches, scale = [slice(None)] * chains, 1.0
                if batch_size is not None:
                    batches = own_batch(seed, t, client, 0, chains, len(y), batch_size)
                    scale = len(y) / batch_size
                for chain, some in enumerate(batches):
                    residual = design[some] @ theta[:, chain] - y[some]
                    gradient[:, chain] += scale * design[some].T @ residual / NOISE**2
            theta = theta - eta * gradient + np.sqrt(2 * eta * tau) * xi
            np.testing.assert_allclose(ours.weight[:, t], theta[:3].T, rtol=1e-5)
            np.testing.assert_allclose(ours.bias[:, t], theta[3], rtol=1e-5)


JITTER = 0.3


def law(eta, steps, tau, rho, rounds=None):
    """The mean and covariance of the synchronised state, a linear recursion with Gaussian noise,
    after `rounds` or at the end.

    theta' = sum_c p_c M_c^K theta + pull + noise, M_c = I - eta H_c, H_c = X'X / (p_c sigma^2) + I
    / prior^2.
    """
    eye = np.eye(4)
    contraction, pull, noise = np.zeros((4, 4)), np.zeros(4), np.zeros((4, 4))
    common = [np.zeros((4, 4)) for _ in range(steps)]
    for share, (design, y) in zip(SHARE, clients(), strict=True):
        hessian = design.T @ design / NOISE**2 / share + eye / PRIOR**2
        score = design.T @ y / NOISE**2 / share
        move = eye - eta * hessian
        powers = [np.linalg.matrix_power(move, k) for k in range(steps + 1)]
        contraction += share * powers[steps]
        pull += share * eta * sum(powers[:steps]) @ score
        noise += share * (1 - rho**2) * 2 * eta * tau * sum(one @ one.T for one in powers[:steps])
        common = [total + share * one for total, one in zip(common, powers[:steps], strict=True)]
    noise += 2 * eta * tau * rho**2 * sum(one @ one.T for one in common)
    if rounds is not None:
        mean, covariance = np.zeros(4), JITTER**2 * eye
        for _ in range(rounds):
            mean, covariance = (
                contraction @ mean + pull,
                contraction @ covariance @ contraction.T + noise,
            )
        return mean, covariance
    covariance = np.linalg.solve(
        np.eye(16) - np.kron(contraction, contraction), noise.ravel()
    ).reshape(4, 4)
    return np.linalg.solve(eye - contraction, pull), covariance


def test_without_a_step_the_law_is_the_posterior_and_its_bias_is_of_first_order():
    tau = 0.7
    errors = []
    for eta in (2e-5, 1e-5, 5e-6):
        mean, covariance = law(eta, 5, tau, 0.6)
        off = np.linalg.norm(mean - PROBLEM.posterior.mean) / np.linalg.norm(PROBLEM.posterior.mean)
        wide = np.linalg.norm(covariance - tau * PROBLEM.posterior.covariance) / np.linalg.norm(
            tau * PROBLEM.posterior.covariance
        )
        errors.append((off, wide))
    for one, half in pairwise(errors):
        np.testing.assert_allclose(np.divide(half, one), 0.5, atol=0.12)


def assert_law(draws, mean, covariance, sigmas=4.0):
    """Independent draws (numbers, chains) against a Gaussian law; standard errors of a mean and of
    a covariance.
    """
    chains = draws.shape[1]
    deviation = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(draws.mean(1) - mean) < sigmas * deviation / np.sqrt(chains))
    error = np.sqrt((covariance**2 + np.outer(np.diag(covariance), np.diag(covariance))) / chains)
    assert np.all(np.abs(np.cov(draws) - covariance) < sigmas * error)


def final_states(eta, steps, tau, rho, chains, rounds, seed=0):
    method = fald(
        MODEL,
        step_size=eta,
        local_steps=steps,
        temperature=tau,
        correlation=rho,
        prior=PRIOR,
        chains=chains,
        jitter=JITTER,
        keep=1,
    )
    engine = Simulation(method, PROBLEM.data, seed=seed)
    return flat(engine.advance(engine.start(), rounds)[0].server.theta)


@pytest.mark.parametrize(
    "rho",
    [0.6, pytest.param(0.0, marks=pytest.mark.slow), pytest.param(1.0, marks=pytest.mark.slow)],
)
def test_chains_have_the_law_of_the_recursion(rho):
    """Unequal, heterogeneous clients and a prior; chains are independent, so their spread after a
    round is the law itself.
    """
    assert_law(
        final_states(5e-5, 5, 0.7, rho, chains=1000, rounds=20), *law(5e-5, 5, 0.7, rho, rounds=20)
    )


@pytest.mark.slow
def test_halving_the_step_halves_the_distance_to_the_posterior():
    tau, found = 0.7, []
    for eta, rounds in ((5e-5, 400), (2.5e-5, 800), (1.25e-5, 1600)):
        draws = final_states(eta, 2, tau, 0.0, chains=500, rounds=rounds)
        mean, covariance = law(eta, 2, tau, 0.0)
        assert_law(draws, mean, covariance)
        found.append(np.linalg.norm(draws.mean(1) - PROBLEM.posterior.mean))
    assert found[0] > 1.5 * found[1] > 2.25 * found[2]


def flat_density():
    return models.from_density(
        lambda theta, rows: jnp.zeros(rows.x.shape[0]) * theta[0], jnp.zeros(2), "flat"
    )


def equal_shards(sizes):
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    rows = FederatedData.from_clients(
        {
            str(client): (np.zeros((size, 1), np.float32), np.zeros(size, np.float32))
            for client, size in enumerate(sizes)
        }
    ).rows
    return [
        Shard(jax.tree.map(jnp.asarray, rows), jnp.int32(start), jnp.int32(size), max(sizes))
        for start, size in zip(starts, sizes, strict=True)
    ]


def test_the_noise_has_the_law_of_the_paper():
    """Where the density is flat a client moves by noise alone: its variance, and the covariance of
    two clients.
    """
    sizes, chains, steps, eta, tau, rho, decay = (3, 9), 40_000, 3, 0.01, 0.7, 0.6, 0.5
    method = fald(
        flat_density(),
        step_size=eta,
        local_steps=steps,
        temperature=tau,
        correlation=rho,
        decay=decay,
        chains=chains,
        keep=1,
    )
    down = Down(
        jnp.zeros((2, chains)),
        jax.random.key_data(jax.random.key(5)),
        jnp.int32(2),
        jnp.asarray(12.0),
    )
    keys = jax.random.split(jax.random.key(0), 2)
    program = jax.jit(lambda key, data: method.client(key, down, (), data))
    locals_ = [program(key, data) for key, data in zip(keys, equal_shards(sizes), strict=True)]
    shares = np.array(sizes) / 12
    np.testing.assert_allclose([local.weight for local in locals_], shares, rtol=1e-6)
    moved = np.stack([np.asarray(local.up) for local in locals_])  # (clients, 2, chains)
    total = 2 * tau * sum(eta / (1 + decay * (2 * steps + k)) for k in range(steps))
    variance = total * (rho**2 + (1 - rho**2) / shares)
    numbers = 2 * chains
    found = np.cov(moved.reshape(2, -1))
    assert np.all(np.abs(np.diag(found) - variance) < 4 * variance * np.sqrt(2 / numbers))
    shared = total * rho**2
    assert abs(found[0, 1] - shared) < 4 * np.sqrt((variance.prod() + shared**2) / numbers)
    assert np.all(np.abs(moved.mean(-1)) < 4 * np.sqrt(variance.max() / chains))
    coordinates = np.cov(moved[0])[0, 1]  # the noise of two parameters is not the same
    assert abs(coordinates) < 4 * variance[0] / np.sqrt(chains)


@pytest.mark.parametrize(
    ("scheme", "sizes"),
    [
        pytest.param(cohort.weighted(4), (3, 9, 5), id="scheme I"),
        pytest.param(cohort.uniform(2), (4, 4, 4), id="scheme II", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.*own noise is averaged over few")
def test_a_cohort_is_averaged_as_its_scheme_says(scheme, sizes):
    """Scheme I: the mean over draws, a client drawn twice counts twice. Scheme II, equal clients:
    the mean over those drawn.
    """
    data = FederatedData.from_clients(
        {
            str(client): (np.zeros((size, 1), np.float32), np.zeros(size, np.float32))
            for client, size in enumerate(sizes)
        }
    )
    method = fald(flat_density(), step_size=0.01, local_steps=1, chains=3, keep=1)
    engine = Simulation(method, data, seed=4, cohort=scheme)
    state, _ = engine.advance(engine.start(), 1)
    drawn = engine.setup.sampler.sample(key_for(engine.setup.root, Stream.COHORT, 0), 0)
    counts = np.asarray(drawn.weight) * np.asarray(drawn.mask)
    share = np.array(sizes)[np.asarray(drawn.index)] / sum(sizes)
    times = counts * share  # in units of one draw
    np.testing.assert_allclose(times.sum(), 1.0, rtol=1e-5)
    expected = sum(
        time * np.sqrt(2 * 0.01 / p) * own_noise(4, 0, int(client), 0, 2, 3)
        for time, p, client in zip(times, share, np.asarray(drawn.index), strict=True)
        if time
    )
    np.testing.assert_allclose(np.asarray(state.server.theta), expected, rtol=1e-4)


SEGMENTS, LONG = 40, 150


def partial_run():
    """Two of ten clients per round, whose means differ; sixteen chains, long forgotten starts."""
    rng = np.random.default_rng(0)
    rows = {
        f"site{client}": (np.zeros((20, 1)), rng.normal(2 * rng.normal(), 1.0, 20))
        for client in range(10)
    }
    data = FederatedData.from_clients(rows)
    model = models.from_density(
        lambda theta, rows: -0.5 * (rows.y - theta) ** 2, jnp.zeros(()), "mean"
    )
    method = fald(model, step_size=2e-3, local_steps=1, chains=16, burn_in=50, keep=1000)
    rounds = 50 + SEGMENTS * LONG
    return run(method, data, rounds=rounds, seed=1, cohort=cohort.uniform(2), progress=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*own noise is averaged over few")
def test_the_reported_error_is_the_error_where_chains_share_their_cohorts():
    """With one local step the mean of the law is the posterior mean exactly. Forty stretches of one
    run are as forty runs: their root mean square error is known to 11 %.
    """
    done = partial_run()
    posterior = done.posterior.shared.trace()["posterior"].to_dataset()
    truth = float(np.mean(done.data.rows.y))
    off, reported = [], []
    for segment in range(SEGMENTS):
        some = posterior.isel(draw=slice(segment * LONG, (segment + 1) * LONG))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # few effective draws is what is to be shown
            table = summarise(xarray.DataTree.from_dict({"posterior": some}))
        off.append(table["mean"].item() - truth)
        reported.append(table["mcse_mean"].item())
        assert table["ess_bulk"].item() < 2 * (table["sd"].item() / reported[-1]) ** 2
    ratio = np.sqrt(np.mean(np.square(off)) / np.mean(np.square(reported)))
    assert 0.7 < ratio < 1.4
    assert abs(np.mean(off)) < 3 * np.std(off) / np.sqrt(SEGMENTS)


def test_scheme_two_is_for_clients_of_equal_size():
    method = fald(MODEL, step_size=1e-4, correlation=1.0)
    with pytest.warns(UserWarning, match=r"clients have 20 to 90 rows.*cohort.weighted"):
        Simulation(method, PROBLEM.data, seed=0, cohort=cohort.uniform(2))
    Simulation(method, PROBLEM.data, seed=0, cohort=cohort.weighted(2))  # warnings are errors here
    with pytest.raises(
        ValueError, match="a cohort of 6 clients was asked for, but the data have 5"
    ):
        Simulation(method, PROBLEM.data, seed=0, cohort=cohort.uniform(6))


@pytest.mark.parametrize(("burn_in", "thinning"), [(10, 1), (0, 11), (4, 7)])
def test_a_run_that_keeps_no_draw_is_refused(burn_in, thinning):
    method = fald(MODEL, step_size=1e-4, burn_in=burn_in, thinning=thinning)
    with pytest.raises(
        ValueError,
        match=rf"the first draw is after round {burn_in + thinning} .* and rounds=10 ends before",
    ):
        run(method, PROBLEM.data, rounds=10, seed=0, progress=False)
    Simulation(method, PROBLEM.data, seed=0, rounds=burn_in + thinning)


def test_a_step_that_is_too_long_is_named_with_one_that_is_not():
    """The bound is 2 / the largest curvature of the client that is named."""
    method = fald(MODEL, step_size=1.0, local_steps=60, prior=PRIOR, chains=2, keep=1)
    with pytest.raises(
        Diverged, match=r"round 1: none of the 5 uploads.*client 'site4': its largest stable step"
    ) as caught:
        run(method, PROBLEM.data, rounds=3, seed=0, progress=False)
    said = float(str(caught.value).partition("is about ")[2].partition(",")[0])
    design, _ = list(clients())[4]
    curvature = np.linalg.eigvalsh(design.T @ design / NOISE**2 / SHARE[4] + np.eye(4))[-1]
    assert said == pytest.approx(2 / curvature, rel=0.06)  # two digits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": 0.0}, "step_size must be above 0, got 0"),
        ({"correlation": 1.2}, r"correlation \(rho\) must be from 0 to 1, got 1.2"),
        ({"correlation": -0.1}, "must be from 0 to 1"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"local_steps": 0}, "local_steps must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"decay": -1.0}, "decay must be at least 0"),
        ({"prior": 0.0}, "prior must be above 0"),
        ({"chains": 0}, "chains must be at least 1"),
        ({"thinning": 0}, "thinning must be at least 1"),
        ({"burn_in": -1}, "burn_in must be at least 0, got -1"),
        ({"keep": 0}, "keep must be at least 1, got 0"),
        ({"jitter": -0.1}, "jitter must be at least 0, got -0.1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        fald(MODEL, **({"step_size": 1e-3} | options))


def test_a_prior_counts_once():
    own = MODEL._replace(log_prior=lambda theta: -0.5 * jnp.sum(theta.weight**2))
    with pytest.raises(ValueError, match="linear has its own prior"):
        fald(own, step_size=1e-3, prior=1.0)
