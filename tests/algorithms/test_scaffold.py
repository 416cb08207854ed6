"""SCAFFOLD on least squares: its fixed point, its first round, and its control variates."""

import jax
import numpy as np
import optax
import pytest
from examples.scaffold import scaffold as example
from least_squares import STEP, coefficients, designs, fit, gradient, optimum

from covey import channel, cohort, models
from covey.algorithms.fedavg import fedavg
from covey.algorithms.scaffold import scaffold
from covey.core.faults import Faults

FULL = {"batch_size": None, "steps": 10}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_the_fixed_point_is_the_optimum_where_that_of_fedavg_is_not():
    best = optimum()
    state, lines = fit(scaffold(models.linear(), step_size=STEP, **FULL), 200)
    np.testing.assert_allclose(coefficients(state.server.shared.parameters), best, atol=1e-6)
    # There the control variates are the clients' gradients, whose mean is zero.
    gradients = [gradient(*rows, best) for rows in designs()]
    np.testing.assert_allclose(coefficients(state.nodes.state), gradients, atol=1e-5)
    assert lines[-1]["local_steps"] == FULL["steps"]
    plain = fedavg(models.linear(), client_optimizer=optax.sgd(STEP), weighting="equal", **FULL)
    end, _ = fit(plain, 200)
    assert np.linalg.norm(coefficients(end.server.parameters) - best) > 0.03


def test_a_control_by_gradients_is_that_at_the_broadcast():
    method = scaffold(models.linear(), step_size=STEP, control="gradient", **FULL)
    state, _ = fit(method, 1)
    at_zero = [gradient(*rows, np.zeros(4)) for rows in designs()]
    np.testing.assert_allclose(coefficients(state.nodes.state), at_zero, rtol=1e-9)
    np.testing.assert_allclose(
        coefficients(state.server.control), np.mean(at_zero, axis=0), rtol=1e-9
    )
    state, _ = fit(method, 200)
    np.testing.assert_allclose(coefficients(state.server.shared.parameters), optimum(), atol=1e-6)


def test_the_control_of_the_server_is_the_mean_of_the_clients():
    """With partial cohorts, lost messages and a lossy channel: c_i moves by what was sent."""
    state, _ = fit(
        scaffold(models.linear(), step_size=STEP, batch_size=8),
        7,
        cohort=cohort.uniform(2),
        channel=channel.rand_k(k=5),
        faults=Faults(dropout=0.3),
    )
    seen = np.asarray(state.seen)
    own = coefficients(state.nodes.state) * seen[:, None]  # those of unseen clients are still zero
    assert np.all(np.abs(own[seen]).sum(1) > 0)
    np.testing.assert_allclose(coefficients(state.server.control), own.mean(0), rtol=1e-9)


@pytest.mark.slow
def test_the_first_round_is_that_of_fedavg():
    options = {"batch_size": 8, "epochs": 2, "server_optimizer": optax.adam(0.1)}
    state, _ = fit(scaffold(models.linear(), step_size=STEP, **options), 1)
    plain = fedavg(models.linear(), client_optimizer=optax.sgd(STEP), weighting="equal", **options)
    other, _ = fit(plain, 1)
    np.testing.assert_allclose(
        coefficients(state.server.shared.parameters),
        coefficients(other.server.parameters),
        rtol=1e-12,
    )


@pytest.mark.slow
def test_the_example_that_users_start_from_is_the_same_method():
    options = {"step_size": STEP, "batch_size": 8, "epochs": 2}
    cohorts = {"cohort": cohort.uniform(2)}
    state, _ = fit(scaffold(models.linear(), **options), 5, **cohorts)
    other, _ = fit(example(models.linear(), **options), 5, **cohorts)
    for one, two in (
        (state.server.shared.parameters, other.server.model),
        (state.server.control, other.server.control),
        (state.nodes.state, other.nodes.state),
    ):
        np.testing.assert_allclose(coefficients(one), coefficients(two), rtol=1e-9, atol=1e-12)


def test_bad_options():
    with pytest.raises(ValueError, match="scaffold: step_size must be above 0 and finite, got nan"):
        scaffold(models.linear(), step_size=np.nan)
    with pytest.raises(ValueError, match="scaffold: steps must be at least 1, got 0"):
        scaffold(models.linear(), steps=0)
