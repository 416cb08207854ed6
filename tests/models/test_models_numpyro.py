"""NumPyro models against NumPyro itself: the clients' parts add up to the log joint of the pooled
model, Jacobians included.
"""

import sys
from importlib import import_module

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
import scipy.stats
from numpyro.distributions import constraints
from numpyro.infer import MCMC, NUTS, init_to_value
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import potential_energy
from scipy.optimize import minimize

from covey import models
from covey.algorithms.fedpop import fedpop
from covey.core.shard import Rows, Spec
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.kernels import ornstein_uhlenbeck
from covey.models import Linear
from covey.models.model import checked
from covey.models.numpyro import client_plate, from_numpyro

RNG = np.random.default_rng(2)
KEY = jax.random.key(0)


def spec_of(y=np.float32, classes=None, columns=2, outcomes=()):
    return Spec(
        Rows(jax.ShapeDtypeStruct((columns,), np.float32), jax.ShapeDtypeStruct(outcomes, y)),
        classes,
    )


NUMBERS, LABELS = spec_of(), spec_of(np.int32, 2)


def crowded(x, y, client, clients):
    """Every kind of site: real, positive, improper, a simplex, and a support that depends on
    another site.
    """
    with numpyro.handlers.scale(scale=0.5):
        mean = numpyro.sample("mean", dist.Normal(1, 2))
    spread = numpyro.sample("spread", dist.HalfNormal(2))
    top = numpyro.sample("top", dist.Gamma(2.0, 1.0))
    below = numpyro.sample("below", dist.Uniform(-1, top))
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    noise = numpyro.sample("noise", dist.ImproperUniform(constraints.positive, (), ()))
    numpyro.deterministic("variance", noise**2)
    with numpyro.plate("client", clients):
        shift = numpyro.sample("shift", dist.Normal(mean, spread))
        mix = numpyro.sample("mix", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    with numpyro.plate("client", clients):
        cap = numpyro.sample("cap", dist.Uniform(below, top))
        numpyro.deterministic("both", shift + cap)
    numpyro.deterministic("largest", jnp.max(cap))  # of no client, and not shared either
    centre = numpyro.deterministic(
        "centre", shift[client] + cap[client] + mix[client, 0] * x[:, 0] + x @ weight
    )
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(centre, noise), obs=y)


EFFECTS = {"cap": (), "mix": (2,), "shift": ()}
SHARED = {"mean": (), "spread": (), "top": (), "below": (), "weight": (2,), "noise": ()}


@pytest.mark.parametrize("centred", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_clients_add_up_to_the_pooled_log_joint(centred):
    model, effects = crowded, EFFECTS
    if not centred:
        model = numpyro.handlers.reparam(crowded, config={"shift": LocScaleReparam(0)})
        effects = {
            f"{site}_decentered" if site == "shift" else site: shape
            for site, shape in EFFECTS.items()
        }
    with jax.enable_x64(True):
        client = np.array([0, 1, 1, 2, 2, 2, 2, 1])
        x, y = RNG.normal(size=(8, 2)), RNG.normal(size=8)
        phi = {site: jnp.asarray(RNG.normal(size=shape)) for site, shape in SHARED.items()}
        own = {site: jnp.asarray(RNG.normal(size=(3, *shape))) for site, shape in effects.items()}
        z = jnp.concatenate([value.reshape(3, -1) for value in own.values()], axis=1)
        mixed = client_plate(model, spec_of(np.float64))

        def ours(phi, z):
            total = mixed.log_prior(phi)
            for index in range(3):
                rows = Rows(jnp.asarray(x[client == index]), jnp.asarray(y[client == index]))
                total += mixed.law.log_density(phi, z[index]) + jnp.sum(
                    mixed.log_likelihood(phi, z[index], rows)
                )
            return total

        def pooled(phi, z):
            pieces = jnp.split(z, [1, 3], axis=1)
            latent = {
                site: piece.reshape(3, *effects[site])
                for site, piece in zip(effects, pieces, strict=True)
            }
            return -potential_energy(model, (x, y, client, 3), {}, phi | latent)

        found, expected = jax.jit(
            lambda *at: [jax.value_and_grad(joint, argnums=(0, 1))(*at) for joint in (ours, pooled)]
        )(phi, z)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9), found, expected
        )
        assert np.isfinite(found[0])


