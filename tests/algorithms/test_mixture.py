"""FedEM for mixtures against plain NumPy, in the limits where it is something else, and on data
whose components are known.
"""

from functools import partial
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats
from problems import SIZES, linear_gaussian, logistic_rows

from covey import models
from covey.algorithms import mixture as module
from covey.algorithms.fedavg import fedavg
from covey.algorithms.mixture import Personal, each_component, first_components, mixture
from covey.core import metrics
from covey.core.shard import Batch, Rows, Shard, whole
from covey.data.federated import FederatedData
from covey.datasets.synthetic import mixture_of_linear
from covey.engines.simulate import Simulation
from covey.models import Linear

LABELS = FederatedData.from_clients(logistic_rows(), classes=2)
NUMBERS = linear_gaussian().data
KEY = jax.random.key(0)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def fit(method, data, rounds):
    engine = Simulation(method, data, seed=4)
    return engine.advance(engine.start(), rounds)


def coefficients(tree):
    return np.concatenate([np.asarray(tree.weight), np.asarray(tree.bias)[..., None]], axis=-1)


def designs(data):
    for index in range(data.clients):
        x, y = data.rows_of(index, "train")
        yield np.column_stack([x, np.ones(len(y))]).astype(float), np.asarray(y, float)


@pytest.mark.slow
@pytest.mark.parametrize("model", [models.logistic(), models.mlp(hidden=(4,))])
def test_one_component_is_fedavg(model):
    options = {
        "client_optimizer": optax.sgd(0.1, momentum=0.9),
        "server_optimizer": optax.adam(0.05),
        "batch_size": 8,
        "epochs": 2,
    }
    state, lines = fit(mixture(model, components=1, **options), LABELS, 5)
    plain, plain_lines = fit(fedavg(model, **options), LABELS, 5)
    for one, other in zip(
        jax.tree.leaves(state.server.parameters),
        jax.tree.leaves(plain.server.parameters),
        strict=True,
    ):
        np.testing.assert_allclose(one[0], other, rtol=1e-6, atol=1e-6)
    losses = [[line["train_loss"] for line in some] for some in (lines, plain_lines)]
    np.testing.assert_allclose(*losses, rtol=1e-6)
    np.testing.assert_array_equal(state.nodes.state.weights, np.ones((5, 1)))


def by_hand(start, rounds, steps, step_size, weighting):
    """Equations (8) to (10) of the paper for linear regression with noise of deviation 1, all rows
    at each step.
    """
    theta, pi = start.copy(), np.full((NUMBERS.clients, len(start)), 1 / len(start))
    counts = NUMBERS.counts("train")
    for _ in range(rounds):
        ends, losses = [], []
        for index, (design, y) in enumerate(designs(NUMBERS)):
            residual = y[:, None] - design @ theta.T
            q = scipy.special.softmax(np.log(pi[index]) + scipy.stats.norm.logpdf(residual), axis=1)
            pi[index] = q.mean(0)
            own, on_the_way = theta.copy(), []
            for _ in range(steps):
                residual = design @ own.T - y[:, None]
                on_the_way.append(-np.sum(q * scipy.stats.norm.logpdf(residual)) / len(y))
                own = own - step_size * (q * residual).T @ design / len(y)
            ends.append(own)
            losses.append(np.mean(on_the_way))
        theta = np.average(ends, axis=0, weights=counts if weighting == "rows" else None)
    return theta, pi, np.mean(losses)


