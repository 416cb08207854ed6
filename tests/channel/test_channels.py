from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.algorithms.fedem import Info
from covey.channel import bfloat16, dithering, identity, partition
from covey.core import tree, wire
from covey.core.node import Sent
from covey.core.protocol import Envelope, Kind, seal
from covey.core.shard import Rows, Spec
from covey.engines.messages import Answer, pack_answer, up_size
from covey.models import gaussian_mixture


class Up(NamedTuple):
    delta: object
    weight: object


VALUES = jnp.asarray(
    np.random.default_rng(0).normal(size=200)
    * 10.0 ** np.random.default_rng(1).integers(-6, 6, 200),
    jnp.float32,
)


def through(channel, key, up):
    payload, _ = channel.encode(key, channel.init(up), up)
    return payload, channel.decode(payload)


def test_half_is_unbiased():
    keys = jax.random.split(jax.random.key(0), 4000)
    sent = np.asarray(jax.vmap(lambda key: through(bfloat16(), key, VALUES)[1])(keys), np.float64)
    error = sent.std(0) / np.sqrt(len(keys))
    assert np.all(np.abs(sent.mean(0) - np.asarray(VALUES)) <= 5 * error + 1e-7 * np.abs(VALUES))
    assert np.all(np.abs(sent - np.asarray(VALUES)) <= 2.0**-7 * np.abs(np.asarray(VALUES)))
    assert sent.std(0).max() > 0


def test_half_keeps_what_is_not_finite_and_what_is_not_a_float():
    odd = jnp.array([jnp.inf, -jnp.inf, jnp.nan, 0.0])
    _, sent = through(bfloat16(), jax.random.key(0), (odd, jnp.arange(3)))
    np.testing.assert_array_equal(sent[0], odd)
    np.testing.assert_array_equal(sent[1], [0, 1, 2])


def test_bits_are_those_of_the_payload():
    up = Up(VALUES, jnp.float32(3))
    for channel, bits in (
        (identity(), 32 * 201),
        (bfloat16(), 16 * 201),
        (partition(Up(bfloat16(), identity())), 16 * 200 + 32),
    ):
        payload, _ = through(channel, jax.random.key(0), up)
        assert channel.bits(payload) == bits
        assert 8 * len(wire.pack(payload)) == bits + 64


def message_bytes(channel, up) -> int:
    """The whole message of an answer: header, payload, reported scalars and checks."""
    payload, _ = through(channel, jax.random.key(0), up)
    answer = Answer(Sent(payload, None), Info(jnp.float32(0.5)))
    request = Envelope(Kind.ROUND, "study", "00" * 32, 1, 100, "server", "site")
    message = seal(request.answer(seal(request)), pack_answer(answer))
    assert len(message) == up_size(answer)
    return len(message)


def test_a_message_of_few_values_is_small():
    assert message_bytes(dithering(levels=7), VALUES[:6]) <= 32  # 7 of them are the payload


def test_the_message_of_mixture_statistics_in_4_bits_is_a_sixth_of_that_in_32():
    """MNIST: ten components of 1 + 20 statistics, the sizes of the reproduction."""
    model = gaussian_mixture(
        components=10,
        means=np.zeros((10, 20)),
        start_covariance=np.eye(20),
        second_moment=2 * np.eye(20),
    )
    rows = Rows(jax.ShapeDtypeStruct((20,), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32))
    statistics = model.expected(model.init(jax.random.key(0), Spec(rows, 10)))
    assert tree.size(statistics) == 210
    few, many = (
        message_bytes(dithering(levels=7), statistics),
        message_bytes(identity(), statistics),
    )
    assert few / many <= 1 / 6, (few, many)


def test_parts_pass_through_their_own_channels():
    up = Up({"a": VALUES, "b": VALUES}, jnp.float32(1.2345678))
    _, sent = through(partition(Up(bfloat16(), identity())), jax.random.key(0), up)
    assert float(sent.weight) == float(up.weight)
    assert np.any(np.asarray(sent.delta["a"]) != np.asarray(VALUES))
    assert np.any(np.asarray(sent.delta["a"]) != np.asarray(sent.delta["b"]))


def test_parts_that_do_not_fit():
    channel = partition(Up(bfloat16(), identity()))
    with pytest.raises(ValueError, match="does not have the parts"):
        channel.init((VALUES,))
    with pytest.raises(ValueError, match="must be a channel"):
        partition({"a": 3})
