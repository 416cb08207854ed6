"""Factor analysis with gaps: closed-form PPCA, scikit-learn's factor analysis, dense Gaussian
likelihoods, and EM that climbs.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.decomposition import FactorAnalysis as Oracle

from covey.algorithms.em import em
from covey.core.shard import Batch, Rows, Spec
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.models import factor_analysis

RNG = np.random.default_rng(5)
D, ROWS = 5, 300
LOADINGS = RNG.normal(size=(D, 2)) * [1.5, 0.8]
NOISE = np.array([0.3, 0.8, 0.5, 1.2, 0.4])
MEANS = np.array([1.0, -2.0, 0.5, 0.0, 3.0])
X = MEANS + RNG.normal(size=(ROWS, 2)) @ LOADINGS.T + RNG.normal(size=(ROWS, D)) * np.sqrt(NOISE)
GAPS = RNG.random((ROWS, D)) < np.array([0.1, 0.5, 0.3, 0.0, 0.2])
GAPS[7] = True  # a row in which nothing was observed
WITH_GAPS = np.where(GAPS, np.nan, X)
SPEC = Spec(Rows(jax.ShapeDtypeStruct((D,), np.float32), jax.ShapeDtypeStruct((), np.float32)))
KINDS = ("diagonal", "isotropic")


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def batch_of(x, mask=None):
    return Batch(
        Rows(jnp.asarray(x), jnp.zeros(len(x))),
        jnp.ones(len(x), bool) if mask is None else jnp.asarray(mask),
    )


@functools.cache
def compiled(noise, ridge=0.0):
    """The model, a start, many steps of EM with the objective before each, and the likelihood of
    rows.
    """
    model = factor_analysis(factors=2, noise=noise, ridge=ridge, means=[0.5, -1.0, 0.0, 0.0, 2.0])

    def step(theta, batch):
        before = model.penalty(theta) - jnp.mean(model.log_likelihood(theta, batch.rows))
        theta, repairs = model.maximise(model.statistics(theta, batch), theta)
        return theta, (before, repairs)

    def climb(theta, batch, steps):
        return jax.lax.scan(lambda theta, _: step(theta, batch), theta, length=steps)

    with jax.enable_x64(True):
        start = model.init(jax.random.key(1), SPEC)
        return model, start, jax.jit(climb, static_argnums=2), jax.jit(model.log_likelihood)


def covariance(theta):
    w = np.asarray(theta.loadings)
    return w @ w.T + np.diag(theta.variances)


@pytest.mark.parametrize("noise", KINDS)
def test_the_likelihood_with_gaps_is_that_of_the_observed_features(noise):
    _, theta, _, log_likelihood = compiled(noise)
    theta = theta._replace(variances=jnp.asarray(NOISE))
    sigma = covariance(theta)
    expected = [
        stats.multivariate_normal.logpdf(
            x[seen], np.asarray(theta.means)[seen], sigma[np.ix_(seen, seen)]
        )
        if seen.any()
        else 0.0
        for x, seen in zip(X, ~GAPS, strict=True)
    ]
    np.testing.assert_allclose(
        log_likelihood(theta, batch_of(WITH_GAPS).rows), expected, rtol=1e-9, atol=1e-12
    )


def test_predictions_are_gaussian_conditionals():
    """Of a gap: E[x_g | x_o] and its variance, by the formula for the whole Gaussian."""
    model, theta, *_ = compiled("diagonal")
    theta = theta._replace(variances=jnp.asarray(NOISE))
    predicted, sigma, means = (
        model.predictive(theta, jnp.asarray(WITH_GAPS[:20])),
        covariance(theta),
        np.asarray(theta.means),
    )
    for row, gap in enumerate(GAPS[:20]):
        seen = ~gap
        gain = sigma[np.ix_(gap, seen)] @ np.linalg.inv(sigma[np.ix_(seen, seen)])
        np.testing.assert_allclose(
            predicted.mean[row][gap], means[gap] + gain @ (X[row] - means)[seen], rtol=1e-9
        )
        spread = sigma[np.ix_(gap, gap)] - gain @ sigma[np.ix_(seen, gap)]
        np.testing.assert_allclose(predicted.scale[row][gap] ** 2, np.diag(spread), rtol=1e-9)


@pytest.mark.parametrize(
    "rows",
    [pytest.param(X, id="whole", marks=pytest.mark.slow), pytest.param(WITH_GAPS, id="gaps")],
)
@pytest.mark.parametrize("noise", KINDS)
def test_em_never_makes_the_penalised_likelihood_worse_and_ends_where_its_gradient_is_zero(
    noise, rows
):
    model, start, climb, _ = compiled(noise, 0.05)
    batch = batch_of(rows)
    theta, (path, repairs) = climb(start, batch, 400)
    assert np.all(np.diff(path) <= 1e-12)
    assert path[0] - path[-1] > 0.1
    assert float(repairs.empty.sum() + repairs.singular.sum()) == 0

    def objective(free):
        moved = (
            free
            if noise == "diagonal"
            else free._replace(variances=jnp.mean(free.variances) * jnp.ones(D))
        )
        return model.penalty(moved) - jnp.mean(model.log_likelihood(moved, batch.rows))

    for leaf in jax.tree.leaves(jax.jit(jax.grad(objective))(theta)):
        np.testing.assert_allclose(leaf, 0, atol=1e-5)


def test_without_gaps_probabilistic_pca_is_the_closed_form():
    """sigma^2 is the mean of the eigenvalues left out, W W' = U (Lambda - sigma^2) U' (Tipping and
    Bishop 1999).
    """
    _, start, climb, _ = compiled("isotropic")
    theta, _ = climb(start, batch_of(X), 400)
    values, vectors = np.linalg.eigh(np.cov(X.T, bias=True))
    variance = values[:-2].mean()
    closed = vectors[:, -2:] * (values[-2:] - variance) @ vectors[:, -2:].T + variance * np.eye(D)
    np.testing.assert_allclose(covariance(theta), closed, atol=1e-6)
    np.testing.assert_allclose(theta.means, X.mean(0), atol=1e-6)


def test_without_gaps_factor_analysis_is_scikit_learns():
    _, start, climb, log_likelihood = compiled("diagonal")
    theta, _ = climb(start, batch_of(X), 400)
    oracle = Oracle(2, tol=1e-12, max_iter=20_000, svd_method="lapack").fit(X)
    np.testing.assert_allclose(
        float(log_likelihood(theta, batch_of(X).rows).mean()), oracle.score(X), atol=1e-6
    )
    np.testing.assert_allclose(covariance(theta), oracle.get_covariance(), atol=1e-2)


def test_rows_with_gaps_tell_more_than_whole_rows_alone():
    """With gaps the estimate is nearer to that from all features than the estimate from the whole
    rows, and fills gaps well.
    """
    model, start, climb, _ = compiled("diagonal")
    whole, gaps = (climb(start, batch_of(rows), 400)[0] for rows in (X, WITH_GAPS))
    few = climb(start, batch_of(WITH_GAPS, ~GAPS.any(1)), 400)[0]
    distance = {
        name: np.linalg.norm(covariance(one) - covariance(whole))
        for name, one in (("gaps", gaps), ("few", few))
    }
    assert distance["gaps"] < distance["few"]
    predicted = model.predictive(gaps, jnp.asarray(WITH_GAPS))
    error = ((np.asarray(predicted.mean) - X) / np.asarray(predicted.scale))[GAPS]
    assert abs(np.mean(error**2) - 1) < 4 * np.sqrt(
        2 / GAPS.sum()
    )  # calibrated: z-scores, four standard errors


def test_statistics_of_expectation_and_of_masked_rows():
    model, theta, *_ = compiled("diagonal")
    got, _ = model.maximise(model.expected(theta), theta)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12), got, theta)
    mask = np.arange(ROWS) % 3 > 0
    some = model.statistics(theta, batch_of(np.where(mask[:, None], WITH_GAPS, 77.0), mask))
    kept = model.statistics(theta, batch_of(WITH_GAPS[mask]))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12), some, kept)


def test_a_feature_that_nobody_observes_and_statistics_of_no_data():
    model, start, climb, _ = compiled("diagonal")
    theta, (_, repairs) = climb(start, batch_of(np.where(np.arange(D) == 2, np.nan, X)), 400)
    assert float(repairs.empty[-1]) == 1
    np.testing.assert_array_equal(theta.loadings[2], start.loadings[2])
    s = model.statistics(start, batch_of(X))
    theta, repairs = model.maximise(s._replace(square=-s.square, gram=-s.gram), start)
    assert float(repairs.singular) == D
    assert np.all(np.asarray(theta.variances) > 0)


@pytest.mark.slow
def test_federated_em_on_gaps_is_em_on_all_rows():
    _, start, climb, _ = compiled("diagonal", 0.05)
    rows = WITH_GAPS.astype(np.float32)
    data = FederatedData.from_arrays(
        rows, np.zeros(ROWS), RNG.choice(3, ROWS, p=[0.6, 0.3, 0.1]), allow_missing=True
    )
    model = factor_analysis(factors=2, ridge=0.05, means=start.means, loadings=start.loadings)
    engine = Simulation(em(model), data, seed=0)
    state, lines = engine.advance(engine.start(), 5)
    assert [line["clients"] for line in lines] == [3] * 5
    expected = climb(start, batch_of(rows.astype(float)), 5)[0]
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10),
        state.server.theta,
        expected,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factors": 0}, "factors must be at least 1"),
        ({"factors": 1, "ridge": -1.0}, "ridge at least 0"),
        ({"factors": 1, "start_scale": 0.0}, "start_scale is a standard deviation"),
        ({"factors": 5}, "5 factors cannot be told apart in 5 features"),
        ({"factors": 2, "loadings": [[1.0, 0.0]]}, r"loadings must have the shape \(5, 2\)"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        factor_analysis(**options).init(jax.random.key(0), SPEC)
