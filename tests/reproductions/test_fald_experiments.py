"""The reproductions of FA-LD's results: their exact law and measures, and that the claims hold."""

import numpy as np
import pytest

from covey.core.shard import Rows
from covey.models import Linear
from reproductions import EXPERIMENTS
from reproductions import fald_gaussian as gaussian
from reproductions.fald_images import curve


@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_the_exact_law_is_that_of_all_clients_walked_together(correlation):
    """The stacked states of all clients are one Gaussian; K steps and an average of it, twice,
    without a formula for powers.
    """
    given = gaussian.problem(3, 1.0, turned=True)
    clients, steps, rounds, step_size = gaussian.CLIENTS, 4, 2, 2e-6
    start = np.array([0.5, -0.2])
    found = gaussian.law(
        given,
        local_steps=steps,
        rounds=rounds,
        start=start,
        correlation=correlation,
        step_size=step_size,
    )
    move, pull = np.zeros((2 * clients, 2 * clients)), np.zeros(2 * clients)
    for client in range(clients):
        here = slice(2 * client, 2 * client + 2)
        curvature = clients * given.precisions[client]
        move[here, here] = np.eye(2) - step_size * curvature
        pull[here] = step_size * curvature @ given.means[client]
    shared = np.kron(np.ones((clients, clients)), np.eye(2))
    noise = (
        2
        * step_size
        * (correlation**2 * shared + (1 - correlation**2) * clients * np.eye(2 * clients))
    )
    average = np.kron(np.ones((1, clients)) / clients, np.eye(2))
    mean, covariance = start, np.zeros((2, 2))
    for t in range(rounds):
        means, covariances = (
            np.tile(mean, clients),
            np.kron(np.ones((clients, clients)), covariance),
        )
        for _ in range(steps):
            means, covariances = move @ means + pull, move @ covariances @ move.T + noise
        mean, covariance = average @ means, average @ covariances @ average.T
        np.testing.assert_allclose(found.means[t], mean, rtol=1e-8)
        np.testing.assert_allclose(found.covariances[t], covariance, rtol=1e-7)


def test_the_posterior_of_the_paper_is_around_the_grand_mean():
    given = gaussian.problem(0, 10.0)
    np.testing.assert_allclose(given.mean, given.means.mean(0), rtol=1e-8)
    np.testing.assert_allclose(
        given.covariance, gaussian.SIGMA / (gaussian.CLIENTS * gaussian.POINTS), rtol=1e-8
    )
    assert gaussian.rounds_to(np.array([3.0, 0.5, 2.0, 0.1]), 0.5) == 2
    assert gaussian.rounds_to(np.array([3.0, 2.0]), 0.5) is None


def test_curves_are_of_probabilities_averaged_so_far():
    rng = np.random.default_rng(0)
    weight, bias = (
        rng.normal(size=(3, 4, 3)).astype(np.float32),
        rng.normal(size=(3, 3)).astype(np.float32),
    )
    x, y = rng.normal(size=(50, 4)).astype(np.float32), rng.integers(0, 3, 50).astype(np.int32)
    logits = np.einsum("rf,dfc->drc", x, weight) + bias[:, None]
    each = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    found = curve(Linear(weight, bias), Rows(x, y))
    for number in (1, 2, 3):
        mean = each[:number].mean(0)
        assert found["accuracy"][number - 1] == pytest.approx(np.mean(mean.argmax(-1) == y))
        assert found["brier"][number - 1] == pytest.approx(
            np.sum((mean - np.eye(3)[y]) ** 2, -1).mean(), rel=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["local-steps", "heterogeneity", "correlation", "density", "partial"]
)
def test_every_claim_holds_at_the_quick_scale(name):
    _, claims, _ = EXPERIMENTS[f"fald-{name}"].load()("quick", lambda line: None)
    assert all(claim.holds for claim in claims), claims


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion"])
def test_every_claim_holds_for_images(name, data_dir):
    _, claims, _ = EXPERIMENTS[f"fald-{name}"].load()("quick", lambda line: None)
    assert all(claim.holds for claim in claims), claims
