"""QLSD and QLSD++ on a Gaussian: exact laws, and noise that vanishes at the mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gaussian_chains import (
    LARGEST,
    MODEL,
    PARAMETERS,
    PRECISION,
    PRIOR,
    PROBLEM,
    SCORE,
    after,
    assert_law,
    chains,
    states,
    stationary,
)

from covey import channel, cohort
from covey.algorithms.qlsd import qlsd
from covey.algorithms.qlsd_plus import qlsd_plus
from covey.core.shard import Shard
from covey.models import Linear
from covey.runs.launch import run

STEP, JITTER = 0.2 / LARGEST, 0.3
EYE = np.eye(PARAMETERS)
ULA = (EYE - STEP * PRECISION, STEP * SCORE, 2 * STEP * EYE)
OPTIONS = {"step_size": STEP, "prior": PRIOR, "jitter": JITTER, "keep": 1}


def test_without_loss_it_is_ula_on_the_pooled_rows():
    """Chains are independent, so that their spread after some rounds is the law itself."""
    method = qlsd(MODEL, chains=1000, **OPTIONS)
    assert_law(chains(states(method, 25).server.theta), *after(*ULA, 25, JITTER))


def test_its_stationary_law_is_the_posterior_up_to_the_step():
    """The recursion that chains follow; its variances exceed the posterior's by order gamma."""
    errors = []
    for share in (0.2, 0.1, 0.05):
        step = share / LARGEST
        mean, covariance = stationary(EYE - step * PRECISION, step * SCORE, 2 * step * EYE)
        np.testing.assert_allclose(mean, PROBLEM.posterior.mean, rtol=1e-6)
        errors.append(np.linalg.norm(covariance - PROBLEM.posterior.covariance))
    np.testing.assert_allclose(np.divide(errors[1:], errors[:-1]), 0.5, atol=0.05)


@pytest.mark.slow
def test_partial_cohorts_and_compression_keep_the_mean():
    """Unbiased estimates: the mean of the law is ULA's, its spread larger."""
    method = qlsd(MODEL, chains=1, **(OPTIONS | {"step_size": STEP / 4}))
    found = [
        chains(
            states(
                method, 150, seed, cohort=cohort.uniform(2), channel=channel.rand_k(k=1)
            ).server.theta
        )
        for seed in range(25)
    ]
    draws = np.concatenate(found, axis=1)
    error = draws.std(1) / np.sqrt(draws.shape[1])
    assert np.all(np.abs(draws.mean(1) - PROBLEM.posterior.mean) < 4 * error)
    assert np.all(draws.var(1) > 1.2 * np.diag(PROBLEM.posterior.covariance))


def shards():
    rows = jax.tree.map(jnp.asarray, PROBLEM.data.rows)
    starts, counts = PROBLEM.data.starts("train"), PROBLEM.data.counts("train")
    return [
        Shard(rows, jnp.int32(start), jnp.int32(count), int(counts.max()))
        for start, count in zip(starts, counts, strict=True)
    ]


def at_mode(method):
    mode = PROBLEM.posterior.mean
    state = method.init(jax.random.key(0), PROBLEM.data.spec._replace(omega=1.0))
    theta = Linear(jnp.full((1, 1), mode[0], float), jnp.full((1,), mode[1], float))
    return state, theta


def estimates(method, codec, rounds):
    """The sum over clients that the server would step along, with chains held at the mode."""
    state, theta = at_mode(method)
    nodes, found = None, []

    @jax.jit
    def one(key, down, own, data):
        local = method.client(key, down, own, data)
        payload, _ = codec.encode(key, codec.init(local.up), local.up)
        sent = codec.decode(payload)
        return sent, method.commit(local.pending, sent)

    memory = np.zeros(PARAMETERS)
    for t in range(rounds):
        if method.name == "qlsd":
            down = theta
        else:
            chained = state.chains._replace(theta=theta, round=jnp.int32(t))
            down = method.broadcast(state._replace(chains=chained))
        if nodes is None:
            nodes = [method.init_client(jax.random.key(0), down, data) for data in shards()]
        total = np.zeros(PARAMETERS)
        for index, data in enumerate(shards()):
            key = jax.random.fold_in(jax.random.key(t), index)
            sent, nodes[index] = one(key, down, nodes[index], data)
            total = total + chains(sent)[:, 0]
        found.append(memory + total)
        if method.name != "qlsd":
            memory = memory + float(state.memory_rate) * total
    return np.array(found)


