"""FedRep and FedPer against plain NumPy on y = z'phi'x, and where they must be FedAvg or local
training.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import linear_gaussian

from covey import models
from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedper import fedper
from covey.algorithms.fedrep import Pair, fedrep
from covey.algorithms.local import local
from covey.core.shard import Rows, Shard, whole
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation

HEAD_STEP, BODY_STEP = 0.2, 0.05


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class Problem:
    """Noiseless clients of unequal sizes, and a start in which nothing is zero."""

    def __init__(self, sizes, features, effects, seed=0):
        rng = np.random.default_rng(seed)
        self.truth = np.linalg.qr(rng.normal(size=(features, effects)))[0]
        self.clients = []
        for rows in sizes:
            x = rng.normal(size=(rows, features)) @ (
                np.eye(features) + 0.2 * rng.normal(size=(features, features))
            )
            x = x.astype(np.float32).astype(float)  # how rows are stored
            self.clients.append((x, x @ self.truth @ rng.normal(size=effects)))
        self.clients = [(x, y.astype(np.float32).astype(float)) for x, y in self.clients]
        self.data = FederatedData.from_clients(
            {f"site{index}": rows for index, rows in enumerate(self.clients)}
        )
        self.model = models.linear_map(effects=effects)
        self.phi = np.linalg.qr(self.truth + 0.5 * rng.normal(size=self.truth.shape))[0]
        self.head = rng.normal(size=effects)

    def run(self, method, rounds):
        engine = Simulation(method, self.data, seed=0)
        state = engine.start()
        shared = state.server.shared._replace(parameters=jnp.asarray(self.phi))
        state = state._replace(
            server=state.server._replace(shared=shared, head=jnp.asarray(self.head))
        )
        return engine.advance(state, rounds)


def gradients(x, y, phi, z):
    """Gradients by phi and z of the mean squared error, halved."""
    residual = x @ phi @ z - y
    return np.outer(x.T @ residual, z) / len(y), phi.T @ x.T @ residual / len(y)


def fedrep_by_hand(x, y, phi, z, head_steps, body_steps):
    for _ in range(head_steps):
        z = z - HEAD_STEP * gradients(x, y, phi, z)[1]
    for _ in range(body_steps):
        phi = phi - BODY_STEP * gradients(x, y, phi, z)[0]
    return phi, z


def fedper_by_hand(x, y, phi, z, steps):
    for _ in range(steps):
        by_phi, by_z = gradients(x, y, phi, z)
        phi, z = phi - BODY_STEP * by_phi, z - BODY_STEP * by_z
    return phi, z


def rounds_by_hand(problem, client, rounds, weights):
    phi, heads = problem.phi, [problem.head] * len(problem.clients)
    for _ in range(rounds):
        ends = [client(x, y, phi, z) for (x, y), z in zip(problem.clients, heads, strict=True)]
        phi = np.average([end[0] for end in ends], axis=0, weights=weights)
        heads = [end[1] for end in ends]
    return phi, np.array(heads)


SIZES = (6, 15, 9)


@pytest.mark.parametrize(
    ("name", "weighting"),
    [
        ("fedrep", "rows"),
        pytest.param("fedper", "equal", marks=pytest.mark.slow),
        pytest.param("fedrep", "equal", marks=pytest.mark.slow),
        pytest.param("fedper", "rows", marks=pytest.mark.slow),
    ],
)
def test_rounds_are_those_of_the_paper(name, weighting):
    problem = Problem(SIZES, features=4, effects=2)
    weights = np.array(SIZES) if weighting == "rows" else None
    if name == "fedrep":
        optimizers = {
            "head_optimizer": optax.sgd(HEAD_STEP),
            "body_optimizer": optax.sgd(BODY_STEP),
        }
        method = fedrep(
            problem.model,
            batch_size=None,
            head_epochs=3,
            body_steps=2,
            weighting=weighting,
            **optimizers,
        )
        expected = rounds_by_hand(problem, lambda *at: fedrep_by_hand(*at, 3, 2), 4, weights)
    else:
        method = fedper(
            problem.model,
            client_optimizer=optax.sgd(BODY_STEP),
            batch_size=None,
            epochs=5,
            weighting=weighting,
        )
        expected = rounds_by_hand(problem, lambda *at: fedper_by_hand(*at, 5), 4, weights)
    state, lines = problem.run(method, 4)
    np.testing.assert_allclose(state.server.shared.parameters, expected[0], rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(state.nodes.state.head, expected[1], rtol=1e-9, atol=1e-11)
    np.testing.assert_array_equal(state.server.head, problem.head)
    # Clients send phi and a weight, never a head.
    assert {line["bits_up"] for line in lines} == {3 * 64 * (4 * 2 + 1)}
    assert {line["local_steps"] for line in lines} == {5}


def distance(phi, truth):
    """The sine of the largest principal angle between the spans."""
    basis = np.linalg.qr(phi)[0]
    return np.linalg.norm(truth - basis @ (basis.T @ truth), 2)


@pytest.mark.slow
def test_fedrep_finds_the_representation():
    """60 clients with 6 rows and 8 features: no client could regress alone, and no single vector
    fits them all.
    """
    problem = Problem([6] * 60, features=8, effects=2, seed=1)
    method = fedrep(
        problem.model,
        head_optimizer=optax.sgd(0.3),
        body_optimizer=optax.sgd(0.5),
        batch_size=None,
        head_steps=40,
    )
    state, _ = problem.run(method, 150)
    assert distance(problem.phi, problem.truth) > 0.6
    assert distance(np.asarray(state.server.shared.parameters), problem.truth) < 1e-5
    residuals = [
        x @ state.server.shared.parameters @ z - y
        for (x, y), z in zip(problem.clients, state.nodes.state.head, strict=True)
    ]
    assert np.sqrt(np.mean(np.concatenate(residuals) ** 2)) < 1e-5


LINEAR = linear_gaussian(sizes=(20, 40, 30))
MINIBATCH = {"client_optimizer": optax.sgd(0.05), "batch_size": 8, "epochs": 2}


def fit(method, data, rounds=3):
    engine = Simulation(method, data, seed=4)
    return engine.advance(engine.start(), rounds)[0]


@pytest.mark.slow
def test_fedper_with_one_client_is_fedavg():
    one = LINEAR.data.subset(np.array([1]))
    cut = fit(fedper(models.split_network(models.linear(), personal="bias"), **MINIBATCH), one)
    plain = fit(fedavg(models.linear(), **MINIBATCH), one).server.parameters
    np.testing.assert_allclose(cut.server.shared.parameters.weight, plain.weight, rtol=1e-12)
    np.testing.assert_allclose(cut.nodes.state.head[0], [plain.bias], rtol=1e-12)
    assert np.all(plain.weight != 0)


@pytest.mark.slow
def test_with_nothing_personal_they_are_fedavg():
    server = optax.adam(0.1)
    model = models.split_network(models.linear(), personal=())
    plain = fit(
        fedavg(models.linear(), server_optimizer=server, **MINIBATCH), LINEAR.data
    ).server.parameters
    joint = fit(
        fedper(model, server_optimizer=server, **MINIBATCH), LINEAR.data
    ).server.shared.parameters
    np.testing.assert_array_equal(joint.weight, plain.weight)
    np.testing.assert_array_equal(joint.bias, plain.bias)
    # FedRep draws its minibatches by another key, so all rows at once.
    full = {"server_optimizer": server, "batch_size": None, "weighting": "rows"}
    plain = fit(
        fedavg(models.linear(), client_optimizer=optax.sgd(0.05), steps=3, **full), LINEAR.data
    ).server.parameters
    method = fedrep(model, body_optimizer=optax.sgd(0.05), body_steps=3, head_epochs=1, **full)
    turns = fit(method, LINEAR.data).server.shared.parameters
    np.testing.assert_allclose(turns.weight, plain.weight, rtol=1e-12)
    np.testing.assert_allclose(turns.bias, plain.bias, rtol=1e-12)


@pytest.mark.slow
def test_with_nothing_shared_fedper_is_local_training():
    together = fit(
        fedper(models.split_network(models.linear(), personal="all"), **MINIBATCH), LINEAR.data
    )
    alone = fit(local(models.linear(), **MINIBATCH), LINEAR.data).nodes.state.parameters
    assert not jax.tree.leaves(together.server.shared.parameters)
    np.testing.assert_allclose(
        together.nodes.state.head, np.column_stack([alone.weight, alone.bias]), rtol=1e-12
    )


@pytest.mark.parametrize("make", [fedrep, fedper])
def test_a_new_client_trains_its_head_alone(make):
    problem = Problem([12], features=4, effects=2, seed=3)
    (x, y), down = problem.clients[0], Pair(jnp.asarray(problem.phi), jnp.asarray(problem.head))
    name = "head_optimizer" if make is fedrep else "client_optimizer"
    method = make(problem.model, batch_size=None, adapt_epochs=7, **{name: optax.sgd(HEAD_STEP)})
    rows = Rows(x, y)
    found = method.adapt(jax.random.key(0), down, whole(rows)).head
    np.testing.assert_allclose(
        found, fedrep_by_hand(x, y, problem.phi, problem.head, 7, 0)[1], rtol=1e-10
    )
    nothing = Shard(jax.tree.map(jnp.asarray, rows), jnp.int32(0), jnp.int32(0), 12)
    np.testing.assert_array_equal(method.adapt(jax.random.key(0), down, nothing).head, problem.head)
    # Without rows a round changes neither part, and weighs nothing where rows are the weight.
    local_ = method.client(
        jax.random.key(0), down, method.init_client(jax.random.key(1), down, nothing), nothing
    )
    assert np.all(local_.up == 0)
    np.testing.assert_array_equal(local_.pending.head, problem.head)
    assert local_.weight == (make is fedrep)


def test_body_and_head_start_as_one_network():
    spec = LINEAR.data.spec
    start = fedrep(models.mixed_mlp(hidden=(3,), outcome="number")).init(jax.random.key(2), spec)
    network = models.mlp(hidden=(3,), outcome="number").init(jax.random.key(2), spec)
    same = models.join(start.shared.parameters, start.head)
    jax.tree.map(np.testing.assert_array_equal, same, network)


@pytest.mark.parametrize("make", [fedrep, fedper])
def test_a_prior_is_not_dropped_in_silence(make):
    model = models.linear_map(effects=2)._replace(log_prior=lambda phi: -jnp.sum(phi**2))
    with pytest.raises(ValueError, match="cannot use the prior of linear_map; use fedpop"):
        make(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_epochs": 0}, "fedrep: head_epochs must be at least 1, got 0"),
        ({"body_steps": 0}, "fedrep: body_steps must be at least 1, got 0"),
        ({"adapt_epochs": 0}, "fedrep: adapt_epochs must be at least 1, got 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        fedrep(models.linear_map(effects=2), **options)
