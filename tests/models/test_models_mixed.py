"""Mixed models against their formulas, and what draws of the effects predict together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import models
from covey.core.shard import Rows, Spec
from covey.models import MIXED_MODELS, Linear

RNG = np.random.default_rng(5)
X = jnp.asarray(RNG.normal(size=(6, 3)), jnp.float32)
PHI = Linear(jnp.array([0.5, -1.0, 0.3]), jnp.array(0.2))
SPEC = Spec(Rows(jax.ShapeDtypeStruct((3,), np.float32), jax.ShapeDtypeStruct((), np.float32)))


@pytest.mark.parametrize(("slopes", "columns"), [((), []), ((2, 0), [2, 0]), ("all", [0, 1, 2])])
def test_effects_add_to_the_coefficients(slopes, columns):
    z = jnp.asarray(RNG.normal(size=1 + len(columns)), jnp.float32)
    predictor = X @ PHI.weight + 0.2 + z[0] + np.asarray(X)[:, columns] @ z[1:]
    normal = models.mixed_linear(scale=0.5, slopes=slopes)
    assert normal.init_effects(jax.random.key(0), SPEC).shape == z.shape
    np.testing.assert_allclose(normal.predictive(PHI, z, X).mean, predictor, rtol=1e-5, atol=1e-6)
    binary = models.mixed_logistic(slopes=slopes).predictive(PHI, z, X)
    np.testing.assert_allclose(binary.mean[:, 1], 1 / (1 + np.exp(-predictor)), rtol=1e-5)
    np.testing.assert_allclose(
        models.mixed_poisson(slopes=slopes).predictive(PHI, z, X).log_rate, predictor, rtol=1e-5, atol=1e-6
    )
    y = jnp.asarray(RNG.normal(size=6), jnp.float32)
    density = -0.5 * ((y - predictor) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(normal.log_likelihood(PHI, z, Rows(X, y)), density, rtol=1e-4)


def test_the_linear_map_starts_orthonormal():
    model = models.linear_map(effects=2, scale=0.1)
    phi, z = model.init(jax.random.key(0), SPEC), jnp.array([1.0, -2.0])
    np.testing.assert_allclose(phi.T @ phi, np.eye(2), atol=1e-5)
    np.testing.assert_allclose(model.predictive(phi, z, X).mean, X @ (phi @ z), rtol=1e-5, atol=1e-6)


def test_draws_are_averaged():
    draws = jnp.array([[0.0], [2.0], [-1.0]])
    predictors = X @ PHI.weight + 0.2 + draws

    def together(model):
        return models.averaged(lambda z: model.predictive(PHI, z, X), draws)

    numbers = together(models.mixed_linear(scale=0.5))
    np.testing.assert_allclose(numbers.mean, predictors.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(numbers.scale, np.sqrt(0.25 + predictors.var(0)), rtol=1e-5)
    labels = together(models.mixed_logistic())
    np.testing.assert_allclose(labels.mean[:, 1], (1 / (1 + np.exp(-predictors))).mean(0), rtol=1e-5)
    np.testing.assert_allclose(together(models.mixed_poisson()).mean, np.exp(predictors).mean(0), rtol=1e-5)


NAMED = SPEC._replace(features=("age", "dose", "sex"))


@pytest.mark.parametrize(("slopes", "named"), [((), ()), ((2, 0), ("sex", "age")), ("all", ("age", "dose", "sex"))])
def test_what_is_described_has_the_names_of_columns(slopes, named):
    model = models.mixed_linear(slopes=slopes)
    assert model.axes is not None
    axes = model.axes(NAMED)
    assert axes["slopes"] == ("slope", named)
    assert axes["weights"] == ("column", NAMED.features)
    assert axes["effects"] == ("effect", ("intercept", *named))
    assert model.axes(SPEC) == {}


def test_the_catalogue_names_them():
    for name, factory in MIXED_MODELS.items():
        assert factory(**({"effects": 2} if name == "linear_map" else {})).name == factory.__name__ == name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.mixed_linear(slopes=(1, 1)), "names a column twice"),
        (lambda: models.mixed_linear(slopes=(4,)).init_effects(jax.random.key(0), SPEC), "columns 0 to 2 of these rows, got 4"),
        (lambda: models.mixed_logistic().init(jax.random.key(0), SPEC), "numeric outcome, not classes"),
        (lambda: models.linear_map(effects=4).init(jax.random.key(0), SPEC), "4 effects are more than the 3 columns"),
        (lambda: models.linear_map(effects=0), "effects must be at least 1, got 0"),
        (lambda: models.linear_map(effects=1, scale=0.0), "must be above 0, got 0"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_noise_that_is_not_given_is_learned():
    """The score of the log deviation of Gaussian noise is sum (residual / deviation)^2 - 1."""
    model = models.mixed_linear()
    phi = models.Noisy(PHI.weight, PHI.bias, jnp.log(0.7))
    assert jax.tree.structure(model.init(jax.random.key(0), SPEC)) == jax.tree.structure(phi)
    y = jnp.asarray(RNG.normal(size=len(X)), jnp.float32)
    score = jax.grad(lambda phi: jnp.sum(model.log_likelihood(phi, jnp.array([0.3]), Rows(X, y))))(phi)
    residual = y - (X @ PHI.weight + PHI.bias + 0.3)
    np.testing.assert_allclose(score.log_scale, np.sum((residual / 0.7) ** 2 - 1), rtol=1e-4)
    np.testing.assert_allclose(model.coefficients(phi, jnp.array([0.3]))["noise"], 0.7, rtol=1e-6)
