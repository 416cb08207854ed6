"""Layers against lax and against plain NumPy loops; the errors of networks; Equinox modules of
users.
"""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from covey.core.shard import Rows, Spec
from covey.models import (
    Normal,
    Poisson,
    character_lstm,
    cifar_cnn,
    convolve,
    femnist_cnn,
    from_equinox,
    from_function,
    logistic,
    max_pool,
    mlp,
)
from covey.models.recurrent import LSTMLayer

RNG = np.random.default_rng(3)
KEY = jax.random.key(0)


def spec(x, classes=None, x_dtype=jnp.float32, y_dtype=None, y=()):
    y_dtype = y_dtype or (jnp.float32 if classes is None else jnp.int32)
    return Spec(Rows(jax.ShapeDtypeStruct(x, x_dtype), jax.ShapeDtypeStruct(y, y_dtype)), classes)


def shapes(model, data):
    return jax.eval_shape(lambda: model.init(KEY, data))


def made_up(model, data):
    """Parameters of the right shapes, without compiling an initialisation."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(RNG.normal(scale=0.4, size=leaf.shape), leaf.dtype),
        shapes(model, data),
    )


def by_lax(x, kernel):
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def pool_by_lax(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def with_gradients(function, cotangent, *arguments):
    def value_and_pullback(*arguments):
        value, pullback = jax.vjp(function, *arguments)
        return value, pullback(jnp.asarray(cotangent))

    return jax.jit(value_and_pullback)(*arguments)


@pytest.mark.parametrize(
    ("image", "kernel"), [((9, 7, 3), (5, 5)), ((6, 8, 1), (3, 2)), ((5, 5, 2), (5, 5))]
)
def test_convolution_is_that_of_lax(image, kernel):
    x = jnp.asarray(RNG.normal(size=(4, *image)), jnp.float32)
    w = jnp.asarray(RNG.normal(size=(*kernel, image[-1], 6)), jnp.float32)
    out = RNG.normal(size=(4, image[0] - kernel[0] + 1, image[1] - kernel[1] + 1, 6)).astype(
        np.float32
    )
    got, expected = with_gradients(convolve, out, x, w), with_gradients(by_lax, out, x, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), got, expected)


@pytest.mark.parametrize("image", [(6, 8, 3), (7, 5, 2), (2, 3, 1)])
def test_pooling_is_that_of_lax_where_values_differ(image):
    x = jnp.asarray(RNG.permutation(4 * np.prod(image)).reshape(4, *image), jnp.float32)
    out = RNG.normal(size=(4, image[0] // 2, image[1] // 2, image[2])).astype(np.float32)
    got, expected = with_gradients(max_pool, out, x), with_gradients(pool_by_lax, out, x)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_pooling_shares_the_gradient_among_ties():
    x = jnp.array([[1.0, 1.0, 5.0, 0.0], [1.0, 1.0, 5.0, 2.0]]).reshape(1, 2, 4, 1)
    got = jax.grad(lambda x: jnp.sum(max_pool(x) * jnp.array([4.0, 6.0]).reshape(1, 1, 2, 1)))(x)
    np.testing.assert_allclose(got[0, :, :, 0], [[1, 1, 3, 0], [1, 1, 3, 0]])


@jax.jit
def run_layer(layer, x):
    return layer(x)


def test_lstm_is_a_plain_loop():
    inputs, hidden, time, rows = 3, 5, 6, 4
    layer = LSTMLayer(KEY, inputs, hidden)
    x = RNG.normal(size=(time, rows, inputs)).astype(np.float32)
    wx, wh, b = (np.asarray(leaf) for leaf in (layer.weight_input, layer.weight_hidden, layer.bias))

    def sigmoid(value):
        return 1 / (1 + np.exp(-value))

    h, c, expected = np.zeros((rows, hidden)), np.zeros((rows, hidden)), []
    for step in range(time):
        i, f, g, o = np.split(x[step] @ wx + h @ wh + b, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        expected.append(h)
    np.testing.assert_allclose(run_layer(layer, jnp.asarray(x)), expected, rtol=1e-4, atol=1e-6)


def test_character_lstm_reads_all_layers_and_the_last_state():
    model = character_lstm(embedding=4, hidden=6, layers=2)
    params = made_up(model, spec((7,), 5, jnp.uint8))
    x = RNG.integers(0, 5, (3, 7)).astype(np.uint8)
    states = np.asarray(params.embedding)[x.T]
    for layer in params.layers:
        states = run_layer(layer, jnp.asarray(states))
    logits = np.asarray(states[-1] @ params.output.weight + params.output.bias)
    predict = jax.jit(model.predictive)
    expected = scipy.special.log_softmax(logits, axis=-1)
    np.testing.assert_allclose(predict(params, jnp.asarray(x)).log_probability, expected, rtol=1e-4)
    x[0, 0] = 9
    np.testing.assert_array_equal(
        np.isnan(predict(params, jnp.asarray(x)).log_probability[:, 0]), [True, False, False]
    )


def test_networks_have_the_papers_sizes():
    femnist = shapes(femnist_cnn(), spec((28, 28, 1), 62, jnp.uint8))
    assert [layer.weight.shape for layer in femnist.convolutions] == [(5, 5, 1, 32), (5, 5, 32, 64)]
    assert [layer.weight.shape for layer in (*femnist.dense.hidden, femnist.output)] == [
        (1024, 2048),
        (2048, 62),
    ]
    cifar = shapes(cifar_cnn(), spec((32, 32, 3), 10, jnp.uint8))
    assert [layer.weight.shape for layer in cifar.convolutions] == [(5, 5, 3, 64), (5, 5, 64, 64)]
    assert [layer.weight.shape for layer in (*cifar.dense.hidden, cifar.output)] == [
        (1600, 120),
        (120, 64),
        (64, 10),
    ]
    lstm = shapes(character_lstm(), spec((80,), 90, jnp.int32))
    assert [layer.weight_input.shape for layer in lstm.layers] == [(8, 1024), (256, 1024)]
    assert [layer.weight_hidden.shape for layer in lstm.layers] == [(256, 1024), (256, 1024)]
    two_nn = shapes(mlp(), spec((28, 28), 10, jnp.uint8))
    assert [layer.weight.shape for layer in (*two_nn.hidden, two_nn.output)] == [
        (784, 200),
        (200, 200),
        (200, 10),
    ]


def test_initial_weights_follow_fan_in():
    weight = np.asarray(mlp(hidden=(400,)).init(KEY, spec((100,), 3)).hidden[0].weight)
    # The largest of n uniform draws falls short of the bound by a share of 20 / n with probability
    # exp(-20).
    assert 0.1 * (1 - 20 / weight.size) < np.abs(weight).max() <= 0.1
    # U(-a, a) has standard deviation a / sqrt(3); estimated from n draws, its relative standard
    # error is sqrt(0.2 / n).
    np.testing.assert_allclose(weight.std(), 0.1 / np.sqrt(3), rtol=5 * np.sqrt(0.2 / weight.size))


def test_convolutional_network_is_its_layers():
    model = cifar_cnn(channels=(3, 4), hidden=(6,))
    params = made_up(model, spec((17, 18, 2), 5, jnp.uint8))
    pixels = jnp.asarray(RNG.integers(0, 256, (3, 17, 18, 2), dtype=np.uint8))

    @jax.jit
    def expected(params, pixels):
        x = pixels.astype(float) / 255
        for layer in params.convolutions:
            x = pool_by_lax(jnp.maximum(by_lax(x, layer.weight) + layer.bias, 0))
        x = jnp.maximum(
            x.reshape(3, -1) @ params.dense.hidden[0].weight + params.dense.hidden[0].bias, 0
        )
        return jax.nn.log_softmax(x @ params.output.weight + params.output.bias)

    got = jax.jit(model.predictive)(params, pixels).log_probability
    np.testing.assert_allclose(got, expected(params, pixels), rtol=1e-4, atol=1e-5)


def test_images_without_a_channel_axis_are_grey():
    model = femnist_cnn(channels=(2,), hidden=(4,))
    params = made_up(model, spec((8, 8), 3))
    predict = jax.jit(model.predictive)
    x = jnp.asarray(RNG.normal(size=(2, 8, 8)), jnp.float32)
    np.testing.assert_array_equal(
        predict(params, x).log_probability, predict(params, x[..., None]).log_probability
    )


def test_the_last_layer_can_be_replaced():
    for model, data in [
        (mlp(hidden=(3,)), spec((4,), 2)),
        (femnist_cnn(channels=(2,), hidden=(3,)), spec((8, 8), 2)),
    ]:
        params = made_up(model, data)
        changed = eqx.tree_at(lambda p: p.output.bias, params, jnp.array([1.0, 2.0]))
        np.testing.assert_array_equal(changed.output.bias, [1, 2])
        assert jax.tree.structure(changed) == jax.tree.structure(params)


def test_mlp_of_numeric_outcomes_and_counts():
    x = jnp.asarray(RNG.normal(size=(5, 3)), jnp.float32)
    number = mlp(hidden=(4,), outcome="number", scale=0.3)
    predictive = number.predictive(made_up(number, spec((3,))), x)
    assert isinstance(predictive, Normal)
    np.testing.assert_allclose(predictive.scale, 0.3, rtol=1e-6)
    count = mlp(hidden=(4,), outcome="count")
    assert isinstance(count.predictive(made_up(count, spec((3,))), x), Poisson)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (femnist_cnn(), spec((784,), 62), "rows must be images"),
        (
            femnist_cnn(),
            spec((15, 28, 1), 62),
            "15x28 are too small for 2 convolutions.*at least 16x16",
        ),
        (femnist_cnn(), spec((28, 28, 1)), "numeric outcome, not classes"),
        (cifar_cnn(channels=(2, 2, 2)), spec((32, 32, 3), 10), "at least 36x36"),
        (mlp(), spec((3,)), "numeric outcome, not classes"),
        (mlp(outcome="number"), spec((3,), 4), "4 classes"),
        (character_lstm(), spec((80,), 90), "integer character codes, these are float32"),
        (character_lstm(), spec((8, 10), 90, jnp.int32), r"shape \(8, 10\)"),
        (character_lstm(), spec((80,), 90, jnp.int32, y=(80,)), r"outcomes of shape \(80,\)"),
    ],
)
def test_data_that_do_not_fit(model, data, message):
    with pytest.raises(ValueError, match=message):
        model.init(KEY, data)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mlp(hidden=(5, 0)), r"hidden must be positive sizes, got \(5, 0\)"),
        (
            lambda: inspect.unwrap(mlp)(outcome="label"),
            "outcome must be 'classes', 'number' or 'count', got 'label'",
        ),
        (lambda: mlp(scale=2.0), "scale is the noise of outcome 'number'"),
        (lambda: mlp(outcome="number", scale=-1.0), "above 0"),
        (lambda: character_lstm(layers=0), "positive sizes"),
        (lambda: cifar_cnn(channels=(0,)), "channels must be positive"),
    ],
)
def test_options_that_make_no_sense(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def perceptron(outputs):
    return lambda key: eqx.nn.MLP(3, outputs, 4, 1, activation=jnp.tanh, key=key)


class Batched(eqx.Module):
    inner: eqx.nn.MLP

    def __call__(self, x):
        return jax.vmap(self.inner)(x)


@pytest.mark.parametrize(
    ("batched", "outcome", "outputs", "classes", "y"),
    [
        (False, "classes", 4, 4, [0, 3, 2, 1]),
        (True, "classes", 4, 4, [0, 3, 2, 1]),
        (False, "classes", "scalar", 2, [0, 1, 1, 0]),
        (True, "classes", 1, 2, [0, 1, 1, 0]),
        (False, "number", "scalar", None, [0.5, -1.0, 2.0, 0.0]),
        (False, "count", 1, None, [0, 4, 2, 1]),
    ],
)
def test_an_equinox_module_is_a_model(batched, outcome, outputs, classes, y):
    build = (lambda key: Batched(perceptron(outputs)(key))) if batched else perceptron(outputs)
    model = from_equinox(build, outcome=outcome, batched=batched, name="mine")
    rows = Rows(jnp.asarray(RNG.normal(size=(4, 3)), jnp.float32), jnp.asarray(y))
    params = made_up(model, spec((3,), classes, y_dtype=rows.y.dtype))
    assert len(jax.tree.leaves(params)) == 4

    first, last = (params.inner if batched else params).layers
    output = np.tanh(np.asarray(rows.x @ first.weight.T + first.bias)) @ np.asarray(
        last.weight
    ).T + np.asarray(last.bias)
    if outcome == "number":
        expected = -0.5 * np.square(np.asarray(y) - output[:, 0]) - 0.5 * np.log(2 * np.pi)
    elif outcome == "count":
        expected = np.asarray(y) * output[:, 0] - np.exp(output[:, 0]) - np.log([1, 24, 2, 1])
    else:
        logits = output if output.shape[1] > 1 else np.column_stack([np.zeros(4), output[:, 0]])
        expected = scipy.special.log_softmax(logits, axis=-1)[np.arange(4), y]

    @jax.jit
    def by_row_and_gradient(params):
        by_row, pullback = jax.vjp(lambda p: model.log_likelihood(p, rows), params)
        return by_row, pullback(jnp.ones(4))[0]

    by_row, gradient = by_row_and_gradient(params)
    np.testing.assert_allclose(by_row, expected, rtol=1e-4, atol=1e-5)
    assert jax.tree.structure(gradient) == jax.tree.structure(params)
    assert any(np.any(np.asarray(leaf) != 0) for leaf in jax.tree.leaves(gradient))


def test_equinox_modules_that_do_not_fit():
    with pytest.raises(ValueError, match=r"shape \(3, 5\).*must be \(3, 4\)"):
        from_equinox(perceptron(5), name="mine").init(KEY, spec((3,), 4))
    with pytest.raises(ValueError, match="numeric outcome"):
        from_equinox(perceptron(5)).init(KEY, spec((3,)))

    class Counter(eqx.Module):
        weight: jax.Array
        steps: jax.Array

        def __call__(self, x):
            return x @ self.weight + self.steps

    with pytest.raises(ValueError, match=r"Counter.*\.steps is an array of int32.*static field"):
        from_equinox(lambda key: Counter(jnp.ones((3, 2)), jnp.arange(2)), name="Counter").init(
            KEY, spec((3,), 2)
        )


def test_from_function_catches_a_summed_likelihood():
    base = logistic()
    data = spec((3,), 2)
    model = from_function(base.log_likelihood, base.init, base.predictive, "own")
    assert jax.tree.structure(model.init(KEY, data)) == jax.tree.structure(base.init(KEY, data))
    summed = from_function(
        lambda p, r: base.log_likelihood(p, r).sum(), base.init, base.predictive, "own"
    )
    with pytest.raises(ValueError, match=r"own: log_likelihood of 3 rows has shape \(\)"):
        summed.init(KEY, data)
