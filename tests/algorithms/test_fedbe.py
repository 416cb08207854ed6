"""FedBE: its Gaussian against the moments of the clients' models, and its distillation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from least_squares import COUNTS, DATA, SIZES, STEP, coefficients, designs, fit, gradient

from covey import models
from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedbe import Law, distilled, drawn, ensemble_predictive, fedbe
from covey.data.federated import FederatedData
from covey.models import Linear
from covey.runs.launch import run

OPTIONS = {"client_optimizer": optax.sgd(STEP), "batch_size": None}
ROWS = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
without_rows = pytest.mark.filterwarnings("ignore:fedbe. there are no server_rows")


def client_models(theta):
    return np.array([theta - STEP * gradient(*rows, theta) for rows in designs()])


@without_rows
def test_the_law_has_the_moments_of_the_clients_models():
    state, lines = fit(fedbe(models.linear(), **OPTIONS), 1)
    found = client_models(np.zeros(4))
    mean = np.average(found, axis=0, weights=SIZES)
    variance = np.average((found - mean) ** 2, axis=0, weights=SIZES)
    law = state.server.law
    np.testing.assert_allclose(coefficients(law.mean), mean, rtol=1e-4)
    np.testing.assert_allclose(coefficients(law.variance), variance, rtol=1e-3)
    assert coefficients(state.server.members).shape == (10, 4)
    assert {line["bits_up"] for line in lines} == {3 * 32 * (2 * 4 + 1)}


def test_draws_have_the_moments_of_the_law():
    count, mean = 4000, np.array([1.0, -2.0, 0.5, 3.0])
    deviation = np.array([0.1, 2.0, 0.0, 1.0])
    law = Law(
        Linear(jnp.asarray(mean[:3]), jnp.asarray(mean[3])),
        Linear(jnp.asarray(deviation[:3] ** 2), jnp.asarray(deviation[3] ** 2)),
    )
    draws = coefficients(drawn(jax.random.key(0), law, count))
    error = 4 * deviation / np.sqrt(count)
    assert np.all(np.abs(draws.mean(0) - mean) <= error + 1e-6)
    assert np.all(np.abs(draws.std(0) - deviation) <= error + 1e-6)


@without_rows
def test_without_rows_it_is_fedavg_with_the_predictions_of_the_ensemble():
    method = fedbe(models.linear(), members=3, **OPTIONS)
    done = run(method, DATA, rounds=3, seed=4, progress=False)
    plain, _ = fit(fedavg(models.linear(), **OPTIONS), 3)
    np.testing.assert_allclose(
        coefficients(done.state.parameters), coefficients(plain.server.parameters), rtol=1e-4
    )
    prediction = done.predict(ROWS, client="site1")
    means = ROWS @ np.asarray(done.state.members.weight).T + np.asarray(done.state.members.bias)
    np.testing.assert_allclose(prediction.mean, means.mean(1), rtol=1e-4, atol=1e-5)
    assert np.all(np.asarray(prediction.variance) > 1)  # more than the noise of one model
    with pytest.warns(UserWarning, match="fedbe: the law .* not a posterior"):
        shared = done.posterior.shared
    assert shared.draws().weight.shape[-1] == 3


def test_it_says_that_nothing_is_distilled():
    with pytest.warns(UserWarning, match="no server_rows, so that nothing is distilled"):
        run(fedbe(models.linear(), **OPTIONS), DATA, rounds=1, progress=False)


@pytest.mark.slow
def test_the_student_predicts_what_the_ensemble_predicts():
    """Linear models: the mean of the ensemble's predictions is that of the mean of its members."""
    method = fedbe(
        models.linear(), server_rows=ROWS, distill_step=0.3, distill_steps=200, members=4, **OPTIONS
    )
    state, _ = fit(method, 2)
    members = coefficients(state.server.members).mean(0)
    np.testing.assert_allclose(coefficients(state.server.parameters), members, atol=2e-3)
    assert np.linalg.norm(coefficients(state.server.law.mean) - members) > 0.01


def test_the_average_is_over_the_ends_of_cycles():
    """A gradient of one everywhere: the model falls by the steps of a cycle, 2.75 in units of the
    longest.
    """
    found = distilled(
        jax.random.key(0),
        lambda at, index: (jnp.zeros(()), jnp.ones_like(at)),
        jnp.zeros(()),
        (10, 2),
        17,
        0.1,
    )
    np.testing.assert_allclose(found, -0.275 * np.mean([1, 2, 3]), rtol=1e-5)


@pytest.mark.slow
def test_classes_are_distilled_by_their_probabilities():
    data = np.random.default_rng(1).normal(size=(3, 40, 3)).astype(np.float32)
    y = (data.sum(-1) + np.array([[0.5], [0.0], [-0.5]]) > 0).astype(np.int32)
    rows = {name: (x, labels) for name, x, labels in zip("abc", data, y, strict=True)}
    clients = FederatedData.from_clients(rows, classes=2)
    method = fedbe(
        models.logistic(),
        server_rows=ROWS,
        distill_step=0.5,
        distill_steps=500,
        client_optimizer=optax.sgd(1.0),
        epochs=3,
    )
    state, _ = fit(method, 3, data=clients)
    teacher = ensemble_predictive(models.logistic(), state.server.members, jnp.asarray(ROWS))
    student = models.logistic().predictive(state.server.parameters, jnp.asarray(ROWS))
    np.testing.assert_allclose(student.mean, teacher.mean, atol=0.03)


@without_rows
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": 0}, "fedbe: members must be at least 1, got 0"),
        ({"distill_steps": 4}, "fedbe: distill_steps must be at least 5, got 4"),
        ({"distill_step": 0.0}, "fedbe: distill_step must be above 0 and finite, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        fedbe(models.linear(), **options)


def test_rows_and_models_that_do_not_fit():
    with pytest.raises(ValueError, match=r"server_rows has shape \(50, 2\), and rows of clients"):
        fit(fedbe(models.linear(), server_rows=ROWS[:, :2]), 1)
    with pytest.raises(ValueError, match="labels and numeric outcomes, and poisson predicts"):
        fit(fedbe(models.poisson(), server_rows=ROWS), 1, COUNTS)
