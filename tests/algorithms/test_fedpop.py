"""FedPop against linear Gaussian mixed models, where posteriors, marginal likelihood and the law of
the chain are exact.
"""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from scipy.optimize import minimize

from covey import channel, models
from covey.algorithms.fedpop import Down, Personal, Population, fedpop
from covey.core.algorithm import Aggregate, Empty
from covey.core.cohort import uniform
from covey.core.keys import Stream, key_for, root_key
from covey.core.node import first_node, node_round
from covey.core.shard import Rows, Shard, Spec, whole
from covey.data.federated import FederatedData
from covey.engines.record import Diverged
from covey.engines.simulate import Simulation
from covey.kernels import ornstein_uhlenbeck, sgld
from covey.models import Linear, MixedModel, Normal
from covey.models.effects import Correlated, Gaussian

NOISE, STEP, SLOPES = 0.8, 0.01, (1,)
THETA = Population(
    Linear(np.array([0.7, -0.4]), np.array(0.3)),
    Gaussian(np.array([0.5, -0.6]), np.log([0.9, 0.5])),
)
KEYS = 400


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def theta():
    return jax.tree.map(jnp.asarray, THETA)


@pytest.fixture
def down(theta):
    return Down(theta, jnp.ones(()))


class Client(NamedTuple):
    """One client's rows, the columns that its effects multiply, and its exact posterior given
    THETA.
    """

    rows: Rows
    design: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray

    @property
    def of_the_chain(self):
        """The covariance of what ULA samples."""
        precision = np.linalg.inv(self.covariance)
        return np.linalg.inv(precision @ (np.eye(2) - STEP * precision / 2))


def one_client(rows=12):
    rng = np.random.default_rng(3)
    x = rng.normal([0.5, -0.3], 1.0, (rows, 2))
    design = np.column_stack([np.ones(rows), x[:, SLOPES[0]]])
    fixed = x @ THETA.phi.weight + THETA.phi.bias
    y = fixed + design @ np.array([1.4, -1.1]) + NOISE * rng.normal(size=rows)
    prior = np.diag(np.exp(-2 * THETA.beta.log_scale))
    covariance = np.linalg.inv(design.T @ design / NOISE**2 + prior)
    mean = covariance @ (design.T @ (y - fixed) / NOISE**2 + prior @ THETA.beta.mean)
    return Client(Rows(x, y), design, mean, covariance)


CLIENT = one_client()


SPEC = Spec(Rows(jax.ShapeDtypeStruct((2,), float), jax.ShapeDtypeStruct((), float)), clients=6)


def method(*, step_size=STEP, scale=NOISE, **options):
    return fedpop(models.mixed_linear(scale=scale, slopes=SLOPES), step_size=step_size, **options)


def log_marginal(theta, x, y, design, noise):
    """log p(D_i | phi, beta) of a linear mixed model, effects integrated out."""
    mean = x @ theta.phi.weight + theta.phi.bias + design @ theta.beta.mean
    covariance = (
        noise**2 * jnp.eye(len(y)) + (design * jnp.exp(2 * theta.beta.log_scale)) @ design.T
    )
    return jax.scipy.stats.multivariate_normal.logpdf(y, mean, covariance)


