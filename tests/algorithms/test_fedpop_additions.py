"""What FedPop has beyond its paper: annealing, and a pass over the rows for phi."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from covey import models
from covey.algorithms.fedpop import fedpop
from covey.algorithms.fedpop_sampler import Personal
from covey.core.algorithm import Aggregate, Empty, Plan
from covey.core.cohort import full
from covey.core.shard import Rows, whole
from covey.kernels import ornstein_uhlenbeck
from fedpop_problem import CLIENT, NOISE, SLOPES, SPEC, THETA, broadcast, method

OU = {"kernel": ornstein_uhlenbeck()}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def down():
    return broadcast()


def test_annealing_is_more_noise(down):
    """T multiplies the variance of Gaussian noise: the same draws, and the same gradients."""
    fed = method(draws=3, burn_in=2, anneal=(16.0, 4))
    state = fed.init(jax.random.key(0), SPEC)
    found = [
        float(fed.broadcast(state._replace(round=jnp.int32(number))).temperature)
        for number in range(6)
    ]
    np.testing.assert_allclose(found, [16, 8, 4, 2, 1, 1])
    data, noisier = whole(CLIENT.rows), method(scale=2 * NOISE, draws=3, burn_in=2)
    start = Personal(jnp.zeros((3, 2)), Empty())

    @jax.jit
    def both(key):
        return fed.client(
            key, down._replace(temperature=jnp.asarray(4.0)), start, data
        ), noisier.client(key, down, start, data)

    warm, plain = both(jax.random.key(1))
    for one, other in zip(jax.tree.leaves(warm[:2]), jax.tree.leaves(plain[:2]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.mark.slow
def test_the_posterior_is_not_annealed():
    """Long before the end of annealing; the deviation of the draws was the tempered one."""
    fed, data = method(step_size=3.0, draws=2000, anneal=(100.0, 1000), **OU), whole(CLIENT.rows)
    state = fed.init(jax.random.key(0), SPEC)._replace(theta=broadcast().theta, round=jnp.int32(9))
    down = fed.publish(state)

    @jax.jit
    def drawn(sent):
        personal = fed.adapt(jax.random.key(1), sent, data)
        return personal, fed.refresh(jax.random.key(2), sent, personal, data)

    for sent in (down, fed.broadcast(state)):
        personal, refreshed = drawn(sent)
        for draws in (personal.draws, refreshed.draws):
            np.testing.assert_allclose(
                np.std(draws, 0), np.sqrt(np.diag(CLIENT.covariance)), rtol=4 / np.sqrt(2 * 2000)
            )


def test_annealing_that_a_run_does_not_finish():
    fed, counts = method(anneal=(10.0, 4)), np.array([3, 4])
    plan = Plan(counts, full()(counts), rounds=2)
    with pytest.warns(UserWarning, match=r"annealing takes 4 rounds and the run has 2.* 3\.16 "):
        fed.hooks.validate(plan)
    fed.hooks.validate(plan._replace(rounds=4))
    fed.hooks.validate(plan._replace(rounds=None))


def learned(rounds, data, **options):
    """theta after some rounds, half of the clients in each; with the same draws of effects,
    whatever else a client draws.
    """
    fed = method(draws=5, kernel=ornstein_uhlenbeck(), step_size=3.0, **options)
    state = fed.init(jax.random.key(0), SPEC)

    @jax.jit
    def upload(key, down, data):
        return fed.client(key, down, fed.init_client(key, down, data), data).up

    @jax.jit
    def server(key, state, plain):
        weighted = jax.tree.map(lambda leaf: 2 * leaf, plain)
        count = jnp.asarray(len(data))
        return fed.server(key, state, Aggregate(weighted, plain, 2.0 * count, count))[0]

    for number in range(rounds):
        key = jax.random.fold_in(jax.random.key(1), number)
        key = key if "phi_rate" in options else jax.random.split(key)[0]
        down = fed.broadcast(state)
        plain = jax.tree.map(lambda *leaves: sum(leaves), *(upload(key, down, one) for one in data))
        state = server(key, state, plain)
    return state.theta


@pytest.mark.slow
def test_phi_that_moves_in_one_step_at_the_client_is_phi_that_moves_at_the_server():
    """All rows in one minibatch: the same as the gradient, and the priors of phi count as much."""
    data = [whole(CLIENT.rows), whole(Rows(CLIENT.rows.x[:5] + 1, CLIENT.rows.y[:5]))]
    rate = 0.01
    moved = learned(10, data, phi_rate=rate, batch_size=None, phi_prior=0.5)
    at_server = learned(10, data, phi_optimizer=optax.sgd(rate / 4), phi_prior=0.5)
    for one, other in zip(jax.tree.leaves(moved), jax.tree.leaves(at_server), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    unlike = learned(10, data, phi_rate=rate, batch_size=None)
    assert np.max(np.abs(unlike.phi.weight - moved.phi.weight)) > 1e-3


def test_phi_moves_along_a_pass_over_the_rows(down):
    """Rows that are all alike: any order is the same, and the steps can be written out."""
    rows, rate, size = 7, 0.03, 3
    x, y = np.tile([0.4, -1.2], (rows, 1)), np.full(rows, 2.0)
    key = jax.random.key(5)
    fed = method(draws=4, phi_rate=rate, batch_size=size)
    data = whole(Rows(x, y))
    local = jax.jit(lambda: fed.client(key, down, fed.init_client(key, down, data), data))()
    effect = np.mean(np.asarray(local.pending.draws) @ [1.0, x[0, SLOPES[0]]])
    weight, bias = THETA.phi
    for number in (3, 3, 1):
        pull = rate * number * (y[0] - x[0] @ weight - bias - effect) / NOISE**2
        weight, bias = weight + pull * x[0], bias + pull
    np.testing.assert_allclose(local.up.phi.weight, (weight - THETA.phi.weight) / rate, rtol=1e-9)
    np.testing.assert_allclose(local.up.phi.bias, (bias - THETA.phi.bias) / rate, rtol=1e-9)
    assert local.info.local_steps == 4 + 3


def test_a_client_without_rows_leaves_phi_where_it_is(down):
    key, empty = jax.random.key(5), replace(whole(CLIENT.rows), count=jnp.int32(0))
    fed = method(draws=4, phi_rate=0.1)
    up = jax.jit(lambda: fed.client(key, down, fed.init_client(key, down, empty), empty).up)()
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(up.phi))


def test_a_law_inside_phi_has_no_rows_to_pass_over():
    model = models.mixed_linear(slopes=SLOPES)._replace(law=models.gaussian())
    with pytest.raises(
        ValueError,
        match=r"phi of mixed_linear has the law of its effects in it.*leave phi_rate= out",
    ):
        fedpop(model, step_size=0.1, phi_rate=0.1)
