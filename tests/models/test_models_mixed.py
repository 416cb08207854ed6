"""Mixed models against their formulas, and what draws of the effects predict together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from covey import models
from covey.core.shard import Rows, Spec
from covey.models import MIXED_MODELS, Linear

RNG = np.random.default_rng(5)
X = jnp.asarray(RNG.normal(size=(6, 3)), jnp.float32)
PHI = Linear(jnp.array([0.5, -1.0, 0.3]), jnp.array(0.2))
KEY = jax.random.key(0)
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
        models.mixed_poisson(slopes=slopes).predictive(PHI, z, X).log_rate,
        predictor,
        rtol=1e-5,
        atol=1e-6,
    )
    y = jnp.asarray(RNG.normal(size=6), jnp.float32)
    density = -0.5 * ((y - predictor) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(normal.log_likelihood(PHI, z, Rows(X, y)), density, rtol=1e-4)


def test_the_linear_map_starts_orthonormal():
    model = models.linear_map(effects=2, scale=0.1)
    phi, z = model.init(jax.random.key(0), SPEC), jnp.array([1.0, -2.0])
    np.testing.assert_allclose(phi.T @ phi, np.eye(2), atol=1e-5)
    np.testing.assert_allclose(
        model.predictive(phi, z, X).mean, X @ (phi @ z), rtol=1e-5, atol=1e-6
    )


def test_draws_are_averaged():
    draws = jnp.array([[0.0], [2.0], [-1.0]])
    predictors = X @ PHI.weight + 0.2 + draws

    def together(model):
        return models.averaged(lambda z: model.predictive(PHI, z, X), draws)

    numbers = together(models.mixed_linear(scale=0.5))
    np.testing.assert_allclose(numbers.mean, predictors.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(numbers.variance, 0.25 + predictors.var(0), rtol=1e-5)
    labels = together(models.mixed_logistic())
    np.testing.assert_allclose(
        labels.mean[:, 1], (1 / (1 + np.exp(-predictors))).mean(0), rtol=1e-5
    )
    np.testing.assert_allclose(
        together(models.mixed_poisson()).mean, np.exp(predictors).mean(0), rtol=1e-5
    )


@pytest.mark.parametrize(
    "deviation", [0.8, *(pytest.param(value, marks=pytest.mark.slow) for value in (0.4, 1.2))]
)
def test_counts_of_a_client_without_rows_are_covered(deviation):
    """Draws of the effects from their law: outcomes lie in the 90 % interval nine times of ten.

    A Poisson with the mean rate held 0.63, 0.32 and 0.16 of them, with a negative log-likelihood
    of 4.6, 11.8 and 33.5.
    """
    rng, outcomes = np.random.default_rng(1), 1000
    model, phi = models.mixed_poisson(), Linear(jnp.zeros(1), jnp.array(3.0))
    draws = jnp.asarray(deviation * rng.normal(size=(4000, 1)), jnp.float32)
    y = rng.poisson(np.exp(3 + deviation * rng.normal(size=outcomes)))
    x = jnp.zeros((outcomes, 1))
    found = models.averaged(lambda z: model.predictive(phi, z, x), draws)
    nodes, weight = np.polynomial.hermite_e.hermegauss(100)
    mass = scipy.stats.poisson.pmf(np.arange(20_000)[:, None], np.exp(3 + deviation * nodes))
    exact = mass @ weight / weight.sum()
    lower, upper = models.averaged(lambda z: model.predictive(phi, z, x[:1]), draws).interval(0.9)
    # A tail of 5 % found from 4,000 draws is off by at most 0.35 %, the two tails by 0.5 %.
    held = exact[int(lower[0]) : int(upper[0]) + 1].sum()
    assert 0.9 - 4 * 0.005 < held < 0.95
    inside = np.mean((lower <= y) & (y <= upper))
    assert abs(inside - held) < 4 * np.sqrt(held * (1 - held) / outcomes)
    terms = np.log(exact[y])
    gap = np.asarray(found.log_prob(jnp.asarray(y))) - terms
    assert abs(gap.mean()) < 4 * gap.std() / np.sqrt(outcomes) + 0.01


NAMED = SPEC._replace(features=("age", "dose", "sex"))


@pytest.mark.parametrize(
    ("slopes", "named"),
    [
        ((), ()),
        ((2, 0), ("sex", "age")),
        (("sex", "age"), ("sex", "age")),
        ("all", ("age", "dose", "sex")),
    ],
)
def test_what_is_described_has_the_names_of_columns(slopes, named):
    model = models.mixed_linear(slopes=slopes)
    assert model.axes is not None
    axes = model.axes(NAMED)
    assert axes["slopes"] == ("slope", named)
    assert axes["weights"] == ("column", NAMED.features)
    assert axes["effects"] == ("effect", ("intercept", *named))
    assert model.axes(SPEC) == {}


@pytest.mark.parametrize("scale", [0.5, None])
def test_slopes_by_name_are_those_by_index(scale):
    """Of any data: the columns are found when a model meets them, and the model itself remembers
    nothing.
    """
    key, z = jax.random.key(0), jnp.array([0.1, -0.7, 2.0])
    names = models.mixed_linear(scale=scale, slopes=("sex", "age"))
    for spec, slopes in (
        (NAMED, (2, 0)),
        (NAMED._replace(features=("sex", "age", "dose")), (0, 1)),
    ):
        numbers = models.mixed_linear(scale=scale, slopes=slopes)
        phi, by_number = names.init(key, spec), numbers.init(key, spec)
        np.testing.assert_array_equal(
            names.init_effects(key, spec), numbers.init_effects(key, spec)
        )
        assert [leaf.shape for leaf in jax.tree.leaves(phi)] == [
            leaf.shape for leaf in jax.tree.leaves(by_number)
        ]
        phi, by_number = phi._replace(weight=PHI.weight), by_number._replace(weight=PHI.weight)
        expected = numbers.predictive(by_number, z, X)
        for leaf, same in zip(
            jax.tree.leaves(jax.jit(names.predictive)(phi, z, X)),
            jax.tree.leaves(expected),
            strict=True,
        ):
            np.testing.assert_allclose(leaf, same, rtol=1e-6)
        assert jax.tree.all(
            jax.tree.map(np.array_equal, names.describe(phi, z), numbers.describe(by_number, z))
        )
        assert jax.tree.all(
            jax.tree.map(
                np.array_equal, names.coefficients(phi, z), numbers.coefficients(by_number, z)
            )
        )


def test_names_do_not_compile_again():
    model, traced = models.mixed_linear(slopes=("dose",)), []

    @jax.jit
    def intercept(phi):
        traced.append(phi)
        return phi.bias

    for key in range(2):
        intercept(model.init(jax.random.key(key), NAMED))
    assert len(traced) == 1


REQUIRED = {"linear_map": {"effects": 2}, "mixed_binomial": {"totals": "size"}}


def test_the_catalogue_names_them():
    for name, factory in MIXED_MODELS.items():
        assert factory(**REQUIRED.get(name, {})).name == factory.__name__ == name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.mixed_linear(slopes=(1, 1)), "names a column twice"),
        (
            lambda: models.mixed_linear(slopes=(4,)).init_effects(jax.random.key(0), SPEC),
            "columns 0 to 2 of these rows, got 4",
        ),
        (
            lambda: models.mixed_linear(slopes=("agee",)).init(KEY, NAMED),
            "has 'agee', but the columns .* are age, dose, sex",
        ),
        (
            lambda: models.mixed_linear(slopes=("age",)).init(KEY, SPEC),
            "the name 'age', but the columns of these data have no names",
        ),
        (
            lambda: models.mixed_linear(slopes=("age", 0)).init_effects(KEY, NAMED),
            "names a column twice",
        ),
        (
            lambda: models.own_parameters(PHI, jnp.zeros(2), ("age",)),
            "are names, which these coefficients do not know",
        ),
        (
            lambda: models.mixed_logistic().init(jax.random.key(0), SPEC),
            "numeric outcome, not classes",
        ),
        (
            lambda: models.linear_map(effects=4).init(jax.random.key(0), SPEC),
            "4 effects are more than the 3 columns",
        ),
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
    score = jax.grad(lambda phi: jnp.sum(model.log_likelihood(phi, jnp.array([0.3]), Rows(X, y))))(
        phi
    )
    residual = y - (X @ PHI.weight + PHI.bias + 0.3)
    np.testing.assert_allclose(score.log_scale, np.sum((residual / 0.7) ** 2 - 1), rtol=1e-4)
    np.testing.assert_allclose(model.coefficients(phi, jnp.array([0.3]))["noise"], 0.7, rtol=1e-6)


NAMED = SPEC._replace(features=("age", "dose", "sex"))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("random_intercept", [True, False])
def test_intercepts_can_be_left_out(intercept, random_intercept):
    """As `0 + ...` does in a formula; a column may have a random slope and no weight."""
    model = models.mixed_linear(
        scale=0.5,
        slopes=("sex", "age"),
        intercept=intercept,
        random_intercept=random_intercept,
        random_only=("sex",),
    )
    phi, none = model.init(KEY, NAMED), model.init_effects(KEY, NAMED)
    assert len(none) == 2 + random_intercept
    phi = phi._replace(weight=jnp.array([0.5, -1.0]), bias=jnp.array(0.2) if intercept else None)
    z = jnp.asarray(RNG.normal(size=len(none)), jnp.float32)
    x = np.asarray(X)
    exact = 0.5 * x[:, 0] - x[:, 1] + 0.2 * intercept
    np.testing.assert_allclose(model.predictive(phi, 0 * z, X).mean, exact, rtol=1e-5, atol=1e-6)
    exact = exact + x[:, 2] * z[-2] + x[:, 0] * z[-1] + (z[0] if random_intercept else 0.0)
    np.testing.assert_allclose(model.predictive(phi, z, X).mean, exact, rtol=1e-5, atol=1e-6)
    named, own = model.coefficients(phi, z), model.describe(phi, z)
    assert ("intercept" in named) == intercept
    assert ("intercept" in own) == (intercept or random_intercept)
    np.testing.assert_allclose(named["weights"], [0.5 + z[-1], -1.0], rtol=1e-6)
    np.testing.assert_allclose(own["slopes"], [z[-2], 0.5 + z[-1]], rtol=1e-6)
    axes = model.axes(NAMED)
    assert axes["weights"].labels == ("age", "dose")
    assert axes["effects"].labels == ("intercept",) * random_intercept + ("sex", "age")


def test_a_column_without_a_weight_needs_a_random_slope():
    with pytest.raises(ValueError, match="random_only has 'age', which is not one of the slopes"):
        models.mixed_poisson(slopes=("dose",), random_only=("age",))


def test_a_regression_without_an_intercept():
    model = models.linear(intercept=False)
    params = model.init(KEY, NAMED)._replace(weight=jnp.array([0.5, -1.0, 2.0]))
    exact = np.asarray(X) @ [0.5, -1.0, 2.0]
    np.testing.assert_allclose(model.predictive(params, X).mean, exact, rtol=1e-5, atol=1e-6)
    assert params.bias is None
    assert "bias" not in model.describe(params)