@pytest.mark.slow
def test_values_in_the_terms_of_the_model():
    mixed = client_plate(crowded, NUMBERS)
    phi = {site: jnp.full(shape, 0.3) for site, shape in SHARED.items()}
    z = jnp.array([1.0, 0.1, -0.2, 0.5])

    @jax.jit
    def everything(key, phi, z):
        draws = jax.vmap(lambda z: mixed.describe(phi, z))(mixed.law.draws(key, phi, 4000))
        begin = (
            mixed.init(key, NUMBERS),
            mixed.init_effects(key, NUMBERS),
            mixed.law.start(phi | {"mean": jnp.array(50.0)}),
        )
        return mixed.describe(phi, z), mixed.coefficients(phi, z), draws, begin

    own, shared, draws, (phi_start, effects_start, far_start) = everything(KEY, phi, z)
    top, below = np.exp(0.3), -1 + (np.exp(0.3) + 1) / (1 + np.exp(-0.3))
    cap = below + (top - below) / (1 + np.exp(-1.0))
    assert own.keys() == {"shift", "mix", "cap", "both"}
    np.testing.assert_allclose(
        [own["shift"], own["cap"], own["both"]], [0.5, cap, 0.5 + cap], rtol=1e-5
    )
    assert own["mix"].shape == (3,)
    np.testing.assert_allclose(own["mix"].sum(), 1.0, rtol=1e-5)
    assert shared.keys() == {*SHARED, "variance"}
    np.testing.assert_allclose(
        [shared["below"], shared["variance"]], [below, np.exp(0.6)], rtol=1e-5
    )
    # The law draws what it says, and chains start at its mean, wherever that is.
    for values, mean, sd in (
        (draws["shift"], 0.3, np.exp(0.3)),
        (draws["cap"], (below + top) / 2, (top - below) / np.sqrt(12)),
        (draws["mix"][:, 2], 3 / 6, np.sqrt(3 * 3 / 36 / 7)),
    ):
        assert abs(np.mean(values) - mean) < 4 * sd / np.sqrt(4000)
        np.testing.assert_allclose(np.std(values), sd, rtol=0.05)
    assert jax.tree.map(jnp.shape, phi_start) == SHARED
    assert effects_start.shape == (4,)
    np.testing.assert_allclose(far_start[3], 50)
    np.testing.assert_allclose(
        [phi_start["mean"], phi_start["spread"]], [1, np.log(2 * np.sqrt(2 / np.pi))], rtol=1e-5
    )


def test_the_start_can_be_chosen():
    mixed = client_plate(
        slopes,
        NUMBERS,
        init_strategy=init_to_value(values={"weight": 3, "spread": 2.0, "own": 7.0}),
    )
    phi = mixed.init(KEY, NUMBERS)
    np.testing.assert_allclose(phi["spread"], np.full(2, np.log(2)), rtol=1e-6)
    assert phi["weight"].dtype == np.float32
    np.testing.assert_allclose(mixed.law.start(phi), [7, 7])


def slopes(x, y, client, clients):
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1).expand([2]).to_event(1))
    with numpyro.plate("client", clients):
        own = numpyro.sample("own", dist.Normal(0, spread).to_event(1))
    centre = x @ weight + own[client, 0] + own[client, 1] * x[:, 1]
    numpyro.sample("y", dist.Normal(centre, 0.5), obs=y)


def intercepts(x, y, client, clients):
    """The client plate around the rows, which is another shape of the same thing."""
    weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("client", clients, dim=-1):
        own = numpyro.sample("own", dist.Normal(0, 1))
        with numpyro.plate("rows", len(x), dim=-2):
            logits = (x @ weight)[:, None] + own
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y[:, None])


