"""L2GD against the paper's recursion in plain NumPy, and where it is local training."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from least_squares import DATA, STEP, coefficients, designs, fit, gradient, hessians

from covey import models
from covey.algorithms.l2gd import l2gd, runs_of_coin
from covey.algorithms.local import local
from covey.core.keys import Stream, key_for, root_key
from covey.core.shard import Rows, whole
from covey.engines.simulate import Simulation
from covey.models import Linear

SEED, CHANCE, LAM = 4, 0.3, 0.8


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def coins(rounds):
    """Pulls and local steps of each round: the first by the key of the start, then by the
    server's.
    """
    root = root_key(SEED)
    keys = [jax.random.fold_in(key_for(root, Stream.INIT, 0), 1)]
    keys += [key_for(root, Stream.SERVER, t) for t in range(rounds - 1)]
    return [tuple(int(count) for count in runs_of_coin(key, CHANCE)) for key in keys]


def test_rounds_are_iterations_of_the_paper():
    """b = 3 clients, alpha = STEP b (1 - p): a local step alpha / (b (1 - p)) grad f_i, a pull
    alpha lambda / (b p) (x_i - mean). The mean is taken in every iteration.
    """
    rounds, b = 5, 3
    alpha = STEP * b * (1 - CHANCE)
    x, sent = np.zeros((b, 4)), 0
    for pulls, steps in coins(rounds):
        for _ in range(pulls):
            x = x - alpha * LAM / (b * CHANCE) * (x - x.mean(0))
        for _ in range(steps):
            grads = [gradient(*rows, own) for rows, own in zip(designs(), x, strict=True)]
            x = x - alpha / (b * (1 - CHANCE)) * np.array(grads)
        sent += 1
    method = l2gd(models.linear(), proximal=LAM, chance=CHANCE, step_size=STEP)
    state, lines = fit(method, rounds, seed=SEED)
    np.testing.assert_allclose(coefficients(state.nodes.state.parameters), x, rtol=1e-9)
    np.testing.assert_allclose(coefficients(state.server.mean), x.mean(0), rtol=1e-9)
    # One message per round, however many iterations it stands for.
    assert sent == len(lines)
    assert {line["bits_up"] for line in lines} == {3 * 64 * 4}
    assert [line["local_steps"] for line in lines] == [steps for _, steps in coins(rounds)]
    assert max(steps for _, steps in coins(rounds)) > 1


def test_without_a_penalty_it_is_local_training():
    steps = sum(steps for _, steps in coins(4))
    state, _ = fit(l2gd(models.linear(), proximal=0, chance=CHANCE, step_size=STEP), 4, seed=SEED)
    alone = local(models.linear(), client_optimizer=optax.sgd(STEP), batch_size=None, steps=steps)
    other, _ = fit(alone, 1, seed=SEED)
    np.testing.assert_allclose(
        coefficients(state.nodes.state.parameters),
        coefficients(other.nodes.state.parameters),
        rtol=1e-9,
    )


@pytest.mark.slow
def test_a_small_step_ends_near_the_minimum_of_the_objective():
    """Minimised jointly over all x_i: F_i's gradient plus lambda (x_i - mean) is zero."""
    b, eye = 3, np.eye(4)
    blocks = np.zeros((b * 4, b * 4))
    moments = np.concatenate([design.T @ y / len(y) for design, y in designs()])
    for i, hessian in enumerate(hessians()):
        for j in range(b):
            block = LAM * eye * ((i == j) - 1 / b) + (hessian if i == j else 0)
            blocks[4 * i : 4 * i + 4, 4 * j : 4 * j + 4] = block
    best = np.linalg.solve(blocks, moments).reshape(b, 4)
    method = l2gd(models.linear(), proximal=LAM, chance=0.5, step_size=0.004)
    engine = Simulation(method, DATA, seed=0)
    state, _ = engine.advance(engine.start(), 2000)
    found = []
    for _ in range(20):
        state, _ = engine.advance(state, 50)
        found.append(coefficients(state.nodes.state.parameters))
    np.testing.assert_allclose(np.mean(found, axis=0), best, atol=0.01)


def test_the_coin_is_tossed_fairly():
    keys = jax.random.split(jax.random.key(0), 4000)
    pulls, steps = (np.asarray(c) for c in jax.vmap(lambda key: runs_of_coin(key, CHANCE))(keys))
    for counts, p in ((pulls, 1 - CHANCE), (steps, CHANCE)):
        assert counts.min() == 1
        deviation = np.sqrt(1 - p) / p
        assert abs(counts.mean() - 1 / p) < 4 * deviation / np.sqrt(len(counts))


def test_an_unseen_client_trains_near_the_mean():
    shared = np.array([0.5, -1.0, 0.2, 0.3])
    design, y = next(iter(designs()))
    method = l2gd(models.linear(), proximal=LAM, chance=0.5, adapt_epochs=2000)
    start = Linear(jnp.zeros(3), jnp.zeros(()))
    down = method.init(jax.random.key(0), DATA.spec)._replace(
        mean=start._replace(weight=jnp.asarray(shared[:3]), bias=jnp.asarray(shared[3]))
    )
    found = method.adapt(jax.random.key(0), down, whole(Rows(design[:, :3], y)))
    best = np.linalg.solve(hessians()[0] + LAM * np.eye(4), design.T @ y / len(y) + LAM * shared)
    np.testing.assert_allclose(coefficients(found.parameters), best, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proximal": -0.1}, "proximal must be at least 0 and finite, got -0.1"),
        ({"proximal": 1.0, "chance": 0.0}, "chance must be above 0 and below 1, got 0"),
        ({"proximal": 1.0, "chance": 1.0}, "chance must be above 0 and below 1, got 1"),
        ({"proximal": 5.0, "chance": 0.2}, "a pull goes 2 times .* choose step_size up to 0.05"),
        ({"proximal": 1.0, "step_size": 0}, "step_size must be above 0 and finite, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        l2gd(models.linear(), **options)
