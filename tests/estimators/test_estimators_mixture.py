"""The federated mixture against scikit-learn's from the same start, and recovery of made
components.
"""

import jax
import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Oracle

from covey import FederatedGaussianMixture
from covey.channel import dithering, top_k
from covey.core import cohort
from covey.data.federated import FederatedData

MEANS = np.array([[-3.0, 0.0], [0.0, 3.0], [4.0, -1.0]])
ROOTS = np.array([[[0.8, 0.2], [0.0, 0.6]], [[0.5, -0.3], [0.2, 0.9]], [[1.0, 0.0], [0.4, 0.4]]])
SHARES = np.array([0.5, 0.3, 0.2])
START = MEANS + np.array([[0.7, -0.5], [-0.6, 0.4], [-0.9, 0.8]])
WEIGHTS = np.array([0.2, 0.3, 0.5])
COVARIANCE = np.array([[1.5, 0.2], [0.2, 0.9]])
PRECISION = np.linalg.inv(COVARIANCE)
PRECISIONS = {
    "tied": PRECISION,
    "full": np.stack([PRECISION] * 3),
    "diag": np.stack([1 / np.diag(COVARIANCE)] * 3),
}


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def mixture_data(sizes=(90, 200, 60, 150), seed=0, spread=1.0):
    """Clients that differ: each draws mostly from a component of its own. The outcome of a row is
    its component.
    """
    rng = np.random.default_rng(seed)
    clients = {}
    for number, rows in enumerate(sizes):
        share = 0.4 * SHARES + 0.6 * np.eye(3)[number % 3]
        z = rng.choice(3, size=rows, p=share)
        x = MEANS[z] + spread * np.einsum("nij,nj->ni", ROOTS[z], rng.normal(size=(rows, 2)))
        clients[f"c{number}"] = (x.astype(np.float32), z)
    return FederatedData.from_clients(clients, classes=3)


def pooled(data):
    return np.asarray(data.rows.x, np.float64)


@pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.ConvergenceWarning")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("full", {"tol": 1e-4}),
        pytest.param("tied", {"rounds": 4, "ridge": 0.01}, marks=pytest.mark.slow),
        pytest.param("diag", {"tol": 1e-4}, marks=pytest.mark.slow),
    ],
)
def test_it_is_scikit_learns_mixture_from_the_same_start(kind, options):
    data = mixture_data(spread=2.0)
    same = {"rounds": 200, "ridge": 0.0} | options
    ours = FederatedGaussianMixture(
        3,
        seed=0,
        covariance_type=kind,
        init=START,
        weights_init=WEIGHTS,
        covariance_init=COVARIANCE,
        **same,
    ).fit(data)
    oracle = Oracle(
        3,
        covariance_type=kind,
        max_iter=same["rounds"],
        tol=same.get("tol", 1e-3),
        reg_covar=same["ridge"],
        means_init=START,
        weights_init=WEIGHTS,
        precisions_init=PRECISIONS[kind],
    ).fit(pooled(data))
    assert ours.n_iter_ == oracle.n_iter_ == len(ours.history_)
    assert ours.n_iter_ > 3
    assert ours.converged_ == oracle.converged_ == ("rounds" not in options)
    np.testing.assert_allclose(ours.lower_bound_, oracle.lower_bound_, atol=1e-6)
    for name in ("weights_", "means_", "covariances_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(oracle, name), atol=1e-6)
    x = pooled(mixture_data(seed=1))
    np.testing.assert_allclose(ours.predict_proba(x), oracle.predict_proba(x), atol=1e-6)
    np.testing.assert_array_equal(ours.predict(x), oracle.predict(x))
    np.testing.assert_allclose(ours.score_samples(x), oracle.score_samples(x), atol=1e-6)
    np.testing.assert_allclose(ours.score(x), oracle.score(x), atol=1e-6)


def matched(mixture):
    """Which component of the mixture is which of the made ones, by the nearest mean."""
    nearest = np.linalg.norm(mixture.means_[:, None] - MEANS, axis=-1).argmin(0)
    assert sorted(nearest) == [0, 1, 2]
    return nearest


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"init": "random", "covariance_type": "diag"}, marks=pytest.mark.slow),
        pytest.param(
            {"covariance_type": "known", "covariance_init": 0.7 * np.eye(2)}, marks=pytest.mark.slow
        ),
        pytest.param(
            {
                "cohort": cohort.bernoulli(0.7),
                "channel": dithering(levels=7),
                "tol": 1e-6,
                "rounds": 200,
            },
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"batch_size": 20, "tol": 0.0, "decay": 0.3, "step_size": 0.5}, marks=pytest.mark.slow
        ),
    ],
    ids=["kmeans++", "random", "known", "lossy", "minibatch"],
)
def test_made_components_are_found(options):
    """Each mean within four standard errors (they are at most one component's spread, over its
    rows) and a little for noise.
    """
    data = mixture_data()
    mixture = FederatedGaussianMixture(3, **({"seed": 3} | options)).fit(data)
    order = matched(mixture)
    rows = np.bincount(data.rows.y)
    spreads = np.linalg.norm(ROOTS, axis=(1, 2))
    away = np.linalg.norm(mixture.means_[order] - MEANS, axis=1)
    assert np.all(away < 4 * spreads / np.sqrt(rows) + (0.15 if "batch_size" in options else 0.0))
    assert np.mean(order[data.rows.y] == mixture.predict(pooled(data))) > 0.95
    np.testing.assert_allclose(mixture.weights_.sum(), 1.0)
    if "channel" in options:
        assert mixture.converged_
        exact = FederatedGaussianMixture(3, seed=3, tol=1e-6).fit(data)
        np.testing.assert_allclose(mixture.lower_bound_, exact.lower_bound_, atol=1e-4)
        assert mixture.history_.bits_up.sum() > 0