@pytest.mark.parametrize(
    ("model", "ours", "spec", "effects"),
    [
        (slopes, models.mixed_linear(scale=0.5, slopes=(1,)), NUMBERS, 2),
        (intercepts, models.mixed_logistic(), LABELS, 1),
    ],
)
def test_mixed_models_written_in_numpyro(model, ours, spec, effects):
    mixed = client_plate(model, spec)
    x, y = (
        jnp.asarray(RNG.normal(size=(5, 2)), jnp.float32),
        jnp.array([0, 1, 1, 0, 1], spec.rows.y.dtype),
    )
    weight, z = jnp.array([0.7, -0.4]), jnp.array([0.9, -1.2])[:effects]

    def both(model, phi):
        return model.log_likelihood(phi, z, Rows(x, y)), model.predictive(phi, z, x)

    found, expected = jax.jit(
        lambda: (
            both(mixed, {"weight": weight, "spread": jnp.zeros(2)}),
            both(ours, Linear(weight, jnp.zeros(()))),
        )
    )()
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def observed(distribution, *columns):
    """A model with one shared site and outcomes of this distribution."""

    def outcome(x, y):
        a = numpyro.sample("a", dist.Normal(0, 1))
        numpyro.sample("y", distribution(a + x[:, 0]), obs=y)

    return outcome


@pytest.mark.parametrize(
    ("distribution", "y", "classes"),
    [
        (lambda eta: dist.Poisson(jnp.exp(eta)), np.array([0.0, 2.0, 5.0], np.float32), None),
        (lambda eta: dist.Bernoulli(jax.nn.sigmoid(eta)), np.array([0, 1, 1], np.int32), 2),
        (
            lambda eta: dist.Categorical(jnp.array([0.2, 0.3, 0.5]) * jnp.ones((len(eta), 1))),
            np.array([0, 2, 1], np.int32),
            3,
        ),
        (
            lambda eta: dist.Categorical(logits=jnp.stack([eta, -eta, eta**2], -1)),
            np.array([0, 2, 1], np.int32),
            3,
        ),
        (
            lambda eta: dist.Normal(eta, 2.0).mask(True),
            np.array([0.3, -2.0, 1.0], np.float32),
            None,
        ),
        (
            lambda eta: dist.NegativeBinomial2(jnp.exp(eta), 1.5),
            np.array([0.0, 2.0, 5.0], np.float32),
            None,
        ),
        (
            lambda eta: dist.Binomial(7, logits=eta),
            np.array([0.0, 2.0, 5.0], np.float32),
            None,
        ),
    ],
)
def test_predictions_score_as_the_model_does(distribution, y, classes):
    spec = spec_of(y.dtype, classes)
    model = checked(from_numpyro(observed(distribution), spec))  # what every Model promises
    x, y = jnp.asarray(RNG.normal(size=(3, 2)), jnp.float32), jnp.asarray(y)

    @jax.jit
    def both(params):
        return model.predictive(params, x).log_prob(y), model.log_likelihood(params, Rows(x, y))

    np.testing.assert_allclose(*both(model.init(KEY, spec)), rtol=1e-4)


def test_a_model_whose_sites_are_all_shared():
    def regression(x, y=None):
        weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event(1))
        noise = numpyro.deterministic("noise", 2 * numpyro.sample("half", dist.LogNormal(0, 0.5)))
        numpyro.deterministic("fitted", x @ weight)
        numpyro.sample("y", dist.Normal(x @ weight, noise), obs=y)

    model = from_numpyro(regression, NUMBERS, name="mine")
    x, y = RNG.normal(size=(6, 2)).astype(np.float32), RNG.normal(size=6).astype(np.float32)
    params = {"weight": jnp.array([0.4, -1.0]), "half": jnp.array(0.7)}

    @jax.jit
    def everything(params, x, y):
        joint = model.log_prior(params) + jnp.sum(model.log_likelihood(params, Rows(x, y)))
        return joint, -potential_energy(regression, (x, y), {}, params), model.describe(params)

    joint, expected, described = everything(params, x, y)
    np.testing.assert_allclose(joint, expected, rtol=1e-5)
    assert model.name == "mine"
    assert described.keys() == {"weight", "half", "noise"}
    np.testing.assert_allclose(described["noise"], 2 * np.exp(0.7), rtol=1e-6)


