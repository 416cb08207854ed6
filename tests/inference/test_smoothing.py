"""The smoother against weighted least squares, point by point."""

import numpy as np
import pytest

from covey.inference import local_linear

X = np.array([0.0, 1.0, 2.5, 3.0, 4.0, 6.0, 7.0, 7.5, 9.0, 12.0])
Y = np.array([1.0, 3.0, 2.0, 5.0, 4.0, 4.5, 7.0, 6.0, 2.0, 3.0])


def test_it_is_the_weighted_line_through_the_nearest_points():
    found = local_linear(X, Y, span=0.6)
    for index, at in enumerate(X):
        away = np.abs(X - at)
        width = np.sort(away)[5]
        weight = np.where(away < width, (1 - (away / width) ** 3) ** 3, 0)
        line = np.polynomial.Polynomial.fit(X, Y, 1, w=np.sqrt(weight), domain=[-1, 1])
        assert found[index] == pytest.approx(line(at), abs=1e-9)
    assert np.abs(np.diff(found)).max() < np.abs(np.diff(Y)).max()


def test_a_line_stays_and_series_are_smoothed_side_by_side():
    np.testing.assert_allclose(local_linear(X, 2 - 3 * X, span=0.5), 2 - 3 * X, atol=1e-9)
    both = local_linear(X, np.stack([Y, X**2], axis=1), span=0.7)
    np.testing.assert_allclose(both[:, 0], local_linear(X, Y, span=0.7))
    np.testing.assert_allclose(both[:, 1], local_linear(X, X**2, span=0.7))


@pytest.mark.parametrize(
    ("x", "span", "message"),
    [
        (X, 0.3, "at least 4 of the 10 points, got 0.3"),
        (X, 1.5, "at most 1"),
        (np.repeat([0.0, 1.0], 5), 0.5, "the same x"),
    ],
)
def test_bad_options(x, span, message):
    with pytest.raises(ValueError, match=message):
        local_linear(x, Y, span=span)