@pytest.mark.parametrize("weighting", ["rows", pytest.param("equal", marks=pytest.mark.slow)])
def test_rounds_are_those_of_the_paper(float64, weighting):
    options = {
        "client_optimizer": optax.sgd(0.05),
        "batch_size": None,
        "steps": 3,
        "weighting": weighting,
    }
    method = mixture(models.linear(), components=3, **options)
    engine = Simulation(method, NUMBERS, seed=4)
    start = engine.start()
    state, lines = engine.advance(start, 4)
    theta, pi, loss = by_hand(coefficients(start.server.parameters), 4, 3, 0.05, weighting)
    np.testing.assert_allclose(coefficients(state.server.parameters), theta, rtol=1e-9)
    np.testing.assert_allclose(state.nodes.state.weights, pi, rtol=1e-9)
    assert lines[-1]["train_loss"] == pytest.approx(loss)
    # Clients send their components and a weight; pi stays.
    assert {line["bits_up"] for line in lines} == {5 * 64 * (3 * 4 + 1)}
    users = (pi * NUMBERS.counts("train")[:, None] >= 1).mean(0)
    np.testing.assert_allclose([lines[-1][f"users_{m}"] for m in range(3)], users)


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [(0,), pytest.param((0, 1), marks=pytest.mark.slow)])
def test_weights_of_zero_and_one_are_clusters(clusters):
    """Each cluster then runs FedAvg on its own; as others' rows count in the average, its step is
    its share of the rows.
    """
    member = np.array([0, 1, 1, 0, 1])
    options = {"client_optimizer": optax.sgd(0.1), "batch_size": 8, "epochs": 2}
    method = mixture(models.logistic(), components=3, **options)
    engine = Simulation(method, LABELS, seed=4)
    start = engine.start()
    certain = start.nodes._replace(state=Personal(jnp.eye(3)[member]))
    start = start._replace(nodes=certain, seen=jnp.ones(5, bool))
    state, lines = engine.advance(start, 5)
    np.testing.assert_array_equal(state.nodes.state.weights, np.eye(3)[member])
    components, first = coefficients(state.server.parameters), start.server.parameters
    for cluster in clusters:
        some = LABELS.subset(np.flatnonzero(member == cluster))
        share = some.counts("train").sum() / sum(SIZES)
        alone = Simulation(
            fedavg(models.logistic(), server_optimizer=optax.sgd(share), **options), some, seed=4
        )
        at = alone.start()
        at = at._replace(
            server=at.server._replace(
                parameters=jax.tree.map(lambda leaf, c=cluster: leaf[c], first)
            )
        )
        at, _ = alone.advance(at, 5)
        np.testing.assert_allclose(
            components[cluster], coefficients(at.server.parameters), rtol=1e-4, atol=1e-6
        )
    # The third is nobody's: it stays where it was, and every line says so.
    np.testing.assert_array_equal(components[2], coefficients(first)[2])
    assert [lines[-1][f"users_{m}"] for m in range(3)] == pytest.approx([0.4, 0.6, 0.0])
    # Evaluations give each client's weights, and over all rows.
    found = metrics.values(engine.evaluate(state, "train"))
    np.testing.assert_array_equal(
        np.stack([found[f"weight_{m}"] for m in range(3)], 1), np.eye(3)[member]
    )
    pooled = metrics.values(metrics.merge(engine.evaluate(state, "train")))
    assert pooled["weight_1"] == pytest.approx((40 + 12 + 25) / sum(SIZES))


@pytest.mark.slow
def test_the_likelihood_never_falls(float64):
    """One step of all rows, shorter than the inverse of the curvature, lowers EM's bound, and so
    (6).
    """
    curvature = (
        max(np.linalg.eigvalsh(design.T @ design / len(y)).max() for design, y in designs(LABELS))
        / 4
    )
    method = mixture(
        models.logistic(), components=3, client_optimizer=optax.sgd(1 / curvature), batch_size=None
    )
    engine = Simulation(method, LABELS, seed=1)
    state, values = engine.start(), []
    for _ in range(40):
        state, _ = engine.advance(state, 1)
        values.append(float(metrics.values(metrics.merge(engine.evaluate(state, "train")))["nll"]))
    assert np.all(np.diff(values) < 1e-12)
    assert values[-1] < values[0] - 0.1


