"""Families with offsets, prior weights, totals and dispersion against their formulas, in plain and
mixed models alike.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import covey
from covey import models
from covey.core.shard import Rows, Spec
from covey.inference.out_of_distribution import entropy
from covey.models.predictive import Binomial, NegativeBinomial, mixture_of

KEY = jax.random.key(0)
RNG = np.random.default_rng(7)
NAMES = ("age", "off", "dose", "w", "n")
X = np.stack(
    [
        RNG.normal(size=8),
        RNG.normal(size=8),
        RNG.normal(size=8),
        RNG.uniform(0.5, 3, 8),
        RNG.integers(5, 20, 8),
    ],
    axis=1,
)
Y = RNG.integers(0, 5, 8)
W, B, Z = np.array([0.4, -0.7]), 0.3, np.array([0.2, -0.5])


def spec_of(classes=None, features=NAMES, **more):
    y = jax.ShapeDtypeStruct((), np.float32 if classes is None else np.int32)
    return Spec(Rows(jax.ShapeDtypeStruct((5,), np.float32), y), classes, features=features, **more)


PREDICTOR = X[:, [0, 2]] @ W + B + X[:, 1]  # the others are in the design where they have no role
CASES = {
    "linear": (
        {"scale": 0.6},
        lambda at: scipy.stats.norm.logpdf(Y, at, 0.6 / np.sqrt(X[:, 3])),
    ),
    "logistic": (
        {},
        lambda at: X[:, 3] * scipy.stats.bernoulli.logpmf(Y % 2, 1 / (1 + np.exp(-at))),
    ),
    "binomial": (
        {"totals": "n"},
        lambda at: X[:, 3] * scipy.stats.binom.logpmf(Y, X[:, 4], 1 / (1 + np.exp(-at))),
    ),
    "poisson": ({}, lambda at: X[:, 3] * scipy.stats.poisson.logpmf(Y, np.exp(at))),
    "negative_binomial": (
        {"dispersion": 2.5},
        lambda at: X[:, 3] * scipy.stats.nbinom.logpmf(Y, 2.5, 2.5 / (2.5 + np.exp(at))),
    ),
}


@pytest.mark.parametrize("family", CASES)
def test_offset_weights_and_totals(family):
    """The named columns have no coefficient; the offset is added, weights as in glm and lmer."""
    options, formula = CASES[family]
    options = {"offset": "off", "weights": "w"} | options
    design = [0, 2] if family == "binomial" else [0, 2, 4]
    weight = np.array([*W, 0.01])[: len(design)]
    classes = 2 if family == "logistic" else None
    rows = Rows(
        jnp.asarray(X, jnp.float32),
        jnp.asarray(Y % 2 if classes else Y, jnp.int32 if classes else jnp.float32),
    )
    predictor = X[:, design] @ weight + B + X[:, 1]
    spec = spec_of(classes)
    labels = tuple(NAMES[index] for index in design)

    plain = models.MODELS[family](**options)
    params = plain.init(KEY, spec)
    assert params.weight.shape == (len(design),)
    assert plain.axes(spec)["weight"].labels == labels
    params = params._replace(weight=jnp.asarray(weight), bias=jnp.asarray(B))
    found = jax.jit(plain.log_likelihood)(params, rows)
    np.testing.assert_allclose(found, formula(predictor), rtol=2e-4, atol=1e-5)

    name = "mixed_linear" if family == "linear" else f"mixed_{family}"
    mixed = models.MIXED_MODELS[name](slopes=("dose",), **options)
    phi = mixed.init(KEY, spec)._replace(weight=jnp.asarray(weight), bias=jnp.asarray(B))
    assert mixed.axes(spec)["weights"].labels == labels
    assert mixed.axes(spec)["effects"].labels == ("intercept", "dose")
    own = formula(predictor + Z[0] + Z[1] * X[:, 2])
    found = jax.jit(mixed.log_likelihood)(phi, jnp.asarray(Z), rows)
    np.testing.assert_allclose(found, own, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(
        mixed.coefficients(phi, jnp.asarray(Z))["weights"][1], weight[1] + Z[1], rtol=1e-6
    )


def test_the_dispersion_is_learned():
    """The maximum of the likelihood is that of SciPy over intercept and dispersion."""
    rng = np.random.default_rng(3)
    y = rng.negative_binomial(1.5, 1.5 / (1.5 + 4.0), 200)
    model = models.negative_binomial()
    spec = Spec(Rows(jax.ShapeDtypeStruct((1,), np.float32), jax.ShapeDtypeStruct((), np.float32)))
    start = model.init(KEY, spec)
    rows = Rows(jnp.zeros((200, 1)), jnp.asarray(y, jnp.float32))

    def loss(v):
        at = start._replace(bias=v[0], log_dispersion=v[1])
        return -jnp.sum(model.log_likelihood(at, rows))

    both = jax.jit(jax.value_and_grad(loss))
    ours = scipy.optimize.minimize(
        lambda v: [np.asarray(part, float) for part in both(jnp.asarray(v, jnp.float32))],
        np.zeros(2),
        jac=True,
    ).x
    theirs = scipy.optimize.minimize(
        lambda v: -scipy.stats.nbinom.logpmf(y, np.exp(v[1]), 1 / (1 + np.exp(v[0] - v[1]))).sum(),
        np.zeros(2),
    ).x
    np.testing.assert_allclose(ours, theirs, atol=2e-3)
    described = model.describe(start._replace(log_dispersion=jnp.log(2.0)))
    assert described.keys() == {"weight", "bias", "dispersion"}
    np.testing.assert_allclose(described["dispersion"], 2.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("predictive", "law"),
    [
        (
            NegativeBinomial(jnp.log(jnp.array([4.0, 0.2])), jnp.array([2.0, 0.5])),
            scipy.stats.nbinom([2.0, 0.5], [2 / 6, 0.5 / 0.7]),
        ),
        (
            Binomial(jnp.array([0.5, -2.0]), jnp.array([12.0, 3.0])),
            scipy.stats.binom([12, 3], 1 / (1 + np.exp([-0.5, 2.0]))),
        ),
    ],
)
def test_predictive_distributions_of_counts(predictive, law):
    np.testing.assert_allclose(predictive.mean, law.mean(), rtol=1e-5)
    np.testing.assert_allclose(predictive.variance, law.var(), rtol=1e-5)
    for y in (0, 1, 3):
        counts = np.full(2, y)
        np.testing.assert_allclose(
            predictive.log_prob(jnp.asarray(counts)), law.logpmf(counts), rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(predictive.cdf(counts), law.cdf(counts), rtol=1e-5)
    np.testing.assert_array_equal(predictive.cdf(np.full(2, -1)), 0)
    for end, probability in zip(predictive.interval(0.8), (0.1, 0.9), strict=True):
        np.testing.assert_array_equal(end, law.ppf(probability))
    np.testing.assert_allclose(entropy(predictive), law.entropy(), rtol=1e-4)


def test_mixtures_of_counts():
    """Two draws: the distribution function is the mean of theirs, and so are quantiles."""
    two = mixture_of(NegativeBinomial(jnp.log(jnp.array([[2.0], [20.0]])), jnp.full((2, 1), 3.0)))
    laws = [scipy.stats.nbinom(3, 3 / (3 + mean)) for mean in (2.0, 20.0)]
    cdf = np.mean([law.cdf(np.arange(200)) for law in laws], axis=0)
    for probability in (0.05, 0.5, 0.95):
        assert two.quantile(probability)[0] == np.argmax(cdf >= probability)
    np.testing.assert_allclose(two.mean, 11.0, rtol=1e-5)


def test_a_large_dispersion_is_poisson():
    """In single precision too, where a difference of log-gammas was off by 0.5."""
    y = jnp.array([0, 3, 8])
    counts = NegativeBinomial(jnp.full(3, jnp.log(3.0)), jnp.full(3, 1e6))
    np.testing.assert_allclose(
        counts.log_prob(y), scipy.stats.poisson.logpmf(np.asarray(y), 3.0), atol=1e-4
    )


@pytest.mark.parametrize("family", ["linear", "poisson"])
def test_an_impossible_weight_gives_nan(family):
    """And its derivatives vanish where a mask hides the row, as rows that fill up an array are."""
    model = getattr(models, family)(weights="w")
    params = model.init(KEY, spec_of())
    x = jnp.asarray(X, jnp.float32).at[2, 3].set(0.0).at[5, 3].set(-1.0)
    rows, bad = Rows(x, jnp.asarray(Y, jnp.float32)), np.array([2, 5])

    def total(params):
        return jnp.sum(
            jnp.where(jnp.isin(jnp.arange(8), bad), 0.0, model.log_likelihood(params, rows))
        )

    assert np.flatnonzero(np.isnan(model.log_likelihood(params, rows))).tolist() == [2, 5]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.grad(total)(params)))


def test_more_successes_than_trials_give_nan():
    model = models.mixed_binomial(totals="n")
    phi, z = model.init(KEY, spec_of()), jnp.zeros(1)
    rows = Rows(jnp.asarray(X, jnp.float32).at[1, 4].set(2.0), jnp.full(8, 3.0))

    def total(phi):
        return jnp.sum(jnp.where(jnp.arange(8) == 1, 0.0, model.log_likelihood(phi, z, rows)))

    assert np.flatnonzero(np.isnan(model.log_likelihood(phi, z, rows))).tolist() == [1]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.grad(total)(phi)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: models.poisson(offset="of").init(KEY, spec_of()),
            "offset has 'of', but the columns .* did you mean 'off'",
        ),
        (
            lambda: models.mixed_poisson(slopes=("off",), offset="off"),
            "'off' is both slopes and offset",
        ),
        (
            lambda: models.mixed_poisson(slopes=("off",), offset=1).init(KEY, spec_of()),
            "1 is both slopes and offset",
        ),
        (lambda: models.binomial(totals="n", weights="n"), "'n' is both weights and totals"),
        (
            lambda: models.mixed_binomial(totals="n").init(KEY, spec_of(standardised=(0, 4))),
            r"totals='n' was standardised.*standardised\(keep=\['n'\]\)",
        ),
        (
            lambda: models.linear(weights=7).init(KEY, spec_of()),
            "weights are columns 0 to 4 of these rows, got 7",
        ),
        (lambda: models.negative_binomial(dispersion=0.0), "dispersion must be above 0, got 0"),
        (lambda: models.logistic(prior=0.0), "prior is the standard deviation .* above 0, got 0"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            models.binomial(totals="n"),
            "an outcome is above its total: totals='n', client 'b', row 1 .from 0.",
        ),
        (
            models.poisson(offset="gap"),
            "an offset is missing: offset='gap', client 'a', row 1 .from 0.",
        ),
        (
            models.poisson(weights="w"),
            "a weight must be above 0: weights='w', client 'a', row 0 .from 0., and 1 more",
        ),
    ],
)
def test_rows_with_impossible_values_are_named(model, message):
    """Before the first round: the row would otherwise be left out of gradients without a word."""
    clients = {
        "a": ([[1.0, 5.0, 0.0, 1.0], [0.0, 3.0, 1.0, np.nan]], [2.0, 3.0]),
        "b": ([[1.0, 5.0, -1.0, 1.0], [0.0, 3.0, 1.0, 1.0]], [2.0, 4.0]),
    }
    data = covey.FederatedData.from_clients(
        clients, features=["x", "n", "w", "gap"], allow_missing=True
    )
    with pytest.raises(ValueError, match=message):
        covey.run(covey.fedavg(model), data, rounds=1, seed=1, progress=False)


@pytest.mark.parametrize("name", ["linear", "logistic", "poisson", "softmax", "negative_binomial"])
def test_a_ridge_is_a_gaussian_prior_on_the_weights(name):
    model = getattr(models, name)(prior=0.5)
    spec = spec_of(2 if name in ("logistic", "softmax") else None)
    params = model.init(KEY, spec)
    params = jax.tree.map(lambda leaf: leaf + 2.0, params)
    law = scipy.stats.norm(0, 0.5)
    expected = (law.logpdf(2.0) - law.logpdf(0.0)) * params.weight.size
    np.testing.assert_allclose(model.log_prior(params), expected, rtol=1e-5)
    assert getattr(models, name)().log_prior is None


def test_a_prior_that_is_not_used_is_reported():
    with pytest.warns(UserWarning, match="fedavg maximises the likelihood and does not use the"):
        covey.fedavg(models.logistic(prior=1.0))
    covey.fald(models.logistic(prior=1.0), step_size=0.1)


@pytest.mark.parametrize("value", [-1.0, 2.5])
@pytest.mark.parametrize("model", [models.poisson(), models.mixed_negative_binomial()])
def test_outcomes_that_are_no_counts_are_named(model, value):
    data = covey.FederatedData.from_clients(
        {"a": ([[1.0], [0.0]], [2.0, 3.0]), "b": ([[1.0], [0.0]], [2.0, value])}
    )
    with pytest.raises(ValueError, match=r"outcomes are counts .* client 'b', row 1 .from 0."):
        covey.run(covey.marginal(model), data, progress=False)
