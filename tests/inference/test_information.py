"""Standard errors of shared parameters, against the Hessian of the exact marginal likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from covey import models
from covey.algorithms.fedpop import Population, fedpop
from covey.data.federated import FederatedData
from covey.inference.information import (
    described,
    observed_information,
    shared_effects,
    shared_effects_of,
)
from covey.inference.louis import estimated_information
from covey.models import Linear
from covey.models.effects import Correlated, Gaussian

NOISE = 0.7
MODEL = models.mixed_linear(scale=NOISE, slopes=(0,))
METHOD = fedpop(MODEL, step_size=0.01)
LAW = models.gaussian()
THETA = Population(
    Linear(np.array([1.0, -0.5]), np.array(0.4)),
    Gaussian(np.array([0.1, -0.1]), np.log([0.8, 0.5])),
)


@pytest.fixture
def theta():
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), THETA)


def clients(count=40, rows=5):
    rng, made = np.random.default_rng(4), {}
    for index in range(count):
        x, z = rng.normal(size=(rows, 2)), rng.normal([0.1, -0.1], [0.8, 0.5])
        y = x @ [1.0, -0.5] + 0.4 + z[0] + z[1] * x[:, 0] + NOISE * rng.normal(size=rows)
        made[f"site{index}"] = (x, y)
    return made


def exact_information(made):
    """Minus the Hessian of the marginal log-likelihood, which is Gaussian, in float64."""
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, THETA))

        def of_client(at, x, y):
            design = jnp.column_stack([jnp.ones(len(y)), x[:, 0]])
            mean = x @ at.phi.weight + at.phi.bias + design @ at.beta.mean
            covariance = (
                NOISE**2 * jnp.eye(len(y)) + (design * jnp.exp(2 * at.beta.log_scale)) @ design.T
            )
            return jax.scipy.stats.multivariate_normal.logpdf(y, mean, covariance)

        x, y = (jnp.asarray(np.stack(part)) for part in zip(*made.values(), strict=True))

        def log_marginal(parameters):
            return jnp.sum(jax.vmap(lambda x, y: of_client(unravel(parameters), x, y))(x, y))

        return -np.asarray(jax.jit(jax.hessian(log_marginal))(flat))


def exact_errors(made):
    """The intercept and its mean effect are known only as a sum, and so is a slope with its own."""
    covariance = np.linalg.pinv(exact_information(made), rcond=1e-9, hermitian=True)
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, THETA))
        gradients = np.asarray(
            jax.jacobian(
                lambda v: ravel_pytree(described(MODEL, LAW, unravel(v)))[0]  # ordered by name
            )(flat)
        )
    return np.sqrt(np.diag(gradients @ covariance @ gradients.T))


NAMES = ["deviation[intercept]", "deviation[age]", "intercept", "weights[age]", "weights[dose]"]


def test_louis_finds_the_curvature_of_the_marginal_likelihood(theta):
    """To four Monte Carlo errors, which the batches tell; and that is 1 % of the largest value."""
    made = clients()
    found = next(estimated_information(MODEL, LAW, theta, FederatedData.from_clients(made), seed=1))
    exact = exact_information(made)
    error = found.batches.std(0, ddof=1) / np.sqrt(len(found.batches))
    assert np.all(np.abs(found.batches.mean(0) - exact) < 5 * error + 1e-3)
    assert error.max() < 0.02 * np.abs(exact).max()
    assert found.poor == 0


def test_standard_errors_are_exact_whatever_the_step_size_of_the_fit(theta):
    """From the chains of this method that of deviation[age] was 0.063 where 0.085 is exact, and
    with steps of 0.05 it was 0.114.
    """
    made = clients()
    data = FederatedData.from_clients(made, features=["age", "dose"])
    table = shared_effects(METHOD, MODEL, theta, data)
    np.testing.assert_allclose(table["se"].loc[NAMES], exact_errors(made), rtol=0.05)
    np.testing.assert_allclose(table["estimate"].loc[NAMES], [0.8, 0.5, 0.5, 0.9, -0.5], rtol=1e-5)
    np.testing.assert_allclose(table["high"] - table["low"], 2 * 1.6449 * table["se"], rtol=1e-4)


@pytest.mark.parametrize("unit", [3000.0, 1e-4])
def test_units_do_not_matter(theta, unit):
    """A column times 3,000: its standard error is 3,000 times smaller, and the others stay.

    A pseudo-inverse without scaling gave 6e-11.
    """
    made = {name: (x * [1.0, unit], y) for name, (x, y) in clients().items()}
    at = theta._replace(phi=theta.phi._replace(weight=theta.phi.weight / jnp.array([1.0, unit])))
    data = FederatedData.from_clients(made, features=["age", "dose"])
    found = shared_effects(METHOD, MODEL, at, data)["se"]
    expected = exact_errors(clients()) * [1.0, 1.0, 1.0, 1.0, 1 / unit]
    np.testing.assert_allclose(found.loc[NAMES], expected, rtol=0.05)


def test_what_the_data_do_not_tell_is_named_and_has_no_error(theta):
    """Two copies of a column and a deviation of almost nothing; the others have their errors."""
    made = {name: (x[:, [0, 1, 1]], y) for name, (x, y) in clients().items()}
    at = Population(
        Linear(jnp.array([1.0, -0.25, -0.25]), theta.phi.bias),
        theta.beta._replace(log_scale=jnp.log(jnp.array([1e-3, 0.5]))),
    )
    data = FederatedData.from_clients(made, features=["age", "dose", "same"])
    with pytest.warns(
        UserWarning,
        match=r"no information about weights\[dose\], weights\[same\], deviation\[intercept\]; "
        "their standard errors are NaN",
    ):
        table = shared_effects(METHOD, MODEL, at, data, rounds=2)
    missing = ["weights[dose]", "weights[same]", "deviation[intercept]"]
    assert list(table.index[table["se"].isna()]) == missing
    assert table.loc[missing, ["low", "high"]].isna().all(axis=None)
    assert (table["se"].drop(missing) > 0.01).all()


def test_a_logistic_model_against_quadrature():
    """Few rows, skewed posteriors of the effects: minus the Hessian of Gauss-Hermite's sum."""
    rng, effects = np.random.default_rng(0), 1.5
    made = {}
    for index in range(60):
        x = rng.normal(size=(4, 1))
        chance = 1 / (1 + np.exp(-(1.0 + 0.8 * x[:, 0] + effects * rng.normal())))
        made[f"site{index}"] = (x, (rng.random(4) < chance).astype(int))
    at = Population(
        Linear(jnp.array([0.8]), jnp.array(1.0)), Gaussian(jnp.zeros(1), jnp.log(jnp.array([1.5])))
    )
    model = models.mixed_logistic()
    nodes, weight = (jnp.asarray(part) for part in np.polynomial.hermite_e.hermegauss(60))
    x, y = (jnp.asarray(np.stack(part)) for part in zip(*made.values(), strict=True))

    def log_marginal(theta):
        slope, intercept, log_scale = theta

        def of_client(x, y):
            predictor = slope * x[:, 0] + intercept + jnp.exp(log_scale) * nodes[:, None]
            log_likelihood = jnp.sum(jax.nn.log_sigmoid((2 * y - 1) * predictor), axis=1)
            return jax.nn.logsumexp(log_likelihood, b=weight)

        return jnp.sum(jax.vmap(of_client)(x, y))

    with jax.enable_x64(True):
        start = jnp.array([0.8, 1.0, np.log(1.5)], jnp.float64)
        exact = -np.asarray(jax.jit(jax.hessian(log_marginal))(start))
    expected = np.sqrt(np.diag(np.linalg.inv(exact)))
    data = FederatedData.from_clients(made, classes=2)
    table = shared_effects(fedpop(model, step_size=0.1), model, at, data)["se"]
    found = table.loc[["weights[0]", "intercept", "deviation[0]"]]
    np.testing.assert_allclose(found, expected * [1.0, 1.0, 1.5], rtol=0.05)


