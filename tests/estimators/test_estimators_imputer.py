"""The imputer against a plain fit of the pooled cells, the truth of made data, and a jackknife
written out.
"""

import functools

import jax
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import poisson

from covey import FederatedImputer
from covey.data.federated import FederatedData
from covey.estimators.completion import Settings, best_fit, dispersion_of
from covey.estimators.resampling import LOGARITHM, interval_over_replicas, observer_weights
from covey.inference import local_linear

J, L, OBSERVERS = 40, 16, 60
EFFECT_RIDGE = 3.0


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


@functools.cache
def made(family="gaussian", seed=0, cells=40, shared=0.5, observers=OBSERVERS):
    """Observers see cells at random, each with an error of its own that all its cells share.
    Returns data and expectations.
    """
    rng = np.random.default_rng(seed)
    theta = 1 + 0.5 * rng.normal(size=(J, 1)) + 0.3 * rng.normal(size=L)
    theta += 0.8 * np.outer(rng.normal(size=J), np.sin(np.arange(L) / 2))
    who = np.repeat(np.arange(observers), cells)
    x = np.stack([rng.integers(0, J, len(who)), rng.integers(0, L, len(who))], axis=1)
    x[:2] = [[J - 1, 0], [0, L - 1]]
    seen = theta[tuple(x.T)] + shared * rng.normal(size=observers)[who]
    if family == "gaussian":
        return FederatedData.from_arrays(x, seen + rng.normal(size=len(who)), who), theta
    return FederatedData.from_arrays(x, rng.poisson(np.exp(seen - shared**2 / 2)), who), np.exp(
        theta
    )


def pooled_fit(data, offset, ridge, effect_ridge, start, weights=None):
    """Poisson cells, one factor and effects, by L-BFGS on all cells; weights by observer."""
    (j, k), y = np.asarray(data.rows.x).T, np.asarray(data.rows.y, float)
    w = np.ones(len(y)) if weights is None else np.repeat(weights, data.counts("train"))
    penalties = np.array([effect_ridge, ridge])

    def loss(numbers):
        u, v = numbers[: 2 * J].reshape(J, 2), numbers[2 * J :].reshape(L, 2)
        theta = offset + u[j, 0] + v[k, 0] + u[j, 1] * v[k, 1]
        off = w * (np.exp(theta) - y)
        slope_u, slope_v = penalties * u, penalties * v
        np.add.at(slope_u, j, off[:, None] * np.stack([np.ones(len(y)), v[k, 1]], 1))
        np.add.at(slope_v, k, off[:, None] * np.stack([np.ones(len(y)), u[j, 1]], 1))
        value = (
            np.sum(w * (np.exp(theta) - y * theta))
            + 0.5 * np.sum(penalties * u**2)
            + 0.5 * np.sum(penalties * v**2)
        )
        return value, np.concatenate([slope_u.ravel(), slope_v.ravel()])

    found = minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "ftol": 1e-12, "gtol": 1e-6},
    ).x
    u, v = found[: 2 * J].reshape(J, 2), found[2 * J :].reshape(L, 2)
    return np.exp(offset + u[:, :1] + v[:, 0] + np.outer(u[:, 1], v[:, 1]))


def counts():
    return made("poisson", observers=15, cells=100)[0]


@functools.cache
def short_fit():
    return FederatedImputer(
        1, seed=4, family="poisson", ridge=2.0, restarts=1, rounds=1, replicas=2, replica_rounds=1
    ).fit(counts())


@functools.cache
def poisson_fit():
    """A shift from row to column effects changes nothing but the penalty, and so dies out slowly
    unless the penalty is large.
    """
    options = {
        "family": "poisson",
        "ridge": 2.0,
        "effect_ridge": EFFECT_RIDGE,
        "tol": 0.0,
        "rounds": 250,
        "restarts": 1,
        "replicas": 3,
        "replica_rounds": 150,
    }
    return FederatedImputer(1, seed=4, **options).fit(counts())


