"""Chains on linear regression with known noise: precisions, and checks of a Gaussian law."""

import numpy as np
from problems import linear_gaussian

from covey import models
from covey.engines.simulate import Simulation

SIZES = (12, 30, 20)
PROBLEM = linear_gaussian(sizes=SIZES, dimension=1)
MODEL, PRIOR = models.linear(scale=PROBLEM.noise), 1.0
PARAMETERS = 2

PRECISIONS = [np.linalg.inv(one.covariance) for one in PROBLEM.local]
SCORES = [p @ one.mean for p, one in zip(PRECISIONS, PROBLEM.local, strict=True)]
PRECISION = sum(PRECISIONS) + np.eye(PARAMETERS) / PRIOR**2
SCORE = sum(SCORES)
LARGEST = np.linalg.eigvalsh(PRECISION).max()


def chains(theta):
    """(parameters, chains)."""
    return np.concatenate([np.asarray(theta.weight), np.asarray(theta.bias)[None]])


def states(method, rounds, seed=0, **options):
    """The server's state after some rounds."""
    engine = Simulation(method, PROBLEM.data, seed=seed, **options)
    return engine.advance(engine.start(), rounds)[0]


def stationary(contraction, pull, noise):
    """The mean and covariance that x' = A x + pull + N(0, noise) leaves as they are."""
    d = len(pull)
    covariance = np.linalg.solve(np.eye(d * d) - np.kron(contraction, contraction), noise.ravel())
    return np.linalg.solve(np.eye(d) - contraction, pull), covariance.reshape(d, d)


def after(contraction, pull, noise, rounds, jitter):
    """The mean and covariance of that recursion after some rounds from N(0, jitter^2)."""
    mean, covariance = np.zeros(len(pull)), jitter**2 * np.eye(len(pull))
    for _ in range(rounds):
        mean = contraction @ mean + pull
        covariance = contraction @ covariance @ contraction.T + noise
    return mean, covariance


def assert_law(draws, mean, covariance, sigmas=4.5):
    """Independent draws (parameters, chains) against a Gaussian law, by standard errors.

    In coordinates in which the law is a standard Gaussian: a wide direction must not hide a narrow
    one.
    """
    white = np.linalg.solve(np.linalg.cholesky(covariance), draws - mean[:, None])
    count, eye = draws.shape[1], np.eye(len(mean))
    assert np.all(np.abs(white.mean(1)) < sigmas / np.sqrt(count))
    assert np.all(np.abs(np.cov(white) - eye) < sigmas * np.sqrt((1 + eye) / count))
