"""Groups inside a client, integrated out: against dense quadrature and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import covey
from covey import models
from covey.core.shard import Rows, Shard, Spec, all_rows
from covey.models.groups import groups_of

KEY = jax.random.key(0)
RNG = np.random.default_rng(11)
GROUPS = np.array([501, 7, 501, 32, 7, 501, 7, 7], float)  # not in order
X = np.stack([RNG.normal(size=8), GROUPS, RNG.integers(4, 9, 8)], axis=1)
COUNTS = np.array([0, 3, 2, 9, 1, 4, 0, 2], float)
W, B, Z, TAU = 0.5, 0.3, -0.4, 0.8
GRID = np.linspace(-12, 12, 4001)
LAWS = {
    "mixed_logistic": lambda at: scipy.stats.bernoulli(scipy.special.expit(at)),
    "mixed_binomial": lambda at: scipy.stats.binom(X[:, 2][:, None], scipy.special.expit(at)),
    "mixed_poisson": lambda at: scipy.stats.poisson(np.exp(at)),
    "mixed_negative_binomial": lambda at: scipy.stats.nbinom(2.0, 2 / (2 + np.exp(at))),
}
OPTIONS = {
    "mixed_binomial": {"totals": "size"},
    "mixed_negative_binomial": {"dispersion": 2.0},
    "mixed_linear": {"scale": 0.6},
}


def built(name, **more):
    classes = 2 if name == "mixed_logistic" else None
    y = jax.ShapeDtypeStruct((), np.float32 if classes is None else np.int32)
    spec = Spec(
        Rows(jax.ShapeDtypeStruct((3,), np.float32), y), classes, features=("x", "brood", "size")
    )
    model = models.MIXED_MODELS[name](groups="brood", **OPTIONS.get(name, {}), **more)
    phi = model.init(KEY, spec)
    weight = jnp.zeros_like(phi.weight).at[0].set(W)
    phi = phi._replace(weight=weight, bias=jnp.asarray(B), log_groups=jnp.log(TAU))
    outcomes = COUNTS % 2 if classes else np.minimum(COUNTS, X[:, 2])
    rows = Rows(jnp.asarray(X, float), jnp.asarray(outcomes, int if classes else float))
    return model, phi, rows, spec


def dense(name, y, w=W, z=Z, tau=TAU):
    """The sum over groups of the log of the integral, by the trapezoidal rule on a fine grid."""
    at = (w * X[:, 0] + B + z)[:, None] + tau * GRID
    each = LAWS[name](at).logpmf(np.asarray(y)[:, None])
    total = 0.0
    for group in np.unique(GROUPS):
        joint = each[group == GROUPS].sum(0) + scipy.stats.norm.logpdf(GRID)
        total += scipy.special.logsumexp(joint) + np.log(GRID[1] - GRID[0])
    return total


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name != "mixed_logistic" else ())
        for name in LAWS
    ],
)
def test_the_integral_is_that_of_dense_quadrature(name):
    """Value, gradient and curvature, by effects and by the deviation of the groups."""
    with jax.enable_x64(True):
        model, phi, rows, _ = built(name)

        def total(v):
            at = phi._replace(weight=phi.weight.at[0].set(v[0]), log_groups=jnp.log(v[2]))
            return jnp.sum(model.log_likelihood(at, v[1][None], rows))

        point = jnp.array([W, Z, TAU])
        both = jax.value_and_grad(total)
        (value, gradient), (_, curvature) = jax.jit(lambda v: jax.jvp(both, (v,), (jnp.ones(3),)))(
            point
        )

    def exact(v):
        return dense(name, rows.y, *v)

    at, h = np.array([W, Z, TAU]), 1e-3
    np.testing.assert_allclose(value, exact(at), rtol=2e-7)  # as log-beta is known
    steps = h * np.eye(3)
    slope = [(exact(at + one) - exact(at - one)) / (2 * h) for one in steps]
    np.testing.assert_allclose(gradient, slope, rtol=2e-5, atol=2e-6)

    def gradient_at(v):
        return np.array([(exact(v + one) - exact(v - one)) / (2 * h) for one in steps])

    along = (gradient_at(at + h) - gradient_at(at - h)) / (2 * h)
    np.testing.assert_allclose(curvature, along, rtol=2e-4, atol=2e-4)


def test_gaussian_groups_are_a_multivariate_normal():
    model, phi, rows, _ = built("mixed_linear", weights="size")
    found = jax.jit(model.log_likelihood)(phi, jnp.array([Z]), rows).sum()
    same = GROUPS[:, None] == GROUPS
    covariance = TAU**2 * same + np.diag(0.6**2 / X[:, 2])
    mean = W * X[:, 0] + B + Z
    exact = scipy.stats.multivariate_normal(mean, covariance).logpdf(np.asarray(rows.y))
    np.testing.assert_allclose(found, exact, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed_linear", "mixed_poisson"])
def test_masked_rows_at_the_end_change_nothing(name):
    """Whether they repeat the last row or are blank: a client's value is that of its own rows."""
    model, phi, rows, _ = built(name)
    likelihood = jax.jit(model.log_likelihood)
    alone = likelihood(phi, jnp.array([Z]), rows)
    for filler in (lambda leaf: leaf[-1:], lambda leaf: jnp.zeros_like(leaf[:1])):
        longer = jax.tree.map(
            lambda leaf, filler=filler: jnp.concatenate([leaf, *[filler(leaf)] * 4]), rows
        )
        found = likelihood(phi, jnp.array([Z]), longer)[:8]
        np.testing.assert_allclose(found.sum(), alone.sum(), rtol=1e-5)
    two = np.flatnonzero(GROUPS != 32)[:2]
    assert np.isfinite(
        likelihood(phi, jnp.array([Z]), jax.tree.map(lambda leaf: leaf[two], rows))
    ).all()