@pytest.mark.slow
def test_fit_and_replicas_are_those_of_the_pooled_cells():
    """Each of three groups of observers is left out once."""
    data, imputer = counts(), poisson_fit()
    assert imputer.n_iter_ == 250
    start = np.concatenate([imputer.row_factors_.ravel(), imputer.column_factors_.ravel()]) + 0.01
    assert imputer.offset_ == pytest.approx(np.log(np.mean(data.rows.y)))
    pooled = pooled_fit(data, imputer.offset_, 2.0, EFFECT_RIDGE, start)
    np.testing.assert_allclose(imputer.transform(), pooled, rtol=2e-3)
    weights = observer_weights("jackknife", 3, data.clients, 4)
    replicas = np.stack(
        [pooled_fit(data, imputer.offset_, 2.0, EFFECT_RIDGE, start, each) for each in weights]
    )

    def ends(estimate, again):
        return interval_over_replicas(estimate, again, 0.8, "jackknife", LOGARITHM)

    for got, wanted in zip(imputer.interval(0.8), ends(pooled, replicas), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-2)
    trend, totals, again = imputer.trend(0.8, span=0.5), pooled.sum(0), replicas.sum(1)
    np.testing.assert_allclose(trend.total, totals, rtol=2e-3)
    np.testing.assert_allclose(trend[["low", "high"]].T, ends(totals, again), rtol=1e-2)
    curve, *curves = (local_linear(np.arange(L), one, span=0.5) for one in (totals, *again))
    np.testing.assert_allclose(
        trend[["smooth_low", "smooth_high"]].T, ends(curve, np.stack(curves)), rtol=1e-2
    )


def test_weights_of_observers():
    """A jackknife leaves each observer out once, alone or with a group; all plans have the same
    sum.
    """
    for replicas, observers, groups in ((9, 5, 5), (4, 10, 4)):
        weights = observer_weights("jackknife", replicas, observers, 0)
        assert weights.shape == (groups, observers)
        np.testing.assert_array_equal((weights == 0).sum(0), 1)
        assert np.ptp((weights == 0).sum(1)) <= 1
        np.testing.assert_allclose(weights.sum(1), observers)
    drawn = observer_weights("exponential", 3, 7, 4)
    wanted = np.random.default_rng(4).exponential(size=(3, 7))
    np.testing.assert_allclose(drawn, wanted * 7 / wanted.sum(1, keepdims=True))
    times = observer_weights("multinomial", 2000, 4, 0)
    np.testing.assert_allclose(times.sum(1), 4)
    assert times.var() == pytest.approx(0.75, abs=0.05)
    with pytest.raises(ValueError, match="at least 2 replicas and 2 observers, got 1 and 5"):
        observer_weights("jackknife", 1, 5, 0)


@pytest.mark.parametrize(("observers", "groups"), [(15, 15), (200, 40)])
def test_jackknife_intervals_cover_as_often_as_they_should(observers, groups):
    """The rate of counts that observers make on visits, each with an error of its own: 4,000
    studies, so that the standard error of the coverage is 0.005.
    """
    rng = np.random.default_rng(0)
    studies = 4000
    visits = 1 + rng.poisson(20, (studies, observers))
    counts = rng.poisson(0.5 * visits * rng.gamma(10, 0.1, (studies, observers)))
    weights = observer_weights("jackknife", groups, observers, 0)
    rate, again = counts.sum(1) / visits.sum(1), (counts @ weights.T / (visits @ weights.T)).T
    low, high = interval_over_replicas(rate, again, 0.9, "jackknife", LOGARITHM)
    assert 0.87 < np.mean((low < 0.5) & (high > 0.5)) < 0.93


@pytest.mark.slow
def test_intervals_of_the_imputer_cover_as_often_as_they_should():
    """25 data sets as blocks of one matrix, the i-th observers of all of them as one client:
    fits and replicas of the blocks do not depend on each other. Over blocks the coverage of cells
    varies by 0.04 and that of sums by 0.12.
    """
    blocks = 25
    sets = [made(seed=seed) for seed in range(blocks)]
    x = np.concatenate([data.rows.x + np.array([J, L]) * b for b, (data, _) in enumerate(sets)])
    y = np.concatenate([data.rows.y for data, _ in sets])
    who = np.tile(np.repeat(np.arange(OBSERVERS), 40), blocks)
    data = FederatedData.from_arrays(x, y, who)
    imputer = FederatedImputer(1, seed=1, ridge=1.0, replicas=100, restarts=1).fit(data)
    low, high = imputer.interval(0.9)
    model, factors, replicas = imputer._fitted
    cells, sums = [], []
    for b, (_, truth) in enumerate(sets):
        rows, columns = np.arange(J * b, J * (b + 1)), slice(L * b, L * (b + 1))
        inside = (low[rows, columns] <= truth) & (truth <= high[rows, columns])
        cells.append(inside.mean())
        total = np.asarray(model.mean(factors, rows))[:, columns].sum(0)
        again = np.asarray(jax.vmap(model.mean, (0, None))(replicas, rows))[:, :, columns].sum(1)
        ends = interval_over_replicas(total, again, 0.9, "jackknife")
        sums.append(np.mean((ends[0] <= truth.sum(0)) & (truth.sum(0) <= ends[1])))
    assert len(jax.tree.leaves(replicas)[0]) == OBSERVERS
    for covered, bound in ((cells, 0.012), (sums, 0.03)):
        error = np.std(covered) / np.sqrt(blocks)
        assert error < bound
        assert abs(np.mean(covered) - 0.9) < max(3 * error, 0.03)


