"""The reproductions of FedPA: what they are held against, and at the quick size that they hold."""

import numpy as np
import pytest

from reproductions import EXPERIMENTS
from reproductions import fedpa_estimates as estimates
from reproductions import fedpa_images as images
from reproductions import fedpa_overhead as overhead
from reproductions import fedpa_samples as samples
from reproductions import fedpa_toy as toy
from reproductions.fedavg_drift import fixed_point, quadratic


def test_the_two_losses_disagree():
    data = toy.clients()
    local = [quadratic(data, place) for place in range(2)]
    x, y = data.rows
    pooled = np.linalg.lstsq(np.column_stack([x, np.ones(100)]).astype(np.float64), y, rcond=None)[
        0
    ]
    np.testing.assert_allclose(fixed_point(local), pooled, rtol=1e-5)
    assert np.linalg.norm(np.mean([one.mean for one in local], 0) - pooled) > 0.5
    still = np.tile(pooled, (8, 1))
    assert toy.loss(local, still) < toy.loss(local, still + 0.1)
    assert toy.loss(local, np.concatenate([still[:6] + 9, still[:2]])) == pytest.approx(
        toy.loss(local, still)
    )


def test_bands_are_those_of_the_mean():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=(400, 1))
    lower, upper = toy.band(values)
    assert (upper - lower)[0] == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
    assert lower[0] < values.mean() < upper[0]


def test_bias_and_variance_of_known_deltas():
    """A mean delta that is turned by a right angle and three times too long, with noise of a known
    size.
    """
    rng = np.random.default_rng(1)
    exact = np.array([[2.0, 0.0, 0.0]])
    deltas = np.array([0.0, 6.0, 0.0]) + 0.3 * rng.normal(size=(1, 4000, 1, 3))
    found = estimates.error_of(deltas, exact)
    assert found.bias[0] == pytest.approx(np.sqrt(2), abs=0.01)
    assert found.variance[0] == pytest.approx(3 * 0.3**2 / 36, rel=0.1)
    few = estimates.error_of(
        np.array([2.0, 0.0, 0.0]) + 0.5 * rng.normal(size=(200, 4, 1, 3)), np.tile(exact, (200, 1))
    )
    assert few.bias[0] < 0.2  # of four chains the noise alone turns the mean by 0.18, on average


def test_effective_number_of_samples():
    np.testing.assert_allclose(samples.effective(np.zeros((2, 5))), 5.0)
    np.testing.assert_allclose(samples.effective(np.log([[3.0, 1.0]]) + 700), 16 / 10)
    np.testing.assert_allclose(samples.effective(np.array([[0.0, -1e9]])), 1.0)


def test_rounds_to_a_target():
    curve = images.running_mean(np.linspace(0.0, 1.0, 21)[:, None])[:, 0]
    np.testing.assert_allclose(curve, np.linspace(0.225, 0.775, 12))
    assert images.rounds_to(curve, 0.5) == 16
    assert images.rounds_to(curve, 0.9) is None
    low, high = images.Curve(curve, curve), images.Curve(curve, curve + 0.1)
    found = {"FedAvg-ME": [low], "FedPA-ME": [high]}
    assert images.overtaking(found, images.SIZES["quick"]).value == pytest.approx(19 / 21)
    assert not images.overtaking(
        {"FedAvg-ME": [high], "FedPA-ME": [low]}, images.SIZES["quick"]
    ).holds
    assert images.best({0.1: low, 1.0: images.Curve(curve + 0.1, curve - 0.5)}) == 1.0


def test_clients_take_turns_in_both_orders():
    calls: list[str] = []
    seconds = overhead.timed({name: lambda name=name: calls.append(name) for name in "ab"}, 3)
    assert calls == list("ab" + "ab" + "ba" + "ab")
    assert {name: len(values) for name, values in seconds.items()} == {"a": 3, "b": 3}


@pytest.mark.parametrize(
    ("ratio", "spread", "holds"),
    [
        (1.0, 0.2, True),
        (1.06, 0.2, True),
        (1.06, 0.01, False),
        (1.2, 0.2, False),
        (1.2, 9.0, False),
    ],
    ids=["none, noisy", "within the noise", "not within", "too much", "too noisy to tell"],
)
def test_the_claim_on_time_knows_the_spread_of_the_turns(ratio, spread, holds):
    """Nine turns whose ratios are spread evenly about their median, and one client in a turn that
    something else held up.
    """
    slower = ratio + spread * np.linspace(-0.5, 0.5, 9)
    slower[-1] *= 100.0
    found = overhead.ratio_of(slower, np.ones(9))
    assert found.median == pytest.approx(ratio)
    claim = overhead.overhead_claim(found, 100)
    assert claim.holds == holds
    assert 0.05 <= claim.bound <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedpa-toy", "fedpa-bias", "fedpa-ess"])
def test_every_claim_holds_at_the_quick_scale(name):
    rows, claims, _ = EXPERIMENTS[name].load()("quick", lambda line: None)
    assert rows
    assert [claim for claim in claims if not claim.holds] == []
