"""Convolutional networks for small images, rows as (height, width, channels).

A convolution is written as patches times a matrix: inside `scan` on a CPU, `lax.conv` was measured
27 times slower in training the network of `femnist_cnn`. Under `vmap` over clients the product
stays one, where `lax.conv` becomes a grouped convolution. The patches are made once and kept for
the gradient, and products are not fused with what stands beside them (`optimization_barrier`, which
gradients pass as well): an eighth of a training step.
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
    """Convolution without padding, maxima of 2x2 windows, a bias and ReLU.

    The bias and ReLU are monotone and come after the maxima: the same values and gradients as the
    other way round, from a quarter of the additions. Initialised as `Dense` is.
    """

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
        return jax.nn.relu(max_pool(convolve(x, self.weight)) + self.bias)


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
            x = layer(x)
        return self.dense(flat(x))

    @property
    def output(self) -> Dense:
        """The last layer."""
        return self.dense.output


def femnist_cnn(
    *, channels: tuple[int, ...] = (32, 64), hidden: tuple[int, ...] = (2048,)
) -> Model:
    """Convolutional network of LEAF and FedEM for handwritten characters.

    Two 5x5 convolutions, each with ReLU and 2x2 pooling, then one hidden layer. Without padding, as
    in FedEM's code; LEAF pads.

    Args:
        channels: Output channels of each convolution. Default: (32, 64).
        hidden: Units of each hidden dense layer. Default: (2048,).

    Returns:
        A model of images (height, width) or (height, width, channels) with classes.

    Example:
        >>> import jax
        >>> from covey.core.shard import Rows
        >>> image = Rows(jax.ShapeDtypeStruct((28, 28), "uint8"), jax.ShapeDtypeStruct((), "int32"))
        >>> model = femnist_cnn(channels=(2, 3), hidden=(8,))
        >>> model.init(jax.random.key(0), Spec(image, classes=62)).output.weight.shape
        (8, 62)

    Reference: Caldas et al. (2018), LEAF; Marfoq et al. (2021), FedEM.
    """
    return _cnn("femnist_cnn", channels, hidden)


def cifar_cnn(
    *, channels: tuple[int, ...] = (64, 64), hidden: tuple[int, ...] = (120, 64)
) -> Model:
    """Five-layer convolutional network of FedRep for CIFAR.

    Two 5x5 convolutions, each with ReLU and 2x2 pooling, then three dense layers. FedPop says
    "5-layer convolutional neural networks" and no more, and compares with FedRep.

    Args:
        channels: Output channels of each convolution. Default: (64, 64). FedRep has (64, 128) for
            CIFAR-100, LG-FedAvg (6, 16).
        hidden: Units of each hidden dense layer. Default: (120, 64). FedRep has (256, 128) for
            CIFAR-100, with dropout, which is left out here because a likelihood has no randomness;
            LG-FedAvg (120, 100).

    Returns:
        A model of images (height, width) or (height, width, channels) with classes.

    Example:
        >>> import jax
        >>> from covey.core.shard import Rows
        >>> image = Rows(
        ...     jax.ShapeDtypeStruct((32, 32, 3), "uint8"), jax.ShapeDtypeStruct((), "int32")
        ... )
        >>> params = cifar_cnn(channels=(2, 3)).init(jax.random.key(0), Spec(image, classes=10))
        >>> params.output.weight.shape
        (64, 10)

    Reference: Collins et al. (2021), Exploiting shared representations for personalized federated
    learning.
    """
    return _cnn("cifar_cnn", channels, hidden)


def convolve(
    x: Float[Array, "rows height width inputs"], kernel: Float[Array, "tall wide inputs outputs"]
) -> Float[Array, "rows height2 width2 outputs"]:
    """Cross-correlation without padding and with stride 1, which networks call convolution.

    Args:
        x: Images, one per row.
        kernel: One filter per output channel.

    Returns:
        One image per row and output channel, smaller by the size of the kernel minus 1.

    Example:
        >>> import jax.numpy as jnp
        >>> convolve(jnp.ones((1, 3, 3, 1)), jnp.ones((2, 2, 1, 1)))[0, :, :, 0].tolist()
        [[4.0, 4.0], [4.0, 4.0]]
    """
    tall, wide, inputs, outputs = kernel.shape
    height, width = x.shape[1] - tall + 1, x.shape[2] - wide + 1
    apart, size = jax.lax.optimization_barrier, tall * wide * inputs
    patches = jnp.concatenate(
        [x[:, i : i + height, j : j + width] for i in range(tall) for j in range(wide)], axis=-1
    )
    product = apart(apart(patches).reshape(-1, size) @ kernel.reshape(size, outputs))
    return product.reshape(*patches.shape[:3], outputs)


def max_pool(
    x: Float[Array, "rows height width channels"],
) -> Float[Array, "rows height2 width2 channels"]:
    """Maxima of 2x2 windows; an odd last row or column is dropped.

    Where values tie, as ReLU's zeros and plain backgrounds do, the gradient is shared equally among
    them, a subgradient; `lax.reduce_window` gives all of it to the first.

    Args:
        x: Images, one per row.

    Returns:
        Images of half the height and width.

    Example:
        >>> import jax.numpy as jnp
        >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
        [[5.0, 7.0], [13.0, 15.0]]
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
            f"{name}: rows must be images (height, width) or (height, width, channels), these have "
            f"shape {shape}; reshape the rows, or use mlp() or softmax()"
        )
    height, width, *channels = shape
    least = 1
    for _ in range(convolutions):
        least = 2 * least + _KERNEL - 1
    if min(height, width) < least:
        raise ValueError(
            f"{name}: images of {height}x{width} are too small for {convolutions} convolutions "
            f"with pooling; at least {least}x{least} is needed"
        )
    return height, width, channels[0] if channels else 1


def _after(side: int) -> int:
    """A side of the image after a convolution and pooling."""
    return (side - _KERNEL + 1) // 2
