"""DG-LMC on a Gaussian: the law of its chains in closed form, and its limit."""

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
    SCORES,
    SIZES,
    assert_law,
    chains,
    states,
    stationary,
)

from covey import channel, cohort
from covey.algorithms.dg_lmc import dg_lmc

B, D = len(SIZES), PARAMETERS
RHO = 1 / LARGEST
JITTER = 0.3


def own_precisions():
    """Of each client's U_i, with its share of the prior."""
    return [p + np.eye(D) / (B * PRIOR**2) for p in PRECISIONS]


def recursion(rho, gamma, steps):
    """z' = A z + pull + noise of all z_i together, with x = mean of z + xi drawn in between."""
    contraction, noise = np.zeros((B * D, B * D)), np.zeros((B * D, B * D))
    pull, spread = np.zeros(B * D), np.zeros((B * D, D))
    for i, (precision, score) in enumerate(zip(own_precisions(), SCORES, strict=True)):
        move = np.eye(D) - gamma * (precision + np.eye(D) / rho)
        powers = [np.linalg.matrix_power(move, k) for k in range(steps + 1)]
        towards_x = gamma / rho * sum(powers[:steps])
        rows = slice(i * D, i * D + D)
        contraction[rows, rows] += powers[steps]
        for j in range(B):
            contraction[rows, j * D : j * D + D] += towards_x / B
        pull[rows] = gamma * sum(powers[:steps]) @ score
        noise[rows, rows] += 2 * gamma * sum(one @ one.T for one in powers[:steps])
        spread[rows] = towards_x
    return contraction, pull, noise + rho / B * spread @ spread.T


def law_of_x(mean, covariance, rho):
    average = np.hstack([np.eye(D) / B] * B)
    return average @ mean, average @ covariance @ average.T + rho / B * np.eye(D)


def exact(rho):
    """Of x where clients draw z_i given x exactly: z_i integrated out."""
    parts = [np.linalg.inv(np.linalg.inv(p) + rho * np.eye(D)) for p in own_precisions()]
    means = [np.linalg.solve(p, s) for p, s in zip(own_precisions(), SCORES, strict=True)]
    precision = sum(parts)
    covariance = np.linalg.inv(precision)
    return covariance @ sum(p @ m for p, m in zip(parts, means, strict=True)), covariance


def test_chains_have_the_law_of_the_recursion():
    rounds, gamma, steps = 30, 0.3 * RHO, 4
    method = dg_lmc(
        MODEL,
        tolerance=RHO,
        step_size=gamma,
        local_steps=steps,
        prior=PRIOR,
        chains=1000,
        jitter=JITTER,
        keep=1,
    )
    state = states(method, rounds)
    contraction, pull, noise = recursion(RHO, gamma, steps)
    # The first round begins with all z_i and x at one point.
    mean, covariance = np.zeros(B * D), JITTER**2 * np.kron(np.ones((B, B)), np.eye(D))
    for t in range(rounds):
        mean = contraction @ mean + pull
        drawn = noise if t else first_noise(gamma, steps)
        covariance = contraction @ covariance @ contraction.T + drawn
    assert_law(chains(state.server.theta), *law_of_x(mean, covariance, RHO))


def first_noise(gamma, steps):
    """x of the first round is given, not drawn."""
    _, _, noise = recursion(RHO, gamma, steps)
    towards = np.vstack(
        [
            gamma / RHO * sum(np.linalg.matrix_power(move, k) for k in range(steps))
            for move in (np.eye(D) - gamma * (p + np.eye(D) / RHO) for p in own_precisions())
        ]
    )
    return noise - RHO / B * towards @ towards.T


def test_short_steps_give_the_law_with_z_integrated_out():
    mean, covariance = law_of_x(*stationary(*recursion(RHO, 1e-3 * RHO, 3000)), RHO)
    expected, expected_covariance = exact(RHO)
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    np.testing.assert_allclose(covariance, expected_covariance, rtol=2e-3)


def test_a_small_tolerance_gives_the_posterior():
    """The distance is of the order of rho."""
    posterior, errors = PROBLEM.posterior, []
    np.testing.assert_allclose(np.linalg.inv(PRECISION), posterior.covariance, rtol=1e-6)
    for rho in (RHO, RHO / 10, RHO / 100):
        mean, covariance = exact(rho)
        errors.append(
            [
                np.linalg.norm(mean - posterior.mean),
                np.linalg.norm(covariance - posterior.covariance),
            ]
        )
    np.testing.assert_allclose(np.divide(errors[2], errors[1]), 0.1, atol=0.02)
    assert np.all(np.array(errors[0]) > 5 * np.array(errors[1]))


@pytest.mark.slow
def test_the_total_is_the_sum_of_the_clients():
    """With partial cohorts and a lossy channel; clients that were not heard keep their z_i."""
    method = dg_lmc(MODEL, tolerance=RHO, chains=2, prior=PRIOR, jitter=JITTER, keep=1)
    state = states(method, 5, cohort=cohort.uniform(2), channel=channel.rand_k(k=2))
    seen = np.asarray(state.seen)[:, None, None]
    start = np.asarray(state.server.start.weight)
    own = np.where(seen, np.asarray(state.nodes.state.weight), start)
    np.testing.assert_allclose(state.server.total.weight, own.sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_partial_cohorts_have_the_same_law():
    """Random-scan Gibbs: seeds are independent, chains of a run share their cohorts."""
    method = dg_lmc(
        MODEL, tolerance=RHO, step_size=0.05 * RHO, local_steps=20, prior=PRIOR, chains=40, keep=1
    )
    found = [
        chains(states(method, 150, seed, cohort=cohort.uniform(2)).server.theta)
        for seed in range(12)
    ]
    draws = np.concatenate(found, axis=1)
    mean, covariance = law_of_x(*stationary(*recursion(RHO, 0.05 * RHO, 20)), RHO)
    assert_law(draws, mean, covariance)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": 0.0}, "dg_lmc: tolerance must be above 0 and finite, got 0"),
        ({"tolerance": -1.0}, "dg_lmc: tolerance must be above 0 and finite, got -1"),
        ({"step_size": 3.0}, "step_size must be above 0 and below 2 tolerance, 2, .* got 3"),
        ({"step_size": 0.0}, "step_size must be above 0 and below 2 tolerance"),
        ({"local_steps": 0}, "dg_lmc: local_steps must be at least 1, got 0"),
        ({"jitter": -0.5}, "dg_lmc: jitter must be at least 0, got -0.5"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        dg_lmc(MODEL, **({"tolerance": 1.0} | options))
