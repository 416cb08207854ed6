"""Exchanges between peers: who is absent, compressed differences, and what is counted as sent."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import linear_gaussian

from covey import channel, models, topology
from covey.algorithms.fedavg import fedavg
from covey.core import cohort
from covey.core.keys import root_key
from covey.engines.gossip import absent_kept, consensus_distance, first_copies, gossip_of, mix
from covey.engines.peers import Peers

PEERS, D = 6, 20
START = np.random.default_rng(0).normal(size=(PEERS, D)).astype(np.float32)
ALL = np.ones(PEERS, bool)


def exchanged(graph, codec, *, rounds=1, present=ALL):
    """`rounds` rounds of exchanges from `START`, with copies that start at zero."""
    matrices = jnp.asarray(graph(PEERS), float)
    how = gossip_of(graph, len(matrices), codec, jax.ShapeDtypeStruct((D,), np.float32))

    def body(t, at):
        return mix(how, matrices, root_key(0), t, jnp.arange(PEERS), jnp.asarray(present), *at[:2])

    first = body(0, (jnp.asarray(START), first_copies(how, jnp.zeros((PEERS, D)))))
    return how, jax.jit(lambda at: jax.lax.fori_loop(1, rounds, body, at))(first)


def test_the_matrix_of_those_present_keeps_the_mean():
    present = jnp.array([True, False, True, True, False, True])
    weights = np.asarray(absent_kept(jnp.asarray(topology.grid()(6)[0]), present))
    np.testing.assert_allclose(weights.sum(0), 1, rtol=1e-6)
    np.testing.assert_allclose(weights, weights.T)
    np.testing.assert_array_equal(weights[1], np.eye(6)[1])


def test_through_a_lossy_channel_it_is_choco_gossip():
    """Two exchanges with top-k, which is not random, against NumPy; peer 2 is absent."""
    k, present = 5, np.arange(PEERS) != 2
    how, found = exchanged(topology.ring(gossip_steps=2), channel.top_k(k=k), present=present)
    between = topology.ring()(PEERS)[0] * np.outer(present, present)
    np.fill_diagonal(between, 0)
    states, copies = START.astype(np.float64), np.zeros((PEERS, D))
    gamma = (k / D) / (2 - k / D)
    for _ in range(2):
        off = states - copies
        kept = np.abs(off) >= np.sort(np.abs(off), axis=1)[:, [-k]]
        copies = copies + np.where(present[:, None] & kept, off, 0)
        states = states + gamma * (between @ copies - between.sum(1)[:, None] * copies)
    np.testing.assert_allclose(found.states, states, atol=1e-6)
    np.testing.assert_allclose(found.copies, copies, atol=1e-6)
    assert int(found.messages) == 2 * 5 * 2  # five peers to two neighbours each, absent or not
    assert how.bits == 32 * k + 8 * 4  # the entries, and their places: 25 bits in 4 bytes


@pytest.mark.parametrize(
    "codec",
    [
        channel.rand_k(k=5),
        pytest.param(channel.dithering(levels=2), marks=pytest.mark.slow),
        pytest.param(channel.block_quantisation(block=5), marks=pytest.mark.slow),
        channel.top_k(k=5),
    ],
    ids=["rand_k", "dithering", "block_quantisation", "top_k"],
)
def test_compressed_peers_keep_their_mean_and_come_together_all_the_same(codec):
    """Not up to the codec's error, as they would if they sent compressed states.

    The slowest difference on a ring of six shrinks by 1 - gamma / 3 per round.
    """
    rounds = 150
    how, found = exchanged(topology.ring(), codec, rounds=rounds)
    np.testing.assert_allclose(found.states.mean(0), START.mean(0), atol=1e-5)
    apart = float(consensus_distance(found.states) / consensus_distance(jnp.asarray(START)))
    assert apart < 2 * (1 - how.step_size / 3) ** rounds


def test_the_step_follows_from_what_a_channel_delivers():
    """delta / (2 - delta) with delta = 1 / (1 + omega), and k / d for top-k; 1 without loss."""
    like = jax.ShapeDtypeStruct((D,), np.float32)
    found = [
        gossip_of(topology.ring(), 1, codec, like)
        for codec in (channel.rand_k(k=5), channel.top_k(k=5), channel.identity(), None)
    ]
    assert [how.step_size for how in found] == pytest.approx([1 / 7, 1 / 7, 1, 1])
    assert [how.scale for how in found] == pytest.approx([1 / 4, 1, 1, 1])
    assert [how.lossy for how in found] == [True, True, False, False]


def test_a_channel_without_loss_mixes_plainly():
    weights = topology.ring()(PEERS)[0]
    for codec in (None, channel.identity()):
        how, found = exchanged(topology.ring(), codec)
        np.testing.assert_allclose(found.states, weights @ START, atol=1e-6)
        assert how.bits == 32 * D


@pytest.mark.parametrize(
    ("graph", "codec", "message"),
    [
        (topology.erdos_renyi(rounds=2), channel.rand_k(k=5), "changes between 2 graphs"),
        (topology.ring(), channel.rand_k(k=21), "compresses the states .* k = 21"),
        (topology.ring(), channel.masked("delta", channel.rand_k(k=2)), "compresses the states"),
    ],
)
def test_channels_that_do_not_fit_are_refused(graph, codec, message):
    with pytest.raises(ValueError, match=message):
        exchanged(graph, codec)


@pytest.mark.parametrize("steps", [0, -1])
def test_fewer_than_one_gossip_step_is_refused(steps):
    with pytest.raises(ValueError, match=f"gossip_steps must be at least 1, got {steps}"):
        topology.ring(gossip_steps=steps)


@pytest.mark.slow
def test_a_run_through_a_lossy_channel_counts_what_is_sent_and_resumes():
    codec, data = channel.dithering(levels=7), linear_gaussian(sizes=(7, 20, 12, 9)).data
    method = fedavg(
        models.linear(), client_optimizer=optax.sgd(0.05), batch_size=None, weighting="equal"
    )
    engine = Peers(
        method,
        data,
        topology=topology.ring(gossip_steps=2),
        seed=0,
        channel=codec,
        cohort=cohort.bernoulli(0.7),
    )
    state, lines = engine.advance(engine.start(), 3)
    bits = 32 + 2 * 8  # the norm, and four entries of four bits
    for line in lines:
        assert line["bits_up"] == 2 * line["clients"] * 2 * bits
    like = jax.tree.map(lambda leaf: (leaf.shape, np.dtype(leaf.dtype)), engine.snapshot_like())
    kept = jax.tree.map(np.asarray, engine.snapshot(state))
    assert like == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), kept)
    one, other = (engine.advance(at, 2)[0].nodes for at in (state, engine.restore(kept)))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_a_network_that_changes_does_so_with_every_exchange():
    changing = topology.erdos_renyi(probability=0.6, rounds=3, gossip_steps=2)
    first, second, third = changing(PEERS)
    _, found = exchanged(changing, None, rounds=2)
    np.testing.assert_allclose(found.states, first @ third @ second @ first @ START, atol=1e-6)
