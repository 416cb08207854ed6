"""Every model of the catalogue keeps the contract: arrays, a number a row, jit, vmap over clients, gradients, one formula."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.core.shard import Rows, Spec
from covey.models import MODELS, Categorical

RNG = np.random.default_rng(4)
CLIENTS, NUMBER = 3, 5


def labels(classes):
    return RNG.integers(0, classes, (CLIENTS, NUMBER)).astype(np.int32)


def images(*shape):
    return RNG.integers(0, 256, (CLIENTS, NUMBER, *shape), dtype=np.uint8)


FLAT = RNG.normal(size=(CLIENTS, NUMBER, 4)).astype(np.float32)
CASES = {
    "linear": ({"scale": 0.5}, FLAT, RNG.normal(size=(CLIENTS, NUMBER)).astype(np.float32), None),
    "logistic": ({}, FLAT, labels(2), 2),
    "softmax": ({}, images(3, 3), labels(3), 3),
    "poisson": ({}, FLAT, RNG.poisson(2.0, (CLIENTS, NUMBER)).astype(np.int32), None),
    "mlp": ({"hidden": (6,)}, images(3, 3), labels(3), 3),
    "femnist_cnn": ({"channels": (2, 3), "hidden": (4,)}, images(16, 17, 1), labels(3), 3),
    "cifar_cnn": ({"channels": (2, 3), "hidden": (4, 4)}, images(16, 16, 3), labels(3), 3),
    "character_lstm": ({"embedding": 3, "hidden": 4}, RNG.integers(0, 6, (CLIENTS, NUMBER, 7)).astype(np.int32), labels(6), 6),
}


def test_every_model_has_a_case_and_a_line_for_the_list():
    assert CASES.keys() == MODELS.keys()
    for name, factory in MODELS.items():
        assert factory.__name__ == name
        line = (factory.__doc__ or "").splitlines()[0]
        assert line.endswith((".", ")")), name
        kinds = {parameter.kind for parameter in inspect.signature(factory).parameters.values()}
        assert kinds <= {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("name", CASES)
def test_contract(name):
    options, x, y, classes = CASES[name]
    model = MODELS[name](**options)
    assert model.name == name
    clients = Rows(jnp.asarray(x), jnp.asarray(y))
    spec = Spec(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), clients), classes)
    params = model.init(jax.random.key(1), spec)
    leaves = jax.tree.leaves(params)
    assert leaves
    assert all(isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32 for leaf in leaves)

    one = jax.tree.map(lambda leaf: leaf[0], clients)
    by_row = model.log_likelihood(params, one)
    assert by_row.shape == (NUMBER,)
    np.testing.assert_allclose(model.predictive(params, one.x).log_prob(one.y), by_row, rtol=1e-6)
    alone = model.log_likelihood(params, jax.tree.map(lambda leaf: leaf[2:3], one))
    np.testing.assert_allclose(alone, by_row[2:3], rtol=1e-4, atol=1e-6)

    predictive = model.predictive(params, one.x)
    if classes is not None:
        assert isinstance(predictive, Categorical)
        assert predictive.mean.shape == (NUMBER, classes)
        np.testing.assert_allclose(predictive.mean.sum(-1), 1, rtol=1e-5)

    def total(params, rows):
        return model.log_likelihood(params, rows).sum()

    # Each client has its own parameters, as in local training.
    own = jax.tree.map(lambda leaf: leaf + 0.1 * jnp.arange(1.0, CLIENTS + 1).reshape(-1, *[1] * leaf.ndim), params)
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(total)))(own, clients)
    for client in range(CLIENTS):
        own_params, own_rows, own_gradient = jax.tree.map(lambda leaf, c=client: leaf[c], (own, clients, gradients))
        value, gradient = jax.value_and_grad(total)(own_params, own_rows)
        np.testing.assert_allclose(values[client], value, rtol=1e-4)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), own_gradient, gradient)
    assert jax.tree.structure(gradients) == jax.tree.structure(params)
    assert any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_the_slope(name):
    options, x, y, classes = CASES[name]
    model = MODELS[name](**options)
    with jax.enable_x64(True):
        rows = Rows(jnp.asarray(x[0]), jnp.asarray(y[0]))
        spec = Spec(jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows), classes)
        params = jax.tree.map(lambda leaf: leaf + 0.05, model.init(jax.random.key(2), spec))
        assert all(leaf.dtype == jnp.float64 for leaf in jax.tree.leaves(params))
        towards = jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape)), params)
        along = jax.jit(lambda t: model.log_likelihood(jax.tree.map(lambda p, d: p + t * d, params, towards), rows).sum())
        step = 1e-6
        np.testing.assert_allclose(jax.grad(along)(0.0), (along(step) - along(-step)) / (2 * step), rtol=1e-5)
