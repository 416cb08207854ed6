"""FA-LD's noise as it is drawn, against what its mechanism says of it; an attack; and keys that
only a site has.
"""

import math
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import linear_gaussian

from covey import models
from covey.algorithms.fald import fald
from covey.algorithms.fald_walk import Down
from covey.channel.identity import identity
from covey.core import cohort
from covey.core.algorithm import Plan
from covey.core.keys import root_key, secret_key
from covey.core.protocol import Envelope, Kind, open_envelope, seal
from covey.core.shard import Rows, Shard, Spec, poisson_rows, whole
from covey.engines.messages import Answer, pack_down, unpack_answer
from covey.engines.setup import agreement_of, shapes_of
from covey.engines.site import Site
from covey.engines.site_programs import Programs, Ready
from covey.engines.site_store import MemoryStore
from covey.privacy import LangevinMechanism, rdp

DELTA, REPLICAS = 1e-3, 6000
COUNTS = np.array([50, 150])  # the client that is attacked has p_c = 1/4
ROUND: dict = {
    "step_size": 0.03,
    "local_steps": 1,
    "temperature": 0.5,
    "correlation": 0.6,
    "chains": 1,
    "keep": 1,
    "clip": 0.8,
}
SPEC = Spec(
    Rows(jax.ShapeDtypeStruct((1,), np.float32), jax.ShapeDtypeStruct((), np.float32)), None, 2, 200
)


def neighbours() -> tuple[Shard, Shard]:
    """Two data sets of a client that differ in one row, as far as two rows can: at theta = 0 no
    other has a gradient.
    """
    x, y = np.zeros((50, 1), np.float32), np.zeros(50, np.float32)
    x[0], y[0] = 1.0, 30.0
    return whole(Rows(x, y)), whole(Rows(x, -y))


@cache
def uploads(**changes: float) -> tuple[np.ndarray, np.ndarray]:
    """What the client uploads of either data set, many times over, along the direction in which the
    row pulls.
    """
    method = fald(models.linear(), **(ROUND | changes))
    theta = jax.tree.map(
        lambda leaf: leaf[..., None], models.linear().init(jax.random.key(0), SPEC)
    )
    down = Down(
        theta,
        jax.random.key_data(jax.random.key(5, impl="threefry2x32")),
        jnp.int32(0),
        jnp.asarray(200.0),
    )
    keys = jax.random.split(jax.random.key(1, impl="threefry2x32"), REPLICAS)
    program = jax.jit(
        jax.vmap(lambda key, data: method.client(key, down, (), data).up, in_axes=(0, None))
    )
    here, there = (program(keys, data) for data in neighbours())
    return along(here), along(there)


def along(up) -> np.ndarray:
    return np.asarray((up.weight[:, 0, 0] + up.bias[:, 0]) / math.sqrt(2), float)


def mechanism():
    """What the method says of itself, for clients that are all as large as the one attacked."""
    described = fald(models.linear(), **ROUND).privacy
    assert described is not None
    return replace(described(Plan(COUNTS, cohort.full()(COUNTS))), rows=(50,) * 4)


def test_uploads_differ_by_the_sensitivity_over_the_noise_that_the_mechanism_says():
    here, there = uploads()
    noise = np.sqrt((here.var() + there.var()) / 2)
    expected = 1 / float(mechanism().noises[0])
    error = np.sqrt(2 / REPLICAS) * np.sqrt(
        1 + expected**2 / 8
    )  # of a difference of means over a deviation
    assert abs((here.mean() - there.mean()) / noise - expected) < 4 * error
    assert expected > 25 * error


def advantage(here: np.ndarray, there: np.ndarray) -> float:
    """Of the best threshold: how much more often it says "here" of uploads from here than of those
    from there.
    """
    at = np.sort(np.concatenate([here, there]))
    return float(
        np.max(np.abs(np.searchsorted(np.sort(here), at) - np.searchsorted(np.sort(there), at)))
        / len(here)
    )


def permitted() -> float:
    """(epsilon, delta) permits an advantage of (e^epsilon - 1 + 2 delta) / (e^epsilon + 1),
    whatever the attacker does.
    """
    epsilon = rdp(mechanism(), rounds=1, delta=DELTA)
    return (math.exp(epsilon) - 1 + 2 * DELTA) / (math.exp(epsilon) + 1)


