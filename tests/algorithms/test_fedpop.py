"""FedPop against linear Gaussian mixed models, where posteriors, marginal likelihood and the law of
the chain are exact.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from covey import channel, models
from covey.algorithms.fedpop import fedpop
from covey.algorithms.fedpop_sampler import Down, Personal
from covey.algorithms.joint import Population
from covey.core.algorithm import Aggregate, Empty, Plan
from covey.core.cohort import bernoulli, full, given, trace, uniform, weighted
from covey.core.keys import Stream, key_for, root_key
from covey.core.node import first_node, node_round
from covey.core.shard import Rows, Shard, Spec, whole
from covey.data.federated import FederatedData
from covey.engines.record import Diverged
from covey.engines.simulate import Simulation
from covey.kernels import ornstein_uhlenbeck, sgld
from covey.models import Linear, MixedModel, Normal
from covey.models.effects import Correlated, Gaussian
from fedpop_problem import CLIENT, NOISE, SLOPES, SPEC, STEP, THETA, broadcast, log_marginal, method

KEYS = 400


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def down():
    return broadcast()


@pytest.fixture
def theta(down):
    return down.theta


@pytest.mark.slow
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


@pytest.mark.parametrize("covariance", [pytest.param("diagonal", marks=pytest.mark.slow), "full"])
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

        def upload(key, fed=fed):
            start = fed.init_client(keys[0], Down(theta, jnp.ones(())), data)
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


@pytest.mark.slow
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
        return personal.draws, fed.posterior.client(more, down, personal, data, 50)

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
            sent, _, _ = node_round(fed, rounding, root, 0, 3, down, node, data)
            return rounding.decode(sent.payload), fed.client(
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


@pytest.mark.slow
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
            match="round 1: none of the 3 uploads was finite",
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


@pytest.mark.slow
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
    gradient = Population(
        Linear(jnp.array([1.0, -2.0]), jnp.array(3.0)),
        Gaussian(jnp.array([0.1, 0.2]), jnp.array([9.0, -9.0])),
    )
    aggregate = Aggregate(weighted=gradient, plain=None, weight=jnp.ones(()), count=jnp.ones(()))
    server = jax.jit(lambda at: fed.server(jax.random.key(0), at, aggregate)[0].theta)
    found = server(start._replace(theta=theta))
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
        more = fed.posterior.client(key, down, personal, nothing, 5000)
        again = fed.refresh(jax.random.fold_in(key, 1), down, personal, nothing)
        return personal.draws, again.draws, more, fed.client(key, down, personal, nothing).up.phi

    kept, renewed, described, gradient = prior(jax.random.key(4))
    more = np.stack(
        [described["intercept"] - THETA.phi.bias, described["slopes"][:, 0] - THETA.phi.weight[1]],
        -1,
    )
    scale = np.exp(THETA.beta.log_scale)
    for draws in (np.asarray(kept), np.asarray(renewed), more):
        assert np.all(np.abs(draws.mean(0) - THETA.beta.mean) < 4 * scale / np.sqrt(5000))
        np.testing.assert_allclose(draws.std(0), scale, rtol=4 / np.sqrt(2 * 5000))
    assert not np.any(np.isclose(kept, more))
    assert all(np.all(leaf == 0) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"phi_prior": 0.0}, "phi_prior must be above 0, got 0"),
        ({"phi_rate": -1.0}, "phi_rate must be above 0, got -1"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 8}, "batch_size is of the pass over the rows that phi_rate asks for"),
        ({"step_size": 0.0}, "step_size must be above 0, got 0"),
        ({"step_size": lambda t: -1.0}, "step_size must be above 0, got -1"),
        ({"average": 1.5}, "average is a share of the rounds, above 0 and at most 1, got 1.5"),
        ({"phi_box": (1.0, 1.0)}, "phi_box is a lower bound and a larger upper bound, got"),
        ({"phi_box": (0.0, 1.0), "phi_radius": 2.0}, "two projections of phi; give one"),
        ({"anneal": (0.5, 10)}, "a temperature of at least 1 and a count of rounds, got"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        method(**options)


def test_a_model_without_effects_is_refused():
    unchecked = inspect.unwrap(fedpop)  # as users call it, without the types that tests check
    with pytest.raises(
        ValueError,
        match=r"a mixed model, with random effects .* got 'logistic'.* use mixed_logistic",
    ):
        unchecked(models.logistic(), step_size=0.1)
    with pytest.raises(ValueError, match=r"call it: mixed_linear\(\)"):
        unchecked(models.mixed_linear, step_size=0.1)
    with pytest.raises(ValueError, match="scaling must be 'inverse_probability' or 'ratio', got"):
        unchecked(models.mixed_linear(), step_size=0.1, scaling="sum")


def test_the_ratio_is_refused_where_clients_are_not_equally_likely():
    """The ratio with cohorts by rows: on average 179 for a sum of 100."""
    counts, rng = np.array([3, 30, 5, 12]), np.random.default_rng(0)

    def validate(scheme, scaling="ratio"):
        method(scaling=scaling).hooks.validate(Plan(counts, scheme(counts)))

    unequal = (
        weighted(2),
        weighted(1),
        bernoulli(np.array([0.9, 0.5, 0.5, 0.5])),
        given(rng.exponential(size=(5, 4))),
    )
    for scheme in unequal:
        with pytest.raises(ValueError, match=r"scaling='ratio' .* clients count unequally"):
            validate(scheme)
        validate(scheme, "inverse_probability")
    for scheme in (full(), uniform(2), bernoulli(0.5), trace(np.eye(4))):
        validate(scheme)


@pytest.mark.parametrize("bounds", [{"phi_box": (-0.5, 0.5)}, {"phi_radius": 0.8}])
def test_phi_is_projected(theta, bounds):
    fed = method(phi_optimizer=optax.sgd(1.0), **bounds)
    gradient = jax.tree.map(jnp.zeros_like, theta)._replace(
        phi=Linear(jnp.array([2.0, 0.0]), jnp.array(-0.3))
    )
    aggregate = Aggregate(gradient, gradient, jnp.ones(()), jnp.ones(()))
    start = fed.init(jax.random.key(0), SPEC)._replace(theta=theta)
    phi = jax.jit(fed.server)(jax.random.key(0), start, aggregate)[0].theta.phi
    free = np.array([2.7, -0.4, 0.0])
    inside = np.clip(free, -0.5, 0.5) if "phi_box" in bounds else 0.8 * free / np.hypot(*free[:2])
    np.testing.assert_allclose([*phi.weight, phi.bias], inside, atol=1e-12)


@pytest.mark.parametrize("share", [1.0, pytest.param(0.5, marks=pytest.mark.slow), 0.2])
def test_the_average_of_the_iterates(theta, share):
    """Round k counts k^(1/share - 1) times, up to second order; clients predict with the average
    and learn from the last iterate.
    """
    fed, rounds = method(phi_optimizer=optax.sgd(1.0), average=share), 6
    state, seen = fed.init(jax.random.key(0), SPEC), []
    server = jax.jit(fed.server)
    for index in range(rounds):
        gradient = jax.tree.map(lambda leaf, k=index: jnp.cos(leaf + k), theta)
        aggregate = Aggregate(gradient, gradient, jnp.ones(()), jnp.ones(()))
        state, _ = server(jax.random.key(0), state, aggregate)
        seen.append(np.asarray(state.theta.phi.weight))
    p = 1 / share - 1
    weights = np.ones(rounds)
    for k in range(1, rounds + 1):  # Shamir and Zhang (2013), section 4
        weights[: k - 1] *= 1 - (p + 1) / (k + p)
        weights[k - 1] = (p + 1) / (k + p)
    found = fed.publish(state).theta.phi.weight
    np.testing.assert_allclose(found, weights @ np.array(seen), rtol=1e-12)
    if share == 1.0:
        np.testing.assert_allclose(found, np.mean(seen, axis=0), rtol=1e-12)
    np.testing.assert_allclose(fed.broadcast(state).theta.phi.weight, seen[-1])


@pytest.mark.slow
def test_a_step_of_the_kernel_that_falls(down):
    """A round uses the step of its broadcast; an unseen client begins with that of the first."""
    steps = optax.polynomial_schedule(0.02, 1e-5, power=1, transition_steps=10)
    fed, data, key = method(step_size=steps, draws=4), whole(CLIENT.rows), jax.random.key(2)
    state = fed.init(key, SPEC)
    found = [fed.broadcast(state._replace(round=jnp.int32(t))).step_size for t in (0, 5, 10, 99)]
    np.testing.assert_allclose(found, [0.02, 0.010005, 1e-5, 1e-5])
    at = down._replace(step_size=jnp.asarray(0.010005))
    start = jax.jit(fed.init_client)(key, at, data)
    constant = method(step_size=0.010005, draws=4)
    one = jax.jit(fed.client)(key, at, start, data).pending.draws
    other = jax.jit(constant.client)(key, down, start, data).pending.draws
    np.testing.assert_allclose(one, other, rtol=1e-12)
    late = down._replace(step_size=jnp.asarray(1e-5))
    keys = jax.random.split(key, KEYS)
    ends = jax.jit(jax.vmap(lambda key: fed.adapt(key, late, data).draws[-1]))(keys)
    spread = np.sqrt(np.diag(CLIENT.covariance))
    assert np.all(np.abs(ends.mean(0) - CLIENT.mean) < 4 * spread / np.sqrt(KEYS))