@pytest.mark.slow
def test_what_a_fit_says_of_cells():
    data, imputer = counts(), poisson_fit()
    x, y = np.asarray(data.rows.x), np.asarray(data.rows.y, float)
    mean = imputer.transform()
    np.testing.assert_allclose(imputer.predict(x[:9]), mean[tuple(x[:9].T)], rtol=1e-6)
    assert imputer.score(data, "train") == pytest.approx(
        poisson.logpmf(y, mean[tuple(x.T)]).mean(), rel=1e-6
    )
    kept = imputer.transform(data)
    here = np.all(x == x[5], axis=1)
    assert kept[tuple(x[5])] == pytest.approx(y[here].mean())
    seen = np.zeros((J, L), bool)
    seen[tuple(x.T)] = True
    np.testing.assert_array_equal(kept[~seen], mean[~seen])
    assert 0 < (~seen).sum() < seen.size
    with pytest.raises(ValueError, match=r"\(40, 0\) is not a cell of a matrix of 40 x 16"):
        imputer.predict(np.array([[0, 0], [40, 0]]))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, "auto"])
def test_the_fit_is_chosen_by_validation_cells(rank):
    """Gaussian cells of rank one and effects."""
    data, truth = made()
    imputer = FederatedImputer(rank, seed=1).fit(data.split(validation=0.2, test=0.0, seed=0))
    table = imputer.selection_
    best = table.loc[table.validation_loss.idxmin()]
    assert (imputer.rank_, imputer.ridge_) == (best["rank"], best.ridge)
    assert imputer.rank_ >= 1
    assert set(table["rank"]) == ({0, 1, 2, 3, 4} if rank == "auto" else {1})
    assert len(set(table.ridge)) > 3
    assert imputer.converged_
    assert np.sqrt(np.mean((imputer.transform() - truth) ** 2)) < 0.4 * truth.std()


def settings_for(family="poisson", **options):
    defaults = {
        "shape": (J, L),
        "offset": 1.0,
        "effect_ridge": 0.3,
        "dispersion": 3.0,
        "rounds": 200,
        "tol": 1e-6,
        "restarts": 1,
        "seed": 0,
    }
    return Settings(family, **(defaults | options))


@pytest.mark.slow
def test_the_best_of_several_cold_starts_is_kept():
    """Fits of one ridge that end in different optima, as the starts differ."""
    data, _ = made("poisson", cells=10)
    first, best = (
        best_fit(settings_for(restarts=restarts, rounds=60), data, 3, 0.3).objective
        for restarts in (1, 2)
    )
    assert best < first - 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("k", "low", "high"),
    [(2.0, 1.6, 2.5), pytest.param(np.inf, 30.0, np.inf, marks=pytest.mark.slow)],
)
def test_the_dispersion_of_counts_is_found_by_moments(k, low, high):
    """Counts with k = 2 around a Poisson fit of effects; its estimate has a standard error of
    about sqrt(2 / 4000) (1 + k) in relative terms, and the fit takes a few degrees of freedom.
    """
    rng = np.random.default_rng(1)
    x = np.stack([rng.integers(0, 20, 4000), rng.integers(0, 10, 4000)], axis=1)
    mean = np.exp(1.5 + 0.5 * rng.normal(size=20)[x[:, 0]] + 0.3 * rng.normal(size=10)[x[:, 1]])
    who = np.arange(4000) % 10
    y = rng.poisson(mean if np.isinf(k) else mean * rng.gamma(k, 1 / k, 4000))
    data = FederatedData.from_arrays(x, y, who)
    settings = settings_for(shape=(20, 10), offset=float(np.log(y.mean())))
    assert low < dispersion_of(settings, data, 0, [1.0]) < high


