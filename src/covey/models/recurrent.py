"""Recurrent networks over rows of character codes."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Key, Shaped

from covey.core.shard import Spec
from covey.models.model import Model, from_predictive, need_classes
from covey.models.networks import Dense, check_widths, uniform
from covey.models.predictive import Categorical


class LSTMLayer(eqx.Module):
    """One layer of long short-term memory; the weights of the four gates (input, forget, candidate,
    output) are side by side.

    Initialised from U(-1/sqrt(hidden), 1/sqrt(hidden)), as in PyTorch; its two biases are one here.
    """

    weight_input: Float[Array, "inputs gates"]
    weight_hidden: Float[Array, "hidden gates"]
    bias: Float[Array, " gates"]

    def __init__(self, key: Key[Array, ""], inputs: int, hidden: int):
        input_key, hidden_key, bias_key = jax.random.split(key, 3)
        self.weight_input = uniform(input_key, (inputs, 4 * hidden), hidden)
        self.weight_hidden = uniform(hidden_key, (hidden, 4 * hidden), hidden)
        self.bias = uniform(bias_key, (4 * hidden,), hidden)

    def __call__(self, x: Float[Array, "time rows inputs"]) -> Float[Array, "time rows hidden"]:
        """The hidden states at all times, from a state of zero."""
        # The inputs' share of the gates does not wait for the recurrence: one large product before
        # the scan.
        from_input = x @ self.weight_input + self.bias

        def step(state, gates_from_input):
            hidden, cell = state
            gates = gates_from_input + hidden @ self.weight_hidden
            enter, forget, candidate, leave = jnp.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
            hidden = jax.nn.sigmoid(leave) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zero = jnp.zeros((x.shape[1], self.weight_hidden.shape[0]), from_input.dtype)
        _, states = jax.lax.scan(step, (zero, zero), from_input)
        return states


class CharacterLSTM(eqx.Module):
    """Embedding, stacked LSTM layers, and a dense layer on the last hidden state."""

    embedding: Float[Array, "classes embedding"]
    layers: tuple[LSTMLayer, ...]
    output: Dense

    def __init__(self, key: Key[Array, ""], classes: int, embedding: int, hidden: int, layers: int):
        embedding_key, output_key, *layer_keys = jax.random.split(key, layers + 2)
        self.embedding = jax.random.normal(embedding_key, (classes, embedding))
        widths = [embedding] + [hidden] * (layers - 1)
        self.layers = tuple(
            LSTMLayer(layer_key, width, hidden)
            for layer_key, width in zip(layer_keys, widths, strict=True)
        )
        self.output = Dense(output_key, hidden, classes)

    def __call__(self, x: Integer[Array, "rows time"]) -> Float[Array, "rows classes"]:
        """The logits of the character after the last."""
        # A code past the vocabulary becomes NaN; the default would read another character's
        # embedding instead.
        states = self.embedding.at[x.T].get(mode="fill", fill_value=jnp.nan)
        for layer in self.layers:
            states = layer(states)
        return self.output(states[-1])


def character_lstm(*, embedding: int = 8, hidden: int = 256, layers: int = 2) -> Model:
    """Stacked LSTM that predicts the next character of a text, as in LEAF and FedEM.

    A row is a window of character codes 0 to classes - 1 and its outcome the character that
    follows.

    Args:
        embedding: Dimension of the embedding of a character. Default: 8.
        hidden: Units of each LSTM layer. Default: 256.
        layers: Number of LSTM layers. Default: 2.

    Returns:
        A model of rows of integer codes with classes.

    Example:
        >>> import jax
        >>> from covey.core.shard import Rows
        >>> text = Rows(jax.ShapeDtypeStruct((80,), "int32"), jax.ShapeDtypeStruct((), "int32"))
        >>> model = character_lstm(hidden=16, layers=1)
        >>> model.init(jax.random.key(0), Spec(text, classes=90)).output.weight.shape
        (16, 90)

    Reference: Caldas et al. (2018), LEAF: a benchmark for federated settings.
    """
    check_widths("character_lstm", "embedding, hidden and layers", (embedding, hidden, layers))

    def init(key: Key[Array, ""], spec: Spec) -> CharacterLSTM:
        classes = need_classes("character_lstm", spec)
        x = spec.rows.x
        if len(x.shape) != 1 or x.shape[0] < 1 or not jnp.issubdtype(x.dtype, jnp.integer):
            raise ValueError(
                "character_lstm: a row must be a sequence of integer character codes, these are "
                f"{x.dtype} of shape {x.shape}"
            )
        return CharacterLSTM(key, classes, embedding, hidden, layers)

    def predictive(params: CharacterLSTM, x: Shaped[Array, "rows time"]) -> Categorical:
        return Categorical.of_logits(params(x))

    return from_predictive("character_lstm", init, predictive)
