"""APFL against plain NumPy on least squares, and where it must be FedAvg or local training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import linear_gaussian

from covey import models
from covey.algorithms.apfl import apfl
from covey.algorithms.fedavg import fedavg
from covey.algorithms.local import local
from covey.core.shard import Rows, Shard, whole
from covey.engines.simulate import Simulation
from covey.models import Linear

SIZES = (20, 40, 30)
DATA = linear_gaussian(sizes=SIZES).data
STEP, ALPHA_STEP = 0.05, 0.02
MINIBATCH = {"client_optimizer": optax.sgd(STEP, momentum=0.5), "batch_size": 8, "epochs": 2}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def fit(method, rounds=3):
    engine = Simulation(method, DATA, seed=4)
    return engine.advance(engine.start(), rounds)


def coefficients(tree):
    return np.concatenate([np.asarray(tree.weight), np.asarray(tree.bias)[..., None]], axis=-1)


@pytest.mark.slow
def test_a_share_of_zero_is_fedavg():
    server = {"server_optimizer": optax.adam(0.1)}
    state, lines = fit(apfl(models.linear(), alpha=0, **MINIBATCH, **server))
    plain, plain_lines = fit(fedavg(models.linear(), **MINIBATCH, **server))
    np.testing.assert_array_equal(
        coefficients(state.server.parameters), coefficients(plain.server.parameters)
    )
    assert [line["train_loss"] for line in lines] == [line["train_loss"] for line in plain_lines]
    # What clients keep has not moved, and they predict as all do.
    assert not np.any(coefficients(state.nodes.state.parameters))
    x = np.eye(3, dtype=np.float32)
    method = apfl(models.linear(), alpha=0)
    own = jax.tree.map(lambda leaf: leaf[1], state.nodes.state)
    predicted = method.predict(jax.random.key(0), state.server.parameters, own, jnp.asarray(x)).mean
    np.testing.assert_allclose(
        predicted,
        models.linear().predictive(plain.server.parameters, jnp.asarray(x)).mean,
        rtol=1e-12,
    )


@pytest.mark.slow
def test_a_share_of_one_is_local_training():
    state, _ = fit(apfl(models.linear(), alpha=1, **MINIBATCH))
    alone, _ = fit(local(models.linear(), **MINIBATCH))
    np.testing.assert_array_equal(
        coefficients(state.nodes.state.parameters), coefficients(alone.nodes.state.parameters)
    )
    np.testing.assert_array_equal(state.nodes.state.alpha, np.ones(3))
    # The common model is learned beside it.
    together, _ = fit(fedavg(models.linear(), **MINIBATCH))
    np.testing.assert_array_equal(
        coefficients(state.server.parameters), coefficients(together.server.parameters)
    )


def designs():
    for start, count in zip(DATA.starts("train"), DATA.counts("train"), strict=True):
        x, y = (leaf[start : start + count].astype(float) for leaf in DATA.rows)
        yield np.column_stack([x, np.ones(count)]), y


def gradient(design, y, theta):
    return design.T @ (design @ theta - y) / len(y)


def by_hand(rounds, steps, share, share_step, weights):
    """Algorithm 1 with all rows at each step."""
    common, own, shares = np.zeros(4), np.zeros((3, 4)), np.full(3, share)
    for _ in range(rounds):
        ends = []
        for index, (design, y) in enumerate(designs()):
            copy, mine, a = common.copy(), own[index], shares[index]
            a = np.clip(
                a - share_step * (mine - copy) @ gradient(design, y, a * mine + (1 - a) * copy),
                0,
                1,
            )
            for _ in range(steps):
                by_own = a * gradient(design, y, a * mine + (1 - a) * copy)
                copy, mine = copy - STEP * gradient(design, y, copy), mine - STEP * by_own
            own[index], shares[index] = mine, a
            ends.append(copy)
        common = np.average(ends, axis=0, weights=weights)
    return common, own, shares


@pytest.mark.parametrize(
    ("weighting", "share_step"),
    [("rows", ALPHA_STEP), pytest.param("equal", None, marks=pytest.mark.slow)],
)
def test_rounds_are_those_of_the_paper(weighting, share_step):
    options = {
        "client_optimizer": optax.sgd(STEP),
        "batch_size": None,
        "steps": 3,
        "weighting": weighting,
    }
    state, lines = fit(apfl(models.linear(), alpha=0.3, alpha_step=share_step, **options), 4)
    common, own, shares = by_hand(
        4, 3, 0.3, share_step or 0.0, SIZES if weighting == "rows" else None
    )
    np.testing.assert_allclose(coefficients(state.server.parameters), common, rtol=1e-9)
    np.testing.assert_allclose(coefficients(state.nodes.state.parameters), own, rtol=1e-9)
    np.testing.assert_allclose(state.nodes.state.alpha, shares, rtol=1e-9)
    assert np.all((shares == 0.3) == (share_step is None))
    # Clients send the common part and a weight; their own stays.
    assert {line["bits_up"] for line in lines} == {3 * 64 * (4 + 1)}
    assert {line["local_steps"] for line in lines} == {3}


def test_a_learned_share_stays_between_zero_and_one():
    state, _ = fit(
        apfl(
            models.linear(),
            alpha=0.3,
            alpha_step=1e3,
            client_optimizer=optax.sgd(STEP),
            batch_size=None,
        ),
        4,
    )
    shares = np.asarray(state.nodes.state.alpha)
    assert np.all((shares == 0) | (shares == 1))


def test_a_new_client_trains_its_own_part_with_the_common_one_held():
    design, y = next(iter(designs()))
    rows = Rows(design[:, :3], y)
    common = np.array([0.5, -1.0, 0.2, 0.3])
    method = apfl(
        models.linear(),
        client_optimizer=optax.sgd(STEP),
        batch_size=None,
        alpha=0.4,
        alpha_step=0.1,
        adapt_epochs=7,
    )
    down = Linear(jnp.asarray(common[:3]), jnp.asarray(common[3]))
    found = method.adapt(jax.random.key(0), down, whole(rows))
    mine = common.copy()
    for _ in range(7):
        mine = mine - STEP * 0.4 * gradient(design, y, 0.4 * mine + 0.6 * common)
    np.testing.assert_allclose(coefficients(found.parameters), mine, rtol=1e-10)
    assert found.alpha == 0.4
    nothing = Shard(jax.tree.map(jnp.asarray, rows), jnp.int32(0), jnp.int32(0), 12)
    np.testing.assert_array_equal(
        coefficients(method.adapt(jax.random.key(0), down, nothing).parameters), common
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"alpha": 1.5},
            "alpha is the share of the personal model and must be in .0, 1., got 1.5",
        ),
        ({"alpha_step": 0.0}, "alpha_step must be above 0 and finite, got 0"),
        ({"alpha": np.nan}, r"must be in \[0, 1\], got nan"),
        ({"alpha_step": np.nan}, "alpha_step must be above 0 and finite, got nan"),
        ({"adapt_epochs": 0}, "apfl: adapt_epochs must be at least 1, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        apfl(models.linear(), **options)