def test_the_noise_of_the_estimate_vanishes_at_the_mode():
    """Minibatches and a lossy channel: QLSD's estimate stays noisy, that of QLSD++ becomes exact,
    minus the gradient of the log prior.
    """
    codec = channel.rand_k(k=1)  # of two values: omega = 1
    small = {"batch_size": 4, "step_size": STEP, "prior": PRIOR, "chains": 1}
    plain = estimates(qlsd(MODEL, **small), codec, 40)
    reduced = estimates(qlsd_plus(MODEL, inner=40, **small), codec, 40)
    exact = PRECISION @ PROBLEM.posterior.mean - SCORE - PROBLEM.posterior.mean / PRIOR**2
    scale = np.abs(plain).std()
    assert np.all(plain[-10:].std(0) > 0.1 * scale)
    np.testing.assert_allclose(reduced[-1], exact, atol=1e-4 * scale)
    assert np.all(reduced[-10:].std(0) < 1e-3 * plain[-10:].std(0))


@pytest.mark.slow
def test_the_memory_of_the_server_is_the_sum_of_the_clients():
    method = qlsd_plus(MODEL, batch_size=4, inner=3, chains=2, **OPTIONS)
    state = states(method, 6, cohort=cohort.uniform(2), channel=channel.rand_k(k=2))
    own = np.asarray(state.nodes.state.memory.weight) * np.asarray(state.seen)[:, None, None]
    assert np.abs(own).max() > 0
    np.testing.assert_allclose(state.server.memory.weight, own.sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_without_loss_and_with_all_rows_both_are_the_same():
    one = states(qlsd(MODEL, chains=3, **OPTIONS), 8)
    method = qlsd_plus(MODEL, chains=3, batch_size=100, inner=3, **OPTIONS)
    other = states(method, 8)
    np.testing.assert_allclose(
        chains(other.server.chains.theta), chains(one.server.theta), rtol=1e-4, atol=1e-4
    )


def test_draws_of_a_run():
    method = qlsd(MODEL, chains=3, burn_in=2, thinning=2, **(OPTIONS | {"keep": 2}))
    done = run(method, PROBLEM.data, rounds=8, seed=0, progress=False)
    assert done.posterior.shared.draws().weight.shape == (3, 3, 1)
    with pytest.raises(ValueError, match="qlsd: the first draw is after round 4"):
        run(method, PROBLEM.data, rounds=3, seed=0, progress=False)


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        (qlsd, {"step_size": 0.0}, "qlsd: step_size must be above 0 and finite, got 0"),
        (qlsd, {"prior": 0.0}, "qlsd: prior must be above 0, got 0"),
        (qlsd, {"chains": 0}, "qlsd: chains must be at least 1, got 0"),
        (qlsd, {"jitter": -1.0}, "qlsd: jitter must be at least 0, got -1"),
        (qlsd, {"keep": 0}, "qlsd: keep must be at least 1, got 0"),
        (qlsd_plus, {"batch_size": 0}, "qlsd_plus: batch_size must be at least 1, got 0"),
        (qlsd_plus, {"inner": 0}, "qlsd_plus: inner must be at least 1, got 0"),
        (qlsd_plus, {"memory_rate": 1.5}, "qlsd_plus: memory_rate must be from 0 to 1"),
    ],
)
def test_bad_options(factory, options, message):
    first = {"step_size": 0.1} | ({"batch_size": 4} if factory is qlsd_plus else {})
    with pytest.raises(ValueError, match=message):
        factory(MODEL, **(first | options))
