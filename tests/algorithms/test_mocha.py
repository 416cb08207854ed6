"""MOCHA: its gap, ridge regression, and the minimum over Omega found by plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from least_squares import COUNTS, DATA, designs, fit
from problems import logistic_rows

from covey import models
from covey.algorithms.mocha import State, mocha, relation_of
from covey.core.algorithm import Aggregate
from covey.core.shard import Rows, whole
from covey.data.federated import FederatedData
from covey.kernels.dual_coordinates import logistic_loss, squared_loss
from covey.runs.launch import run

PENALTY, B, D = 0.5, 3, 4


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_omega_kept_is_ridge_regression_of_each_client_alone():
    method = mocha(models.linear(), penalty=PENALTY, learn_relation=False, epochs=20)
    state, lines = fit(method, 20)
    ridge = [
        np.linalg.solve(design.T @ design + 2 * PENALTY * B * np.eye(D), design.T @ y)
        for design, y in designs()
    ]
    np.testing.assert_allclose(state.nodes.state.weights, ridge, rtol=1e-7)
    np.testing.assert_array_equal(state.server.relation, np.eye(D) / B)
    gaps = np.array([line["duality_gap"] for line in lines])
    assert gaps[0] > 1e-6 > 1e-10 > gaps[-1] > -1e-10
    # The gap bounds how far the primal objective is above its minimum.
    early, _ = fit(method, 1)
    above = [
        primal(w, rows) - primal(best, rows)
        for w, best, rows in zip(
            np.asarray(early.nodes.state.weights), ridge, designs(), strict=True
        )
    ]
    assert min(above) >= 0
    assert np.mean(above) <= lines[0]["duality_gap"]


def primal(w, rows):
    design, y = rows
    return np.sum((design @ w - y) ** 2) / 2 + PENALTY * B * w @ w


def by_omega(rounds=200):
    """The paper's objective: W by an exact solve given Omega, then Omega, in turn."""
    omega = np.eye(B) / B
    rows = list(designs())
    for _ in range(rounds):
        inverse = np.linalg.inv(omega)
        system, right = np.zeros((B * D, B * D)), np.zeros(B * D)
        for t, (design, y) in enumerate(rows):
            block = slice(t * D, t * D + D)
            system[block, block] += design.T @ design
            right[block] = design.T @ y
        system += 2 * PENALTY * np.kron(inverse, np.eye(D))
        w = np.linalg.solve(system, right).reshape(B, D)
        values, axes = np.linalg.eigh(w @ w.T)
        roots = np.sqrt(np.maximum(values, 0) + 1e-14)
        omega = (axes * (roots / roots.sum())) @ axes.T
    return w


@pytest.mark.slow
def test_the_minimum_is_that_over_omega():
    """Four weights and three clients: the relation must not stay in the span of the first round."""
    method = mocha(models.linear(), penalty=PENALTY, epochs=10)
    state, lines = fit(method, 300)
    expected = by_omega()
    np.testing.assert_allclose(state.nodes.state.weights, expected, atol=1e-3)
    assert abs(lines[-1]["duality_gap"]) < 1e-4
    assert np.abs(expected).max() > 0.5
    # Clients send a matrix; their weights stay with them.
    assert {line["bits_up"] for line in lines} == {3 * 64 * D * D}


def test_the_relation_is_the_best_one_given_the_weights():
    """It minimises tr(W' D^-1 W) over matrices with trace one, to the squared nuclear norm."""
    w = np.random.default_rng(0).normal(size=(D, 6))
    found = np.asarray(relation_of(jnp.asarray(w @ w.T), 10**6))
    nuclear = np.linalg.svd(w, compute_uv=False).sum()
    assert np.trace(found) == pytest.approx(1)
    assert np.trace(w.T @ np.linalg.inv(found) @ w) == pytest.approx(nuclear**2, rel=1e-6)


def test_the_relation_is_renewed_when_it_is_due():
    method = mocha(models.linear(), penalty=PENALTY, relate_every=2)
    first, _ = fit(method, 1)
    np.testing.assert_array_equal(first.server.relation, np.eye(D) / B)
    second, _ = fit(method, 2)
    own = np.asarray(second.nodes.state.weights)
    np.testing.assert_allclose(second.server.relation, relation_of(jnp.asarray(own.T @ own), 1))


