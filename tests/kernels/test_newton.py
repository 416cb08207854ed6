"""Newton's method in a frame, and importance sampling, where answers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.kernels.newton import Climb, begin, climb, inverse_root
from covey.kernels.pareto_smoothing import importance_sample, systematic


def follow(function, start, frame, rounds, limited=None):
    """The states of a climb whose every evaluation is one round, in float32."""
    where = jnp.zeros(len(start), bool) if limited is None else jnp.asarray(limited)
    state = begin(jnp.asarray(start), jnp.asarray(frame))
    states = []

    @jax.jit
    def step(state: Climb, first):
        gradient, hessian = jax.grad(function)(state.trial), jax.hessian(function)(state.trial)
        gain = function(state.trial) - function(state.point)
        derivatives = (state.frame.T @ gradient, state.frame.T @ hessian @ state.frame)
        return climb(state, gain, *derivatives, first=first, limited=where, epsilon=0.0)

    for index in range(rounds):
        state = step(state, jnp.bool_(index == 0))
        states.append(state)
    return states


@pytest.mark.parametrize("units", [np.ones(2), np.array([1e-4, 3e3])])
def test_a_quadratic_in_any_units_takes_two_evaluations(units):
    precision = np.array([[2.0, 1.9], [1.9, 2.0]]) / np.outer(units, units)
    best = np.array([3.0, -5.0]) * units

    def function(at):
        return -(at - best) @ jnp.asarray(precision) @ (at - best) / 2

    frame = inverse_root(jnp.asarray(np.diag(np.diagonal(precision)), jnp.float32))
    states = follow(function, np.zeros(2, np.float32), frame, 3)
    assert not states[0].settled
    assert states[1].settled
    np.testing.assert_allclose(states[1].point / units, best / units, rtol=1e-4)
    covariance = np.asarray(states[2].frame @ states[2].frame.T)
    np.testing.assert_allclose(
        covariance / np.outer(units, units),
        np.linalg.inv(precision) / np.outer(units, units),
        rtol=1e-3,
    )
    np.testing.assert_allclose(states[2].curvature, np.eye(2), atol=1e-5)


def test_a_step_too_long_is_taken_back():
    """-log cosh: Newton's method from 2 overshoots further each time."""
    states = follow(
        lambda at: -jnp.log(jnp.cosh(at[0])), np.array([2.0], np.float32), np.eye(1), 12
    )
    assert not all(bool(state.accepted) for state in states)
    assert states[-1].settled
    assert abs(float(states[-1].point[0])) < 1e-4


def test_uphill_from_a_saddle():
    """x^2 - x^4 - y^2 curves upwards at the start; its maxima are at x = +-1/sqrt(2)."""
    function = lambda at: at[0] ** 2 - at[0] ** 4 - at[1] ** 2  # noqa: E731
    states = follow(function, np.array([0.1, 1.0], np.float32), np.eye(2), 12)
    assert states[-1].settled
    np.testing.assert_allclose(states[-1].point, [np.sqrt(0.5), 0], atol=1e-4)


def test_a_direction_of_far_too_short_a_unit_is_not_flat():
    """Its curvature is 1e-8 in the unit at the start."""
    function = lambda at: -((at[0] - 1) ** 2) / 2 - (at[1] - 3) ** 2 / 200  # noqa: E731
    frame = np.diag([1.0, 1e-3]).astype(np.float32)
    states = follow(function, np.zeros(2, np.float32), frame, 6)
    last = states[-1]
    assert last.settled
    np.testing.assert_allclose(last.point, [1, 3], rtol=1e-4)
    np.testing.assert_allclose(last.frame @ last.frame.T, np.diag([1, 100]), rtol=1e-3, atol=1e-3)


def test_a_flat_direction_is_kept_and_told():
    states = follow(lambda at: -((at[0] + at[1] - 1) ** 2), np.zeros(2, np.float32), np.eye(2), 4)
    last = states[-1]
    assert last.settled
    np.testing.assert_allclose(last.point, [0.5, 0.5], atol=1e-5)
    value, axes = np.linalg.eigh(last.curvature)
    np.testing.assert_allclose(value, [0, 1], atol=1e-5)
    direction = np.asarray(last.frame) @ axes[:, 0]
    assert abs(direction.sum()) < 1e-5
    assert np.all(np.abs(direction) > 0.1)


def test_logarithms_take_steps_of_two_at_most():
    states = follow(lambda at: -((at[0] - 10) ** 2), np.zeros(1, np.float32), np.eye(1), 3, [True])
    np.testing.assert_allclose([state.trial[0] for state in states], [2, 4, 6], rtol=1e-5)


def test_importance_sampling_of_a_shifted_student():
    """The mean of a posterior seven standard deviations from the proposal, after moving it."""
    mean, scale = np.array([7.0, -2.0]), np.array([[1.0, 0.0], [0.8, 0.6]])

    def log_density(points):
        white = np.linalg.solve(scale, (points - mean).T)
        return -np.sum(white**2, axis=0) / 2

    found = importance_sample(log_density, np.zeros(2), np.eye(2), draws=2000, seed=1)
    assert 1 < found.asked <= 5
    assert found.k_hat < 0.7
    assert found.effective > 1000
    off = found.weights @ found.points - mean
    assert np.all(np.abs(off) < 4 / np.sqrt(found.effective))
    again = (found.points - mean).T * found.weights @ (found.points - mean)
    # Four standard errors of a variance of about one.
    np.testing.assert_allclose(again, scale @ scale.T, atol=4 * np.sqrt(2 / found.effective))


def test_importance_sampling_says_where_it_fails():
    """Two far modes, of which the proposal sees one half-way: the weights have no mean."""

    def cauchy(points):
        return -0.52 * np.log1p(points[:, 0] ** 2 * 1e6)

    found = importance_sample(cauchy, np.zeros(1), 1e-6 * np.eye(1), draws=500, seed=0, most=2)
    assert found.k_hat > 0.7


def test_systematic_draws_follow_the_weights():
    weights = np.array([0.5, 0.1, 0.0, 0.4])
    drawn = systematic(np.random.default_rng(0), weights, 1000)
    assert np.all(np.abs(np.bincount(drawn, minlength=4) - 1000 * weights) <= 1)
    assert np.any(np.diff(drawn) < 0)
