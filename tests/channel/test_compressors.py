"""What is particular to a compressor; what all have in common is in test_every_channel.py."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.algorithms.fedpop import Population
from covey.channel import (
    bfloat16,
    block_quantisation,
    clipping,
    dithering,
    identity,
    masked,
    natural,
    partition,
    rand_k,
    top_k,
)
from covey.channel.masked import check_parts
from covey.channel.packing import pack, unpack, width_of
from covey.channel.vector import Parcel, check_norm
from covey.models.effects import Gaussian


class Up(NamedTuple):
    delta: object
    weight: object


X = jnp.asarray([3.0, -4.0, 0.5, 0.0, 12.0, -0.25, 1.0])


@functools.cache
def program(channel):
    def send(key, up):
        payload, state = channel.encode(key, channel.init(up), up)
        return payload, channel.decode(payload), state

    return jax.jit(send)


def send(channel, up, key=0):
    return program(channel)(jax.random.key(key), up)


@pytest.mark.parametrize(
    ("width", "count"),
    [
        *((1, 1), (3, 13), (12, 7), (32, 2)),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in ((1, 8), (4, 5), (9, 16), (20, 3))
        ),
    ],
)
def test_packing(width, count):
    values = np.random.default_rng(width).integers(0, 2**width, count, np.uint32)
    packed = pack(jnp.asarray(values), width)
    assert packed.shape == (-(-count * width // 8),)
    np.testing.assert_array_equal(unpack(packed, width, count), values)
    # The same string by plain arithmetic: value i lies at bit i * width.
    whole = sum(int(value) << (index * width) for index, value in enumerate(values))
    assert bytes(np.asarray(packed)) == whole.to_bytes(len(packed), "little")


def test_width():
    assert [width_of(largest) for largest in (0, 1, 2, 3, 4, 7, 8, 255)] == [1, 1, 2, 2, 3, 3, 4, 8]


@pytest.mark.parametrize("norm", [1, 2, "inf"])
def test_dithering_sends_neighbouring_levels(norm):
    order = {1: 1, 2: 2, "inf": np.inf}[norm]
    step = np.linalg.norm(np.asarray(X, np.float64), order) / 5
    exact = np.asarray(X, np.float64) / step
    channel = dithering(levels=5, norm=norm)
    for key in range(5):
        payload, sent, _ = send(channel, X, key)
        level = np.asarray(sent, np.float64) / step
        np.testing.assert_allclose(level, np.round(level), atol=1e-5)
        assert np.all(np.abs(level - exact) < 1)
        assert np.all(level * exact >= 0)
    np.testing.assert_allclose(payload.code.norm, 5 * step, rtol=1e-6)


def test_blocks_have_norms_of_their_own():
    payload, sent, _ = send(block_quantisation(block=3, norm=1), X)
    np.testing.assert_allclose(payload.code.norms, [7.5, 12.25, 1.0], rtol=1e-6)
    assert set(np.abs(np.asarray(sent[:3]))) <= {0, 7.5}
    assert float(sent[6]) == 1.0  # alone in its block
    assert float(sent[3]) == 0.0


def test_rand_k_sends_k_values_and_its_own_seed():
    channel, positions = rand_k(k=3), set()
    for key in range(20):
        payload, sent, _ = send(channel, X + 0.1, key)
        on = np.flatnonzero(sent)
        assert len(on) == 3
        np.testing.assert_allclose(np.asarray(sent)[on], np.asarray(X + 0.1)[on] * 7 / 3, rtol=1e-6)
        assert np.any(np.asarray(payload.code.seed) != jax.random.key_data(jax.random.key(key)))
        positions |= set(on)
    assert positions == set(range(7))
    np.testing.assert_array_equal(np.sort(send(rand_k(k=7), X)[1]), np.sort(X))


def test_natural_compression_sends_powers_of_two_around():
    sent = np.asarray(send(natural(), jnp.tile(X, 100))[1]).reshape(100, 7)
    for index, (low, high) in enumerate(
        [(2, 4), (-4, -4), (0.5, 0.5), (0, 0), (8, 16), (-0.25, -0.25), (1, 1)]
    ):
        assert set(sent[:, index]) == {low, high}


def test_top_k_remembers_what_it_did_not_send():
    channel, meant, sent = top_k(k=2), np.zeros(7), np.zeros(7)
    state, encode = channel.init(X), jax.jit(channel.encode)
    for step in range(6):
        up = X * (1 + 0.1 * step)
        payload, state = encode(jax.random.key(step), state, up)
        arrived = np.asarray(channel.decode(payload))
        if step == 0:
            np.testing.assert_array_equal(arrived, [0, -4, 0, 0, 12, 0, 0])
        meant, sent = meant + np.asarray(up), sent + arrived
        np.testing.assert_allclose(sent + np.asarray(state.error), meant, rtol=1e-5)
    assert np.count_nonzero(sent) > 2  # others have had their turn


def test_clipping_keeps_the_direction_and_short_vectors():
    _, sent, _ = send(clipping(maximum=2), {"a": X, "b": jnp.float32(5.0)})
    whole = np.append(X, 5.0)
    np.testing.assert_allclose(
        np.append(sent["a"], sent["b"]), whole * 2 / np.linalg.norm(whole), rtol=1e-6
    )
    np.testing.assert_array_equal(send(clipping(maximum=20), X)[1], X)
    _, sent, state = send(clipping(maximum=2, then=top_k(k=1)), X)
    assert np.count_nonzero(sent) == 1
    np.testing.assert_allclose(np.linalg.norm(sent + state.error), 2, rtol=1e-6)


@pytest.mark.parametrize("large", [1e30, 3e38])
def test_clipping_bounds_the_norm_of_all_parts_together_however_large(large):
    """The norm of finite values may itself not be finite in float32."""
    up = {"a": jnp.array([large, -large, 1.0]), "b": jnp.full((2, 2), large)}
    _, sent, _ = send(clipping(maximum=2.0), up)
    whole = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in sent.values()])
    assert np.linalg.norm(whole) == pytest.approx(2.0, rel=1e-6)
    np.testing.assert_allclose(whole, 2 / np.sqrt(6) * np.array([1, -1, 0, 1, 1, 1, 1]), atol=1e-6)


@pytest.mark.parametrize("channel", [dithering(levels=1), block_quantisation(block=16)])
def test_the_largest_floats_are_not_lost(channel):
    """XLA would divide by them through a reciprocal that counts as zero."""
    large = jnp.zeros(16).at[3].set(3e38)
    np.testing.assert_array_equal(send(channel, large)[1], large)


def test_arguments_of_masked_in_the_other_order_are_named():
    with pytest.raises(ValueError, match="names of parts first and the channel second"):
        check_parts(dithering(levels=7), "phi")


def forged(channel, change):
    payload, _, _ = send(channel, X)
    return channel.decode(Parcel(change(payload.code), payload.layout))


def test_a_code_that_no_encoder_makes_gives_nan():
    level = forged(
        dithering(levels=5), lambda code: code._replace(codes=jnp.full_like(code.codes, 255))
    )
    byte = forged(
        block_quantisation(block=7),
        lambda code: code._replace(codes=jnp.full_like(code.codes, 250)),
    )
    position = forged(
        top_k(k=2), lambda code: code._replace(positions=jnp.full_like(code.positions, 255))
    )
    assert all(np.isnan(vector).any() for vector in (level, byte, position))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dithering(levels=0), "levels must be from 1 to 65536, got 0"),
        (lambda: check_norm("dithering", 3), 'norm must be 1, 2 or "inf", got 3'),
        (lambda: block_quantisation(block=0), "block must be at least 1, got 0"),
        (lambda: rand_k(k=0), "k must be at least 1, got 0"),
        (lambda: top_k(k=-1), "k must be at least 1, got -1"),
        (lambda: rand_k(k=8).omega(X), "k = 8 values cannot be chosen of the 7"),
        (lambda: clipping(maximum=0.0), "maximum must be above 0, got 0"),
        (lambda: masked([], bfloat16()), "masked: name at least one part"),
        (
            lambda: send(natural(), {"n": jnp.arange(3)}),
            "only floats can be compressed, the upload has int32",
        ),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


POPULATION = Population({"w": X, "b": X[:2]}, Gaussian(X[:3], X[:1]))


@pytest.mark.parametrize(
    ("part", "coded"), [("phi", ["w", "b"]), ("phi.w", ["w"]), (["phi.b"], ["b"])]
)
def test_only_some_parts_are_compressed(part, coded):
    """FedPop: phi is compressed, the law of the effects is not."""
    channel = masked(part, dithering(levels=2))
    payload, sent, _ = send(channel, POPULATION)
    for name in ("w", "b"):
        assert np.array_equal(sent.phi[name], POPULATION.phi[name]) == (name not in coded)
    np.testing.assert_array_equal(sent.beta.mean, POPULATION.beta.mean)
    np.testing.assert_array_equal(sent.beta.log_scale, POPULATION.beta.log_scale)
    inside = sum(POPULATION.phi[name].size for name in coded)
    assert channel.bits(payload) == 8 * -(-3 * inside // 8) + 32 + 32 * (13 - inside)
    assert channel.omega(POPULATION) == dithering(levels=2).omega(jnp.zeros(inside))


def test_only_agrees_with_by_part():
    parts = partition(Population(dithering(levels=2), identity()))
    assert parts.omega(POPULATION) == masked("phi", dithering(levels=2)).omega(POPULATION)
    assert partition(Up(top_k(k=1), identity())).omega is None
    one, other = parts.init(POPULATION), masked("phi", top_k(k=2)).init(POPULATION)
    assert not jax.tree.leaves(one)
    assert other.error.shape == (9,)


def test_a_part_that_is_not_there():
    parts = "its parts are phi.b, phi.w, beta.mean, beta.log_scale"
    with pytest.raises(ValueError, match=f"masked: the upload has no part 'psi'; {parts}"):
        send(masked("psi", bfloat16()), POPULATION)
    with pytest.raises(ValueError, match="none: it is a single array"):
        send(masked("phi", bfloat16()), X)