@pytest.mark.slow
def test_the_best_of_several_starts_is_kept():
    """Five components in rows of three: EM ends in several optima."""
    data = mixture_data(spread=2.0)
    options = {"rounds": 12, "covariance_type": "diag"}
    several = FederatedGaussianMixture(5, seed=1, n_init=4, **options).fit(data)
    one = FederatedGaussianMixture(5, seed=1, **options).fit(data)
    assert several.lower_bound_ > one.lower_bound_ + 1e-3
    assert len(several.history_) == several.n_iter_
    assert several.score(pooled(data)) == pytest.approx(several.lower_bound_, abs=0.01)
    np.testing.assert_allclose(
        np.argmax(several.predict_proba(pooled(data)), 1), several.predict(pooled(data))
    )


@pytest.mark.slow
def test_rows_without_an_outcome():
    """Each client's features by its name, as arrays or tables, give the same fit."""
    data = mixture_data(sizes=(60, 80))
    rows = {"c0": np.asarray(data.rows_of(0, "train").x, float)}
    rows["c1"] = pd.DataFrame(np.asarray(data.rows_of(1, "train").x, float), columns=["u", "v"])
    options = {"rounds": 3, "init": START}
    with_outcome, without = (
        FederatedGaussianMixture(3, seed=0, **options).fit(each) for each in (data, rows)
    )
    np.testing.assert_allclose(without.means_, with_outcome.means_, atol=1e-6)


@pytest.mark.slow
def test_a_round_without_clients_is_no_convergence():
    data = mixture_data()
    sometimes = cohort.trace(np.array([[False, True, False]] * data.clients))
    mixture = FederatedGaussianMixture(
        3, seed=0, cohort=sometimes, step_size=1.0, tol=1e-3, rounds=40, init=START
    ).fit(data)
    assert mixture.converged_
    assert np.all(
        np.abs(np.diff(mixture.history_.lower_bound[1:-1:3])) > 1e-3
    )  # every round with clients but the last
    assert mixture.n_iter_ > 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"covariance_type": "spherical"},
            "covariance_type must be one of full, tied, diag, known, got 'spherical'",
        ),
        ({"init": "kmeans"}, r"init must be 'kmeans\+\+', 'random' or an array"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"init": START[:2]}, r"means must have the shape \(3, 2\)"),
        ({"covariance_type": "known"}, "give it as start_covariance"),
        ({"channel": top_k(k=2)}, "give memory_rate"),
        ({"smallest_group": 1000}, "no client has a group of 1000 rows"),
        ({"n_init": 0}, "n_init must be at least 1"),
        ({"n_init": 2, "init": START}, "1 where the means are given as init"),
    ],
)
def test_bad_options(options, message):
    mixture = FederatedGaussianMixture(3, seed=0)
    for name, value in options.items():  # set, as types are checked in the constructor during tests
        setattr(mixture, name, value)
    data = mixture_data()
    with pytest.raises(ValueError, match=message):
        mixture.fit(data)


def test_bad_rows():
    data = mixture_data()
    gaps = np.array(data.rows.x)
    gaps[4, 1] = np.nan
    missing = FederatedData.from_arrays(
        gaps, data.rows.y, np.zeros(len(gaps), int), classes=3, allow_missing=True
    )
    with pytest.raises(ValueError, match="missing features"):
        FederatedGaussianMixture(3, seed=0).fit(missing)
    with pytest.raises(ValueError, match="not fitted yet"):
        FederatedGaussianMixture(3, seed=0).predict(gaps)
    with pytest.raises(ValueError, match="rows of 3 features were given to a mixture of 2"):
        FederatedGaussianMixture(3, seed=0, rounds=1).fit(data).predict(np.zeros((4, 3)))