def linear_gaussian(x, y, client, clients):
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    weight = numpyro.sample("weight", dist.Normal(0, 0.05))
    with numpyro.plate("client", clients):
        own = numpyro.sample("own", dist.Normal(mean, spread))
    numpyro.sample("y", dist.Normal(own[client] + weight * x[:, 0], 1.5), obs=y)


def mode(clients):
    """Where the marginal posterior of (mean, log spread, weight) is largest, effects integrated out
    in closed form.
    """

    def loss(v):
        mean, log_spread, weight = v
        between, within = np.exp(2 * log_spread), 1.5**2
        total = (
            mean**2 / 25 + weight**2 / 0.05**2 + between - 2 * log_spread
        )  # priors; the last term is the Jacobian
        for x, y in clients:
            off, rows = y - mean - weight * x[:, 0], len(y)
            all_together = within + rows * between
            total += (
                np.log(all_together)
                + (np.sum(off**2) - between / all_together * np.sum(off) ** 2) / within
            )
        return total / 2

    best = minimize(loss, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-9})
    assert best.success, best.message
    return best.x


@pytest.mark.slow
def test_fedpop_finds_the_mode_of_a_numpyro_model():
    rng, clients = np.random.default_rng(9), []
    for rows in rng.integers(3, 7, 40):
        x = rng.normal(size=(rows, 1))
        clients.append(
            (
                x.astype(np.float32),
                (1.5 * x[:, 0] - 2 + 1.3 * rng.normal() + 1.5 * rng.normal(size=rows)),
            )
        )
    exact = mode(clients)
    data = FederatedData.from_clients(
        {f"site{index}": (x, y.astype(np.float32)) for index, (x, y) in enumerate(clients)}
    )
    ascent = optax.adam(optax.cosine_decay_schedule(0.1, 200))
    fed = fedpop(
        client_plate(linear_gaussian, data.spec),
        step_size=2.0,
        draws=10,
        kernel=ornstein_uhlenbeck(),
        phi_optimizer=ascent,
    )
    engine = Simulation(fed, data, seed=0)
    state = engine.advance(engine.start(), 200)[0]
    found = state.server.theta.phi
    np.testing.assert_allclose(
        [found["mean"], np.exp(found["spread"]), found["weight"]],
        [exact[0], np.exp(exact[1]), exact[2]],
        rtol=0.03,
    )
    # A client's own posterior given the shared values, which is Gaussian.
    x, y = clients[3]
    precision = len(y) / 1.5**2 + np.exp(-2 * exact[1])
    centre = (
        np.sum(y - exact[2] * x[:, 0]) / 1.5**2 + exact[0] * np.exp(-2 * exact[1])
    ) / precision
    draws = engine.draws(state, np.array([3]), 1000)["own"][0, 0]
    assert abs(np.mean(draws) - centre) < 4 * np.sqrt(1 / precision / 1000) + 0.05
    np.testing.assert_allclose(np.std(draws), precision**-0.5, rtol=0.1)


def test_one_side_may_be_empty():
    def no_effects(x, y, client, clients):
        a = numpyro.sample("a", dist.Normal(0, 1))
        numpyro.plate("client", clients)
        numpyro.sample("y", dist.Normal(a + x[:, 0], 1), obs=y)

    def nothing_shared(x, y, client, clients):
        with numpyro.plate("client", clients):
            own = numpyro.sample("own", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(own[client] + x[:, 0], 1), obs=y)

    for model, words in ((no_effects, "has no effects"), (nothing_shared, "shares no parameters")):
        with pytest.warns(UserWarning, match=words):
            fedpop(client_plate(model, NUMBERS), step_size=0.1).init(KEY, NUMBERS)
    rows = Rows(jnp.zeros((2, 2)), jnp.zeros(2))
    np.testing.assert_allclose(
        client_plate(nothing_shared, NUMBERS).log_likelihood({}, jnp.ones(1), rows),
        -1.4189,
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        client_plate(no_effects, NUMBERS).log_likelihood({"a": jnp.ones(())}, jnp.ones(0), rows),
        -1.4189,
        rtol=1e-4,
    )


