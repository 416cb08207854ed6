"""Standard errors of what clients share, against the Hessian of the exact marginal likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from covey import models
from covey.algorithms.fedpop import Population, fedpop
from covey.data.federated import FederatedData
from covey.inference.information import described, observed_information, shared_effects
from covey.kernels import ornstein_uhlenbeck
from covey.models import Linear
from covey.models.effects import Correlated, Gaussian

NOISE = 0.7
MODEL = models.mixed_linear(scale=NOISE, slopes=(0,))


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def theta():
    mean, log_scale = np.array([0.1, -0.1]), np.log([0.8, 0.5])
    return jax.tree.map(
        jnp.asarray,
        Population(Linear(np.array([1.0, -0.5]), np.array(0.4)), Gaussian(mean, log_scale)),
    )


def clients(number=40, rows=5):
    rng, made = np.random.default_rng(4), {}
    for place in range(number):
        x, z = rng.normal(size=(rows, 2)), rng.normal([0.1, -0.1], [0.8, 0.5])
        y = x @ [1.0, -0.5] + 0.4 + z[0] + z[1] * x[:, 0] + NOISE * rng.normal(size=rows)
        made[f"site{place}"] = (x, y)
    return made


def exact_information(made, theta):
    flat, unravel = ravel_pytree(theta)

    def of_client(at, x, y):
        design = jnp.column_stack([jnp.ones(len(y)), x[:, 0]])
        mean = x @ at.phi.weight + at.phi.bias + design @ at.beta.mean
        covariance = (
            NOISE**2 * jnp.eye(len(y)) + (design * jnp.exp(2 * at.beta.log_scale)) @ design.T
        )
        return jax.scipy.stats.multivariate_normal.logpdf(y, mean, covariance)

    x, y = (jnp.asarray(np.stack(part)) for part in zip(*made.values(), strict=True))

    def log_marginal(numbers):
        return jnp.sum(jax.vmap(lambda x, y: of_client(unravel(numbers), x, y))(x, y))

    return -np.asarray(jax.jit(jax.hessian(log_marginal))(flat))


def test_louis_finds_the_curvature_of_the_marginal_likelihood(theta):
    made = clients()
    exact = exact_information(made, theta)
    method = fedpop(MODEL, step_size=3.0, draws=100, kernel=ornstein_uhlenbeck(), adapt_burn_in=3)
    data = FederatedData.from_clients(made, features=["age", "dose"])
    several = np.stack(
        [observed_information(method, MODEL, theta, data, rounds=8, seed=seed) for seed in range(3)]
    )
    error = several.std(0, ddof=1).max() / np.sqrt(3)
    assert np.abs(several.mean(0) - exact).max() < 4 * error
    assert error < 0.03 * np.abs(exact).max()
    # Standard errors of a typical client's coefficients: the intercept and its mean effect are
    # known only as a sum.
    table = shared_effects(method, MODEL, theta, data, rounds=30)
    covariance = np.linalg.pinv(exact, rcond=1e-6, hermitian=True)
    flat, unravel = ravel_pytree(theta)
    slopes = jax.jacobian(
        lambda v: ravel_pytree(described(MODEL, models.gaussian(), unravel(v)))[0]
    )(flat)
    # A dictionary's leaves come by name; column 0 has an effect of its own.
    order = ["deviation[intercept]", "deviation[age]", "intercept", "weights[age]", "weights[dose]"]
    np.testing.assert_allclose(
        table["se"].loc[order], np.sqrt(np.diag(slopes @ covariance @ slopes.T)), rtol=0.05
    )
    np.testing.assert_allclose(table["estimate"].loc[order], [0.8, 0.5, 0.5, 0.9, -0.5], rtol=1e-6)
    np.testing.assert_allclose(table["high"] - table["low"], 2 * 1.6449 * table["se"], rtol=1e-4)


@pytest.mark.slow
def test_priors_add_to_the_information(theta):
    data = FederatedData.from_clients(clients(6))
    method = fedpop(MODEL, step_size=3.0, draws=50, kernel=ornstein_uhlenbeck(), adapt_burn_in=3)
    free = shared_effects(method, MODEL, theta, data, rounds=2)["se"]
    tight = shared_effects(method, MODEL, theta, data, rounds=2, phi_prior=1e-3, beta_prior=1e-3)[
        "se"
    ]
    np.testing.assert_allclose(tight.loc["weights[1]"], 1e-3, rtol=1e-3)
    assert (tight < 0.1 * free).all()


def test_a_full_covariance_is_described(theta):
    beta = Correlated(theta.beta.mean, theta.beta.log_scale, jnp.array([[9.0, 9.0], [0.5, 9.0]]))
    found = described(MODEL, models.gaussian(covariance="full"), theta._replace(beta=beta))
    root = np.array([[1.0, 0.0], [0.5, 1.0]]) * np.array([0.8, 0.5])
    covariance = root @ root.T
    np.testing.assert_allclose(found["deviation"], np.sqrt(np.diag(covariance)), rtol=1e-6)
    np.testing.assert_allclose(
        found["correlation"][0, 1],
        covariance[0, 1] / np.sqrt(np.prod(np.diag(covariance))),
        rtol=1e-6,
    )


def test_what_cannot_be_had(theta):
    data = FederatedData.from_clients(clients(2))
    method = fedpop(MODEL, step_size=1.0, kernel=ornstein_uhlenbeck())
    with pytest.raises(ValueError, match="probability must lie between 0 and 1, got 90"):
        shared_effects(method, MODEL, theta, data, probability=90.0)
    with pytest.raises(ValueError, match="known up to a constant only"):
        observed_information(method, MODEL, theta, data, effects=models.energy())


@pytest.mark.slow
def test_a_law_that_is_given_is_known(theta):
    """Its numbers have no standard errors, and the others' come from the information about phi
    alone.
    """
    data, law = FederatedData.from_clients(clients(6)), models.fixed(scale=0.8)
    theta = theta._replace(beta=Gaussian(jnp.zeros(2), jnp.log(0.8)))
    method = fedpop(
        MODEL, step_size=3.0, draws=50, kernel=ornstein_uhlenbeck(), effects=law, adapt_burn_in=3
    )
    table = shared_effects(method, MODEL, theta, data, effects=law, rounds=2)
    assert table.loc["deviation", "se"] == 0
    information = observed_information(method, MODEL, theta, data, effects=law, rounds=2)
    errors = np.sqrt(
        np.diag(np.linalg.inv(information[:3, :3]))
    )  # the two weights and the intercept come first
    np.testing.assert_allclose(
        table["se"].loc[["weights[0]", "weights[1]", "intercept"]], errors, rtol=1e-6
    )
