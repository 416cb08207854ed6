"""The Gaussian of FA-LD's simulations, its posterior, and the exact law of FA-LD's state on it.

Deng et al. (2024), section 6.1 and appendix I: N = 50 clients, theta_c ~ N(0, alpha I), n_c points
from N(theta_c, Sigma_c). With the paper's one Sigma for all, every f^c has the same curvature H = n
Sigma^-1. The synchronised state then follows

    theta' = (I - eta H)^K theta + pull + noise

whatever the clients' data and whatever rho: exactly SGLD, seen at each K-th step. Local steps have
no bias there. They have one where curvatures differ, so there is a second problem, in which each
client's Sigma_c is Sigma with other axes. All is linear and Gaussian, and the law after any number
of rounds is known; simulations are checked against it.

A client's rows count through their mean: its shard is one row, (mean, precision n_c Sigma_c^-1),
and its gradient is exact.
"""

from typing import NamedTuple

import numpy as np

from covey.algorithms.fald import fald
from covey.core.cohort import Scheme
from covey.core.shard import Rows
from covey.data.federated import FederatedData
from covey.inference.wasserstein import distance_of_draws, gaussian_distance
from covey.models.model import from_density
from covey.runs.launch import run as run_method
from reproductions.expected_warnings import biases_of_fald

CLIENTS, POINTS = 50, 1000
SIGMA = np.array([[5.0, -2.0], [-2.0, 1.0]])
STEP = 1e-7


class Problem(NamedTuple):
    """Means and precisions by client, and the posterior of the common mean under a flat prior."""

    means: np.ndarray
    precisions: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray


class Law(NamedTuple):
    """The mean and covariance of the state, round by round."""

    means: np.ndarray
    covariances: np.ndarray


def problem(seed: int, alpha: float = 0.0, *, turned: bool = False) -> Problem:
    """Data of the paper; `turned`: every client's Sigma has axes of its own."""
    generator = np.random.default_rng(seed)
    angles = generator.uniform(0, np.pi, CLIENTS) if turned else np.zeros(CLIENTS)
    turn = np.array(
        [[np.cos(angles), -np.sin(angles)], [np.sin(angles), np.cos(angles)]]
    ).transpose(2, 0, 1)
    sigmas = turn @ SIGMA @ turn.transpose(0, 2, 1)
    theta = np.sqrt(alpha) * generator.normal(size=(CLIENTS, 2))
    noise = np.einsum(
        "cij,cj->ci", np.linalg.cholesky(sigmas / POINTS), generator.normal(size=(CLIENTS, 2))
    )
    precisions = POINTS * np.linalg.inv(sigmas)
    total = precisions.sum(0)
    means = theta + noise
    mean = np.linalg.solve(total, np.einsum("cij,cj->i", precisions, means))
    return Problem(means, precisions, mean, np.linalg.inv(total))


def simulate(
    given: Problem,
    *,
    local_steps: int,
    rounds: int,
    start: np.ndarray,
    correlation: float = 0.0,
    step_size: float = STEP,
    chains: int = 300,
    cohort: Scheme | None = None,
    seed: int = 0,
) -> np.ndarray:
    """The states of all chains after each round, (rounds, chains, 2)."""
    rows = Rows(given.means.astype(np.float32), given.precisions.astype(np.float32))
    data = FederatedData.from_rows(rows, np.ones(CLIENTS, int))

    def log_density(theta, row):
        # By coordinate: arrays whose last axis is the chains, not the two parameters, are what
        # vector instructions like.
        one, two = theta[0] - row.x[:, 0], theta[1] - row.x[:, 1]
        return -0.5 * (
            row.y[:, 0, 0] * one * one + 2 * row.y[:, 0, 1] * one * two + row.y[:, 1, 1] * two * two
        )

    density = from_density(log_density, start, "gaussian mean")
    method = fald(
        density,
        step_size=step_size,
        local_steps=local_steps,
        correlation=correlation,
        chains=chains,
        keep=min(rounds, 500),
    )
    with biases_of_fald():
        done = run_method(method, data, rounds=rounds, seed=seed, cohort=cohort, progress=False)
        drawn = done.posterior.shared.draws()
    return np.moveaxis(np.asarray(drawn, np.float64), 0, 1)


def distances(given: Problem, states: np.ndarray) -> np.ndarray:
    """W2 to the posterior after each round."""
    return np.array([distance_of_draws(draws, given.mean, given.covariance) for draws in states])


def law(
    given: Problem,
    *,
    local_steps: int,
    rounds: int,
    start: np.ndarray,
    correlation: float = 0.0,
    step_size: float = STEP,
) -> Law:
    """The exact law after each round, where everyone takes part."""
    share, curvature = 1 / CLIENTS, CLIENTS * given.precisions
    values, axes = np.linalg.eigh(curvature)
    decay = 1 - step_size * values  # by client and axis

    def in_axes(diagonal):
        return axes @ (diagonal[..., None] * axes.transpose(0, 2, 1))

    last = in_axes(decay**local_steps)
    contraction = share * last.sum(0)
    pull = share * np.einsum("cij,cj->i", np.eye(2) - last, given.means)
    geometric = (1 - decay ** (2 * local_steps)) / (1 - decay**2)
    own = share * in_axes(geometric).sum(0)
    if correlation:
        # sum_k (sum_c p_c M_c^k)(...)': pairs of axes of pairs of clients add up as geometric
        # series.
        flat, directions = decay.reshape(-1), axes.transpose(0, 2, 1).reshape(-1, 2)
        pairs = flat[:, None] * flat[None]
        series = (1 - pairs**local_steps) / (1 - pairs)
        common = share**2 * np.einsum(
            "ab,ai,aj,bj,bk->ik",
            series,
            directions,
            directions,
            directions,
            directions,
            optimize=True,
        )
        own = (1 - correlation**2) * own + correlation**2 * common
    noise = 2 * step_size * own
    mean, covariance, means, covariances = start, np.zeros((2, 2)), [], []
    for _ in range(rounds):
        mean, covariance = (
            contraction @ mean + pull,
            contraction @ covariance @ contraction.T + noise,
        )
        means.append(mean)
        covariances.append(covariance)
    return Law(np.array(means), np.array(covariances))


def exact_distances(given: Problem, found: Law) -> np.ndarray:
    """W2 of the exact law to the posterior after each round."""
    return np.array(
        [gaussian_distance(m, c, given.mean, given.covariance) for m, c in zip(*found, strict=True)]
    )


def rounds_to(distance: np.ndarray, bound: float) -> int | None:
    """The first round, counted from 1, at which the distance is within the bound; None if it never
    is.
    """
    within = np.flatnonzero(distance <= bound)
    return int(within[0]) + 1 if within.size else None
