"""Metrics of many clients are the metrics of all their rows."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from covey.core import metrics
from covey.core.metrics import Calibration, Mean

RNG = np.random.default_rng(0)
CONFIDENCE = RNG.uniform(0.3, 1, 200).astype(np.float32)
CORRECT = RNG.random(200) < CONFIDENCE**2
CLIENT = RNG.integers(0, 5, 200)


def of_clients(make):
    masks = jnp.asarray(np.arange(5)[:, None] == CLIENT)
    return jax.vmap(make)(masks)


def test_mean_merges():
    stacked = of_clients(lambda mask: Mean.of(jnp.asarray(CONFIDENCE), mask))
    np.testing.assert_allclose(
        metrics.merge({"m": stacked})["m"].value(), CONFIDENCE.mean(), rtol=1e-6
    )
    np.testing.assert_allclose(stacked.value()[2], CONFIDENCE[CLIENT == 2].mean(), rtol=1e-6)


def test_mean_of_nothing_is_nan_and_ignores_masked_nans():
    assert np.isnan(Mean.of(jnp.ones(3), jnp.zeros(3, bool)).value())
    assert Mean.of(jnp.array([1.0, jnp.nan]), jnp.array([True, False])).value() == 1


def test_calibration_error_by_hand():
    edges = np.linspace(0, 1, 16)
    expected = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (low < CONFIDENCE) & (high >= CONFIDENCE)
        if inside.any():
            expected += inside.mean() * abs(CONFIDENCE[inside].mean() - CORRECT[inside].mean())
    stacked = of_clients(
        lambda mask: Calibration.of(jnp.asarray(CONFIDENCE), jnp.asarray(CORRECT), mask)
    )
    np.testing.assert_allclose(metrics.merge({"e": stacked})["e"].value(), expected, rtol=1e-5)
    assert stacked.value().shape == (5,)


def test_adding_is_merging():
    one, other = Mean(jnp.float32(1), jnp.float32(2)), Mean(jnp.float32(3), jnp.float32(6))
    assert metrics.values(metrics.add({"m": one}, {"m": other}))["m"] == 0.5
