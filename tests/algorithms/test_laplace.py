"""The Laplace approximation against matrices: all of the curvature, or its leading directions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.algorithms.laplace import Sums, curvature, laplace, sums
from covey.core.shard import Rows, Shard, Spec, whole
from covey.kernels.low_rank import power_of
from covey.models import from_density, linear

SIZE = 30
AXES = np.linalg.qr(np.random.default_rng(0).normal(size=(SIZE, SIZE)))[0]


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def matrix(values):
    return AXES * values @ AXES.T


def found(hessian, rank):
    gradient = jnp.arange(SIZE, dtype=float)
    return curvature(lambda columns: Sums(gradient, hessian @ columns), jnp.zeros(SIZE), rank)


def as_matrix(curvature):
    unit, precision, _ = curvature
    return np.asarray(power_of(precision, 1.0, jnp.eye(SIZE))) / np.outer(unit, unit)


def test_enough_directions_are_the_whole_curvature():
    hessian = matrix(np.geomspace(1.0, 1e4, SIZE))
    law, gradient = found(hessian, 40)
    np.testing.assert_allclose(as_matrix(law), hessian, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(gradient, np.arange(SIZE))
    np.testing.assert_allclose(law.solve(gradient), np.linalg.solve(hessian, gradient), rtol=1e-8)
    assert law.spread == 0


def test_leading_directions_are_kept_and_the_others_have_one_value():
    """Five large eigenvalues far from the rest, all of which the probes span: with 20 of 25
    directions the mean and the variation of the rest are nearly exact.
    """
    rest = np.linspace(0.8, 1.2, SIZE - 5)
    (_, precision, spread), _ = found(matrix(np.r_[rest, [1e5, 2e5, 3e5, 4e5, 5e5]]), 5)
    np.testing.assert_allclose(precision.values, [1e5, 2e5, 3e5, 4e5, 5e5], rtol=1e-6)
    np.testing.assert_allclose(1 / precision.level, np.mean(1 / rest), rtol=0.05)
    assert spread == pytest.approx(rest.var() / rest.mean() ** 2, rel=0.5)


def test_units_of_columns_cost_no_digits():
    """In single precision, columns whose units differ by a factor of 10^6."""
    with jax.enable_x64(False):
        unit = np.geomspace(1e-3, 1e3, SIZE)
        plain = matrix(np.linspace(1.0, 2.0, SIZE))
        law, _ = found(jnp.asarray(unit[:, None] * plain * unit, jnp.float32), SIZE)
        inverse = np.stack([law.solve(column) for column in jnp.eye(SIZE)])
    expected = np.sqrt(np.diag(np.linalg.inv(plain))) / unit
    np.testing.assert_allclose(np.sqrt(np.diag(inverse)), expected, rtol=1e-4)


def test_directions_without_information_are_an_error():
    values = np.ones(SIZE)
    values[:2] = 0.0, -1.0
    with pytest.raises(ValueError, match="does not curve downwards in 2 of 30 directions"):
        found(matrix(values), SIZE)


def spec(columns):
    x, y = (jax.ShapeDtypeStruct(shape, float) for shape in ((columns,), ()))
    return Spec(Rows(x, y), None, 1, 700)


def data(rows=700, columns=3, dull=0):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, columns)) * np.linspace(1.0, 3.0, columns)
    x[:, columns - dull :] = x[:, :dull]
    return whole(Rows(x, x[:, 0] + rng.normal(size=rows)))


def test_a_client_adds_up_its_rows_in_pieces():
    """More rows than are looked at together, and a row of another client behind them."""
    every = data()
    client = Shard(every.rows, jnp.int32(20), jnp.int32(600), 650)
    at, columns = jnp.array([0.5, -1.0, 2.0]), jnp.eye(3)[:, :2]
    here = jax.jit(sums, static_argnums=0)(
        lambda z, rows: -0.5 * (rows.y - rows.x @ z) ** 2, client, at, columns
    )
    x, y = (np.asarray(leaf)[20:620] for leaf in every.rows)
    np.testing.assert_allclose(here.gradient, x.T @ (x @ at - y), rtol=1e-10)
    np.testing.assert_allclose(here.times, (x.T @ x)[:, :2], rtol=1e-10)


def fit(model, start, rank, shard):
    """The fit of one client, without an engine."""

    law = laplace(model, lambda down: down, rank=rank)

    def ask(name, sent):
        return jax.jit(law.queries[name])(jax.random.key(0), sent, shard)

    return law.fit(start, spec(1), ask)


def test_newton_s_steps_end_at_the_mode():
    """A Poisson log-likelihood from afar: the mode of a log rate is the logarithm of the mean, and
    its curvature there the sum of the counts.
    """
    counts = np.random.default_rng(2).poisson(7.0, size=50)
    model = from_density(
        lambda theta, rows: rows.y * theta - jnp.exp(theta), jnp.zeros(()), "log rate"
    )
    law = fit(model, jnp.asarray(1.0), 1, whole(Rows(np.zeros((50, 1)), counts.astype(float))))
    deviation = counts.sum() ** -0.5
    assert abs(float(law.mean[0]) - np.log(counts.mean())) < 0.01 * deviation
    assert float(law.curvature.unit[0]) ** -2 == pytest.approx(counts.sum(), rel=0.02)


def test_a_rough_law_says_so():
    """Columns of many scales beyond the leading two, which allow no Newton step either; a density
    whose mode is far.
    """
    model, shard = linear(), data(columns=12)
    start = model.init(jax.random.key(0), spec(12))
    with (
        pytest.warns(UserWarning, match=r"or give rank=13: rank=2 allows no Newton step"),
        pytest.warns(UserWarning, match=r"beyond the leading 2 of 13 .* give rank=13"),
    ):
        law = fit(model, start, 2, shard)
    np.testing.assert_array_equal(law.mean, np.zeros(13))
    steep = from_density(lambda theta, rows: theta + 0.0 * rows.y - jnp.exp(theta), 0.0, "far")
    with pytest.warns(UserWarning, match="the mode is .* standard deviations from its centre"):
        fit(steep, jnp.asarray(20.0), 1, shard)


def test_collinear_columns_have_no_posterior():
    for double in (True, False):
        with jax.enable_x64(double), pytest.raises(ValueError, match="collinear columns"):
            fit(linear(), linear().init(jax.random.key(0), spec(4)), 5, data(columns=4, dull=1))