def schools(x, y, client, clients):
    """Eight schools as it is usually written: the standard error of each school is a column."""
    mean = numpyro.sample("mean", dist.Normal(0, 5))
    spread = numpyro.sample("spread", dist.HalfCauchy(5))
    with numpyro.plate("client", clients):
        effect = numpyro.sample("effect", dist.Normal(mean, spread))
    numpyro.sample("y", dist.Normal(effect[client], x[:, 0]), obs=y)


def test_a_column_may_be_a_scale():
    """A row of zeros was no row of such data: NumPyro refused the scale 0."""
    spec = spec_of(columns=1)
    mixed = client_plate(schools, spec)
    phi = mixed.init(KEY, spec)
    assert phi.keys() == {"mean", "spread"}
    np.testing.assert_allclose(
        mixed.law.log_density(phi, jnp.array([2.0])),
        scipy.stats.norm.logpdf(2.0, 0.0, np.exp(phi["spread"])),
        rtol=1e-5,
    )
    assert mixed.coefficients(phi, jnp.zeros(1)).keys() == {"mean", "spread"}
    np.testing.assert_allclose(mixed.describe(phi, jnp.array([3.0]))["effect"], 3.0)


def test_rows_are_tried_that_the_data_have():
    """An example row of the spec where it has one; else ones. What fails is named by its site."""

    def shifted(x, y):
        a = numpyro.sample("a", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(a, x[:, 0] - 1.0), obs=y)

    class Exemplary(Spec):
        example = Rows(np.array([3.0, 0.0], np.float32), np.float32(7.0))

    model = from_numpyro(shifted, Exemplary(*NUMBERS))
    assert model.init(KEY, NUMBERS).keys() == {"a"}
    with pytest.raises(
        ValueError,
        match=r"shifted: the model failed at site 'y', tried on x, y of shapes \(1, 2\), \(1,\) of "
        r"1 client\(s\): Normal distribution got invalid scale parameter",
    ):
        from_numpyro(shifted, NUMBERS).init(KEY, NUMBERS)


def test_values_of_columns_have_their_names():
    """Of a column are coefficients, an effect's too, and what is made of them one by one.

    As many values as columns do not make a coefficient.
    """
    spec = spec_of(columns=3)._replace(features=("age", "dose", "sex"))

    def named(x, y, client, clients):
        raw = numpyro.sample("raw", dist.Normal(0, 1).expand([3]).to_event(1))
        level = numpyro.sample("level", dist.Normal(0, 1).expand([3]).to_event(1))
        weight = numpyro.deterministic("weight", 2.0 * raw)
        numpyro.deterministic("total", jnp.cumsum(raw))
        with numpyro.plate("client", clients):
            slope = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
        centre = x @ weight + jnp.sum(x * slope[client], axis=1) + jnp.sum(level)
        numpyro.sample("y", dist.Normal(centre, 0.5), obs=y)

    mixed = client_plate(named, spec)
    columns = ("column", ("age", "dose", "sex"))
    assert mixed.axes(spec) == dict.fromkeys(("raw", "weight", "slope"), columns)
    assert mixed.axes(spec._replace(features=None)) == {}

    def shared(x, y):
        named(x, y, jnp.zeros(len(x), int), 1)

    assert from_numpyro(shared, spec).axes(spec).keys() == {"raw", "weight"}  # slope is (1, 3)
    assert client_plate(slopes, NUMBERS).axes(NUMBERS) == {}


