"""A network cut in two says what it said in one piece."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from covey import models
from covey.core.shard import Rows, Spec
from covey.models import MIXED_MODELS, MODELS, divide, join, split_network

RNG = np.random.default_rng(6)
KEY = jax.random.key(3)
FLAT = RNG.normal(size=(5, 4)).astype(np.float32)
LABELS = RNG.integers(0, 3, 5).astype(np.int32)


def module(key):
    return eqx.nn.MLP(4, 3, width_size=6, depth=2, activation=jnp.tanh, key=key)


# model, the personal fields, rows, and how many numbers the head has
CASES = {
    "mlp": (models.mlp(hidden=(6, 5)), "output", FLAT, 5 * 3 + 3),
    "cnn": (
        models.cifar_cnn(channels=(2,), hidden=(4,)),
        "output",
        RNG.integers(0, 256, (5, 8, 9, 3), dtype=np.uint8),
        4 * 3 + 3,
    ),
    "features": (
        models.femnist_cnn(channels=(2,), hidden=()),
        ("convolutions",),
        RNG.random((5, 8, 8), np.float32),
        25 * 2 + 2,
    ),
    "lstm": (
        models.character_lstm(embedding=2, hidden=4, layers=2),
        ("output.bias", "layers.1"),
        RNG.integers(0, 3, (5, 6)).astype(np.int32),
        3 + 4 * 16 + 4 * 16 + 16,
    ),
    "equinox": (models.from_equinox(module), "layers.2", FLAT, 6 * 3 + 3),
    "namedtuple": (models.softmax(), ("bias",), FLAT, 3),
    "nothing personal": (models.mlp(hidden=(6,)), (), FLAT, 0),
    "nothing shared": (models.mlp(hidden=(6,)), "all", FLAT, 4 * 6 + 6 + 6 * 3 + 3),
}


def spec_of(x, classes=3):
    return Spec(
        Rows(jax.ShapeDtypeStruct(x.shape[1:], x.dtype), jax.ShapeDtypeStruct((), np.int32)),
        classes,
    )


def near(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), one, other)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case in ("cnn", "features", "lstm") else ())
        for case in CASES
    ],
)
def test_a_cut_network_is_the_network(case):
    model, personal, x, size = CASES[case]
    mixed, spec = split_network(model, personal=personal), spec_of(x)
    params, phi, z = model.init(KEY, spec), mixed.init(KEY, spec), mixed.init_effects(KEY, spec)
    assert z.shape == (size,)
    assert z.dtype == jnp.float32
    assert sum(leaf.size for leaf in jax.tree.leaves(phi)) + size == sum(
        leaf.size for leaf in jax.tree.leaves(params)
    )
    assert mixed.name == f"mixed_{model.name}" + (f", {case}" if case.startswith("nothing") else "")
    # Not the initial numbers, of which some are zero and would hide one that is out of its place.
    params = jax.tree.map(
        lambda leaf: jnp.asarray(RNG.normal(scale=0.4, size=leaf.shape), leaf.dtype), params
    )
    body, head = divide(params, personal)
    assert jax.tree.structure(body) == jax.tree.structure(phi)
    rows = Rows(jnp.asarray(x), jnp.asarray(LABELS))

    @jax.jit
    def both(params, body, head):
        def whole(params):
            return model.log_likelihood(params, rows), model.predictive(params, rows.x)

        def cut(body, head):
            return mixed.log_likelihood(body, head, rows), mixed.predictive(body, head, rows.x)

        gradient = jax.grad(lambda params: whole(params)[0] @ jnp.arange(5.0))(params)
        parts = jax.grad(lambda body, head: cut(body, head)[0] @ jnp.arange(5.0), argnums=(0, 1))(
            body, head
        )
        return (whole(params), gradient), (cut(body, head), join(*parts))

    near(*both(params, body, head))
    near(join(body, head), params)


def test_the_head_is_its_arrays_one_after_the_other():
    params = models.mlp(hidden=(3,)).init(KEY, spec_of(FLAT))
    body, head = divide(params, "output")
    np.testing.assert_array_equal(head, ravel_pytree(params.output)[0])
    assert len(jax.tree.leaves(body)) == 2
    other, _ = divide(models.mlp(hidden=(3,)).init(jax.random.key(8), spec_of(FLAT)), "output")
    assert jax.tree.structure(body) == jax.tree.structure(
        other
    )  # one compiled program for all bodies
    narrow = join(body, jnp.arange(12, dtype=jnp.float16))
    assert (
        narrow.output.weight.dtype == jnp.float32
    )  # the network's own type, whatever a sampler works in


def test_heads_of_many_clients_share_a_body():
    model = models.mixed_mlp(hidden=(3,), outcome="count")
    spec = Spec(Rows(jax.ShapeDtypeStruct((4,), np.float32), jax.ShapeDtypeStruct((), np.float32)))
    phi, heads = model.init(KEY, spec), jnp.asarray(RNG.normal(size=(6, 4)), jnp.float32)
    together = jax.vmap(model.predictive, (None, 0, None))(phi, heads, jnp.asarray(FLAT)).log_rate
    hidden = np.maximum(FLAT @ phi.hidden[0].weight + phi.hidden[0].bias, 0)
    expected = np.asarray(heads)[:, :3] @ hidden.T + np.asarray(heads)[:, 3:]
    np.testing.assert_allclose(together, expected, rtol=1e-5, atol=1e-6)


def test_the_papers_network_has_650_effects():
    image = np.zeros((1, 32, 32, 3), np.uint8)
    model = MIXED_MODELS["mixed_cifar_cnn"]()
    assert jax.eval_shape(lambda: model.init_effects(KEY, spec_of(image, 10))).shape == (650,)
    shared = jax.tree.leaves(jax.eval_shape(lambda: model.init(KEY, spec_of(image, 10))))
    assert [leaf.shape for leaf in shared if len(leaf.shape) > 1] == [
        (5, 5, 3, 64),
        (5, 5, 64, 64),
        (1600, 120),
        (120, 64),
    ]


@pytest.mark.parametrize("name", ["mlp", "femnist_cnn", "cifar_cnn", "character_lstm"])
def test_mixed_networks_have_the_options_of_the_plain_ones(name):
    plain, mixed = (
        inspect.signature(factory).parameters
        for factory in (MODELS[name], MIXED_MODELS[f"mixed_{name}"])
    )
    assert {key: value for key, value in mixed.items() if key != "personal"} == dict(plain)
    assert mixed["personal"].default == "output"


def test_options_reach_the_network():
    spec = Spec(
        Rows(jax.ShapeDtypeStruct((9, 9), np.float32), jax.ShapeDtypeStruct((), np.int32)), 3
    )
    text = Spec(Rows(jax.ShapeDtypeStruct((9,), np.int32), jax.ShapeDtypeStruct((), np.int32)), 3)
    options = {"channels": (2,), "hidden": (7,), "personal": "hidden"}
    made = [
        (models.mixed_mlp(hidden=(7,), personal="hidden"), spec, 81 * 7 + 7),
        (models.mixed_femnist_cnn(**options), spec, 8 * 7 + 7),
        (models.mixed_cifar_cnn(**options), spec, 8 * 7 + 7),
        (
            models.mixed_character_lstm(embedding=2, hidden=4, layers=3, personal="layers.2.bias"),
            text,
            16,
        ),
    ]
    for model, data, size in made:
        assert jax.eval_shape(
            lambda model=model, data=data: model.init_effects(KEY, data)
        ).shape == (size,)
    numbers = models.mixed_mlp(hidden=(2,), outcome="number", scale=0.3)
    data = Spec(Rows(jax.ShapeDtypeStruct((4,), np.float32), jax.ShapeDtypeStruct((), np.float32)))
    predicted = numbers.predictive(
        numbers.init(KEY, data), numbers.init_effects(KEY, data), jnp.asarray(FLAT)
    )
    np.testing.assert_allclose(predicted.scale, 0.3, rtol=1e-6)


@pytest.mark.parametrize(
    ("personal", "message"),
    [
        (
            "outputs",
            "no field 'outputs'; its arrays are hidden.0.weight, hidden.0.bias, output.weight, "
            "output.bias",
        ),
        (("output", "put"), "no field 'put'"),
        ("hidden.1", "no field 'hidden.1'"),
        ("", "no field ''"),
        (
            ("hidden", "output"),
            'hidden, output is every array of this network and nothing is shared; say "all"',
        ),
    ],
)
def test_names_that_are_refused(personal, message):
    model = models.mixed_mlp(hidden=(3,), personal=personal)
    for start in (model.init, model.init_effects):
        with pytest.raises(ValueError, match=message):
            start(KEY, spec_of(FLAT))


def test_an_array_without_a_name_can_be_personal_only_as_all():
    with pytest.raises(ValueError, match="no field 'output'; its arrays are one without a name"):
        divide(jnp.ones(3), "output")
    body, head = divide(jnp.ones(3), "all")
    np.testing.assert_array_equal(join(body, 2 * head), 2 * np.ones(3))


def test_a_head_of_another_network_is_refused():
    body, head = divide(models.mlp(hidden=(3,)).init(KEY, spec_of(FLAT)), "output")
    with pytest.raises(
        ValueError, match="a head of length 13 was given, this body needs one of 12"
    ):
        join(body, jnp.append(head, 0.0))
