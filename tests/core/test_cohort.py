"""Weighted sums over a cohort estimate sums over all clients without bias."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.core import cohort
from covey.core.cohort import _draw_by_permutation
from covey.core.keys import without_replacement

COUNTS = np.array([3, 50, 7, 20, 90, 11])
CHANCES = np.array([0.2, 0.9, 0.5, 1.0, 0.3, 0.6])
SCHEMES = {
    "full": cohort.full(),
    "bernoulli": cohort.bernoulli(CHANCES),
    "uniform": cohort.uniform(2),
    "weighted": cohort.weighted(4),
}


def draws_of(scheme, count=4000, counts=COUNTS):
    sampler = scheme(counts)
    keys = jax.random.split(jax.random.key(0), count)
    return sampler, jax.device_get(jax.jit(jax.vmap(lambda key: sampler.sample(key, 0)))(keys))


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())
def test_the_weighted_sum_is_unbiased(scheme):
    values = np.array([1.0, -2.0, 5.0, 0.5, 3.0, -1.0]) * COUNTS
    sampler, cohorts = draws_of(scheme)
    assert cohorts.index.shape == (4000, sampler.slots)
    sums = (cohorts.weight * values[cohorts.index]).sum(1)
    error = sums.std() / np.sqrt(len(sums))
    assert abs(sums.mean() - values.sum()) <= 4 * error + 1e-3


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES.keys())
def test_no_client_twice_and_empty_slots_weigh_nothing(scheme):
    _, cohorts = draws_of(scheme, 200)
    for index, mask, weight in zip(*cohorts, strict=True):
        assert len(set(index[mask])) == mask.sum()
        assert np.all(weight[~mask] == 0)
        assert np.all(weight[mask] > 0)


def test_weighted_draws_follow_the_rows():
    _, cohorts = draws_of(cohort.weighted(1))
    shares = np.bincount(cohorts.index[:, 0], minlength=len(COUNTS)) / 4000
    expected = COUNTS / COUNTS.sum()
    assert np.all(np.abs(shares - expected) < 4 * np.sqrt(expected / 4000))


def test_weighted_draws_of_very_many_clients_follow_the_rows(monkeypatch):
    """By the number of a row: float32 has 2^23 fractions, and there may be 10^8 clients."""
    monkeypatch.setattr(cohort, "_MOST_BY_FRACTION", 3)
    test_weighted_draws_follow_the_rows()
    test_weighted_with_more_draws_than_clients_counts_multiplicity()
    with pytest.raises(ValueError, match="use uniform"):
        cohort.weighted(2)(np.full(4, 2**30))


def test_weighted_with_more_draws_than_clients_counts_multiplicity():
    sampler, cohorts = draws_of(cohort.weighted(50), 100)
    assert sampler.slots == len(COUNTS)
    drawn = cohorts.weight * 50 * (COUNTS / COUNTS.sum())[cohorts.index]
    np.testing.assert_allclose(drawn.sum(1), 50, rtol=1e-4)


@pytest.mark.parametrize("draw", [without_replacement, _draw_by_permutation])
def test_every_set_is_equally_likely(draw):
    keys = jax.random.split(jax.random.key(1), 10_000)
    sets = np.sort(np.asarray(jax.jit(jax.vmap(lambda key: draw(key, 6, 3)))(keys)), 1)
    every = list(itertools.combinations(range(6), 3))
    counts = np.array([np.all(sets == one, 1).sum() for one in every])
    assert counts.sum() == 10_000
    expected = 10_000 / len(every)
    assert np.all(np.abs(counts - expected) < 4 * np.sqrt(expected))


def test_a_small_cohort_of_a_million():
    sampler = cohort.uniform(1000)(np.ones(1_000_000))
    index = np.asarray(jax.jit(sampler.sample)(jax.random.key(0), 0).index)
    assert len(set(index.tolist())) == 1000
    assert index.min() >= 0
    assert index.max() < 1_000_000
    assert abs(index.mean() / 1e6 - 0.5) < 4 / np.sqrt(12 * 1000)


def test_trace_keeps_those_available_and_starts_again():
    table = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 1], [1, 1, 1], [0, 1, 0], [0, 0, 0]], bool)
    sampler = cohort.trace(table)(COUNTS)
    for t in range(7):
        np.testing.assert_array_equal(
            sampler.sample(jax.random.key(0), jnp.int32(t)).mask, table[:, t % 3]
        )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cohort.uniform(7)(COUNTS), "7 clients was asked for, but the data have 6"),
        (lambda: cohort.uniform(0), "at least one client"),
        (lambda: cohort.weighted(0), "at least one client"),
        (lambda: cohort.weighted(2_000_000_000), "at most 16777216 draws per round"),
        (lambda: cohort.weighted(3)(np.zeros(4)), "no client has a training row"),
        (lambda: cohort.bernoulli(float("nan")), r"in \(0, 1\], got nan"),
        (lambda: cohort.bernoulli(0.0), r"in \(0, 1\], got 0"),
        (lambda: cohort.bernoulli(1.5), r"in \(0, 1\], got 1.5"),
        (
            lambda: cohort.bernoulli(np.array([0.5, 0.5]))(COUNTS),
            "2 probabilities were given for 6 clients",
        ),
        (
            lambda: cohort.trace(np.ones((3, 2), bool))(COUNTS),
            "the matrix has 3 clients, the data 6",
        ),
        (lambda: cohort.trace(np.ones(3, bool)), "matrix clients x rounds"),
    ],
)
def test_bad_schemes_say_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_given_weights_hold_for_their_rounds_and_start_again():
    weights = np.array([[1.0, 0.0, 2.0, 0.5, 0.0, 3.0], [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    sampler = cohort.given(weights, rounds=3)(COUNTS)
    cohorts = [sampler.sample(jax.random.key(0), t) for t in range(8)]
    for t, plan in enumerate([0, 0, 0, 1, 1, 1, 0, 0]):
        np.testing.assert_array_equal(cohorts[t].weight, weights[plan])
        np.testing.assert_array_equal(cohorts[t].mask, weights[plan] > 0)
    for bad, message in (
        (-weights, "of at least 0"),
        (weights[:, :3], "3 clients, the data have 6"),
    ):
        with pytest.raises(ValueError, match=message):
            cohort.given(bad)(COUNTS)
    with pytest.raises(ValueError, match="at least 1 round, got 0"):
        cohort.given(weights, rounds=0)
