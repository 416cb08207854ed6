"""The reproductions of FedEM's results: that paths say what happened, and that budgets and data are
what they claim to be.
"""

import jax
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from covey.channel import dithering, rand_k, top_k
from reproductions import fedem_mixtures as mixtures


@pytest.fixture(scope="module")
def followed():
    """FedEM with 4 bits a number, all rows, on clients that differ."""
    with jax.enable_x64(True):
        data, model = mixtures.points(0, 5, spread=2.0, rows=40), mixtures.tied()
        rate = mixtures.memory_rate(dithering(levels=7), model, data)
        method = mixtures.fedem(model, step_size=0.3, memory_rate=rate)
        return data, mixtures.followed(
            method, model, data, 300, seed=0, channel=dithering(levels=7), looks=10
        )


@pytest.mark.slow
def test_a_path_starts_where_the_model_does_and_ends_where_em_has_no_step_left(followed):
    data, path = followed
    x = np.asarray(data.rows.x, float)
    density = np.mean(
        [multivariate_normal(mean, mixtures.COVARIANCE).pdf(x) for mean in mixtures.START], axis=0
    )
    penalty = 0.5e-6 * np.trace(np.linalg.inv(mixtures.COVARIANCE))
    np.testing.assert_allclose(path.objective[0], -np.log(density).mean() + penalty, rtol=1e-10)
    assert path.h[0] > 0.1
    assert path.h[-1] < 1e-7
    np.testing.assert_allclose(path.weights.sum(1), 1)
    assert path.rounds.tolist() == list(range(0, 301, 30))
    assert len(path.big_h) == len(path.bits) == 300


@pytest.mark.slow
def test_bits_are_those_of_the_packed_codes(followed):
    """Ten numbers of four bits are five bytes, and the norm is a double."""
    _, path = followed
    assert set(path.bits) == {5 * (40 + 64)}


@pytest.mark.parametrize("share", [1.0, 0.75])
def test_both_methods_have_as_many_evaluations(share):
    epochs, rows = 60, 100
    made = mixtures.both(mixtures.known(), rows=rows, epochs=epochs, share=share)
    _, plain = made["FedEM"]
    _, reduced = made["VR-FedEM"]
    assert plain * 20 * share == pytest.approx(epochs * rows, rel=0.01)
    outer = reduced / 20
    assert outer * (rows + 20 * 2 * 5) * share == pytest.approx(epochs * rows, rel=0.01)


def test_memories_learn_at_the_rate_of_theory():
    data = mixtures.points(0, 3, spread=0.0)
    assert mixtures.memory_rate(rand_k(k=3), mixtures.known(), data) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="biased"):
        mixtures.memory_rate(top_k(k=3), mixtures.known(), data)


def test_clients_are_alike_or_not():
    """The share of rows right of the middle: its variance over clients is that of a count, or far
    more.
    """
    for spread, low, high in ((0.0, 0.5, 1.6), (2.0, 8.0, np.inf)):
        data = mixtures.points(1, 100, spread=spread)
        right = np.asarray(data.rows.x)[:, 0].reshape(100, 100) > 0.25
        share = right.mean()
        assert low < right.mean(1).var(ddof=1) / (share * (1 - share) / 100) < high


@pytest.mark.slow
def test_digits_are_principal_components(data_dir):
    data = mixtures.components_of_digits(30, "alike")
    assert data.clients == 30
    assert set(data.counts("train")) == {700}
    x = np.asarray(data.rows.x, float)
    variance = x.var(0)
    assert x.shape[1] == 20
    assert np.all(
        np.diff(variance) < 0.05 * variance[:-1]
    )  # of a part of the digits: in order but for noise
    assert np.abs(np.corrcoef(x.T) - np.eye(20)).max() < 0.1
