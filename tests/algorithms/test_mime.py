"""MimeLite and Mime against plain NumPy on least squares, and where they are FedAvg."""

import jax
import numpy as np
import optax
import pytest
from least_squares import SIZES, STEP, coefficients, designs, fit, gradient

from covey import models
from covey.algorithms.fedavg import fedavg
from covey.algorithms.mime import mime
from covey.algorithms.mimelite import mimelite

BETA = 0.6
FULL = {"batch_size": None, "steps": 3, "step_size": STEP}
both = pytest.mark.parametrize("factory", [mime, mimelite])


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_mimelite_without_momentum_is_fedavg():
    options = {"batch_size": 8, "epochs": 2}
    state, lines = fit(mimelite(models.linear(), step_size=STEP, momentum=0, **options), 3)
    plain, plain_lines = fit(
        fedavg(models.linear(), client_optimizer=optax.sgd(STEP), **options), 3
    )
    np.testing.assert_allclose(
        coefficients(state.server.parameters), coefficients(plain.server.parameters), rtol=1e-12
    )
    losses = [[line["train_loss"] for line in each] for each in (lines, plain_lines)]
    np.testing.assert_allclose(*losses, rtol=1e-12)


def by_hand(rounds, control):
    """Both algorithms with all rows at each step; three steps of each client per round."""
    x, s = np.zeros(4), np.zeros(4)
    for _ in range(rounds):
        c = np.average([gradient(*rows, x) for rows in designs()], axis=0, weights=SIZES)
        ends = []
        for rows in designs():
            y = x
            for _ in range(3):
                g = gradient(*rows, y)
                if control:
                    g = g - gradient(*rows, x) + c
                y = y - STEP * ((1 - BETA) * g + BETA * s)
            ends.append(y)
        x, s = np.average(ends, axis=0, weights=SIZES), (1 - BETA) * c + BETA * s
    return x, s


def test_rounds_are_those_of_the_paper():
    state, lines = fit(mimelite(models.linear(), momentum=BETA, **FULL), 4)
    x, s = by_hand(4, control=False)
    np.testing.assert_allclose(coefficients(state.server.parameters), x, rtol=1e-9)
    np.testing.assert_allclose(coefficients(state.server.optimizer[0].ema), s, rtol=1e-9)
    assert {line["bits_up"] for line in lines} == {3 * 64 * (2 * 4 + 1)}
    state, lines = fit(mime(models.linear(), momentum=BETA, **FULL), 8)
    x, s = by_hand(4, control=True)
    np.testing.assert_allclose(coefficients(state.server.shared.parameters), x, rtol=1e-9)
    np.testing.assert_allclose(coefficients(state.server.shared.optimizer[0].ema), s, rtol=1e-9)
    # One vector in every round: gradients and changes in turn.
    assert {line["bits_up"] for line in lines} == {3 * 64 * (4 + 1)}
    assert [line["local_steps"] for line in lines[:4]] == [0, 3, 0, 3]


@pytest.mark.slow
@both
def test_any_statistics_replace_momentum(factory):
    """One local step with all rows is a step of Adam along the mean gradient, s a round old."""
    options = FULL | {"steps": 1, "statistics": optax.scale_by_adam()}
    state, _ = fit(factory(models.linear(), **options), 2 if factory is mime else 1)
    shared = state.server.shared if factory is mime else state.server
    c = np.average([gradient(*rows, np.zeros(4)) for rows in designs()], axis=0, weights=SIZES)
    np.testing.assert_allclose(coefficients(shared.optimizer[0].mu), 0.1 * c, rtol=1e-9)
    steps = [gradient(*rows, np.zeros(4)) for rows in designs()] if factory is mimelite else [c]
    signs = np.average(np.sign(steps), axis=0, weights=SIZES if factory is mimelite else None)
    np.testing.assert_allclose(coefficients(shared.parameters), -STEP * signs, rtol=1e-5)


@both
def test_bad_options(factory):
    for momentum in (1.0, -0.1, np.nan):
        with pytest.raises(ValueError, match="momentum must be at least 0 and below 1, got"):
            factory(models.linear(), momentum=momentum)
    with pytest.raises(ValueError, match="step_size must be above 0 and finite, got 0"):
        factory(models.linear(), step_size=0)
