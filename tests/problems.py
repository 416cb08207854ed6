"""Federated problems whose posterior is known, with unequal, heterogeneous and asymmetric clients:
symmetry hides sign errors.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from covey.data.federated import FederatedData

SIZES = (7, 40, 12, 90, 25)


class Gaussian(NamedTuple):
    mean: np.ndarray
    covariance: np.ndarray


class LinearGaussian(NamedTuple):
    """y = w'x + b + noise; parameters in the order (w, b); flat prior locally, N(0, I /
    prior_precision) globally.
    """

    data: FederatedData
    noise: float
    prior_precision: float
    local: list[Gaussian]
    posterior: Gaussian
    least_squares: np.ndarray


def linear_gaussian(
    seed: int = 0, *, dimension: int = 3, noise: float = 0.5, sizes: tuple[int, ...] = SIZES
) -> LinearGaussian:
    rng = np.random.default_rng(seed)
    clients, local = {}, []
    total, moment = np.zeros((dimension + 1,) * 2), np.zeros(dimension + 1)
    truth = rng.normal(size=dimension + 1)
    for number, rows in enumerate(sizes):
        mix = np.eye(dimension) + 0.5 * rng.normal(size=(dimension, dimension))
        x = rng.normal(size=(rows, dimension)) @ mix + rng.normal(size=dimension)
        own = truth + 0.4 * rng.normal(size=dimension + 1)
        design = np.column_stack([x, np.ones(rows)]).astype(np.float32).astype(np.float64)
        y = (design @ own + noise * rng.normal(size=rows)).astype(np.float32)
        clients[f"site{number}"] = (x.astype(np.float32), y)
        precision, score = design.T @ design / noise**2, design.T @ y / noise**2
        local.append(Gaussian(np.linalg.solve(precision, score), np.linalg.inv(precision)))
        total, moment = total + precision, moment + score
    covariance = np.linalg.inv(total + np.eye(dimension + 1))
    posterior = Gaussian(covariance @ moment, covariance)
    data = FederatedData.from_clients(clients)
    return LinearGaussian(data, noise, 1.0, local, posterior, np.linalg.solve(total, moment))


class GaussianMean(NamedTuple):
    """x ~ N(theta, scale^2) with theta ~ N(prior_mean, prior_scale^2): one number, conjugate."""

    data: FederatedData
    scale: float
    prior: Gaussian
    posterior: Gaussian


def gaussian_mean(
    seed: int = 0, *, scale: float = 2.0, sizes: tuple[int, ...] = SIZES
) -> GaussianMean:
    rng = np.random.default_rng(seed)
    clients = {
        f"site{number}": (
            np.zeros((rows, 1), np.float32),
            rng.normal(3.0 + rng.normal(), scale, rows).astype(np.float32),
        )
        for number, rows in enumerate(sizes)
    }
    prior = Gaussian(np.array([-1.0]), np.array([[4.0]]))
    values = np.concatenate([y for _, y in clients.values()]).astype(np.float64)
    precision = 1 / prior.covariance[0, 0] + len(values) / scale**2
    mean = (prior.mean[0] / prior.covariance[0, 0] + values.sum() / scale**2) / precision
    posterior = Gaussian(np.array([mean]), np.array([[1 / precision]]))
    return GaussianMean(FederatedData.from_clients(clients), scale, prior, posterior)


class Logistic(NamedTuple):
    """Binary regression with a N(0, 4 I) prior on (w, b). Its posterior is a long NUTS run on the
    pooled rows, stored.
    """

    data: FederatedData
    prior_scale: float
    draws: np.ndarray
    effective: np.ndarray

    @property
    def posterior(self) -> Gaussian:
        return Gaussian(self.draws.mean(0), np.cov(self.draws.T))


LOGISTIC_DRAWS = Path(__file__).parent / "fixtures" / "logistic_nuts.npz"


def logistic_rows(
    seed: int = 1, *, dimension: int = 3, sizes: tuple[int, ...] = SIZES
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    truth = np.array([1.5, -1.0, 0.3, -0.7])
    clients = {}
    for number, rows in enumerate(sizes):
        x = (
            rng.normal(size=(rows, dimension)) * [1.0, 0.5, 2.0] + rng.normal(size=dimension)
        ).astype(np.float32)
        logit = x @ (truth[:-1] + 0.3 * rng.normal(size=dimension)) + truth[-1]
        y = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int32)
        clients[f"site{number}"] = (x, y)
    return clients


def logistic() -> Logistic:
    stored = np.load(LOGISTIC_DRAWS)
    data = FederatedData.from_clients(logistic_rows(), classes=2)
    return Logistic(data, 2.0, stored["draws"].astype(np.float64), stored["effective"])
