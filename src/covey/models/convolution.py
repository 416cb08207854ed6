"""Convolutional networks for small images, rows as (height, width, channels).

A convolution is written as patches times a matrix: inside `scan` on a CPU, `lax.conv` was measured
27 times slower in training the network of `femnist_cnn`. Under `vmap` over clients the product
stays one, where `lax.conv` becomes a grouped convolution.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, Shaped

from covey.core.shard import Spec
from covey.models.model import Model, flat, from_predictive, need_classes, scaled
from covey.models.networks import Dense, Perceptron, check_widths, uniform
from covey.models.predictive import Categorical

_KERNEL = 5


class Convolution(eqx.Module):
    """A convolution without padding, plus a bias; initialised as `Dense` is."""

    weight: Float[Array, "height width inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, key: Key[Array, ""], size: int, inputs: int, outputs: int):
        weight_key, bias_key = jax.random.split(key)
        fan_in = size * size * inputs
        self.weight = uniform(weight_key, (size, size, inputs, outputs), fan_in)
        self.bias = uniform(bias_key, (outputs,), fan_in)

    def __call__(
        self, x: Float[Array, "rows height width inputs"]
    ) -> Float[Array, "rows height2 width2 outputs"]:
        """The images of each output channel."""
        return convolve(x, self.weight) + self.bias


class ConvolutionalNetwork(eqx.Module):
    """Convolution, ReLU, pooling, repeated; then a perceptron."""

    convolutions: tuple[Convolution, ...]
    dense: Perceptron

    def __init__(
        self,
        key: Key[Array, ""],
        image: tuple[int, int, int],
        channels: tuple[int, ...],
        hidden: tuple[int, ...],
        outputs: int,
    ):
        *keys, dense_key = jax.random.split(key, len(channels) + 1)
        height, width, inputs = image
        layers = []
        for layer_key, width_out in zip(keys, channels, strict=True):
            layers.append(Convolution(layer_key, _KERNEL, inputs, width_out))
            height, width, inputs = _after(height), _after(width), width_out
        self.convolutions = tuple(layers)
        self.dense = Perceptron(dense_key, height * width * inputs, hidden, outputs)

    def __call__(
        self, x: Float[Array, "rows height width channels"]
    ) -> Float[Array, "rows outputs"]:
        """The logits."""
        for layer in self.convolutions:
            x = max_pool(jax.nn.relu(layer(x)))
        return self.dense(flat(x))

    @property
    def output(self) -> Dense:
        """The last layer."""
        return self.dense.output


def femnist_cnn(
    *, channels: tuple[int, ...] = (32, 64), hidden: tuple[int, ...] = (2048,)
) -> Model:
    """CNN of LEAF and FedEM for handwritten characters: two 5x5 convolutions with pooling, one
    hidden layer of 2048.

    Without padding, as FedEM's authors have it; LEAF pads.
    """
    return _cnn("femnist_cnn", channels, hidden)


def cifar_cnn(
    *, channels: tuple[int, ...] = (64, 64), hidden: tuple[int, ...] = (120, 64)
) -> Model:
    """Five-layer CNN of FedRep for CIFAR: two 5x5 convolutions with pooling, three dense layers.

    FedPop says "5-layer convolutional neural networks" and no more, and compares with FedRep.
    LG-FedAvg's smaller network is `channels=(6, 16), hidden=(120, 100)`; FedRep's for CIFAR-100 is
    `channels=(64, 128), hidden=(256, 128)`, which has dropout
    there: a likelihood has no randomness, so it is left out here.
    """
    return _cnn("cifar_cnn", channels, hidden)


def convolve(
    x: Float[Array, "rows height width inputs"], kernel: Float[Array, "tall wide inputs outputs"]
) -> Float[Array, "rows height2 width2 outputs"]:
    """Cross-correlation without padding, stride 1, as networks mean "convolution"."""
    tall, wide, inputs, outputs = kernel.shape
    height, width = x.shape[1] - tall + 1, x.shape[2] - wide + 1
    patches = jnp.concatenate(
        [x[:, i : i + height, j : j + width] for i in range(tall) for j in range(wide)], axis=-1
    )
    return patches @ kernel.reshape(tall * wide * inputs, outputs)


def max_pool(
    x: Float[Array, "rows height width channels"],
) -> Float[Array, "rows height2 width2 channels"]:
    """Maxima of 2x2 windows; an odd last row or column is dropped.

    Where values tie, as ReLU's zeros and plain backgrounds do, the gradient is shared equally among
    them: a subgradient, whose sum over a window is the gradient of its maximum. `lax.reduce_window`
    gives all of it to the first instead. Sending all of it to each was at most 7 per cent faster in
    training, and is wrong: a window of four equal values would count four times.
    """
    rows, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return jnp.max(x.reshape(rows, height // 2, 2, width // 2, 2, channels), axis=(2, 4))


def _cnn(name: str, channels: tuple[int, ...], hidden: tuple[int, ...]) -> Model:
    check_widths(name, "channels", channels)
    check_widths(name, "hidden", hidden)

    def init(key: Key[Array, ""], spec: Spec) -> ConvolutionalNetwork:
        classes = need_classes(name, spec)
        return ConvolutionalNetwork(
            key, _image_of(name, spec, len(channels)), channels, hidden, classes
        )

    def predictive(params: ConvolutionalNetwork, x: Shaped[Array, " rows *image"]) -> Categorical:
        images = x[..., None] if x.ndim == 3 else x
        return Categorical.of_logits(params(scaled(images).astype(params.output.weight.dtype)))

    return from_predictive(name, init, predictive)


def _image_of(name: str, spec: Spec, convolutions: int) -> tuple[int, int, int]:
    shape = spec.rows.x.shape
    if len(shape) not in (2, 3):
        raise ValueError(
            f"{name}: rows must be images (height, width) or (height, width, channels), these have shape {shape}; "
            "reshape the rows, or use mlp() or softmax()"
        )
    height, width, *channels = shape
    least = 1
    for _ in range(convolutions):
        least = 2 * least + _KERNEL - 1
    if min(height, width) < least:
        raise ValueError(
            f"{name}: images of {height}x{width} are too small for {convolutions} convolutions with pooling; "
            f"at least {least}x{least} is needed"
        )
    return height, width, channels[0] if channels else 1


def _after(side: int) -> int:
    """A side of the image after a convolution and pooling."""
    return (side - _KERNEL + 1) // 2
