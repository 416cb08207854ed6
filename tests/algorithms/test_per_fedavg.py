"""Per-FedAvg against finite differences and plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from least_squares import SIZES, STEP, coefficients, designs, fit, gradient, hessians
from problems import logistic_rows

from covey import models
from covey.algorithms.fedavg import fedavg
from covey.algorithms.per_fedavg import Batches, meta_gradient, per_fedavg, stepped
from covey.core.shard import Rows, Shard, all_rows, whole
from covey.kernels.descent import mean_gradient
from covey.models import Linear

ALPHA = 0.4


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_the_gradient_is_exact_and_without_the_hessian_that_at_the_end_of_the_step():
    """Of f(w - alpha grad f(w)), logistic regression, by central differences."""
    x, y = logistic_rows()["site1"]
    batch = all_rows(whole(Rows(jnp.asarray(x, float), jnp.asarray(y))))
    of_loss = mean_gradient(models.logistic().log_likelihood)
    w = np.array([0.3, -0.8, 0.5, 0.1])

    def params(v):
        return Linear(jnp.asarray(v[:3]), jnp.asarray(v[3]))

    def after_a_step(v):
        return float(of_loss(stepped(of_loss, ALPHA, params(v), batch), batch)[0])

    loss, exact = meta_gradient(of_loss, ALPHA, False)(params(w), Batches(batch, batch, batch))
    small = 1e-5
    by_differences = [
        (after_a_step(w + small * e) - after_a_step(w - small * e)) / (2 * small) for e in np.eye(4)
    ]
    np.testing.assert_allclose(coefficients(exact), by_differences, rtol=1e-7)
    assert float(loss) == pytest.approx(after_a_step(w))
    _, first = meta_gradient(of_loss, ALPHA, True)(params(w), Batches(batch, batch, batch))
    at_end = of_loss(stepped(of_loss, ALPHA, params(w), batch), batch)[1]
    np.testing.assert_array_equal(coefficients(first), coefficients(at_end))
    assert np.abs(coefficients(first) - coefficients(exact)).max() > 0.01


@pytest.mark.parametrize("first_order", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_rounds_are_those_of_the_paper(first_order):
    method = per_fedavg(
        models.linear(),
        inner_step=ALPHA,
        first_order=first_order,
        client_optimizer=optax.sgd(STEP),
        batch_size=None,
        steps=2,
    )
    state, lines = fit(method, 3)
    w = np.zeros(4)
    for _ in range(3):
        ends = []
        for rows, hessian in zip(designs(), hessians(), strict=True):
            own = w
            for _ in range(2):
                at_v = gradient(*rows, own - ALPHA * gradient(*rows, own))
                own = own - STEP * (at_v if first_order else at_v - ALPHA * hessian @ at_v)
            ends.append(own)
        w = np.average(ends, axis=0, weights=SIZES)
    np.testing.assert_allclose(coefficients(state.server.parameters), w, rtol=1e-9)
    assert {line["local_steps"] for line in lines} == {2}


@pytest.mark.slow
def test_clients_predict_after_one_step_on_their_rows():
    design, y = next(iter(designs()))
    w = np.array([0.5, -1.0, 0.2, 0.3])
    method, down = per_fedavg(models.linear(), inner_step=ALPHA), Linear(w[:3], w[3])
    rows = Rows(jnp.asarray(design[:, :3]), jnp.asarray(y))
    found = method.adapt(jax.random.key(0), jax.tree.map(jnp.asarray, down), whole(rows))
    np.testing.assert_allclose(
        coefficients(found.parameters), w - ALPHA * gradient(design, y, w), rtol=1e-10
    )
    nothing = Shard(rows, jnp.int32(0), jnp.int32(0), 12)
    unmoved = method.adapt(jax.random.key(0), jax.tree.map(jnp.asarray, down), nothing)
    np.testing.assert_array_equal(coefficients(unmoved.parameters), w)
    assert method.hooks.adapt_before_evaluation


@pytest.mark.slow
def test_a_short_inner_step_is_fedavg():
    options = {"client_optimizer": optax.sgd(STEP), "batch_size": None, "epochs": 3}
    state, _ = fit(per_fedavg(models.linear(), inner_step=1e-12, **options), 3)
    plain, _ = fit(fedavg(models.linear(), **options), 3)
    np.testing.assert_allclose(
        coefficients(state.server.parameters), coefficients(plain.server.parameters), rtol=1e-9
    )


def test_bad_options():
    with pytest.raises(ValueError, match="per_fedavg: inner_step must be above 0 and finite"):
        per_fedavg(models.linear(), inner_step=0.0)
    with pytest.raises(ValueError, match="per_fedavg: batch_size must be at least 1, got 0"):
        per_fedavg(models.linear(), batch_size=0)