def test_gradients_are_those_of_the_marginal_likelihood(theta, down):
    fed, data = method(draws=100, burn_in=300), whole(CLIENT.rows)
    start = Personal(jnp.zeros((100, 2)), Empty())
    up = jax.jit(jax.vmap(lambda key: fed.client(key, down, start, data).up))(
        jax.random.split(jax.random.key(0), KEYS)
    )
    exact = jax.grad(log_marginal)(theta, *CLIENT.rows, CLIENT.design, NOISE)
    # Everything is linear in z and so exact on average, except the squares in the gradient by the
    # log deviations.
    surplus = np.diag(CLIENT.of_the_chain - CLIENT.covariance) * np.exp(-2 * THETA.beta.log_scale)
    expected = exact._replace(beta=exact.beta._replace(log_scale=exact.beta.log_scale + surplus))
    for estimates, value in zip(jax.tree.leaves(up), jax.tree.leaves(expected), strict=True):
        error = np.std(estimates, 0) / np.sqrt(KEYS)
        assert np.all(np.abs(np.mean(estimates, 0) - value) < 4 * error)
        assert np.all(error < 0.2)
    assert np.all(surplus < 0.05)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_both_forms_of_the_gradient_are_those_of_the_marginal_likelihood(theta, covariance):
    """With draws of the posterior itself; a covariance that happens to be diagonal has the same
    likelihood.
    """
    if covariance == "full":
        theta = theta._replace(beta=Correlated(*theta.beta, jnp.zeros((2, 2))))
    exact = jax.grad(lambda t: log_marginal(t, *CLIENT.rows, CLIENT.design, NOISE))(theta)
    keys, data, spread = jax.random.split(jax.random.key(3), KEYS), whole(CLIENT.rows), {}
    for centred in (True, False):
        options = {
            "kernel": ornstein_uhlenbeck(),
            "effects": models.gaussian(covariance=covariance),
            "centred": centred,
        }
        fed = fedpop(
            models.mixed_linear(scale=NOISE, slopes=SLOPES), step_size=3.0, draws=50, **options
        )
        start = fed.init_client(keys[0], Down(theta, jnp.ones(())), data)

        def upload(key, fed=fed, start=start):
            return fed.client(key, Down(theta, jnp.ones(())), start, data).up

        up = jax.jit(jax.vmap(upload))(keys)
        for part in ("mean", "log_scale"):
            found, value = (getattr(one.beta, part) for one in (up, exact))
            assert np.all(
                np.abs(np.mean(found, 0) - value) < 4 * np.std(found, 0) / np.sqrt(KEYS)
            ), (centred, part)
        spread[centred] = np.std(up.beta.mean, 0)
    assert np.all(spread[True] != spread[False])  # two estimates, not one


@pytest.mark.parametrize("batch_size", [None, 4], ids=["ula", "sgld"])
def test_draws_are_those_of_the_posterior(down, batch_size):
    kernel = None if batch_size is None else sgld(batch_size=batch_size)
    fed, data = method(draws=200, adapt_burn_in=300, kernel=kernel), whole(CLIENT.rows)
    keys = jax.random.split(jax.random.key(1), KEYS)
    draws = np.asarray(jax.jit(jax.vmap(lambda key: fed.adapt(key, down, data).draws))(keys))
    chains = draws.mean(1)
    assert np.all(np.abs(chains.mean(0) - CLIENT.mean) < 4 * chains.std(0) / np.sqrt(KEYS))
    spread = draws.reshape(-1, 2).std(0)
    if batch_size is None:
        np.testing.assert_allclose(spread, np.sqrt(np.diag(CLIENT.of_the_chain)), rtol=0.03)
        np.testing.assert_allclose(spread, np.sqrt(np.diag(CLIENT.covariance)), rtol=0.12)
    else:  # minibatches add noise of their own
        assert np.all(spread > np.sqrt(np.diag(CLIENT.of_the_chain)))


def test_a_client_goes_on_where_it_ended(down):
    fed, data = method(draws=3), whole(CLIENT.rows)
    far = Personal(jnp.array([[0.0, 0.0], [0.0, 0.0], [1.2, -0.9]]), Empty())
    ends = jax.jit(jax.vmap(lambda key: fed.client(key, down, far, data).pending.draws))(
        jax.random.split(jax.random.key(0), KEYS)
    )
    precision = np.linalg.inv(CLIENT.covariance)
    expected = far.draws[-1] - STEP * precision @ (far.draws[-1] - CLIENT.mean)
    assert np.all(np.abs(np.mean(ends[:, 0], 0) - expected) < 4 * np.sqrt(2 * STEP / KEYS))


