"""The mixtures: T is a minimum and the inverse of the expectation, EM climbs, and bad statistics do
not break them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Oracle

from covey.core.shard import Batch, Rows, Spec
from covey.models import gaussian_mixture, poisson_mixture, regression_mixture

RNG = np.random.default_rng(0)
Z = RNG.choice(2, 60, p=[0.7, 0.3])
X = (
    RNG.normal(size=(60, 2)) @ np.array([[1.0, 0.3], [0.0, 0.5]])
    + np.array([[0.0, 0.0], [3.0, -2.0]])[Z]
)
COUNTS = RNG.poisson(np.array([[2.0, 9.0], [7.0, 0.5]])[Z])
Y = np.where(Z == 1, X @ [2.0, -1.0] + 1.0, X @ [-1.0, 0.5]) + 0.3 * RNG.normal(size=60)
SPEC = Spec(Rows(jax.ShapeDtypeStruct((2,), np.float32), jax.ShapeDtypeStruct((), np.float32)))
MEANS = [[-0.5, 0.5], [2.0, -1.0]]

MODELS = {
    "known": lambda **o: gaussian_mixture(
        components=2,
        covariance="known",
        means=MEANS,
        start_covariance=[[1.0, 0.3], [0.3, 0.4]],
        **o,
    ),
    "tied": lambda **o: gaussian_mixture(components=2, covariance="tied", means=MEANS, **o),
    "diagonal": lambda **o: gaussian_mixture(
        components=2, covariance="diagonal", means=MEANS, weights=[3.0, 1.0], **o
    ),
    "full": lambda **o: gaussian_mixture(components=2, covariance="full", means=MEANS, **o),
    "poisson": lambda **o: poisson_mixture(components=2, rates=[[3.0, 5.0], [5.0, 2.0]], **o),
    "regression": lambda **o: regression_mixture(
        components=2, coefficients=[[-0.5, 0.0, 0.1], [1.0, -0.2, 0.3]], **o
    ),
}
TWICE = ("known", "diagonal")  # between the tied and the full covariance
every_model = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in TWICE else ()) for name in MODELS],
)


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def rows_of(name):
    return Rows(jnp.asarray(COUNTS if name == "poisson" else X, float), jnp.asarray(Y))


def batch_of(name, mask=None):
    return Batch(rows_of(name), jnp.ones(60, bool) if mask is None else jnp.asarray(mask))


@functools.cache
def compiled(name, ridge=1e-2):
    """The start, and one step of EM with its objective, compiled."""
    model = MODELS[name](ridge=ridge)

    def objective(theta, rows):
        return model.penalty(theta) - jnp.mean(model.log_likelihood(theta, rows))

    def step(theta, batch):
        s = model.statistics(theta, batch)
        new, repairs = model.maximise(s, theta)
        return new, repairs, s, objective(theta, batch.rows)

    with jax.enable_x64(True):
        return model, model.init(jax.random.key(0), SPEC), jax.jit(step), jax.jit(model.maximise)


@every_model
def test_the_penalised_likelihood_never_decreases(name):
    _, theta, step, _ = compiled(name)
    path = []
    for _ in range(12):
        theta, repairs, _, objective = step(theta, batch_of(name))
        path.append(float(objective))
        assert float(repairs.empty) == 0
    assert np.all(np.diff(path) <= 1e-12)
    assert path[0] - path[-1] > 1e-3


@every_model
def test_a_fixed_point_of_em_is_a_stationary_point_of_the_penalised_likelihood(name):
    model, theta, step, _ = compiled(name)
    batch = batch_of(name)
    new, _, s, _ = step(theta, batch)
    for scale in (1.0, 17.0):  # the weight of statistics does not matter
        again, _ = model.maximise(jax.tree.map(lambda leaf, scale=scale: scale * leaf, s), theta)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9), again, new)
    fixed = theta
    for _ in range(400):
        fixed, *_ = step(fixed, batch)

    def objective(free):
        weights = jax.nn.softmax(free[0])
        moved = (
            type(fixed)(weights, *free[1:])
            if name != "known"
            else fixed._replace(weights=weights, means=free[1])
        )
        return model.penalty(moved) - jnp.mean(model.log_likelihood(moved, batch.rows))

    slope = jax.jit(jax.grad(objective))((jnp.log(fixed.weights), *fixed[1:]))
    for leaf in slope if name != "known" else slope[:2]:
        np.testing.assert_allclose(leaf, 0, atol=1e-6)


@every_model
def test_expected_statistics_have_theta_as_their_maximum_and_masked_rows_do_not_count(name):
    model = MODELS[name](ridge=0.0)
    theta = compiled(name)[1]
    got, _ = model.maximise(model.expected(theta), theta)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12), got, theta)
    mask = jnp.arange(60) % 3 > 0
    some = Batch(
        jax.tree.map(
            lambda leaf: jnp.where(mask.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 77.0),
            rows_of(name),
        ),
        mask,
    )
    kept = Batch(jax.tree.map(lambda leaf: leaf[mask], rows_of(name)), jnp.ones(mask.sum(), bool))
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12),
        model.statistics(theta, some),
        model.statistics(theta, kept),
    )


@pytest.mark.filterwarnings(f"ignore::{ConvergenceWarning.__module__}.ConvergenceWarning")
@pytest.mark.parametrize(
    ("name", "kind"), [("tied", "tied"), ("diagonal", "diag"), ("full", "full")]
)
def test_gaussian_mixtures_against_scikit_learn(name, kind):
    _, theta, step, _ = compiled(name, 0.0)
    precisions = {"tied": np.eye(2), "diag": np.ones((2, 2)), "full": np.stack([np.eye(2)] * 2)}[
        kind
    ]
    oracle = Oracle(
        2,
        covariance_type=kind,
        max_iter=3,
        tol=0,
        reg_covar=0,
        weights_init=np.asarray(theta.weights),
        means_init=MEANS,
        precisions_init=precisions,
    ).fit(X)
    for _ in range(3):
        theta, *_ = step(theta, batch_of(name))
    np.testing.assert_allclose(theta.means, oracle.means_, atol=1e-10)
    np.testing.assert_allclose(theta.covariance, oracle.covariances_, atol=1e-10)


def test_likelihoods_against_scipy():
    theta = compiled("poisson")[1]
    mass = stats.poisson.pmf(COUNTS[:, None], np.asarray(theta.rates)).prod(-1) @ np.asarray(
        theta.weights
    )
    np.testing.assert_allclose(
        compiled("poisson")[0].log_likelihood(theta, rows_of("poisson")), np.log(mass)
    )
    model, theta, *_ = compiled("regression")
    design = np.column_stack([X, np.ones(60)])
    density = stats.norm.pdf(
        Y[:, None], design @ np.asarray(theta.coefficients).T, np.sqrt(theta.variances)
    )
    np.testing.assert_allclose(
        model.log_likelihood(theta, rows_of("regression")),
        np.log(density @ np.asarray(theta.weights)),
    )
    predicted = model.predictive(theta, jnp.asarray(X))
    means = design @ np.asarray(theta.coefficients).T
    np.testing.assert_allclose(predicted.mean, means @ np.asarray(theta.weights))
    np.testing.assert_allclose(
        predicted.scale**2, means.var(1) + 1.0
    )  # equal weights, noise of one


@every_model
def test_an_empty_component_keeps_its_parameters_and_is_reported(name):
    model, theta, step, maximise = compiled(name)
    _, _, s, _ = step(theta, batch_of(name))
    for share in (0.0, -0.3):  # none, and what compression can make of it
        emptied = jax.tree.map(lambda leaf: leaf, s)._replace(
            weight=s.weight.at[1].set(share * s.weight[1])
        )
        new, repairs = maximise(emptied, theta)
        assert float(repairs.empty) == 1
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(new))
        np.testing.assert_array_equal(new[1][1], theta[1][1])
        assert 0 < float(new.weights[1]) < 1e-5
        np.testing.assert_allclose(np.sum(new.weights), 1.0)
        assert np.all(np.isfinite(model.log_likelihood(new, rows_of(name))))


@pytest.mark.parametrize("name", ["tied", "diagonal", "full", "regression"])
def test_a_singular_covariance_is_lifted_and_reported(name):
    model, theta, step, maximise = compiled(name)
    flat = Rows(jnp.asarray(X).at[:, 1].set(0.25), jnp.asarray(X[:, 0] * 2))
    theta, repairs, s, _ = step(theta, Batch(flat, jnp.ones(60, bool)))
    for _ in range(30):
        theta, repairs, *_ = step(theta, Batch(flat, jnp.ones(60, bool)))
    assert float(repairs.singular) >= 1
    assert np.all(np.isfinite(model.log_likelihood(theta, flat)))
    broken = (
        s._replace(square=-s.square, gram=-s.gram)
        if name == "regression"
        else s._replace(second=-s.second)
    )
    theta, repairs = maximise(broken, theta)
    assert float(repairs.singular) >= 1
    assert np.all(np.isfinite(model.log_likelihood(theta, flat)))


def test_features_that_are_no_counts_give_nan():
    model, theta, *_ = compiled("poisson")
    for bad in (-1.0, 0.5):
        rows = rows_of("poisson")._replace(x=rows_of("poisson").x.at[3, 1].set(bad))
        assert np.isnan(model.log_likelihood(theta, rows)[3])
        assert np.isnan(model.statistics(theta, Batch(rows, jnp.ones(60, bool))).first).any()
        assert not np.isnan(model.statistics(theta, Batch(rows, jnp.arange(60) != 3)).first).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gaussian_mixture(components=0), "components must be at least 1, got 0"),
        (lambda: gaussian_mixture(components=2, ridge=-1.0), "ridge must be at least 0, got -1"),
        (lambda: gaussian_mixture(components=2, covariance="known"), "give it as start_covariance"),
        (
            lambda: gaussian_mixture(components=2, covariance="full", second_moment=np.eye(2)),
            "second_moment is for",
        ),
        (
            lambda: gaussian_mixture(components=2, means=[[1.0]]).init(jax.random.key(0), SPEC),
            r"means must have the shape \(2, 2\)",
        ),
        (
            lambda: gaussian_mixture(components=2, start_covariance=-np.eye(2)).init(
                jax.random.key(0), SPEC
            ),
            "start_covariance must be positive definite",
        ),
        (
            lambda: poisson_mixture(components=1, rates=[[0.0, 1.0]]).init(jax.random.key(0), SPEC),
            "rates must be above 0",
        ),
        (lambda: poisson_mixture(components=2, typical=0.0), "typical is the mean of a count"),
        (
            lambda: regression_mixture(components=2, start_scale=0.0),
            "start_scale is a standard deviation",
        ),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()
