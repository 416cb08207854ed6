"""The spectral start, against numpy and against the truth."""

import numpy as np
import pytest

from covey import models
from covey.algorithms.fedpop import fedpop
from covey.datasets.synthetic import shared_features
from covey.engines.simulate import Simulation
from covey.inference.initialisation import spectral_start


def sine(one, other):
    """The sine of the largest angle between the spaces that orthonormal columns span."""
    return np.sqrt(max(0.0, 1 - np.linalg.svd(one.T @ other)[1].min() ** 2))


def test_the_start_spans_the_leading_eigenvectors():
    data, _ = shared_features(3, clients=30, dimensions=6)
    x, y = data.rows
    exact = np.linalg.eigh((x * (y**2)[:, None]).T.astype(float) @ x)[1][:, -2:]
    found = spectral_start(data, effects=2)
    assert sine(found, exact) < 1e-3
    np.testing.assert_allclose(found.T @ found, np.eye(2), atol=1e-6)


def test_the_start_finds_the_features_of_many_rows_and_a_fit_begins_there():
    data, truth = shared_features(1, clients=400, few=50, many=50)
    start = spectral_start(data, effects=2)
    # The sine is the norm of the 18 by 2 block of noise over the gap 2 of the eigenvalues; an entry
    # has E[y^4] = 24 as variance.
    assert sine(start, truth.phi) < 2 * np.sqrt(24 / 20_000) * (np.sqrt(18) + np.sqrt(2)) / 2
    engine = Simulation(
        fedpop(models.linear_map(effects=2, start=start), step_size=0.01), data, seed=0
    )
    np.testing.assert_allclose(engine.start().server.theta.phi, start, rtol=1e-6)


def test_bad_starts():
    data, _ = shared_features(0, clients=3, dimensions=4)
    with pytest.raises(
        ValueError, match="effects must be 1 to 4, the columns of these rows, got 5"
    ):
        spectral_start(data, effects=5)
    with pytest.raises(ValueError, match=r"start must have shape \(4, 2\), got \(4, 3\)"):
        Simulation(
            fedpop(models.linear_map(effects=2, start=np.ones((4, 3))), step_size=0.01),
            data,
            seed=0,
        )