@pytest.mark.slow
def test_components_and_weights_are_found():
    data, truth = mixture_of_linear(1, 60, 10, 3, alpha=0.4, test_rows=0)
    data = data.limited(train_rows=320, seed=0)
    engine = Simulation(
        mixture(models.logistic(), client_optimizer=optax.sgd(3.0), batch_size=64),
        data,
        seed=4,
        chunk=60,
    )
    state, _ = engine.advance(engine.start(), 120)
    found = np.asarray(state.server.parameters.weight, float)
    cosine = (found @ truth.theta.T) / np.outer(
        np.linalg.norm(found, axis=1), np.linalg.norm(truth.theta, axis=1)
    )
    order = max(permutations(range(3)), key=lambda order: cosine[order, range(3)].sum())
    assert np.all(cosine[order, range(3)] > 0.99)
    pi = np.asarray(state.nodes.state.weights)[:, order]
    assert np.abs(pi - truth.pi).mean() < 0.05


def test_predictions_mix_probabilities():
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(3, 4)), rng.normal(size=3)
    x, pi = rng.normal(size=(7, 4)), np.array([0.5, 0.3, 0.2])
    components, own = (
        Linear(jnp.asarray(weight, jnp.float32), jnp.asarray(bias, jnp.float32)),
        Personal(jnp.asarray(pi, jnp.float32)),
    )
    score = x @ weight.T + bias
    labels = mixture(models.logistic(), components=3).predict(
        KEY, components, own, jnp.asarray(x, jnp.float32)
    )
    np.testing.assert_allclose(labels.mean[:, 1], scipy.special.expit(score) @ pi, rtol=1e-5)
    y = rng.normal(size=7)
    numbers = mixture(models.linear(scale=0.5), components=3).predict(
        KEY, components, own, jnp.asarray(x, jnp.float32)
    )
    np.testing.assert_allclose(numbers.mean, score @ pi, rtol=1e-5)
    density = scipy.stats.norm.pdf(y[:, None], score, 0.5) @ pi
    np.testing.assert_allclose(
        numbers.log_prob(jnp.asarray(y, jnp.float32)), np.log(density), rtol=1e-4
    )
    counts = rng.poisson(2.0, size=7)
    rates = mixture(models.poisson(), components=3).predict(
        KEY, components, own, jnp.asarray(x, jnp.float32)
    )
    np.testing.assert_allclose(rates.mean, np.exp(score) @ pi, rtol=1e-5)
    mass = scipy.stats.poisson.pmf(counts[:, None], np.exp(score)) @ pi
    np.testing.assert_allclose(rates.log_prob(jnp.asarray(counts)), np.log(mass), rtol=1e-4)


def test_a_new_client_learns_its_weights_alone():
    rng = np.random.default_rng(3)
    theta = np.array([[2.0, -1.0, 0.5], [-1.0, 0.3, 0.0], [0.2, 2.0, -0.4]])
    x = rng.normal(size=(300, 2))
    score = x @ theta[:, :2].T + theta[:, 2]
    y = score[np.arange(300), rng.choice(3, 300, p=[0.7, 0.3, 0.0])] + rng.normal(size=300)
    data = whole(Rows(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)))
    down = Linear(jnp.asarray(theta[:, :2], jnp.float32), jnp.asarray(theta[:, 2], jnp.float32))
    density = scipy.stats.norm.pdf(y[:, None], score, 1.0)

    def update(pi):
        return np.mean(pi * density / (density @ pi)[:, None], axis=0)

    def adapted(steps, data=data):
        return (
            mixture(models.linear(), components=3, adapt_steps=steps).adapt(KEY, down, data).weights
        )

    pi = np.full(3, 1 / 3)
    np.testing.assert_allclose(adapted(1), update(pi), rtol=1e-4)
    for _ in range(500):
        pi = update(pi)
    np.testing.assert_allclose(adapted(500), pi, atol=1e-4)
    np.testing.assert_allclose(pi, [0.7, 0.3, 0.0], atol=0.1)  # three standard errors of 0.03
    nothing = Shard(data.rows, jnp.int32(0), jnp.int32(0), data.capacity)
    np.testing.assert_allclose(adapted(3, nothing), 1 / 3, rtol=1e-6)