def broken(effect=None, outcome=None, size=None, before=None, plate="client"):
    """A sound model with one thing replaced."""

    def unsound(x, y, client, clients):
        scale = numpyro.sample("scale", dist.HalfNormal(1))
        shift = 0.0 if before is None else before(x, clients)
        with numpyro.plate(plate, clients if size is None else size):
            own = (
                numpyro.sample("own", dist.Normal(0, scale))
                if effect is None
                else effect(x, clients, scale)
            )
        if outcome is None:
            numpyro.sample("y", dist.Normal(own[client] + shift + x[:, 0], 1), obs=y)
        else:
            outcome(own[client] + x[:, 0], y)

    return unsound


def nested(x, clients, scale):
    with numpyro.plate("client", clients):
        return numpyro.sample("own", dist.Normal(0, scale))[0]


def several(eta, y):
    numpyro.sample("y", dist.Normal(eta, 1), obs=y)
    numpyro.sample("again", dist.Normal(eta, 1), obs=y)


def subsampled(eta, y):
    with numpyro.plate("rows", 10, subsample_size=len(y)):
        numpyro.sample("y", dist.Normal(eta, 1), obs=y)


def factored(eta, y):
    numpyro.sample("y", dist.Normal(eta, 1), obs=y)
    numpyro.factor("extra", 1.0)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x, y: None, r"takes \(x, y, client, clients\), but <lambda> takes \(x, y\)"),
        (broken(plate="group"), r"no plate called 'client' among its plates \['group'\]"),
        (broken(effect=nested), "'own' is inside two plates called 'client'"),
        (broken(size=1), "has size 1 where the model is called with clients=2"),
        (broken(size=8), "has size 8 where the model is called with clients=1"),
        (
            broken(effect=lambda x, clients, scale: numpyro.sample("own", dist.Poisson(scale))),
            "'own' is discrete",
        ),
        (
            broken(before=lambda x, clients: numpyro.param("p", 1.0)),
            "'p' is a numpyro.param, which has no prior",
        ),
        (
            broken(
                before=lambda x, clients: jnp.sum(
                    numpyro.sample("b", dist.Normal(0, 1).expand([clients]).to_event(1))
                )
            ),
            "'b' has a value for each client but is outside of plate 'client'",
        ),
        (
            broken(
                before=lambda x, clients: numpyro.sample(
                    "e", dist.Normal(0, 1).expand([len(x)]).to_event(1)
                )
            ),
            "'e' has a value for each row",
        ),
        (
            broken(
                effect=lambda x, clients, scale: numpyro.sample(
                    "own", dist.Normal(jnp.mean(x[:, 0]), scale)
                )
            ),
            "distribution of 'own' depends on the rows",
        ),
        (
            broken(before=lambda x, clients: numpyro.sample("b", dist.Normal(0, 1 / len(x)))),
            "distribution of 'b' depends on the rows",
        ),
        (
            broken(outcome=lambda eta, y: None),
            "one observed site is needed, the outcomes as obs=y, but there are none",
        ),
        (broken(outcome=several), r"but there are \['y', 'again'\]"),
        (broken(outcome=subsampled), "plate 'rows' is subsampled"),
        (broken(outcome=factored), "factor 'extra' belongs to no row"),
        (
            broken(
                outcome=lambda eta, y: numpyro.sample("y", dist.Normal(eta, 1).to_event(1), obs=y)
            ),
            r"log-densities of shape \(\) for 3 rows, but one per row",
        ),
        (
            broken(outcome=lambda eta, y: numpyro.sample("y", dist.Bernoulli(logits=eta), obs=y)),
            "one of 2 labels, but these data have classes=None",
        ),
    ],
)
def test_models_that_do_not_fit(model, message):
    with pytest.raises(ValueError, match=message):
        client_plate(model, NUMBERS)


def test_data_that_do_not_fit():
    with pytest.raises(ValueError, match="'y' is a number, but these data have classes=2"):
        client_plate(slopes, LABELS)
    mixed = client_plate(slopes, NUMBERS)
    with pytest.raises(
        ValueError,
        match=r"made for rows of shapes \(\(2,\), \(\)\) and classes=None, but these data have "
        r"\(\(3,\)",
    ):
        mixed.init(KEY, spec_of(columns=3))
    with pytest.raises(TypeError) as raised:  # an error of the model's own says when it came up
        client_plate(broken(outcome=lambda eta, y: eta @ jnp.ones((7, 2))), NUMBERS)
    assert any(
        "tried on x, y of shapes (1, 2), (1,) of 1 client(s)" in note
        for note in raised.value.__notes__
    )