CHANCE = 2 / math.sqrt(
    REPLICAS
)  # a two-sample Kolmogorov-Smirnov distance that comes about once in a thousand times


def test_an_attack_gains_no_more_than_is_permitted():
    assert 0.1 < permitted() < 0.9
    assert advantage(*uploads()) < permitted() + CHANCE


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 1e-12},
        pytest.param({"correlation": 1.0}, marks=pytest.mark.slow),
        pytest.param({"clip": 1e6}, marks=pytest.mark.slow),
    ],
    ids=["no noise", "shared noise only", "no clipping"],
)
def test_without_its_own_noise_or_clipping_the_reported_guarantee_is_broken(change):
    assert advantage(*uploads(**change)) > 0.99 > permitted() + CHANCE


PROBLEM = linear_gaussian(sizes=(20, 40, 30))
COMMON: dict = {"step_size": 1e-5, "local_steps": 2, "batch_size": 8, "chains": 2, "keep": 1}


def upload(method, keys, client: int = 1):
    """What a client uploads at the start, for each of some keys, and what it reports."""
    data, spec = PROBLEM.data.shard(client, "train"), PROBLEM.data.spec
    down = method.broadcast(method.init(jax.random.key(0, impl="threefry2x32"), spec))
    return jax.jit(jax.vmap(lambda key: method.client(key, down, (), data)))(keys)


@pytest.mark.slow
def test_a_large_clip_changes_nothing():
    keys = jax.random.split(jax.random.key(3, impl="threefry2x32"), 2)
    plain, clipped = (
        upload(fald(models.linear(), clip=clip, **COMMON), keys) for clip in (None, 1e6)
    )
    for ours, theirs in zip(jax.tree.leaves(plain.up), jax.tree.leaves(clipped.up), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-7)


def test_what_a_method_says_of_itself():
    """A private one describes its rounds and is silent on the loss of training rows."""
    counts = PROBLEM.data.counts("train")
    plain, private = (fald(models.linear(), clip=clip, **COMMON) for clip in (None, 1.5))
    assert plain.privacy is None
    assert private.privacy is not None
    what = private.privacy(Plan(counts, cohort.weighted(2)(counts)))
    assert what == LangevinMechanism(
        step_size=1e-5,
        temperature=1.0,
        correlation=0.0,
        clip=1.5,
        local_steps=2,
        rows=(20, 40, 30),
        batch_size=8,
        scheme="weighted",
        cohort_size=2,
        chains=2,
    )
    infos = [
        shapes_of(method, identity(), root_key(1), PROBLEM.data.spec).client_info
        for method in (plain, private)
    ]
    assert [info._fields for info in infos] == [("train_loss", "local_steps"), ()]


def test_a_plan_that_hides_no_row_is_refused():
    """Shared noise is public. Noise of 0.67 times the sensitivity is where theorem G.3 ends,
    whatever delta is: z^2 = 2 tau p_c gamma^2 / (eta 4 C^2), which is least at the client with
    p_c = 4 / 9 and gamma = 8 / 40.
    """
    counts = PROBLEM.data.counts("train")
    plan = Plan(counts, cohort.full()(counts))

    def validate(**changes):
        fald(models.linear(), **(COMMON | {"clip": 0.5} | changes)).hooks.validate(plan)

    with pytest.raises(ValueError, match="with correlation=1 all noise is shared"):
        validate(correlation=1.0)
    largest = (4 / 9) * (8 / 40) ** 2 / math.log(1.25)
    validate(step_size=0.99 * largest)  # warnings are errors here
    with pytest.warns(UserWarning, match="the privacy theorem holds for no delta") as caught:
        validate(step_size=1.01 * largest)
    said = float(str(caught[0].message).partition("step_size below ")[2].split(" ")[0])
    assert said == pytest.approx(largest, rel=0.06)  # two digits
    fald(models.linear(), **(COMMON | {"step_size": 1.0})).hooks.validate(plan)  # nothing to hide


