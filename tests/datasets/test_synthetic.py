"""Synthetic data: do the rows have the distribution that the docstrings state?"""

import numpy as np
import pytest

from covey.datasets.synthetic import least_squares, mixture_of_linear


@pytest.fixture(scope="module")
def mixture():
    return mixture_of_linear(3, clients=60, dimensions=20, components=3, alpha=0.4, test_rows=200)


def test_shapes_and_sizes(mixture):
    data, truth = mixture
    assert (data.clients, data.spec.classes, data.rows.x.shape[1]) == (60, 2, 20)
    assert truth.theta.shape == (3, 20)
    assert truth.pi.shape == (60, 3)
    assert np.allclose(truth.pi.sum(1), 1)
    assert np.all(data.counts("test") == 200)
    assert np.all(data.counts("validation") == 0)
    sizes = data.counts("train")
    assert (sizes.min() >= 50, sizes.max() <= 1000) == (True, True)


def test_train_sizes_are_lognormal():
    # P(size = 1000) = P(lognormal(4, 2) >= 950) = P(Z >= (log 950 - 4)/2) = 0.0767; the median is
    # 50 + floor(e^4) = 104.
    data, _ = mixture_of_linear(0, clients=2000, dimensions=1, components=1, test_rows=0)
    sizes = data.counts("train")
    assert np.mean(sizes == 1000) == pytest.approx(0.0767, abs=4 * np.sqrt(0.0767 * 0.9233 / 2000))
    assert np.mean(sizes <= 104) == pytest.approx(0.5, abs=4 * np.sqrt(0.25 / 2000))


def test_labels_are_those_of_the_clients_own_mixture(mixture):
    """P(y = [<x, theta_m> > 0]) = pi_m + sum over other components of pi_k P(k agrees with m at
    x).
    """
    data, truth = mixture
    votes = data.rows.x @ truth.theta.T > 0
    owner = np.repeat(np.arange(60), data.bounds[:, 3] - data.bounds[:, 0])
    for component in range(3):
        agrees = votes == votes[:, [component]]
        expected = np.sum(truth.pi[owner] * agrees, axis=1)
        found = data.rows.y.astype(bool) == votes[:, component]
        # noise of 0.1 against scores of standard deviation sqrt(20)/3 flips about 0.1/(pi 1.49) = 2
        # % of the labels
        error = np.sqrt(np.sum(expected * (1 - expected))) / len(owner)
        assert abs(found.mean() - expected.mean()) < 0.02 + 4 * error
        # and client by client: 60 sums, each within 4.5 standard errors and the flips
        total, variance = (
            np.bincount(owner, found - expected),
            np.bincount(owner, expected * (1 - expected)),
        )
        assert np.all(np.abs(total) < 4.5 * np.sqrt(variance + 1) + 0.03 * np.bincount(owner))


def test_both_labels_are_common_in_every_component(mixture):
    data, _ = mixture
    assert data.rows.y.mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(len(data.rows.y)))


def test_no_noise_and_one_component_is_a_halfspace():
    data, truth = mixture_of_linear(
        1, clients=5, dimensions=6, components=1, noise=0.0, test_rows=50
    )
    score = data.rows.x.astype(np.float64) @ truth.theta[0]
    clear = np.abs(score) > 1e-5
    assert np.array_equal(data.rows.y[clear] == 1, score[clear] > 0)


def test_features_are_uniform(mixture):
    x = mixture[0].rows.x
    assert (x.min() >= -1, x.max() <= 1) == (True, True)
    assert x.mean() == pytest.approx(0, abs=4 / np.sqrt(3 * x.size))
    assert x.var() == pytest.approx(1 / 3, abs=4 * np.sqrt(4 / 45 / x.size))


def test_weights_are_dirichlet():
    # pi_1 of Dirichlet(a, a, a) has variance 2/(9 (3 a + 1)).
    _, truth = mixture_of_linear(
        2, clients=3000, dimensions=1, components=3, alpha=0.4, test_rows=0
    )
    variance = 2 / (9 * 2.2)
    assert truth.pi[:, 0].mean() == pytest.approx(1 / 3, abs=4 * np.sqrt(variance / 3000))
    squares = np.square(truth.pi[:, 0] - 1 / 3)
    assert squares.mean() == pytest.approx(variance, abs=4 * squares.std() / np.sqrt(3000))


