"""Ditto between local training and FedAvg, and its personal steps against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from least_squares import SIZES, STEP, coefficients, designs, fit, gradient, hessians

from covey import models
from covey.algorithms.ditto import ditto
from covey.algorithms.fedavg import fedavg
from covey.algorithms.local import local
from covey.core.shard import Rows, whole
from covey.models import Linear

MINIBATCH = {"client_optimizer": optax.sgd(STEP, momentum=0.5), "batch_size": 8, "epochs": 2}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def test_without_a_penalty_it_is_local_training_beside_fedavg():
    own = {"personal_optimizer": MINIBATCH["client_optimizer"], "personal_epochs": 2}
    state, _ = fit(ditto(models.linear(), proximal=0, **MINIBATCH, **own), 3)
    alone, _ = fit(local(models.linear(), **MINIBATCH), 3)
    np.testing.assert_allclose(
        coefficients(state.nodes.state.parameters),
        coefficients(alone.nodes.state.parameters),
        rtol=1e-12,
    )
    together, _ = fit(fedavg(models.linear(), **MINIBATCH), 3)
    np.testing.assert_allclose(
        coefficients(state.server.parameters), coefficients(together.server.parameters), rtol=1e-12
    )


@pytest.mark.slow
def test_a_large_penalty_is_fedavg():
    """Personal models are at most |gradient| / lambda from the broadcast of the round."""
    options = {"client_optimizer": optax.sgd(STEP), "batch_size": None}
    method = ditto(models.linear(), proximal=1e6, personal_epochs=5, **options)
    state, _ = fit(method, 4)
    broadcast, _ = fit(fedavg(models.linear(), **options), 3)
    shared = coefficients(broadcast.server.parameters)
    np.testing.assert_allclose(coefficients(state.nodes.state.parameters), [shared] * 3, atol=1e-4)
    assert np.linalg.norm(shared) > 0.1


def test_personal_steps_are_those_of_the_paper_and_lead_to_the_minimum():
    lam, rate = 0.7, 0.1
    method = ditto(
        models.linear(),
        proximal=lam,
        client_optimizer=optax.sgd(STEP),
        personal_optimizer=optax.sgd(rate),
        batch_size=None,
        personal_steps=2,
    )
    state, lines = fit(method, 3)
    w, own = np.zeros(4), np.zeros((3, 4))
    for _ in range(3):
        ends = []
        for index, rows in enumerate(designs()):
            for _ in range(2):
                near = gradient(*rows, own[index]) + lam * (own[index] - w)
                own[index] = own[index] - rate * near
            ends.append(w - STEP * gradient(*rows, w))
        w = np.average(ends, axis=0, weights=SIZES)
    np.testing.assert_allclose(coefficients(state.server.parameters), w, rtol=1e-9)
    np.testing.assert_allclose(coefficients(state.nodes.state.parameters), own, rtol=1e-9)
    assert {line["bits_up"] for line in lines} == {3 * 64 * (4 + 1)}  # v_i stays


def test_an_unseen_client_trains_near_the_shared_model():
    lam, shared = 0.7, np.array([0.5, -1.0, 0.2, 0.3])
    design, y = next(iter(designs()))
    method = ditto(models.linear(), proximal=lam, batch_size=None, adapt_epochs=2000)
    down = Linear(jnp.asarray(shared[:3]), jnp.asarray(shared[3]))
    found = method.adapt(jax.random.key(0), down, whole(Rows(design[:, :3], y)))
    best = np.linalg.solve(hessians()[0] + lam * np.eye(4), design.T @ y / len(y) + lam * shared)
    np.testing.assert_allclose(coefficients(found.parameters), best, rtol=1e-6)


@pytest.mark.parametrize("proximal", [-1.0, np.nan, np.inf])
def test_bad_penalties(proximal):
    with pytest.raises(ValueError, match="ditto: proximal must be at least 0 and finite, got"):
        ditto(models.linear(), proximal=proximal)


def test_bad_work():
    with pytest.raises(ValueError, match="ditto: personal_steps must be at least 1, got 0"):
        ditto(models.linear(), personal_steps=0)
