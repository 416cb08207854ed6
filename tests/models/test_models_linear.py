"""The linear family against closed forms, SciPy and scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from sklearn.linear_model import LogisticRegression

from covey.core.shard import Rows, Spec
from covey.models import linear, logistic, poisson, softmax
from covey.models.linear import Linear

RNG = np.random.default_rng(2)
X = RNG.normal(size=(40, 3)).astype(np.float32)
W, B = np.array([0.8, -1.3, 0.4], np.float32), np.float32(-0.3)
PARAMS = Linear(jnp.asarray(W), jnp.asarray(B))


def spec(x=(3,), y_dtype=jnp.float32, classes=None, x_dtype=jnp.float32, y=()):
    return Spec(Rows(jax.ShapeDtypeStruct(x, x_dtype), jax.ShapeDtypeStruct(y, y_dtype)), classes)


def rows(y):
    return Rows(jnp.asarray(X), jnp.asarray(y))


def test_linear_is_a_density():
    y = RNG.normal(size=40).astype(np.float32)
    got = linear(scale=0.7).log_likelihood(PARAMS, rows(y))
    np.testing.assert_allclose(
        got, scipy.stats.norm.logpdf(y, X @ W + B, 0.7), rtol=1e-4, atol=1e-4
    )
    with jax.enable_x64(True):
        params = Linear(jnp.asarray(W, jnp.float64), jnp.asarray(B, jnp.float64))
        grid = np.linspace(-10, 10, 4001)
        x = np.repeat(X[:1], len(grid), axis=0)
        density = np.exp(
            linear(scale=0.7).log_likelihood(
                params, Rows(jnp.asarray(x, jnp.float64), jnp.asarray(grid))
            )
        )
    total = scipy.integrate.trapezoid(density, grid)
    np.testing.assert_allclose(total, 1, rtol=1e-6)


def test_logistic_gradient_is_the_closed_form():
    y = RNG.integers(0, 2, 40)
    got = jax.grad(lambda p: logistic().log_likelihood(p, rows(y)).sum())(PARAMS)
    residual = y - 1 / (1 + np.exp(-(X @ W + B)))
    np.testing.assert_allclose(got.weight, X.T @ residual, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got.bias, residual.sum(), rtol=1e-4)


def test_logistic_far_from_the_data_stays_finite():
    value, gradient = jax.value_and_grad(
        lambda p: logistic().log_likelihood(p, rows(np.ones(40, int))).sum()
    )(Linear(jnp.asarray(W) * 1e4, jnp.asarray(B)))
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


def test_probabilities_are_those_of_scikit_learn():
    y = RNG.integers(0, 3, 40)
    fit = LogisticRegression(C=1.0, max_iter=500).fit(X, y)
    params = Linear(jnp.asarray(fit.coef_.T, jnp.float32), jnp.asarray(fit.intercept_, jnp.float32))
    np.testing.assert_allclose(
        softmax().predictive(params, jnp.asarray(X)).mean, fit.predict_proba(X), rtol=1e-4
    )
    binary = LogisticRegression(C=1.0, max_iter=500).fit(X, y > 0)
    params = Linear(
        jnp.asarray(binary.coef_[0], jnp.float32), jnp.asarray(binary.intercept_[0], jnp.float32)
    )
    np.testing.assert_allclose(
        logistic().predictive(params, jnp.asarray(X)).mean, binary.predict_proba(X), rtol=1e-4
    )


def test_poisson_is_a_mass():
    params = Linear(jnp.asarray(W * 0.5), jnp.asarray(B))
    counts = np.arange(60)
    x = np.repeat(X[:1], 60, axis=0)
    got = poisson().log_likelihood(params, Rows(jnp.asarray(x), jnp.asarray(counts)))
    np.testing.assert_allclose(
        got, scipy.stats.poisson.logpmf(counts, np.exp(X[0] @ W * 0.5 + B)), rtol=1e-4
    )
    np.testing.assert_allclose(np.exp(got).sum(), 1, rtol=1e-5)


def test_start_at_zero_with_shapes_of_the_data():
    params = softmax().init(jax.random.key(0), spec(x=(4, 5), y_dtype=jnp.int32, classes=7))
    assert params.weight.shape == (20, 7)
    assert params.bias.shape == (7,)
    assert not np.any(params.weight)
    binary = logistic().init(jax.random.key(0), spec(y_dtype=jnp.int32, classes=2))
    assert (binary.weight.shape, binary.bias.shape) == ((3,), ())


def test_pixels_are_scaled():
    pixels = RNG.integers(0, 256, (6, 2, 2), dtype=np.uint8)
    params = Linear(jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32), jnp.zeros(3))
    got = softmax().predictive(params, jnp.asarray(pixels)).mean
    expected = (
        softmax().predictive(params, jnp.asarray(pixels.reshape(6, 4) / 255, jnp.float32)).mean
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    wider = softmax().predictive(params, jnp.asarray(pixels, jnp.int32)).mean
    assert not np.allclose(got, wider)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (softmax(), spec(), "numeric outcome, not classes; use linear"),
        (logistic(), spec(), "numeric outcome, not classes"),
        (
            logistic(),
            spec(y_dtype=jnp.int32, classes=3),
            "two classes are needed, these data have 3; use softmax",
        ),
        (linear(), spec(y_dtype=jnp.int32, classes=3), "3 classes, not a numeric outcome"),
        (poisson(), spec(y_dtype=jnp.int32, classes=2), "2 classes, not a numeric outcome"),
        (softmax(), spec(y_dtype=jnp.float32, classes=3), "labels must be integers 0 to 2"),
        (linear(), spec(y=(2,)), r"outcomes of shape \(2,\)"),
    ],
)
def test_data_that_do_not_fit(model, data, message):
    with pytest.raises(ValueError, match=message):
        model.init(jax.random.key(0), data)


@pytest.mark.parametrize("model", [linear(), logistic(), softmax(), poisson()])
def test_weights_are_called_by_their_columns(model):
    assert model.axes(spec()._replace(features=("age", "dose"))) == {
        "weight": ("column", ("age", "dose"))
    }
    assert model.axes(spec()) == {}


def test_scale_is_checked():
    with pytest.raises(ValueError, match="above 0, got 0"):
        linear(scale=0.0)
