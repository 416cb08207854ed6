"""Every model of the catalogue keeps the contract: arrays, one value per row, jit, vmap over
clients, gradients, one formula.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey import models
from covey.core.shard import Rows, Spec
from covey.models import MODELS, Categorical

RNG = np.random.default_rng(4)
CLIENTS, ROWS = 3, 5


def labels(classes):
    return RNG.integers(0, classes, (CLIENTS, ROWS)).astype(np.int32)


def images(*shape):
    return RNG.integers(0, 256, (CLIENTS, ROWS, *shape), dtype=np.uint8)


FLAT = RNG.normal(size=(CLIENTS, ROWS, 4)).astype(np.float32)
CASES = {
    "linear": ({"scale": 0.5}, FLAT, RNG.normal(size=(CLIENTS, ROWS)).astype(np.float32), None),
    "logistic": ({}, FLAT, labels(2), 2),
    "softmax": ({}, images(3, 3), labels(3), 3),
    "poisson": ({}, FLAT, RNG.poisson(2.0, (CLIENTS, ROWS)).astype(np.int32), None),
    "mlp": ({"hidden": (6,)}, images(3, 3), labels(3), 3),
    "femnist_cnn": ({"channels": (2,), "hidden": (4,)}, images(9, 8, 1), labels(3), 3),
    "cifar_cnn": ({"channels": (2,), "hidden": (4, 4)}, images(8, 8, 3), labels(3), 3),
    "character_lstm": (
        {"embedding": 3, "hidden": 4, "layers": 1},
        RNG.integers(0, 6, (CLIENTS, ROWS, 7)).astype(np.int32),
        labels(6),
        6,
    ),
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
    clients = Rows(x, y)
    spec = Spec(
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), clients),
        classes,
    )
    shapes = jax.eval_shape(lambda key: model.init(key, spec), jax.random.key(1))
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(shapes))
    # Each client has its own parameters, as in local training.
    params = jax.tree.map(
        lambda leaf: RNG.normal(scale=0.4, size=(CLIENTS, *leaf.shape)).astype(np.float32), shapes
    )

    def everything(params, rows):
        by_row, pullback = jax.vjp(lambda p: model.log_likelihood(p, rows), params)
        predictive = model.predictive(params, rows.x)
        return by_row, pullback(jnp.ones_like(by_row))[0], predictive, predictive.log_prob(rows.y)

    alone = jax.jit(everything)
    together = jax.jit(jax.vmap(everything))(params, clients)
    for client in range(CLIENTS):
        own_params, own_rows, own = jax.tree.map(
            lambda leaf, c=client: np.asarray(leaf)[c], (params, clients, together)
        )
        by_row, gradient, predictive, log_prob = got = alone(own_params, own_rows)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), own, got)
        assert by_row.shape == (ROWS,)
        np.testing.assert_allclose(log_prob, by_row, rtol=1e-5)
        assert jax.tree.structure(gradient) == jax.tree.structure(shapes)
        assert all(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradient))
        if classes is not None:
            assert isinstance(predictive, Categorical)
            assert predictive.log_probability.shape == (ROWS, classes)
            np.testing.assert_allclose(np.exp(predictive.log_probability).sum(-1), 1, rtol=1e-5)
        # A row's likelihood is its own: rows in another order have the same.
        order = np.array([3, 0, 4, 1, 2])
        shuffled = alone(own_params, jax.tree.map(lambda leaf, order=order: leaf[order], own_rows))
        np.testing.assert_allclose(shuffled[0], np.asarray(by_row)[order], rtol=1e-5)


def test_random_starts_differ_by_key_and_by_layer():
    spec = Spec(
        Rows(jax.ShapeDtypeStruct((8, 8), jnp.uint8), jax.ShapeDtypeStruct((), jnp.int32)), 8
    )
    text = Spec(Rows(jax.ShapeDtypeStruct((4,), jnp.uint8), jax.ShapeDtypeStruct((), jnp.int32)), 8)

    def starts(key):
        return (
            MODELS["mlp"](hidden=(8, 8)).init(key, spec),
            MODELS["femnist_cnn"](channels=(8,), hidden=(8,)).init(key, spec),
            MODELS["character_lstm"](embedding=8, hidden=8, layers=3).init(key, text),
        )

    start = jax.jit(starts)
    for one, other in zip(start(jax.random.key(0)), start(jax.random.key(1)), strict=True):
        leaves = [np.asarray(leaf).ravel() for leaf in jax.tree.leaves((one, other))]
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves)
        # Draws of the same key begin alike whatever their number and scale, so their first numbers
        # have the same order.
        orders = {tuple(np.argsort(leaf[:8])) for leaf in leaves}
        assert len(orders) == len(leaves)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (
            models.logistic,
            models.Model,
            r"^fedx: the model is the function logistic itself; call it: logistic\(\)$",
        ),
        ("logistic", models.Model, r"the model is the text 'logistic'; call it: logistic\(\)"),
        (
            models.logistic(),
            models.MixedModel,
            "a mixed model, with random effects for each client, is needed, got 'logistic', a "
            r"model whose parameters all clients share; use mixed_logistic\(\), or another of .*"
            r"linear_map\(\), .* split_network\(model\), numpyro.client_plate\(model, spec\)",
        ),
        (
            models.mixed_logistic(),
            models.Model,
            "got 'mixed_logistic', a mixed model, with random effects for each client",
        ),
        (models.mixed_logistic, models.Model, "the function mixed_logistic, which makes a mixed"),
        (models.logistic(), models.LatentModel, r"latent variables, is needed, .*factor_analysis"),
        (7, models.MatrixModel, "got 7 of type int; use the factories"),
    ],
)
def test_a_method_is_told_which_model_it_needs(given, kind, message):
    with pytest.raises(ValueError, match=message):
        models.need(given, kind, "fedx")


def test_a_model_of_the_right_kind_is_accepted():
    for kind, model in (
        (models.Model, models.logistic()),
        (models.MixedModel, models.mixed_poisson()),
        (models.MatrixModel, models.matrix_completion(rows=2, columns=2)),
    ):
        models.need(model, kind, "fedx")
