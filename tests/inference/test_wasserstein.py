"""W2 between Gaussians against what is known without it."""

import numpy as np
import pytest
from scipy.linalg import sqrtm

from covey.inference.wasserstein import distance_of_draws, gaussian_distance

ONE = np.array([[5.0, -2.0], [-2.0, 1.0]])
OTHER = np.array([[2.0, 1.0], [1.0, 3.0]])


def test_in_one_dimension_and_on_common_axes_it_is_that_of_means_and_deviations():
    assert gaussian_distance(
        np.array([1.0]), np.array([[4.0]]), np.array([-2.0]), np.array([[9.0]])
    ) == pytest.approx(np.sqrt(10))
    found = gaussian_distance(
        np.zeros(2), np.diag([1.0, 16.0]), np.array([0.0, 3.0]), np.diag([4.0, 1.0])
    )
    assert found == pytest.approx(np.sqrt(9 + 1 + 9))


def test_covariances_that_do_not_commute():
    root = sqrtm(ONE)
    expected = np.trace(ONE + OTHER - 2 * sqrtm(root @ OTHER @ root).real)
    assert gaussian_distance(np.zeros(2), ONE, np.zeros(2), OTHER) == pytest.approx(
        np.sqrt(expected)
    )
    assert gaussian_distance(np.zeros(2), OTHER, np.zeros(2), ONE) == pytest.approx(
        np.sqrt(expected)
    )
    assert gaussian_distance(np.ones(2), ONE, np.ones(2), ONE) == pytest.approx(0.0, abs=1e-6)


def test_draws_of_the_law_itself_are_as_far_off_as_chance_is():
    draws = np.random.default_rng(0).multivariate_normal([1.0, 2.0], ONE, size=400)
    found = distance_of_draws(draws, np.array([1.0, 2.0]), ONE)
    assert 0 < found < 3 * np.sqrt(np.trace(ONE) / 400)
    with pytest.raises(ValueError, match="at least 2 draws, got 1"):
        distance_of_draws(draws[:1], np.zeros(2), ONE)