def test_more_clients_only_add_clients():
    few, truth_few = mixture_of_linear(5, clients=3, dimensions=4, test_rows=10)
    many, truth_many = mixture_of_linear(5, clients=6, dimensions=4, test_rows=10)
    assert np.array_equal(few.rows.x, many.rows.x[: len(few.rows.x)])
    assert np.array_equal(truth_few.pi, truth_many.pi[:3])
    other, _ = mixture_of_linear(6, clients=3, dimensions=4, test_rows=10)
    assert not np.array_equal(other.bounds, few.bounds)


def test_least_squares_recovers_each_clients_coefficients():
    data, truth = least_squares(4, clients=6, rows=400, dimensions=3, heterogeneity=0.5, noise=0.2)
    assert len(set(data.counts("train").tolist())) > 1
    assert data.counts("train").min() >= 200
    assert data.counts("train").max() <= 600
    for client in range(6):
        start, count = data.starts("train")[client], data.counts("train")[client]
        x, y = (leaf[start : start + count].astype(np.float64) for leaf in data.rows)
        estimate = np.linalg.solve(x.T @ x, x.T @ y)
        error = 0.2 * np.sqrt(np.diag(np.linalg.inv(x.T @ x)))
        assert np.all(np.abs(estimate - truth.local[client]) < 4.5 * error)
    assert np.std(truth.local - truth.theta) == pytest.approx(0.5, rel=4 / np.sqrt(36))


def test_without_heterogeneity_clients_are_alike():
    data, truth = least_squares(0, clients=4, rows=300, dimensions=2, heterogeneity=0.0, noise=0.0)
    assert np.array_equal(truth.local, np.tile(truth.theta, (4, 1)))
    np.testing.assert_allclose(data.rows.y, data.rows.x @ truth.theta, rtol=1e-4, atol=1e-4)
    for client in range(4):
        x = data.shard(client, "train").rows.x
        assert np.allclose(np.asarray(x).std(0), 1, atol=4 / np.sqrt(2 * 150))


@pytest.mark.parametrize(
    "change",
    [{"clients": 0}, {"rows": 0}, {"dimensions": 0}, {"heterogeneity": -1.0}, {"noise": -1.0}],
)
def test_impossible_regressions_are_refused(change):
    with pytest.raises(ValueError, match="must be at least"):
        least_squares(
            **{"seed": 0, "clients": 2, "rows": 5, "dimensions": 2, "heterogeneity": 0.1, **change}
        )


@pytest.mark.parametrize(
    "change", [{"components": 0}, {"alpha": 0.0}, {"noise": -1.0}, {"test_rows": -1}]
)
def test_impossible_mixtures_are_refused(change):
    with pytest.raises(ValueError, match="must be"):
        mixture_of_linear(**{"seed": 0, "clients": 2, **change})


def test_published_labels_are_those_of_the_faulty_generator():
    """Rows that no component's share reaches have label 0; of one component alone there is no
    fault.
    """
    options = {"clients": 40, "dimensions": 4, "alpha": 0.4, "test_rows": 3000}
    right, truth = mixture_of_linear(3, **options)
    wrong, same = mixture_of_linear(3, labels="published", **options)
    np.testing.assert_array_equal(right.rows.x, wrong.rows.x)
    np.testing.assert_array_equal(truth.pi, same.pi)
    for client in range(40):
        _, y = wrong.rows_of(client, "test")
        largest = truth.pi[client].max()
        # Half of the rows within the largest share are 1, none of the others; three standard errors
        # of 3000 rows.
        assert abs(y.mean() - largest / 2) < 3 * np.sqrt(0.25 / 3000) + 3 * np.sqrt(0.25 / 3000) / 2
    one = mixture_of_linear(5, 3, 4, 1, test_rows=20)[0]
    np.testing.assert_array_equal(
        one.rows.y, mixture_of_linear(5, 3, 4, 1, test_rows=20, labels="published")[0].rows.y
    )