def test_poisson_rows_come_with_their_chance_and_no_other_rows_do():
    data = Shard(Rows(jnp.arange(40.0), jnp.zeros(40)), jnp.int32(5), jnp.int32(20), 32)
    keys = jax.random.split(jax.random.key(2), 4000)
    batch = jax.jit(jax.vmap(lambda key: poisson_rows(key, data, 5)))(keys)
    assert not batch.mask[:, 20:].any()
    rates = np.asarray(batch.mask[:, :20].mean(0))
    assert np.all(np.abs(rates - 0.25) < 4.5 * np.sqrt(0.25 * 0.75 / 4000))
    sizes = np.asarray(batch.mask.sum(1))
    assert abs(sizes.var() - 20 * 0.25 * 0.75) < 5 * 20 * 0.25 * 0.75 * np.sqrt(2 / 4000)


@pytest.mark.slow
def test_poisson_minibatches_have_the_right_gradient_on_average():
    """The mean upload over many draws of minibatches is that of all rows."""
    options = {"step_size": 1e-3, "temperature": 1e-12, "local_steps": 1, "chains": 1, "keep": 1}
    keys = jax.random.split(jax.random.key(3, impl="threefry2x32"), 4000)
    some = np.asarray(
        upload(fald(models.linear(), batch_size=8, sampling="poisson", **options), keys).up.weight
    )
    every = np.asarray(upload(fald(models.linear(), **options), keys[:1]).up.weight[0])
    assert np.all(np.abs(some.mean(0) - every) < 4.5 * some.std(0) / np.sqrt(4000))


def test_a_deployed_site_draws_what_the_server_cannot():
    method = fald(models.linear(), clip=1.0, **COMMON)
    agreed = agreement_of(method, PROBLEM.data.spec, seed=1, channel=None)
    programs = Ready(Programs(agreed))
    like = Answer(agreed.shapes.sent, agreed.shapes.client_info)
    rows = {part: PROBLEM.data.shard(0, part) for part in ("train", "validation", "test")}
    down = method.broadcast(method.init(jax.random.key(4), PROBLEM.data.spec))
    secret, study, digest = secret_key(), "study", "00" * 32

    def answer(given, t=0, epoch=1, store=None):
        """What a site sends, by a new site or one that has a store."""
        site = Site("a", 0, programs, rows, study=study, digest=digest, secret=given, store=store)
        request = Envelope(Kind.ROUND, study, digest, epoch, t, "server", "a")
        reply = site.handle(seal(request, pack_down(jax.device_get(down))))
        assert jax.random.key_data(secret).tobytes() not in reply
        return np.asarray(unpack_answer(open_envelope(reply)[1], like).sent.payload.weight)

    as_simulated = answer(None)
    np.testing.assert_array_equal(as_simulated, answer(None))
    np.testing.assert_array_equal(as_simulated, answer(None, epoch=2))  # a restart changes nothing
    np.testing.assert_array_equal(answer(secret), answer(secret))
    for other in (
        as_simulated,
        answer(secret_key()),
        answer(secret, t=1),
        answer(secret, epoch=2),  # the same round again, of a server that was restarted
    ):
        assert np.all(answer(secret) != other)
    store = MemoryStore()  # the stored bytes, after a restart of the site
    np.testing.assert_array_equal(answer(secret, store=store), answer(secret, store=store))


def test_two_broadcasts_of_one_round_never_get_the_same_noise():
    """Not even from a site that has forgotten that it answered. With one key for both broadcasts,
    the noise would cancel in the difference of the answers.
    """
    method = fald(models.linear(), **{**COMMON, "batch_size": None})
    agreed = agreement_of(method, PROBLEM.data.spec, seed=1, channel=None)
    programs, like = Ready(Programs(agreed)), Answer(agreed.shapes.sent, agreed.shapes.client_info)
    rows = {part: PROBLEM.data.shard(0, part) for part in ("train", "validation", "test")}
    one = jax.device_get(method.broadcast(method.init(jax.random.key(4), PROBLEM.data.spec)))
    other = one._replace(theta=jax.tree.map(lambda leaf: leaf + np.float32(1e-4), one.theta))

    def difference(secret):
        def answer(down):
            site = Site("a", 0, programs, rows, study="s", digest="00" * 32, secret=secret)
            request = Envelope(Kind.ROUND, "s", "00" * 32, 1, 0, "server", "a")
            body = open_envelope(site.handle(seal(request, pack_down(down))))[1]
            return np.asarray(unpack_answer(body, like).sent.payload.weight)

        return np.abs(answer(one) - answer(other)).max()

    noise = math.sqrt(2 * COMMON["step_size"])  # of one step
    assert difference(None) < 0.1 * noise < difference(secret_key())
