"""Every channel of the package goes through the same walk."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.channel import (
    CHANNELS,
    bfloat16,
    block_quantisation,
    clipping,
    dithering,
    identity,
    masked,
    natural,
    rand_k,
    top_k,
)
from covey.config.catalogue import CHANNELS as CATALOGUE
from covey.core import tree, wire
from covey.core.protocol import Envelope, Kind, open_envelope, seal
from covey.engines.messages import pack_down, unpack_down

RANDOM = np.random.default_rng(0)
VALUES = RANDOM.uniform(0.3, 3.0, 60) * RANDOM.choice(
    [-1, 1, 1], 60
)  # no value so small that it is hardly ever sent
UPLOAD = {
    "a": jnp.asarray(VALUES[:40].reshape(8, 5), jnp.float32),
    "b": jnp.asarray(VALUES[40:], jnp.float32),
}
DRAWS = 4000

# Bits of the payload of 60 float32; every packed string is filled up to whole bytes.
WALK = {
    "identity": (identity(), 60 * 32),
    "bfloat16": (bfloat16(), 60 * 16),
    "dithering": (dithering(levels=7), 60 * 4 + 32),
    "dithering-inf": (dithering(levels=100, norm="inf"), 60 * 8 + 32),
    "block_quantisation": (block_quantisation(block=16), 12 * 8 + 4 * 32),
    "block_quantisation-inf": (block_quantisation(block=100, norm="inf"), 12 * 8 + 32),
    "rand_k": (rand_k(k=9), 9 * 32 + 64),
    "natural": (natural(), 68 * 8),  # 540 bits
    "top_k": (top_k(k=9), 9 * 32 + 7 * 8),  # 9 positions of 6 bits
    "clipping": (clipping(maximum=5.0), 60 * 32),
    "clipping-then": (clipping(maximum=5.0, then=dithering(levels=7)), 60 * 4 + 32),
    "masked": (masked("a", dithering(levels=3)), 15 * 8 + 32 + 20 * 32),
}
BIASED = {"top_k", "clipping", "clipping-then"}
every_channel = pytest.mark.parametrize(("channel", "bits"), WALK.values(), ids=WALK.keys())


def send(channel, key, up):
    """What travels, and what a simulation uses, in one program."""
    payload, state = channel.encode(key, channel.init(up), up)
    return payload, channel.decode(payload), state


@functools.cache
def program(channel):
    """`send`, compiled: one program for each shape of upload."""
    return jax.jit(functools.partial(send, channel))


def flat(up):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(up)])


def test_the_walk_covers_the_catalogue():
    assert {name.partition("-")[0] for name in WALK} - {"masked"} == set(CATALOGUE) == set(CHANNELS)


def test_those_without_a_bound_are_the_biased_ones():
    assert {name for name, (channel, _) in WALK.items() if channel.omega is None} == BIASED


@every_channel
def test_the_walk(channel, bits):
    """Unbatched, batched and through real bytes the same values; bits as packed; mean and variance
    as claimed.
    """
    keys = jax.random.split(jax.random.key(1), DRAWS)
    payloads, sent, _ = jax.jit(jax.vmap(lambda key: send(channel, key, UPLOAD)))(keys)
    shapes = jax.eval_shape(lambda key: send(channel, key, UPLOAD), keys[0])[0]
    decode = jax.jit(channel.decode)
    for index in (0, DRAWS - 1):
        payload, simulated = jax.tree.map(lambda leaf, at=index: leaf[at], (payloads, sent))
        data = wire.pack(payload)
        assert channel.bits(payload) == channel.bits(shapes) == bits
        assert 8 * len(data) == bits + 64  # an identity and a checksum
        assert wire.size(shapes) == len(data)
        jax.tree.map(np.testing.assert_array_equal, simulated, decode(wire.unpack(data, shapes)))
        # A sum of squares may be taken in another order when it is not one of many: the last bit of
        # a norm.
        np.testing.assert_allclose(
            flat(simulated), flat(program(channel)(keys[index], UPLOAD)[1]), rtol=3e-7
        )
        assert tree.specs(simulated) == tree.specs(UPLOAD)
    if channel.omega is None:
        return
    x = flat(UPLOAD)
    draws = np.concatenate(
        [np.asarray(leaf, np.float64).reshape(DRAWS, -1) for leaf in jax.tree.leaves(sent)], axis=1
    )
    assert np.all(np.abs(draws.mean(0) - x) <= 5 * draws.std(0) / np.sqrt(DRAWS) + 1e-7 * np.abs(x))
    squares = np.sum((draws - x) ** 2, axis=1)
    assert channel.omega(UPLOAD) == channel.omega(tree.specs(UPLOAD))
    assert squares.mean() - 4 * squares.std() / np.sqrt(DRAWS) <= channel.omega(UPLOAD) * np.sum(
        x**2
    )


def sharp(name, d):
    """A vector that comes near the variance bound: all equal for norm 2, one above the others for
    inf.
    """
    x = np.ones(d, np.float32)
    if name.endswith("inf"):
        x /= 1 + np.sqrt(d)
        x[0] = 1
    return jnp.asarray(x)


@pytest.mark.parametrize(
    ("name", "channel", "d", "share"),
    [
        ("dithering", dithering(levels=1), 400, 0.9),
        (
            "dithering",
            dithering(levels=2),
            16,
            0.99,
        ),  # 2 / sqrt(16) of a level each: the other branch of the minimum
        ("dithering-inf", dithering(levels=1, norm="inf"), 400, 0.9),
        ("dithering-1", dithering(levels=1, norm=1), 400, 0.9),
        ("block", block_quantisation(block=50), 400, 0.95),
        ("block-inf", block_quantisation(block=400, norm="inf"), 400, 0.95),
        ("block-1", block_quantisation(block=50, norm=1), 400, 0.95),
        ("rand_k", rand_k(k=20), 400, 0.95),
        ("natural", natural(), 400, 0.95),
    ],
)
def test_omega_is_a_bound_and_no_wild_one(name, channel, d, share):
    x = sharp(name, d) * (4 / 3 if name == "natural" else 1)  # f = 1/3 is the worst fraction
    keys = jax.random.split(jax.random.key(3), 1000)
    sent = np.asarray(jax.jit(jax.vmap(lambda key: send(channel, key, x)[1]))(keys), np.float64)
    ratio = np.sum((sent - np.asarray(x)) ** 2, 1) / np.sum(np.asarray(x, np.float64) ** 2)
    spread = 4 * ratio.std() / np.sqrt(len(ratio))
    assert ratio.mean() <= channel.omega(x) + spread
    assert ratio.mean() >= share * channel.omega(x) - spread


@every_channel
def test_zeros_stay_zeros_and_one_value_passes(channel, bits):
    zeros = jax.tree.map(jnp.zeros_like, UPLOAD)
    _, sent, _ = program(channel)(jax.random.key(0), zeros)
    assert np.all(flat(sent) == 0)
    if channel is WALK["rand_k"][0] or channel is WALK["top_k"][0]:
        with pytest.raises(
            ValueError,
            match=r"k = 9 values cannot be chosen of the 1 that the upload has; choose k up to 1",
        ):
            send(channel, jax.random.key(0), {"a": jnp.ones(1)})
        return
    payload, sent, _ = program(channel)(jax.random.key(0), {"a": jnp.full(1, -2.0)})
    assert sent["a"].shape == (1,)
    assert float(sent["a"][0]) == -2.0  # a power of two, and the whole norm
    assert channel.bits(payload) == tree.bits(payload)


@every_channel
def test_nothing_finite_comes_of_what_is_not(channel, bits):
    def through(up):
        return program(channel)(jax.random.key(0), up)[1]

    for bad in (np.nan, np.inf, -np.inf):
        for index in (0, 39):
            up = {"a": UPLOAD["a"].ravel().at[index].set(bad).reshape(8, 5), "b": UPLOAD["b"]}
            assert not np.all(np.isfinite(flat(through(up))))
    # Squares of these overflow or vanish in float32; the values do not.
    for scale in (1e25, 1e-25):
        sent = flat(through(jax.tree.map(lambda leaf, scale=scale: scale * leaf, UPLOAD)))
        assert np.all(np.isfinite(sent))
        assert np.any(sent != 0)


@every_channel
def test_double_precision(channel, bits):
    with jax.enable_x64(True):
        up = {"a": jnp.asarray(VALUES[:40].reshape(8, 5)), "b": jnp.asarray(VALUES[40:])}
        payload, sent, _ = program(channel)(jax.random.key(0), up)
        assert tree.specs(sent) == tree.specs(up)
        assert channel.bits(payload) > bits or channel is WALK["identity"][0]
        arrived = jax.jit(channel.decode)(wire.unpack(wire.pack(payload), tree.specs(payload)))
        jax.tree.map(np.testing.assert_array_equal, sent, arrived)
        mixed = {"a": up["a"].astype(jnp.float32), "b": up["b"]}
        assert jax.eval_shape(functools.partial(send, channel), jax.random.key(0), mixed)[
            1
        ] == tree.specs(mixed)


@every_channel
def test_a_payload_that_was_changed_or_cut_is_refused(channel, bits):
    payload, _, _ = program(channel)(jax.random.key(0), UPLOAD)
    envelope = Envelope(Kind.ANSWER, "", "", 0, 0, "", "", answers=b"8 bytes.")
    message = seal(envelope, pack_down(payload))
    _, body = open_envelope(message)
    jax.tree.map(np.testing.assert_array_equal, payload, unpack_down(body, tree.specs(payload)))
    for at in range(0, len(message), 17):
        broken = bytearray(message)
        broken[at] ^= 16
        with pytest.raises(wire.WireError, match="changed on the way"):
            open_envelope(bytes(broken))
    with pytest.raises(wire.WireError, match="cut short"):
        open_envelope(message[:-9])
    with pytest.raises(wire.WireError, match="was expected"):
        unpack_down(body[:-1], tree.specs(payload))
    longer = {"a": jnp.ones((9, 5)), "b": jnp.ones(21)}
    shapes, _, _ = jax.eval_shape(functools.partial(send, channel), jax.random.key(0), longer)
    other = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
    if tree.specs(jax.tree.leaves(other)) != tree.specs(
        jax.tree.leaves(payload)
    ):  # k values are k values of any upload
        with pytest.raises(wire.WireError, match="was expected"):
            unpack_down(pack_down(other), tree.specs(payload))


@every_channel
def test_an_upload_without_values(channel, bits):
    for nothing in ((), {"a": jnp.zeros((0, 3)), "b": jnp.zeros(0)}):
        if nothing == () and channel is WALK["masked"][0]:
            continue
        payload, sent, _ = program(channel)(jax.random.key(0), nothing)
        assert channel.bits(payload) == 0
        assert tree.specs(sent) == tree.specs(nothing)