@pytest.mark.slow
def test_outcomes_that_are_learned_from_but_not_predicted():
    model = from_numpyro(observed(lambda eta: dist.StudentT(3.0, eta, 1.0)), NUMBERS)
    params, x = model.init(KEY, NUMBERS), jnp.zeros((4, 2))
    assert model.log_likelihood(params, Rows(x, jnp.zeros(4))).shape == (4,)
    with pytest.raises(
        ValueError,
        match=r"one Bernoulli, Categorical, Normal, Poisson, .* outcome per row, .*'y' is StudentT",
    ):
        model.predictive(params, x)
    pairs = spec_of(outcomes=(2,))
    model = from_numpyro(
        observed(lambda eta: dist.Normal(eta[:, None], 1.0).expand([len(eta), 2])), pairs
    )
    params, y = model.init(KEY, pairs), jnp.zeros((4, 2))
    np.testing.assert_allclose(
        model.log_likelihood(params, Rows(x, y)),
        2 * jax.scipy.stats.norm.logpdf(params["a"]),
        rtol=1e-5,
    )
    with pytest.raises(ValueError, match=r"log-densities of shape \(4, 2\)"):
        model.predictive(params, x)


def test_without_numpyro_it_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "covey.models.numpyro")
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'covey\[numpyro\]'"):
        import_module("covey.models.numpyro")


@pytest.mark.slow
def test_effects_are_those_of_pooled_nuts():
    """Random-intercept logistic regression, 40 clients of 5 to 60 rows.

    Empirical Bayes holds the shared parameters at their mode: the effects' means agree, but their
    deviations lack what is not known of the shared parameters and are a little too small.
    """
    rng = np.random.default_rng(4)

    def districts(x, y, client, clients):
        mean = numpyro.sample("mean", dist.Normal(0, 2))
        spread = numpyro.sample("spread", dist.HalfNormal(1))
        weight = numpyro.sample("weight", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("client", clients):
            own = numpyro.sample("own", dist.Normal(mean, spread))
        numpyro.sample("y", dist.Bernoulli(logits=own[client] + x @ weight), obs=y)

    sizes = rng.integers(5, 61, 40)
    client = np.repeat(np.arange(40), sizes)
    x = rng.normal(size=(len(client), 2)).astype(np.float32)
    logit = (rng.normal(-0.5, 0.8, 40))[client] + x @ np.array([0.8, -0.4])
    y = (rng.random(len(client)) < 1 / (1 + np.exp(-logit))).astype(np.int32)
    sampler = MCMC(NUTS(districts), num_warmup=500, num_samples=2000, progress_bar=False)
    sampler.run(jax.random.key(1), x, y, client, 40)
    exact = sampler.get_samples()

    data = FederatedData.from_clients(
        {f"d{index}": (x[client == index], y[client == index]) for index in range(40)}, classes=2
    )
    rounds = 400
    ascent = optax.adam(optax.cosine_decay_schedule(0.05, rounds))
    fed = fedpop(
        client_plate(districts, data.spec),
        step_size=0.3,
        draws=20,
        kernel=ornstein_uhlenbeck(),
        phi_optimizer=ascent,
    )
    engine = Simulation(fed, data, seed=0)
    state = engine.advance(engine.start(), rounds)[0]
    draws = np.moveaxis(engine.draws(state, np.arange(40), 4000)["own"][:, 0], 0, 1)
    spread = np.std(exact["own"], axis=0)
    gap = (draws.mean(0) - np.mean(exact["own"], axis=0)) / spread
    ratio = draws.std(0) / spread
    assert np.mean(np.abs(gap)) < 0.1
    assert np.max(np.abs(gap)) < 0.25
    assert 0.9 < np.mean(ratio) < 1.02