@pytest.mark.slow
def test_components_start_apart():
    def start(model, components, spread=None):
        return first_components(KEY, model, LABELS.spec, components, spread)

    zero, one = models.logistic(), models.mlp(hidden=(4,))
    apart = coefficients(start(zero, 400))
    assert apart.std() == pytest.approx(0.5, rel=0.1)  # four numbers with a length of 1
    assert coefficients(start(zero, 400, 3.0)).std() == pytest.approx(3.0, rel=0.1)
    assert not coefficients(start(zero, 2, 0.0)).any()
    assert not coefficients(start(zero, 1)).any()
    network, noisy = start(one, 2), start(one, 2, 0.1)
    for index, key in enumerate(
        jax.random.split(jax.random.split(KEY)[0], 2)
    ):  # a network's own start, and no noise on it
        np.testing.assert_array_equal(
            network.hidden[0].weight[index], one.init(key, LABELS.spec).hidden[0].weight
        )
    assert np.all(np.asarray(network.hidden[0].weight) != np.asarray(noisy.hidden[0].weight))


def test_large_components_have_the_values_of_small_ones(monkeypatch, float64):
    """One after the other or side by side: the same likelihoods and gradients."""
    calls, plain = [], models.mlp(hidden=(4,))
    model = plain._replace(
        log_likelihood=lambda *given: calls.append(0) or plain.log_likelihood(*given)
    )
    rows = jax.tree.map(jnp.asarray, LABELS.rows_of(0, "train"))
    components = first_components(KEY, model, LABELS.spec, 3, 0.1)
    q = np.random.default_rng(0).dirichlet(np.ones(3), len(rows.y))
    batch = Batch((rows, jnp.asarray(q)), jnp.arange(len(q)) < len(q) - 1)

    def found():
        calls.clear()
        gradients = module.weighted_gradient(model)(components, batch)
        return module.log_likelihoods(model, components, whole(rows)), gradients

    small, traced = found(), len(calls)
    monkeypatch.setattr(module, "_LARGE", 0)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12), found(), small)
    assert len(calls) == 3 * traced


def test_an_optimiser_sees_each_component_alone():
    gradients = {"a": jnp.array([[3.0, 0.0], [30.0, 0.0]]), "b": jnp.array([4.0, 40.0])}
    optimizer = each_component(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)))
    updates, _ = optimizer.update(gradients, optimizer.init(gradients), gradients)
    np.testing.assert_allclose(updates["a"], [[-0.6, 0], [-0.6, 0]], rtol=1e-6)
    np.testing.assert_allclose(updates["b"], [-0.8, -0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"components": "auto"},
            "decided before a run; use `covey run`, or covey.choose_components",
        ),
        ({"components": 0}, "components must be at least 1, got 0"),
        ({"spread": -1}, "spread is a standard deviation and must be at least 0, got -1"),
        ({"adapt_steps": 0}, "adapt_steps must be at least 1, got 0"),
        ({"spread": np.nan}, "must be at least 0, got nan"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        mixture(models.linear(), **options)


@pytest.mark.slow
def test_more_components_than_clients_are_told_and_a_client_with_one_label_is_served():
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    data = FederatedData.from_clients(
        {"both": (x, (x[:, 0] > 0).astype(np.int32)), "one": (x, np.ones(20, np.int32))}, classes=2
    )
    with pytest.warns(UserWarning, match="3 components for 2 clients"):
        state, lines = fit(mixture(models.logistic(), client_optimizer=optax.sgd(0.5)), data, 5)
    weights = np.asarray(state.nodes.state.weights)
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    assert np.isfinite([line["train_loss"] for line in lines]).all()