@functools.cache
def presence():
    """Presence and absence in 10 sites of 11, by a chance for each of 6 columns."""
    rng = np.random.default_rng(3)
    chance = np.linspace(0.1, 0.9, 6)
    x = np.stack([rng.integers(0, 10, 600), rng.integers(0, 6, 600)], axis=1)
    y = rng.random(600) < chance[x[:, 1]]
    data = FederatedData.from_arrays(x, y, rng.integers(0, 8, 600), classes=2)
    return (
        data,
        chance,
        FederatedImputer(0, seed=0, family="bernoulli", ridge=1.0, shape=(11, 6)).fit(data),
    )


@pytest.mark.slow
def test_labels_and_a_site_that_nobody_saw():
    """The last row has no observation and gets its column's odds."""
    _, chance, imputer = presence()
    unseen = imputer.transform()[10]
    assert np.all(np.abs(unseen - chance) < 4 * np.sqrt(0.25 / 100) + 0.02)
    assert imputer.predict(np.array([[10, 2]])) == pytest.approx(unseen[2])


@pytest.mark.parametrize(
    ("cell", "value", "message"),
    [
        (
            (40, 3),
            1.0,
            r"client '7' has the value 1 for the cell \(40, 3\).* in a matrix of 40 x 16",
        ),
        ((0, -1), 1.0, r"client '7' has the value 1 for the cell \(0, -1\)"),
        (
            (4, 3),
            -2.0,
            r"client '7' has the value -2 for the cell \(4, 3\); a poisson value is a whole number "
            "of at least 0",
        ),
        ((4, 3), 0.5, r"client '7' has the value 0.5 for the cell \(4, 3\)"),
    ],
)
def test_what_is_no_observation_is_refused_by_name(cell, value, message):
    good = counts()
    who = np.repeat(good.ids, good.counts("train"))
    data = FederatedData.from_arrays(
        np.append(good.rows.x, [cell], 0), np.append(good.rows.y, value), np.append(who, 7)
    )
    with pytest.raises(ValueError, match=message):
        FederatedImputer(1, seed=0, family="poisson", ridge=1.0, shape=(J, L)).fit(data)
    with pytest.raises(ValueError, match=message):
        short_fit().transform(data)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, 'rank or ridge "auto" is chosen by validation cells, and there are none'),
        ({"rank": 1, "ridge": 1.0, "rounds": 0}, "rounds and replica_rounds must be at least 1"),
        (
            {"rank": 1, "ridge": 1.0, "family": "normal"},
            "family must be one of gaussian, bernoulli, poisson, negative_binomial, got",
        ),
        (
            {"rank": 1, "ridge": 1.0, "resampling": "bootstrap"},
            "resampling must be one of jackknife, exponential, multinomial, got 'bootstrap'",
        ),
        ({"rank": 1, "ridge": 1.0, "restarts": 0}, "restarts must be at least 1, got 0"),
        ({"rank": 0, "ridge": 1.0, "effect_ridge": None}, "rank must be from 1 to 16"),
    ],
)
def test_bad_options(options, message):
    imputer = FederatedImputer(seed=0)
    for name, value in options.items():  # set, as types are checked in the constructor during tests
        setattr(imputer, name, value)
    with pytest.raises(ValueError, match=message):
        imputer.fit(made()[0])
    with pytest.raises(ValueError, match="not fitted yet"):
        imputer.transform()


def test_what_needs_replicas_or_other_rows_says_so():
    data, _, imputer = presence()
    assert list(imputer.trend()) == ["total"]
    with pytest.raises(ValueError, match="set replicas"):
        imputer.interval()
    with pytest.raises(ValueError, match="no test rows"):
        imputer.score(data)
    with pytest.raises(ValueError, match="level must be between 0 and 1, got 90"):
        short_fit().trend(90.0)
    with pytest.raises(ValueError, match="two features, the row and the column"):
        FederatedImputer(0, seed=0, ridge=1.0).fit(
            FederatedData.from_arrays(np.zeros((4, 3)), np.zeros(4), [0, 0, 1, 1])
        )