def test_draws_of_any_length_are_those_of_the_posterior(down):
    """By the kernel that is exact here: after rounds, and however many are asked for; in the terms
    of the model.
    """
    fed, data = method(step_size=1.5, draws=4, kernel=ornstein_uhlenbeck()), whole(CLIENT.rows)

    @jax.jit
    @jax.vmap
    def chains(key):
        first, later, more = jax.random.split(key, 3)
        personal = fed.client(first, down, fed.init_client(first, down, data), data).pending
        personal = fed.client(later, down, personal, data).pending
        return personal.draws, fed.draws(more, down, personal, data, 50)

    kept, described = chains(jax.random.split(jax.random.key(7), KEYS))
    assert kept.shape == (KEYS, 4, 2)
    effects = np.stack(
        [
            described["intercept"] - THETA.phi.bias,
            described["slopes"][..., 0] - THETA.phi.weight[1],
        ],
        -1,
    )
    assert effects.shape == (KEYS, 50, 2)
    assert len(np.unique(effects[..., 0])) == KEYS * 50
    for draws in (np.asarray(kept), effects):
        means = draws.mean(1)
        assert np.all(np.abs(means.mean(0) - CLIENT.mean) < 4 * means.std(0) / np.sqrt(KEYS))
        spread = np.cov(draws.reshape(-1, 2).T)
        np.testing.assert_allclose(
            np.sqrt(np.diag(spread)), np.sqrt(np.diag(CLIENT.covariance)), rtol=0.05
        )
        assert spread[0, 1] == pytest.approx(
            CLIENT.covariance[0, 1], abs=0.1 * np.sqrt(np.prod(np.diag(CLIENT.covariance)))
        )