@pytest.mark.parametrize(
    "name", [pytest.param("mixed_linear", marks=pytest.mark.slow), "mixed_poisson"]
)
def test_blank_rows_with_weights_leave_derivatives_finite(name):
    """Also where they fall into a group with the code 0."""
    model, phi, rows, _ = built(name, weights="size")
    rows = rows._replace(x=rows.x.at[:, 1].set(jnp.where(rows.x[:, 1] == 7, 0, rows.x[:, 1])))
    longer = jax.tree.map(lambda leaf: jnp.concatenate([leaf, jnp.zeros_like(leaf[:3])]), rows)

    def total(phi, rows):
        terms = model.log_likelihood(phi, jnp.array([Z]), rows)
        return jnp.sum(jnp.where(jnp.arange(len(terms)) < 8, terms, 0.0))

    both = jax.jit(jax.value_and_grad(total))
    (one, first), (other, second) = both(phi, rows), both(phi, longer)
    np.testing.assert_allclose(one, other, rtol=1e-5)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_no_variation_between_groups_is_no_groups():
    """At tau = 0 the terms are those of the rows alone."""
    model, phi, rows, _ = built("mixed_poisson")
    likelihood = jax.jit(model.log_likelihood)
    tiny = phi._replace(log_groups=jnp.asarray(-12.0))
    law = scipy.stats.poisson(np.exp(W * X[:, 0] + B + Z))
    np.testing.assert_allclose(
        likelihood(tiny, jnp.array([Z]), rows), law.logpmf(rows.y), rtol=1e-4
    )


def test_large_counts_far_from_the_start_are_integrated():
    """Sixty ticks where one was expected: the nodes are where the integrand is."""
    model, phi, rows, _ = built("mixed_poisson")
    many = rows._replace(y=rows.y + 60)
    np.testing.assert_allclose(
        jax.jit(model.log_likelihood)(phi, jnp.array([Z]), many).sum(),
        dense("mixed_poisson", many.y),
        rtol=1e-5,
    )


