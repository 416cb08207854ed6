"""Least squares with three unlike clients, for methods that are checked against plain NumPy."""

from collections.abc import Iterator

import numpy as np
from problems import linear_gaussian

from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation

SIZES = (20, 40, 30)
PROBLEM = linear_gaussian(sizes=SIZES)
DATA = PROBLEM.data
COUNTS = FederatedData.from_rows(DATA.rows._replace(y=np.round(np.abs(DATA.rows.y))), SIZES)
STEP = 0.05


def fit(method, rounds, data=DATA, seed=4, **options):
    """The state after some rounds, and a line of metrics for each."""
    engine = Simulation(method, data, seed=seed, **options)
    return engine.advance(engine.start(), rounds)


def coefficients(tree):
    """(w, b) on the last axis."""
    return np.concatenate([np.asarray(tree.weight), np.asarray(tree.bias)[..., None]], axis=-1)


def designs() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each client's design, with a column of ones, and outcomes."""
    for client in range(DATA.clients):
        x, y = (leaf.astype(float) for leaf in DATA.rows_of(client, "train"))
        yield np.column_stack([x, np.ones(len(y))]), y


def gradient(design, y, theta):
    """Of the mean loss of a client."""
    return design.T @ (design @ theta - y) / len(y)


def hessians():
    """Of the mean loss of each client."""
    return [design.T @ design / len(y) for design, y in designs()]


def optimum(weights=(1, 1, 1)):
    """Of the weighted sum of the clients' mean losses."""
    moments = [design.T @ y / len(y) for design, y in designs()]
    total = sum(w * h for w, h in zip(weights, hessians(), strict=True))
    return np.linalg.solve(total, sum(w * m for w, m in zip(weights, moments, strict=True)))