def test_logistic_coordinates_are_the_best_ones():
    loss = logistic_loss(jnp.array([1, 0]))
    for row, sign in ((0, 1.0), (1, -1.0)):
        for alpha, predictor, q in ((0.2, 0.7, 0.5), (0.9, -3.0, 40.0), (0.0, 5.0, 3.0)):
            found = float(loss.best(row, sign * alpha, sign * predictor, q)) * sign
            grid = np.linspace(1e-6, 1 - 1e-6, 200001)
            dual = -(grid * np.log(grid) + (1 - grid) * np.log(1 - grid))
            dual -= (grid - alpha) * predictor + (grid - alpha) ** 2 * q / 2
            assert found == pytest.approx(grid[np.argmax(dual)], abs=2e-5)


def test_squared_coordinates_are_the_best_ones():
    loss = squared_loss(jnp.array([2.0]), jnp.array([0.5]))
    for alpha, predictor, q in ((0.2, 0.7, 0.5), (-3.0, 1.0, 40.0)):
        found = float(loss.best(0, alpha, predictor, q))
        grid = np.linspace(found - 1, found + 1, 2001)
        dual = grid * 2.0 - 0.25 * grid**2 / 2 - (grid - alpha) * predictor
        assert np.argmax(dual - (grid - alpha) ** 2 * q / 2) == 1000


@pytest.mark.slow
def test_the_gap_of_logistic_regression_goes_to_zero():
    rows = logistic_rows()
    data = FederatedData.from_clients({k: rows[k] for k in ("site0", "site2")}, classes=2)
    method = mocha(models.logistic(), penalty=0.3, epochs=10, learn_relation=False)
    state, lines = fit(method, 60, data=data)
    assert abs(lines[-1]["duality_gap"]) < 1e-9 < lines[0]["duality_gap"]
    for w, (x, y) in zip(np.asarray(state.nodes.state.weights), rows.values(), strict=False):
        design = np.column_stack([x, np.ones(len(x))]).astype(float)
        chance = 1 / (1 + np.exp(-design @ w))
        if len(x) == 7:
            gradient = design.T @ (chance - y) + 2 * 0.3 * 2 * w
            np.testing.assert_allclose(gradient, 0, atol=1e-4)


def test_an_unseen_client_solves_its_problem_with_the_relation_fixed():
    method = mocha(models.linear(), penalty=PENALTY, adapt_epochs=200)
    down = method.init(jax.random.key(0), DATA.spec)
    design, y = next(iter(designs()))
    found = method.adapt(jax.random.key(0), down, whole(Rows(design[:, :3], y)))
    ridge = np.linalg.solve(design.T @ design + 2 * PENALTY * B * np.eye(D), design.T @ y)
    np.testing.assert_allclose(found.weights, ridge, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalty": 0.0}, "mocha: penalty must be above 0 and finite, got 0"),
        ({"penalty": -1.0}, "mocha: penalty must be above 0 and finite, got -1"),
        ({"relate_every": 0}, "mocha: relate_every must be at least 1, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        mocha(models.linear(), **({"penalty": 1.0} | options))


@pytest.mark.parametrize(
    "model",
    [
        models.mlp(hidden=(4,), outcome="number"),
        models.linear(scale=None),
        models.poisson(),
    ],
    ids=lambda model: model.name,
)
def test_models_that_are_not_linear(model):
    with pytest.raises(ValueError, match="mocha: the models of clients are linear, with"):
        run(mocha(model, penalty=1.0), COUNTS, rounds=1)


def test_more_rows_than_dual_variables():
    with pytest.raises(ValueError, match=r"a client has 40 training rows.*give rows=40"):
        run(mocha(models.linear(), penalty=1.0, rows=30), DATA, rounds=1)


def test_the_relation_stays_where_nobody_heard_has_rows():
    method = mocha(models.linear(), penalty=PENALTY)
    with jax.enable_x64(False):  # where a square root of almost nothing is zero
        relation, nothing = jnp.eye(D) / B, jnp.zeros((D, D))
        state = State(relation, jnp.int32(3))
        after, _ = method.server(
            None, state, Aggregate(nothing, nothing, jnp.ones(()), jnp.ones(()))
        )
        np.testing.assert_array_equal(after.relation, relation)