@pytest.mark.slow
def test_rows_are_predicted_as_those_of_unseen_groups():
    model, phi, rows, spec = built("mixed_poisson")
    found = model.predictive(phi, jnp.array([Z]), rows.x)
    rate = np.exp(W * X[:, 0] + B + Z + TAU**2 / 2)
    np.testing.assert_allclose(found.mean, rate, rtol=1e-4)
    np.testing.assert_allclose(found.variance, rate + rate**2 * (np.exp(TAU**2) - 1), rtol=1e-3)
    normal, phi_, _, _ = built("mixed_linear")
    np.testing.assert_allclose(
        normal.predictive(phi_, jnp.array([Z]), rows.x).variance, 0.6**2 + TAU**2, rtol=1e-5
    )
    labels = built("mixed_logistic")
    chance = labels[0].predictive(labels[1], jnp.array([Z]), rows.x).mean[:, 1]
    at = (W * X[:, 0] + B + Z)[:, None] + TAU * GRID
    exact = scipy.special.expit(at) @ scipy.stats.norm.pdf(GRID) * (GRID[1] - GRID[0])
    np.testing.assert_allclose(chance, exact, rtol=1e-5)
    assert model.groups == "brood"
    assert model.axes(spec)["weights"].labels == ("x", "size")
    np.testing.assert_allclose(
        model.coefficients(phi, jnp.array([Z]))["group_deviation"], TAU, rtol=1e-5
    )


def test_methods_with_minibatches_are_refused():
    model = models.mixed_poisson(groups="brood")
    with pytest.raises(ValueError, match="fedper learns from minibatches, which cut the groups"):
        covey.fedper(model)


def test_codes_that_single_precision_merges_are_refused():
    rows = np.array([[1.0, 20_000_001.0], [2.0, 20_000_002.0]]), np.array([0.0, 1.0])
    data = covey.FederatedData.from_clients({"a": rows}, features=["x", "patient"])
    method = covey.fedpop(models.mixed_poisson(groups="patient"), step_size=0.1)
    with pytest.raises(
        ValueError, match=r"must be below 16,777,216.* groups='patient', client 'a'"
    ):
        covey.run(method, data, rounds=1, seed=1, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [130, 600])  # paired, and sorted
def test_sums_within_many_groups(rows):
    random = np.random.default_rng(0)
    for codes in (random.integers(0, 3, rows), random.integers(0, 200, rows), np.ones(rows)):
        groups, values = groups_of(jnp.asarray(codes, float)), random.normal(size=(rows, 2))
        earlier = np.tril(codes[:, None] == codes, -1)
        np.testing.assert_allclose(groups.before(jnp.asarray(values)), earlier @ values, atol=1e-4)
        assert (np.asarray(groups.first()) == ~earlier.any(1)).all()


@pytest.mark.slow
def test_sums_within_groups():
    groups = groups_of(jnp.asarray(GROUPS))
    values = jnp.arange(1.0, 9.0)
    assert groups.total(values).tolist() == [10, 22, 10, 4, 22, 10, 22, 22]
    assert groups.before(values).tolist() == [0, 0, 1, 0, 2, 4, 7, 14]


@pytest.mark.slow
def test_broods_within_locations(data_dir):
    """Grouse ticks at the maximum-likelihood estimates of a Poisson model with broods in locations:
    the log-likelihood of dense nested quadrature (301 nodes for each effect) is -987.7605.
    """
    columns = ["cHEIGHT", "YEAR=96", "YEAR=97", "BROOD"]
    with jax.enable_x64(True):
        data = covey.load("grouseticks", features=columns)
        model = models.mixed_poisson(groups="BROOD")
        phi = model.init(KEY, data.spec)._replace(
            weight=jnp.array([-0.023528, 1.165284, -0.977134]),
            bias=jnp.asarray(0.466419),
            log_groups=jnp.log(0.770561),
        )
        z = jnp.linspace(-5, 5, 201)
        log_weight = jax.scipy.stats.norm.logpdf(z) + jnp.log(z[1] - z[0])

        @jax.jit
        def term(data):
            batch = all_rows(data)

            def given(effect):
                terms = model.log_likelihood(phi, 0.582876 * effect[None], batch.rows)
                return jnp.sum(jnp.where(batch.mask, terms, 0.0))

            return jax.nn.logsumexp(jax.vmap(given)(z) + log_weight)

        most = int(data.counts("train").max())
        total = sum(
            float(term(Shard(data.rows, jnp.int32(start), jnp.int32(count), most)))
            for start, count in zip(data.starts("train"), data.counts("train"), strict=True)
        )
    np.testing.assert_allclose(total, -987.7605, atol=2e-3)
