"""Entropies against sums and SciPy, the area under the curve against scikit-learn."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as some
from sklearn.metrics import roc_auc_score

from covey.inference import auroc, entropy, max_probability_score
from covey.models import Categorical, Normal, Poisson, mixture_of
from covey.report.comparisons import entropies

LABELS = Categorical(jnp.log(jnp.array([[0.7, 0.2, 0.1], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])))


def test_entropy_of_labels_is_exact():
    expected = [-(0.7 * np.log(0.7) + 0.2 * np.log(0.2) + 0.1 * np.log(0.1)), 0.0, np.log(3)]
    np.testing.assert_allclose(entropy(LABELS), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(
        max_probability_score(LABELS), [0.3, 0.0, 2 / 3], rtol=1e-6, atol=1e-7
    )


def test_entropy_of_a_number():
    scale = np.array([0.05, 1.0, 30.0])
    found = entropy(Normal(jnp.array([5.0, 0.0, -1.0]), jnp.asarray(scale, jnp.float32)))
    np.testing.assert_allclose(found, scipy.stats.norm(0, scale).entropy(), rtol=1e-5)


def test_entropy_of_a_count():
    """By the sum for small rates, by the expansion for large ones, and no step between them."""
    rate = np.array([1e-30, 0.01, 0.7, 4.0, 60.0, 99.9, 100.1, 500.0, 1e5])
    found = entropy(Poisson(jnp.log(jnp.asarray(rate, jnp.float32))))
    y = np.arange(1500)
    summed = [scipy.stats.entropy(scipy.stats.poisson.pmf(y, r)) for r in rate[:-1]]
    np.testing.assert_allclose(found[:-1], summed, rtol=3e-5, atol=1e-6)
    np.testing.assert_allclose(found[-1], 0.5 * np.log(2 * np.pi * np.e * 1e5), rtol=1e-5)


def test_entropy_of_a_mixture():
    """Numbers against SciPy's integral, counts against the sum; a member of weight zero is none."""
    mean, scale = np.array([0.0, 4.0, 5.0]), np.array([1.0, 0.5, 0.5])

    def integrand(y):
        density = np.mean(scipy.stats.norm.pdf(y, mean, scale))
        return -density * np.log(density)

    members = Normal(jnp.append(mean, np.nan)[:, None], jnp.append(scale, 1.0)[:, None])
    found = entropy(mixture_of(members, jnp.array([1.0, 1.0, 1.0, 0.0])))
    exact, _ = scipy.integrate.quad(integrand, -9, 10, limit=200)
    np.testing.assert_allclose(found, [exact], rtol=1e-5)
    rate = np.array([[0.5, 300.0], [3.0, 900.0], [400.0, 1000.0]])  # two rows of three members
    mass = scipy.stats.poisson.pmf(np.arange(2000)[:, None, None], rate).mean(1)
    found = entropy(mixture_of(Poisson(jnp.log(jnp.asarray(rate, jnp.float32)))))
    np.testing.assert_allclose(found, scipy.stats.entropy(mass), rtol=1e-4)


@settings(max_examples=50, deadline=None)
@given(
    inside=some.lists(some.integers(-3, 3), min_size=1, max_size=30),
    outside=some.lists(some.integers(-3, 4), min_size=1, max_size=30),
)
def test_the_area_is_scikit_learns_also_with_ties(inside, outside):
    label = np.repeat([0, 1], [len(inside), len(outside)])
    expected = roc_auc_score(label, [*inside, *outside])
    assert auroc(np.array(inside), np.array(outside)) == pytest.approx(expected)


def test_the_area_knows_its_direction():
    assert auroc(np.array([0.1, 0.2]), np.array([0.3, 0.4])) == 1.0
    assert auroc(np.array([0.3, 0.4]), np.array([0.1, 0.2])) == 0.0
    assert auroc(entropy(LABELS), entropy(LABELS)) == 0.5


def test_histograms_share_their_bins():
    rng = np.random.default_rng(0)
    usual, strange = entropies(rng.normal(size=300), rng.normal(2.0, size=50), title="t").data
    np.testing.assert_array_equal(usual.x, strange.x)
    assert np.sum(usual.y) == pytest.approx(1)
    assert np.sum(strange.y) == pytest.approx(1)
    assert np.average(strange.x, weights=strange.y) > np.average(usual.x, weights=usual.y) + 1


def test_what_has_no_answer_is_refused():
    with pytest.raises(ValueError, match="use entropy"):
        max_probability_score(Normal(jnp.zeros(2), jnp.ones(2)))
    with pytest.raises(ValueError, match="0 in-distribution and 2 out-of-distribution"):
        auroc(np.zeros(0), np.zeros(2))
    with pytest.raises(ValueError, match="NaN"):
        auroc(np.zeros(2), np.array([np.nan]))
