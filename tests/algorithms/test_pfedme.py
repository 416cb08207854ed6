"""pFedMe on least squares, where Moreau envelopes are known, and where it must be FedAvg."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import linear_gaussian

from covey import models
from covey.algorithms.fedavg import fedavg
from covey.algorithms.pfedme import pfedme
from covey.core.shard import Rows, Shard, some_rows, whole
from covey.engines.simulate import Simulation
from covey.models import Linear

SIZES = (20, 40, 30)
DATA = linear_gaussian(sizes=SIZES).data
TIE = 3.0


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def fit(method, rounds):
    engine = Simulation(method, DATA, seed=4)
    return engine.advance(engine.start(), rounds)


def coefficients(tree):
    return np.concatenate([np.asarray(tree.weight), np.asarray(tree.bias)[..., None]], axis=-1)


def quadratics():
    """Of each client the Hessian and the minimiser of its mean loss, and its rows."""
    for index in range(DATA.clients):
        x, y = DATA.rows_of(index, "train")
        design = np.column_stack([x, np.ones(len(y))]).astype(float)
        yield (
            design.T @ design / len(y),
            np.linalg.lstsq(design, y.astype(float))[0],
            design,
            y.astype(float),
        )


def nearest(hessian, least, common, tie=TIE):
    """The minimiser of (v - least)' H (v - least) / 2 + tie |v - common|^2 / 2."""
    return np.linalg.solve(hessian + tie * np.eye(4), hessian @ least + tie * common)


@pytest.mark.slow
def test_a_whole_step_to_models_of_one_step_is_fedavg():
    inner = {
        "inner_optimizer": optax.sgd(0.05),
        "inner_steps": 1,
        "local_rounds": 3,
        "batch_size": None,
    }
    server = {"server_optimizer": optax.adam(0.1)}
    state, lines = fit(pfedme(models.linear(), proximal=7.0, step=1 / 7.0, **inner, **server), 5)
    plain, plain_lines = fit(
        fedavg(
            models.linear(), client_optimizer=optax.sgd(0.05), batch_size=None, steps=3, **server
        ),
        5,
    )
    np.testing.assert_allclose(
        coefficients(state.server.parameters), coefficients(plain.server.parameters), rtol=1e-10
    )
    for line, other in zip(lines, plain_lines, strict=True):
        assert line["train_loss"] == pytest.approx(other["train_loss"])
        assert line["local_steps"] == other["local_steps"] == 3


@pytest.mark.parametrize(
    ("local_rounds", "weighting"), [pytest.param(1, "rows", marks=pytest.mark.slow), (4, "equal")]
)
def test_the_fixed_point_is_that_of_the_envelopes(local_rounds, weighting):
    """An envelope of a quadratic is one, with Hessian A = tie (H + tie I)^-1 H; local rounds
    contract by (I - step A).
    """
    step = 0.25
    method = pfedme(
        models.linear(),
        proximal=TIE,
        step=step,
        inner_optimizer=optax.sgd(0.1),
        inner_steps=200,
        local_rounds=local_rounds,
        batch_size=None,
        weighting=weighting,
    )
    state, _ = fit(method, 400)
    total, moment = 0.0, 0.0
    for hessian, least, _, y in quadratics():
        envelope = TIE * np.linalg.solve(hessian + TIE * np.eye(4), hessian)
        pull = np.eye(4) - np.linalg.matrix_power(np.eye(4) - step * envelope, local_rounds)
        weight = len(y) if weighting == "rows" else 1
        total, moment = total + weight * pull, moment + weight * pull @ least
    common = np.linalg.solve(total, moment)
    np.testing.assert_allclose(coefficients(state.server.parameters), common, rtol=1e-5)
    if local_rounds == 1:  # then a client's own model is its prox point at the common one
        own = np.stack([nearest(hessian, least, common) for hessian, least, _, _ in quadratics()])
        np.testing.assert_allclose(coefficients(state.nodes.state.parameters), own, rtol=1e-5)


def test_inner_steps_are_on_one_minibatch():
    """The own model is the least of the 8 rows that were drawn, and the common one moves a share of
    the way to it.
    """
    _, _, design, y = list(quadratics())[1]
    data, key = whole(Rows(design[:, :3], y)), jax.random.key(5)
    common = np.array([0.5, -1.0, 0.2, 0.3])
    down = Linear(jnp.asarray(common[:3]), jnp.asarray(common[3]))
    method = pfedme(
        models.linear(),
        proximal=TIE,
        step=0.1,
        inner_optimizer=optax.sgd(0.05),
        inner_steps=600,
        local_rounds=1,
        batch_size=8,
    )
    local = method.client(key, down, method.init_client(key, down, data), data)
    x, outcome = some_rows(key, data, 8).rows
    drawn = np.column_stack([x, np.ones(8)])
    hessian, least = drawn.T @ drawn / 8, np.linalg.lstsq(drawn, np.asarray(outcome))[0]
    own = nearest(hessian, least, common)
    np.testing.assert_allclose(coefficients(local.pending.parameters), own, rtol=1e-7)
    np.testing.assert_allclose(coefficients(local.up), 0.1 * TIE * (common - own), rtol=1e-6)
    assert local.weight == 40


def test_a_new_client_takes_the_nearest_model():
    hessian, least, design, y = next(quadratics())
    common = np.array([0.5, -1.0, 0.2, 0.3])
    down = Linear(jnp.asarray(common[:3]), jnp.asarray(common[3]))
    method = pfedme(
        models.linear(),
        proximal=TIE,
        inner_optimizer=optax.sgd(0.1),
        batch_size=None,
        adapt_epochs=300,
    )
    rows = Rows(design[:, :3], y)
    found = method.adapt(jax.random.key(0), down, whole(rows))
    np.testing.assert_allclose(
        coefficients(found.parameters), nearest(hessian, least, common), rtol=1e-8
    )
    x = jnp.asarray(design[:5, :3])
    predicted = method.predict(jax.random.key(0), down, found, x).mean
    np.testing.assert_allclose(predicted, design[:5] @ coefficients(found.parameters), rtol=1e-8)
    nothing = Shard(jax.tree.map(jnp.asarray, rows), jnp.int32(0), jnp.int32(0), 12)
    np.testing.assert_array_equal(
        coefficients(method.adapt(jax.random.key(0), down, nothing).parameters), common
    )


def test_the_default_steps_are_stable_for_any_penalty():
    state, _ = fit(pfedme(models.linear(), proximal=100.0, local_rounds=5), 2)
    assert np.linalg.norm(coefficients(state.server.parameters)) < 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"proximal": 0},
            "proximal must be above 0 and finite, got 0; without a penalty, use local",
        ),
        ({"proximal": 4, "step": 0.5}, "step must be above 0 and below 2 / proximal, 0.5"),
        ({"inner_steps": 0}, "inner_steps must be at least 1, got 0"),
        ({"local_rounds": 0}, "local_rounds must be at least 1, got 0"),
        ({"proximal": np.nan}, "proximal must be above 0 and finite, got nan"),
        ({"step": np.nan}, "step must be above 0 and below 2 / proximal, 0.133333"),
        ({"adapt_epochs": 0}, "pfedme: adapt_epochs must be at least 1, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        pfedme(models.linear(), **options)