def test_errors_that_remain_inexact_are_said(theta):
    data = FederatedData.from_clients(clients(2))
    with pytest.warns(UserWarning, match=r"Monte Carlo error of \d+%, more than 5%; ask for more"):
        shared_effects(METHOD, MODEL, theta, data, rounds=1, beta_prior=0.1, seed=1)


@pytest.mark.slow
def test_priors_add_to_the_information(theta):
    data = FederatedData.from_clients(clients(6))
    free = shared_effects(METHOD, MODEL, theta, data)["se"]
    tight = shared_effects(METHOD, MODEL, theta, data, phi_prior=1e-3, beta_prior=1e-3)["se"]
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
    with pytest.raises(ValueError, match=r"probability must be between 0 and 1, .* got 90"):
        shared_effects(METHOD, MODEL, theta, data, probability=90.0)
    with pytest.raises(ValueError, match="known up to a constant only"):
        observed_information(MODEL, theta, data, effects=models.energy())
    with pytest.raises(ValueError, match="the fit must be of FedPop, got 'fedper'"):
        shared_effects(METHOD._replace(name="fedper"), MODEL, theta, data)


@pytest.mark.slow
def test_a_law_that_is_given_is_known(theta):
    """Its values have standard errors of zero, and the others' come from the information about phi
    alone.
    """
    made, law = clients(6), models.fixed(scale=0.8)
    theta = theta._replace(beta=Gaussian(jnp.zeros(2), jnp.log(0.8)))
    table = shared_effects_of(MODEL, law, theta, FederatedData.from_clients(made))
    assert table.loc["deviation", "se"] == 0
    exact = np.zeros((3, 3))  # generalised least squares
    for x, _ in made.values():
        design = np.column_stack([x, np.ones(len(x))])
        effects = design[:, [2, 0]]
        covariance = NOISE**2 * np.eye(len(x)) + 0.8**2 * effects @ effects.T
        exact += design.T @ np.linalg.solve(covariance, design)
    found = table["se"].loc[["weights[0]", "weights[1]", "intercept"]]
    # Drawing ends at a Monte Carlo error of 5 %: twice that is the bound.
    np.testing.assert_allclose(found, np.sqrt(np.diag(np.linalg.inv(exact))), rtol=0.1)
