"""FSGLD on a Gaussian, where surrogates are exact, and DSGLD step by step in plain NumPy."""

import jax
import numpy as np
import pytest
from gaussian_chains import (
    LARGEST,
    MODEL,
    PARAMETERS,
    PRECISION,
    PRECISIONS,
    PRIOR,
    PROBLEM,
    SCORE,
    SCORES,
    SIZES,
    after,
    assert_law,
    chains,
    states,
)

from covey import channel, cohort
from covey.algorithms.fsgld import fsgld
from covey.core.faults import Faults
from covey.core.keys import Stream, key_for, root_key
from covey.engines.simulate import Simulation
from covey.runs.launch import run

STEP, JITTER = 0.4 / LARGEST, 0.3
EYE = np.eye(PARAMETERS)
ONE = cohort.uniform(1)
OPTIONS = {"step_size": STEP, "prior": PRIOR, "jitter": JITTER, "keep": 1}


def everyone_once(engine, state):
    """Rounds until every client has made its surrogate."""
    while not np.asarray(state.seen).all():
        state, _ = engine.advance(state, 1)
    return state


def test_with_exact_surrogates_it_is_ula_on_the_pooled_rows():
    """The likelihood is Gaussian: wherever chains are when a client makes q_i, q_i is exact."""
    method = fsgld(MODEL, local_steps=3, chains=1000, **OPTIONS)
    engine = Simulation(method, PROBLEM.data, seed=2, cohort=ONE)
    state = everyone_once(engine, engine.start())
    product = state.server.product
    np.testing.assert_allclose(product.precision, sum(PRECISIONS), rtol=1e-4)
    np.testing.assert_allclose(product.linear, SCORE, rtol=1e-3)
    state, _ = engine.advance(state, 60)  # 180 steps forget the rounds before
    ula = (EYE - STEP / 2 * PRECISION, STEP / 2 * SCORE, STEP * EYE)
    assert_law(chains(state.server.theta), *after(*ula, 180, JITTER))


def visited(seed, t, scheme):
    sampler = scheme(np.array(SIZES))
    return int(sampler.sample(key_for(root_key(seed), Stream.COHORT, t), t).index[0])


@pytest.mark.slow
@pytest.mark.parametrize(("chance", "scheme"), [("equal", ONE), ("rows", cohort.weighted(1))])
def test_without_surrogates_it_is_dsgld(chance, scheme):
    """One step per round, chain by chain with the noise that the client draws."""
    seed, rounds, count = 3, 4, 2
    with jax.enable_x64(True):
        options = OPTIONS | {"jitter": 0.0, "chance": chance, "surrogates": False}
        method = fsgld(MODEL, local_steps=1, chains=count, **options)
        found = chains(states(method, rounds, seed, cohort=scheme).server.theta)
        theta, seen = np.zeros((PARAMETERS, count)), set()
        for t in range(rounds):
            client = visited(seed, t, scheme)
            seen.add(client)
            share = 1 / len(SIZES) if chance == "equal" else SIZES[client] / sum(SIZES)
            key = jax.random.split(key_for(root_key(seed), Stream.CLIENT, t, client))[1]
            xi = np.asarray(jax.random.normal(jax.random.fold_in(key, 0), (PARAMETERS, count)))
            uphill = (SCORES[client][:, None] - PRECISIONS[client] @ theta) / share
            theta = theta + STEP / 2 * (uphill - theta / PRIOR**2) + np.sqrt(STEP) * xi
        assert len(seen) > 1
        np.testing.assert_allclose(found, theta, rtol=1e-6)


@pytest.mark.slow
def test_the_product_is_that_of_all_surrogates_through_a_lossy_channel():
    method = fsgld(MODEL, local_steps=1, chains=2, **OPTIONS)
    lossy = {"cohort": ONE, "channel": channel.rand_k(k=4), "faults": Faults(dropout=0.3)}
    state = states(method, 6, **lossy)
    seen = np.asarray(state.seen)
    assert seen.sum() >= 1
    for total, own in zip(state.server.product, state.nodes.state, strict=True):
        each = np.asarray(own)[seen]
        assert np.abs(each).max() > 0
        np.testing.assert_allclose(total, each.sum(0), rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_minibatches_keep_the_mean_of_the_posterior():
    method = fsgld(MODEL, local_steps=5, batch_size=6, chains=400, **OPTIONS)
    engine = Simulation(method, PROBLEM.data, seed=2, cohort=ONE)
    state = everyone_once(engine, engine.start())
    found = []
    for _ in range(200):  # chains share the client of a round: rounds count, not chains
        state, _ = engine.advance(state, 3)
        found.append(chains(state.server.theta).mean(1))
    error = np.std(found, axis=0) / np.sqrt(len(found) / 10)
    assert np.all(np.abs(np.mean(found, axis=0) - PROBLEM.posterior.mean) < 4 * error)


def test_cohorts_that_it_cannot_have():
    def started(scheme, **options):
        run(fsgld(MODEL, step_size=STEP, **options), PROBLEM.data, rounds=1, cohort=scheme)

    with pytest.raises(ValueError, match="one client at a time, and this cohort has up to 3: give"):
        started(None)
    with pytest.raises(ValueError, match="one client at a time, and this cohort has up to 2"):
        started(cohort.uniform(2))
    with pytest.raises(ValueError, match="draws clients by their rows, and chance='equal'"):
        started(cohort.weighted(1))
    with pytest.raises(ValueError, match="draws clients alike, and chance='rows' is for"):
        started(ONE, chance="rows")
    with pytest.raises(ValueError, match="fsgld walks at one client at a time, and peers"):
        run(fsgld(MODEL, step_size=STEP), PROBLEM.data, rounds=1, engine="peers")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step_size": -1.0}, "fsgld: step_size must be above 0 and finite, got -1"),
        ({"local_steps": 0}, "fsgld: local_steps must be at least 1, got 0"),
        ({"batch_size": 0}, "fsgld: batch_size must be at least 1, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        fsgld(MODEL, **({"step_size": 0.1} | options))
