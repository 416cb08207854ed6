"""Clustered federated learning against FedAvg, the paper's own division of all pairs, and the least
squares of each group alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import linear_gaussian
from scipy.cluster.hierarchy import fcluster, linkage

from covey import models
from covey.algorithms.clustered import clustered
from covey.algorithms.fedavg import fedavg
from covey.core.shard import Shard
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation

GROUPS, DIMENSION = 3, 4
STEPS = {"client_optimizer": optax.sgd(0.1), "batch_size": None}
TRUTH = np.random.default_rng(5).normal(size=(GROUPS, DIMENSION))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def grouped(groups: int, rows: int = 60) -> FederatedData:
    """Nine clients, each of the linear model of its group, with few rows and with many."""
    rng = np.random.default_rng(1)
    clients = {}
    for client in range(9):
        x = rng.normal(size=(rows + 10 * client, DIMENSION)).astype(np.float32)
        y = x @ TRUTH[client % groups] + 0.1 * rng.normal(size=len(x))
        clients[f"client{client}"] = (x, y.astype(np.float32))
    return FederatedData.from_clients(clients)


def fit(method, data, rounds):
    engine = Simulation(method, data, seed=4)
    return engine.advance(engine.start(), rounds)


def clusters_of(method, state, data):
    down, adapt = method.broadcast(state.server), jax.jit(method.adapt)
    rows, most = jax.tree.map(jnp.asarray, data.rows), int(data.counts("train").max())
    shards = [
        Shard(rows, jnp.int32(s), jnp.int32(n), most)
        for s, n in zip(data.starts("train"), data.counts("train"), strict=True)
    ]
    return np.array([int(adapt(jax.random.key(0), down, shard).cluster) for shard in shards])


@pytest.mark.slow
def test_one_cluster_is_fedavg():
    data = linear_gaussian(sizes=(20, 40, 30)).data
    options = {"client_optimizer": optax.sgd(0.05), "batch_size": 8, "epochs": 2}
    one, lines = fit(clustered(models.linear(), clusters=1, **options), data, 5)
    plain, plain_lines = fit(fedavg(models.linear(), **options), data, 5)
    np.testing.assert_allclose(
        one.server.down.parameters.weight[0], plain.server.parameters.weight, rtol=1e-12
    )
    losses = [[line["train_loss"] for line in some] for some in (lines, plain_lines)]
    np.testing.assert_allclose(*losses, rtol=1e-12)


def first_upload(method, key, spec, own):
    return method.client(key, method.broadcast(method.init(key, spec)), (), own)


def test_the_upload_is_the_change_and_its_weight_travels_beside_it():
    """So that a channel compresses or clips the change itself, as it does for FedAvg."""
    data = linear_gaussian(sizes=(20, 40, 30)).data
    own, key = data.shard(1, "train"), jax.random.key(0)
    expected, found = (
        jax.jit(lambda key, method=method: first_upload(method, key, data.spec, own))(key)
        for method in (
            fedavg(models.linear(), **STEPS),
            clustered(models.linear(), clusters=1, **STEPS),
        )
    )
    np.testing.assert_allclose(found.up.delta.weight[0], expected.up.weight, rtol=1e-12)
    assert found.weight == expected.weight == 40


def test_groups_are_found_as_the_paper_divides_them_and_each_has_the_model_of_its_rows():
    """FedAvg with a step of all rows in each round ends at the least squares of a group's rows."""
    data = grouped(GROUPS)
    old, new = data.subset(np.arange(8)), 8
    method = clustered(models.linear(), clusters=GROUPS, **STEPS)
    state, lines = fit(method, old, 300)
    assert [lines[0]["clusters"], lines[-1]["clusters"]] == [1, GROUPS]
    found = clusters_of(method, state, data)
    assert len(set(found)) == GROUPS
    for group in range(GROUPS):
        members = np.arange(group, 9, GROUPS)
        assert len(set(found[members])) == 1
        x, y = (
            np.concatenate(leaves)
            for leaves in zip(
                *(data.rows_of(int(i), "train") for i in members if i < new), strict=True
            )
        )
        alone = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)[0]
        np.testing.assert_allclose(
            state.server.down.parameters.weight[found[group]], alone[:-1], atol=1e-6
        )
    # The paper's first division: the smallest largest cosine across, which is complete linkage.
    unit, along = directions(state.server.down, old)
    leading = np.linalg.eigh(unit.T @ unit)[1][:, -1]
    assert abs(leading @ along) > 0.95  # power iteration follows a model that still moves a little
    two = fcluster(linkage((1 - unit @ unit.T)[np.triu_indices(8, 1)], "complete"), 2, "maxclust")
    assert len(set(zip(two, unit @ along > 0, strict=True))) == 2


def directions(down, data):
    """The clients' unit gradients at the first division, in plain NumPy, and what divided them."""
    at, along = (
        jax.tree.map(lambda leaf: np.asarray(leaf[0]), tree) for tree in (down.at, down.along)
    )
    gradients = []
    for index in range(data.clients):
        x, y = data.rows_of(index, "train")
        error = x @ at.weight + at.bias - y
        gradients.append(np.append(x.T @ error, error.sum()) / len(x))
    lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
    return np.array(gradients) / lengths, np.append(along.weight, along.bias)


@pytest.mark.slow
def test_alike_clients_stay_together():
    state, lines = fit(clustered(models.linear(), **STEPS), grouped(1), 100)
    assert lines[-1]["clusters"] == 1
    assert np.all(np.asarray(state.server.down.divided) == -1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 0}, "clusters must be at least 1, got 0"),
        ({"tolerance": 0}, "tolerance must be above 0 and finite, got 0"),
        ({"apart": -1}, "apart must be at least 0 and finite, got -1"),
        ({"coherence": 1.0}, r"must be in \[0, 1\), got 1"),
        ({"coherence": np.nan}, r"must be in \[0, 1\), got nan"),
        ({"tolerance": np.nan}, "tolerance must be above 0 and finite, got nan"),
        ({"patience": 0}, "patience must be at least 1, got 0"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        clustered(models.linear(), **options)