def test_annealing_is_more_noise(down):
    """T multiplies the variance of Gaussian noise: the same draws, and the same gradients."""
    fed = method(draws=3, burn_in=2, anneal=(16.0, 4))
    state = fed.init(jax.random.key(0), SPEC)
    found = [
        float(fed.broadcast(state._replace(round=jnp.int32(number))).temperature)
        for number in range(6)
    ]
    np.testing.assert_allclose(found, [16, 8, 4, 2, 1, 1])
    data, noisier = whole(CLIENT.rows), method(scale=2 * NOISE, draws=3, burn_in=2)
    start = Personal(jnp.zeros((3, 2)), Empty())

    @jax.jit
    def both(key):
        return fed.client(
            key, down._replace(temperature=jnp.asarray(4.0)), start, data
        ), noisier.client(key, down, start, data)

    warm, plain = both(jax.random.key(1))
    for one, other in zip(jax.tree.leaves(warm[:2]), jax.tree.leaves(plain[:2]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_scaling_by_the_ratio(theta):
    """b / |A| by hand; for cohorts of a fixed size the same as by inverse probabilities."""
    ascent = {"phi_optimizer": optax.sgd(0.1), "beta_optimizer": optax.sgd(0.1)}
    ups = jax.tree.map(lambda leaf: jnp.stack([jnp.cos(leaf), jnp.sin(3 * leaf)]), theta)
    cohort = uniform(2)(np.ones(6)).sample(jax.random.key(0), 0)
    weighted = jax.tree.map(lambda leaf: jnp.tensordot(cohort.weight, leaf, 1), ups)
    plain = jax.tree.map(lambda leaf: leaf.sum(0), ups)
    aggregate = Aggregate(weighted, plain, jnp.sum(cohort.weight), jnp.asarray(2.0))

    def stepped(scaling, aggregate):
        fed, key = method(scaling=scaling, **ascent), jax.random.key(0)
        return jax.jit(
            lambda: fed.server(key, fed.init(key, SPEC)._replace(theta=theta), aggregate)[0].theta
        )()

    by_ratio = stepped("ratio", aggregate)
    np.testing.assert_allclose(
        by_ratio.phi.weight, theta.phi.weight + 0.1 * 6 / 2 * plain.phi.weight
    )
    by_probability = stepped("inverse_probability", aggregate)
    uneven = stepped("ratio", aggregate._replace(weighted=None, weight=None))
    for one, *others in zip(*map(jax.tree.leaves, (by_ratio, by_probability, uneven)), strict=True):
        for other in others:
            np.testing.assert_allclose(one, other)
    with pytest.raises(
        ValueError, match=r"scaling='ratio' needs the number of clients, Spec\.clients"
    ):
        method(scaling="ratio").init(jax.random.key(0), SPEC._replace(clients=None))


def test_only_the_shared_part_is_rounded():
    with jax.enable_x64(False):
        fed, data, root = method(draws=2), whole(jax.tree.map(np.float32, CLIENT.rows)), root_key(0)
        rounding = channel.partition(Population(channel.bfloat16(), channel.identity()))
        down = Down(jax.tree.map(jnp.float32, THETA), jnp.ones(()))

        @jax.jit
        def sent_and_meant():
            node = first_node(fed, rounding, root, 3, down, data)
            payload, _, _ = node_round(fed, rounding, root, 0, 3, down, node, data)
            return rounding.decode(payload), fed.client(
                key_for(root, Stream.CLIENT, 0, 3), down, node.state, data
            ).up

        sent, meant = sent_and_meant()
        for one, other in zip(jax.tree.leaves(sent.beta), jax.tree.leaves(meant.beta), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
        for one, other in zip(jax.tree.leaves(sent.phi), jax.tree.leaves(meant.phi), strict=True):
            np.testing.assert_array_equal(one, one.astype(jnp.bfloat16).astype(jnp.float32))
            np.testing.assert_allclose(one, other, rtol=2**-7)
            assert np.all(one != other)


def tables(*counts):
    rng = np.random.default_rng(2)
    return FederatedData.from_clients(
        {f"site{rows}": (rng.normal(size=(rows, 2)), rng.normal(size=rows)) for rows in counts}
    )


def test_a_step_that_is_too_long():
    """The chain of a client with many rows runs away: it is counted and named, the others go on. If
    all do, the run ends.
    """
    data = tables(3, 300, 4)
    with jax.enable_x64(False):
        engine = Simulation(method(step_size=0.1, draws=80), data, seed=0)
        state, lines = engine.advance(engine.start(), 2)
        short, long = (
            jax.tree.leaves((state.server, state.nodes)),
            Simulation(method(step_size=5.0, draws=80), data, seed=0),
        )
        with pytest.raises(
            Diverged,
            match=r"round 1: all 3 uploads .* \(client \d among them\); make the client's step size smaller",
        ):
            long.advance(long.start(), 1)
    for line in lines:
        assert (line["clients"], line["diverged"], line["diverged_id"]) == (2, 1, data.ids[1])
    assert all(np.all(np.isfinite(leaf)) for leaf in short)
    np.testing.assert_array_equal(state.seen, [True, False, True])


def location(*, shared, personal):
    """y ~ N(shared + personal, 1), without the one or without the other."""

    def predictive(phi, z, x):
        centre = sum(jax.tree.leaves(phi), jnp.sum(z))
        return Normal(jnp.full(len(x), centre), jnp.ones(len(x)))

    return MixedModel(
        name="location",
        init=lambda key, spec: jnp.zeros(()) if shared else Empty(),
        init_effects=lambda key, spec: jnp.zeros(int(personal)),
        log_likelihood=lambda phi, z, rows: predictive(phi, z, rows.x).log_prob(rows.y),
        predictive=predictive,
    )


def ran(fed, data, warning):
    """Two rounds of a method that warns."""
    with pytest.warns(UserWarning, match=warning):
        engine = Simulation(fed, data, seed=0)
    with pytest.warns(UserWarning, match=warning):
        start = engine.start()
    return engine.advance(start, 2)


def test_without_effects_it_is_fedsgd():
    data, model, ascent = tables(3, 9), location(shared=True, personal=False), optax.sgd(0.01)
    fed = fedpop(model, step_size=0.1, draws=2, kernel=ornstein_uhlenbeck(), phi_optimizer=ascent)
    state, _ = ran(fed, data, "location has no effects: this is FedSGD on the shared parameters")
    first = 0.01 * np.sum(data.rows.y)
    np.testing.assert_allclose(
        state.server.theta.phi, first + 0.01 * np.sum(data.rows.y - first), rtol=1e-5
    )


def test_without_shared_parameters_the_law_is_learned():
    fed = fedpop(
        location(shared=False, personal=True),
        step_size=0.1,
        draws=2,
        beta_optimizer=optax.sgd(0.01),
    )
    state, lines = ran(
        fed, tables(3, 9), "location shares no parameters, only the law of the effects"
    )
    assert state.server.theta.beta.mean != 0
    assert np.isfinite(lines[-1]["train_loss"])


def test_the_server_climbs_with_its_priors_and_keeps_the_bounds(theta):
    ascent = {"phi_optimizer": optax.sgd(0.1), "beta_optimizer": optax.sgd(1.0)}
    fed = method(
        phi_prior=2.0, beta_prior=0.5, effects=models.gaussian(scale_bounds=(0.4, 2.0)), **ascent
    )
    start = fed.init(
        jax.random.key(0),
        Spec(Rows(jax.ShapeDtypeStruct((2,), float), jax.ShapeDtypeStruct((), float))),
    )
    slope = Population(
        Linear(jnp.array([1.0, -2.0]), jnp.array(3.0)),
        Gaussian(jnp.array([0.1, 0.2]), jnp.array([9.0, -9.0])),
    )
    aggregate = Aggregate(weighted=slope, plain=None, weight=jnp.ones(()), count=jnp.ones(()))
    found = fed.server(jax.random.key(0), start._replace(theta=theta), aggregate)[0].theta
    expected = THETA.phi.weight + 0.1 * (np.array([1.0, -2.0]) - THETA.phi.weight / 4)
    np.testing.assert_allclose(found.phi.weight, expected)
    np.testing.assert_allclose(
        found.beta.mean, THETA.beta.mean + np.array([0.1, 0.2]) - THETA.beta.mean / 0.25
    )
    np.testing.assert_allclose(np.exp(found.beta.log_scale), [2.0, 0.4])


def test_a_client_without_rows_has_the_prior(down):
    fed = method(draws=5000, adapt_burn_in=1)
    nothing = Shard(jax.tree.map(jnp.asarray, CLIENT.rows), jnp.int32(0), jnp.int32(0), 12)

    @jax.jit
    def prior(key):
        personal = fed.adapt(key, down, nothing)
        more = fed.draws(key, down, personal, nothing, 5000)
        return personal.draws, more, fed.client(key, down, personal, nothing).up.phi

    kept, described, slope = prior(jax.random.key(4))
    more = np.stack(
        [described["intercept"] - THETA.phi.bias, described["slopes"][:, 0] - THETA.phi.weight[1]],
        -1,
    )
    scale = np.exp(THETA.beta.log_scale)
    for draws in (np.asarray(kept), more):
        assert np.all(np.abs(draws.mean(0) - THETA.beta.mean) < 4 * scale / np.sqrt(5000))
        np.testing.assert_allclose(draws.std(0), scale, rtol=4 / np.sqrt(2 * 5000))
    assert not np.any(np.isclose(kept, more))
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(slope))


def test_credible_intervals_cover():
    """2,000 new clients with 1 to 4 rows of a random-intercept model whose phi and beta are
    known.
    """
    rng, clients = np.random.default_rng(8), 2000
    counts = rng.integers(1, 5, clients)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    truth = 0.5 + rng.normal(size=clients)
    x = rng.normal(size=(counts.sum(), 1))
    y = 2 * x[:, 0] - 1 + np.repeat(truth, counts) + rng.normal(size=counts.sum())
    law = Gaussian(jnp.array([0.5]), jnp.zeros(1))
    down = Down(Population(Linear(jnp.array([2.0]), jnp.array(-1.0)), law), jnp.ones(()))
    fed = fedpop(models.mixed_linear(scale=1.0), step_size=0.04, draws=1500, adapt_burn_in=150)
    rows = Rows(jnp.asarray(x), jnp.asarray(y))

    def interval(key, start, count):
        return jnp.quantile(
            fed.adapt(key, down, Shard(rows, start, count, 4)).draws[:, 0], jnp.array([0.05, 0.95])
        )

    keys = jax.random.split(jax.random.key(6), clients)
    low, high = np.asarray(
        jax.jit(jax.vmap(interval))(keys, jnp.asarray(starts), jnp.asarray(counts))
    ).T
    assert 0.88 < np.mean((low < truth) & (truth < high)) < 0.92
    # The intervals of clients with more rows are shorter, by the closed form.
    for count in (1, 4):
        width = np.mean((high - low)[counts == count])
        assert width == pytest.approx(
            2 * 1.645 / np.sqrt((1 + count) * (1 - 0.02 * (1 + count))), rel=0.03
        )


class Fit(NamedTuple):
    """Where the exact marginal likelihood is largest: intercept and weights of a typical client,
    deviations, noise.
    """

    weight: np.ndarray
    bias: float
    scale: np.ndarray
    noise: float


def maximum_likelihood(clients, slopes, noise=None):
    """Over all parameters of a linear mixed model; over the noise too where it is not given."""
    features, effects = clients[0][0].shape[1], 1 + len(slopes)
    sizes = {len(y) for _, y in clients}
    alike = [
        [
            np.stack(part)
            for part in zip(*[one for one in clients if len(one[1]) == size], strict=True)
        ]
        for size in sizes
    ]

    def split(v):
        beta = Gaussian(jnp.zeros(effects), v[features + 1 : features + 1 + effects])
        return Population(Linear(v[:features], v[features]), beta), jnp.exp(
            v[-1]
        ) if noise is None else noise

    def loss(v):
        theta, sd = split(v)

        def of_client(x, y):
            return log_marginal(
                theta, x, y, jnp.column_stack([jnp.ones(len(y)), x[:, list(slopes)]]), sd
            )

        return -sum(jnp.sum(jax.vmap(of_client)(x, y)) for x, y in alike) / sum(
            y.size for _, y in alike
        )

    start = np.zeros(features + 1 + effects + (noise is None))
    best = minimize(
        jax.jit(loss), start, jac=jax.jit(jax.grad(loss)), method="BFGS", options={"gtol": 1e-7}
    )
    assert best.success, best.message
    theta, sd = split(best.x)
    return Fit(
        np.asarray(theta.phi.weight), float(theta.phi.bias), np.exp(theta.beta.log_scale), float(sd)
    )


def fitted(clients, *, slopes, noise, rounds, **options):
    data = FederatedData.from_clients(
        {f"site{place}": (x, y) for place, (x, y) in enumerate(clients)}
    )
    steps = [optax.adam(optax.cosine_decay_schedule(0.1, rounds)) for _ in range(2)]
    model = models.mixed_linear(scale=noise, slopes=slopes)
    fed = fedpop(model, phi_optimizer=steps[0], beta_optimizer=steps[1], **options)
    engine = Simulation(fed, data, seed=0)
    theta = engine.advance(engine.start(), rounds)[0].server.theta
    typical = models.own_parameters(theta.phi, theta.beta.mean, slopes)
    return Fit(np.asarray(typical.weight), float(typical.bias), np.exp(theta.beta.log_scale), noise)


def test_the_fit_is_the_maximum_of_the_marginal_likelihood():
    rng, clients = np.random.default_rng(9), []
    for rows in rng.integers(3, 11, 60):
        x = rng.normal(size=(rows, 1))
        clients.append((x, 1.5 * x[:, 0] - 2 + 1.3 * rng.normal() + 1.5 * rng.normal(size=rows)))
    exact = maximum_likelihood(clients, (), noise=1.5)
    found = fitted(clients, slopes=(), noise=1.5, rounds=400, step_size=0.02, draws=20)
    for name in ("weight", "bias", "scale"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(exact, name), rtol=0.02, err_msg=name
        )


@pytest.mark.slow
def test_sleepstudy(data_dir):
    """Random intercept and slope for 18 persons. Days and milliseconds are scaled, which changes no
    fit but its units.
    """
    table = pd.read_csv(data_dir / "hierarchical" / "sleepstudy.csv").groupby("Subject")
    clients = [
        (part[["Days"]].to_numpy(float) / 5, part["Reaction"].to_numpy(float) / 25)
        for _, part in table
    ]
    exact = maximum_likelihood(clients, (0,))
    np.testing.assert_allclose(
        [25 * exact.bias, 5 * exact.weight[0]], [251.405, 10.467], rtol=1e-4
    )  # published
    found = fitted(clients, slopes=(0,), noise=exact.noise, rounds=1500, step_size=0.01, draws=20)
    np.testing.assert_allclose([found.bias, *found.weight], [exact.bias, *exact.weight], rtol=0.02)
    np.testing.assert_allclose(found.scale, exact.scale, rtol=0.10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"phi_prior": 0.0}, "phi_prior must be above 0, got 0"),
        ({"phi_rate": -1.0}, "phi_rate must be above 0, got -1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 8}, "batch_size is of the pass that phi_rate asks for"),
        ({"anneal": (0.5, 10)}, "a temperature of at least 1 and a number of rounds, got"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        method(**options)


def learned(rounds, data, **options):
    """theta after some rounds, half of the clients in each; with the same draws of effects,
    whatever else a client draws.
    """
    fed = method(draws=5, kernel=ornstein_uhlenbeck(), step_size=3.0, **options)
    state = fed.init(jax.random.key(0), SPEC)
    client = jax.jit(fed.client)
    for number in range(rounds):
        key = jax.random.fold_in(jax.random.key(1), number)
        key = key if "phi_rate" in options else jax.random.split(key)[0]
        down = fed.broadcast(state)
        ups = [client(key, down, fed.init_client(key, down, one), one).up for one in data]
        plain = jax.tree.map(lambda *leaves: sum(leaves), *ups)
        weighted = jax.tree.map(lambda leaf: 2 * leaf, plain)
        state, _ = fed.server(
            key,
            state,
            Aggregate(weighted, plain, jnp.asarray(2.0 * len(data)), jnp.asarray(len(data))),
        )
    return state.theta


def test_phi_that_moves_in_one_step_at_the_client_is_phi_that_moves_at_the_server():
    """All rows in one minibatch: the same as the gradient, and the priors of phi count as much."""
    data = [whole(CLIENT.rows), whole(Rows(CLIENT.rows.x[:5] + 1, CLIENT.rows.y[:5]))]
    rate = 0.01
    moved = learned(10, data, phi_rate=rate, batch_size=None, phi_prior=0.5)
    at_server = learned(10, data, phi_optimizer=optax.sgd(rate / 4), phi_prior=0.5)
    for one, other in zip(jax.tree.leaves(moved), jax.tree.leaves(at_server), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    unlike = learned(10, data, phi_rate=rate, batch_size=None)
    assert np.max(np.abs(unlike.phi.weight - moved.phi.weight)) > 1e-3


def test_phi_moves_along_a_pass_over_the_rows(down):
    """Rows that are all alike: any order is the same, and the steps can be written out."""
    rows, rate, size = 7, 0.03, 3
    x, y = np.tile([0.4, -1.2], (rows, 1)), np.full(rows, 2.0)
    key = jax.random.key(5)
    fed = method(draws=4, phi_rate=rate, batch_size=size)
    local = fed.client(key, down, fed.init_client(key, down, whole(Rows(x, y))), whole(Rows(x, y)))
    effect = np.mean(np.asarray(local.pending.draws) @ [1.0, x[0, SLOPES[0]]])
    weight, bias = THETA.phi
    for number in (3, 3, 1):
        pull = rate * number * (y[0] - x[0] @ weight - bias - effect) / NOISE**2
        weight, bias = weight + pull * x[0], bias + pull
    np.testing.assert_allclose(local.up.phi.weight, (weight - THETA.phi.weight) / rate, rtol=1e-9)
    np.testing.assert_allclose(local.up.phi.bias, (bias - THETA.phi.bias) / rate, rtol=1e-9)
    assert local.info.local_steps == 4 + 3


def test_a_client_without_rows_leaves_phi_where_it_is(down):
    key, empty = jax.random.key(5), replace(whole(CLIENT.rows), count=jnp.int32(0))
    fed = method(draws=4, phi_rate=0.1)
    up = fed.client(key, down, fed.init_client(key, down, empty), empty).up
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(up.phi))


def test_a_law_inside_phi_has_no_rows_to_pass_over():
    model = models.mixed_linear(slopes=SLOPES)._replace(law=models.gaussian())
    with pytest.raises(
        ValueError,
        match=r"phi of mixed_linear has the law of its effects in it.*leave phi_rate= out",
    ):
        fedpop(model, step_size=0.1, phi_rate=0.1)
