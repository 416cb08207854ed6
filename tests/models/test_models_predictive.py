"""Predictive distributions are real distributions, and their measures are those of scikit-learn and
of plain NumPy.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, mean_squared_error

from covey.core import metrics
from covey.models import Categorical, Mixture, Normal, Poisson, mixture_of

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(scale=2, size=(300, 4)).astype(np.float32)
LABELS = RNG.integers(0, 4, 300)
MASK = RNG.random(300) < 0.7


def test_categorical_sums_to_one_and_is_stable():
    extreme = jnp.array([[1e4, 0.0, -1e4], [0.3, -0.2, 0.1]])
    np.testing.assert_allclose(
        np.exp(Categorical.of_logits(extreme).log_probability).sum(-1), 1, rtol=1e-6
    )
    binary = Categorical.of_logit(jnp.array([-500.0, 0.7, 500.0]))
    np.testing.assert_allclose(
        binary.log_prob(jnp.array([1, 1, 0])), [-500, -np.log1p(np.exp(-0.7)), -500], rtol=1e-6
    )
    np.testing.assert_allclose(binary.mean.sum(-1), 1, rtol=1e-6)


def test_a_label_past_the_last_class_is_not_silent():
    assert np.isnan(Categorical.of_logits(jnp.zeros((1, 3))).log_prob(jnp.array([3])))[0]


def test_normal_and_poisson_against_scipy():
    mean, scale, y = RNG.normal(size=(3, 50)).astype(np.float32)
    scale = np.exp(scale)
    normal = Normal(jnp.asarray(mean), jnp.asarray(scale))
    np.testing.assert_allclose(
        normal.log_prob(jnp.asarray(y)),
        scipy.stats.norm.logpdf(y, mean, scale),
        rtol=1e-4,
        atol=1e-5,
    )
    counts = RNG.poisson(4.0, 50)
    poisson = Poisson(jnp.asarray(mean))
    np.testing.assert_allclose(
        poisson.log_prob(jnp.asarray(counts)),
        scipy.stats.poisson.logpmf(counts, np.exp(mean)),
        rtol=1e-4,
    )
    np.testing.assert_allclose(poisson.mean, np.exp(mean), rtol=1e-6)


def test_poisson_of_a_vanishing_rate_is_finite():
    vanishing = Poisson(jnp.array([-200.0]))
    np.testing.assert_allclose(vanishing.log_prob(jnp.array([0])), 0, atol=1e-6)
    np.testing.assert_allclose(vanishing.log_prob(jnp.array([1])), -200, rtol=1e-6)


def test_categorical_measures():
    got = metrics.values(
        Categorical.of_logits(jnp.asarray(LOGITS)).measures(jnp.asarray(LABELS), jnp.asarray(MASK))
    )
    probability = np.exp(LOGITS[MASK].astype(np.float64))
    probability /= probability.sum(-1, keepdims=True)
    y, predicted, confidence = LABELS[MASK], probability.argmax(-1), probability.max(-1)
    gaps = []
    for k in range(15):
        inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
        gaps.append(abs((predicted == y)[inside].sum() - confidence[inside].sum()))
    assert got.keys() == {"accuracy", "nll", "brier", "ece"}
    np.testing.assert_allclose(got["accuracy"], accuracy_score(y, predicted), rtol=1e-5)
    np.testing.assert_allclose(got["nll"], log_loss(y, probability, labels=range(4)), rtol=1e-5)
    np.testing.assert_allclose(
        got["brier"], brier_score_loss(y, probability, labels=range(4)), rtol=1e-5
    )
    np.testing.assert_allclose(got["ece"], sum(gaps) / len(y), rtol=1e-4)


@pytest.mark.parametrize("kind", ["normal", "poisson"])
def test_measures_of_numeric_outcomes(kind):
    location = RNG.normal(size=300).astype(np.float32)
    y = RNG.poisson(2.0, 300)
    if kind == "normal":
        predictive = Normal(jnp.asarray(location), jnp.full(300, 0.5))
        mean, log_prob = location, scipy.stats.norm.logpdf(y, location, 0.5)
    else:
        predictive = Poisson(jnp.asarray(location))
        mean, log_prob = np.exp(location), scipy.stats.poisson.logpmf(y, np.exp(location))
    got = metrics.values(predictive.measures(jnp.asarray(y), jnp.asarray(MASK)))
    assert got.keys() == {"nll", "mse"}
    np.testing.assert_allclose(got["mse"], mean_squared_error(y[MASK], mean[MASK]), rtol=1e-5)
    np.testing.assert_allclose(got["nll"], -log_prob[MASK].mean(), rtol=1e-5)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(0, 1e3), min_size=3, max_size=3).filter(lambda w: sum(w) > 1e-3))
def test_average_is_a_mixture_of_probabilities(weights):
    stacked = jnp.asarray(
        scipy.special.log_softmax(RNG.normal(scale=3, size=(3, 5, 4)), axis=-1), jnp.float32
    )
    share = np.array(weights) / sum(weights)
    expected = np.einsum("m,mrc->rc", share, np.exp(np.asarray(stacked, np.float64)))
    np.testing.assert_allclose(
        Categorical.average(stacked, jnp.asarray(weights, jnp.float32)).mean,
        expected,
        rtol=1e-4,
        atol=1e-7,
    )


def test_average_by_row_equal_weights_and_silenced_members():
    average = jax.jit(lambda *given: Categorical.average(*given).log_probability)
    stacked = scipy.special.log_softmax(RNG.normal(size=(2, 3, 4)).astype(np.float32), axis=-1)
    np.testing.assert_allclose(np.exp(average(stacked)), np.exp(stacked).mean(0), rtol=1e-5)
    by_row = np.array([[1.0, 0.0, 0.25], [0.0, 2.0, 0.75]], np.float32)
    expected = np.einsum("mr,mrc->rc", by_row / by_row.sum(0), np.exp(stacked))
    np.testing.assert_allclose(np.exp(average(stacked, by_row)), expected, rtol=1e-5)
    broken = np.stack([stacked[0], np.full_like(stacked[1], np.nan)])
    np.testing.assert_allclose(
        average(broken, np.array([2.0, 0.0], np.float32)), stacked[0], rtol=1e-5
    )
    tiny = np.full(
        (2, 1, 2), -300.0, np.float32
    )  # exp underflows in float32; the logarithm of the mean must not
    np.testing.assert_allclose(average(tiny), -300, rtol=1e-6)


def test_a_mixture_against_scipy():
    """Of numbers and of counts; a member of weight zero does not count, even one that gives
    nonsense.
    """
    mean, y = RNG.normal(size=(3, 20)).astype(np.float32), RNG.normal(size=20).astype(np.float32)
    scale, weight = (
        np.array([[0.5], [2.0], [1.0]], np.float32) * np.ones_like(mean),
        np.array([0.3, 0.7, 0.0], np.float32),
    )
    found = mixture_of(
        Normal(jnp.asarray(mean).at[2].set(1e6), jnp.asarray(scale)), jnp.asarray(weight)
    )
    assert isinstance(found, Mixture)
    density = 0.3 * scipy.stats.norm.pdf(y, mean[0], 0.5) + 0.7 * scipy.stats.norm.pdf(
        y, mean[1], 2.0
    )
    np.testing.assert_allclose(
        found.log_prob(jnp.asarray(y)), np.log(density), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(found.mean, 0.3 * mean[0] + 0.7 * mean[1], rtol=1e-5, atol=1e-6)
    got = metrics.values(found.measures(jnp.asarray(y), jnp.ones(20, bool)))
    assert got["nll"] == pytest.approx(-np.log(density).mean(), rel=1e-4)
    assert got["mse"] == pytest.approx(np.mean((y - 0.3 * mean[0] - 0.7 * mean[1]) ** 2), rel=1e-4)


def test_the_moments_and_quantiles_of_a_mixture():
    """Against sums over the members; a member of weight zero may hold anything."""
    mean, scale = np.array([[0.0, 1.0], [4.0, 1.0], [5.0, 1.0]]), np.array([[1.0], [0.5], [0.5]])
    weight = np.array([0.45, 0.25, 0.3])
    members = Normal(
        jnp.asarray(np.vstack([mean, [[np.nan, 0.0]]])),
        jnp.asarray(np.vstack([scale * [[1.0, 1.0]], [[1.0, 1.0]]])),
    )
    found = mixture_of(members, jnp.asarray([*(10 * weight), 0.0]))
    centre = weight @ mean
    np.testing.assert_allclose(found.mean, centre, rtol=1e-6)
    np.testing.assert_allclose(
        found.variance, weight @ (scale**2 + (mean - centre) ** 2), rtol=1e-5
    )
    for tail in (1e-6, 0.05, 0.5, 0.95):
        reached = weight @ scipy.stats.norm.cdf(found.quantile(tail), mean, scale)
        np.testing.assert_allclose(reached, tail, rtol=1e-5)
    rate = np.array([[0.1, 7.0], [30.0, 7.0], [1e4, 7.0]])
    counts = mixture_of(Poisson(jnp.log(jnp.asarray(rate, jnp.float32))), jnp.asarray(weight))
    rate = np.exp(np.asarray(counts.members.log_rate, float)).T
    for tail in (0.05, 0.5, 0.95):
        least = counts.quantile(tail)
        assert np.all(weight @ scipy.stats.poisson.cdf(least, rate) >= tail - 1e-6)
        assert np.all(weight @ scipy.stats.poisson.cdf(least - 1, rate) < tail)
    with pytest.raises(ValueError, match="must be between 0 and 1"):
        counts.interval(90.0)
    assert np.isnan(
        mixture_of(counts.members._replace(log_rate=jnp.zeros((2, 1))), jnp.zeros(2)).quantile(0.5)
    )[0]


def test_a_mixture_of_mixtures_has_the_members_of_both():
    one = mixture_of(Normal(jnp.array([[0.0], [1.0]]), jnp.ones((2, 1))), jnp.array([0.25, 0.75]))
    two = mixture_of(Normal(jnp.array([[5.0], [9.0]]), jnp.ones((2, 1))), jnp.array([0.5, 0.5]))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, two)
    found = mixture_of(stacked, jnp.array([0.2, 0.8]))
    np.testing.assert_allclose(found.mean, 0.2 * 0.75 + 0.8 * 7.0, rtol=1e-6)
    density = np.array([0.05, 0.15, 0.4, 0.4]) @ scipy.stats.norm.pdf(4.0, [0.0, 1.0, 5.0, 9.0])
    np.testing.assert_allclose(found.log_prob(jnp.array([4.0])), np.log(density), rtol=1e-5)
