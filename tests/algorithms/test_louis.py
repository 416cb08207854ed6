"""The Gaussian posterior of shared parameters, against Hessians of exact marginal likelihoods."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from covey import models
from covey.algorithms.fedpop_sampler import Down
from covey.algorithms.joint import Population, joint_of
from covey.algorithms.louis import LARGEST, _asked, shared_posterior
from covey.data.federated import FederatedData
from covey.engines.questions import ByRounds, Questions
from covey.engines.simulate import Simulation
from covey.models import Linear
from covey.models.effects import Correlated, Gaussian
from fedpop_problem import log_marginal

# At the values that made the data, not at maxima.
pytestmark = pytest.mark.filterwarnings("ignore:fedpop. the fit has not converged")
NOISE = 0.7
MODEL = models.mixed_linear(scale=NOISE, slopes=(0,))
JOINT = joint_of(MODEL, None)
THETA = Population(
    Linear(np.array([1.0, -0.5]), np.array(0.4)),
    Gaussian(np.array([0.1, -0.1]), np.log([0.8, 0.5])),
)


@pytest.fixture
def theta():
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), THETA)


def clients(number=40, rows=5):
    rng, made = np.random.default_rng(4), {}
    for index in range(number):
        x, z = rng.normal(size=(rows, 2)), rng.normal([0.1, -0.1], [0.8, 0.5])
        y = x @ [1.0, -0.5] + 0.4 + z[0] + z[1] * x[:, 0] + NOISE * rng.normal(size=rows)
        made[f"site{index}"] = (x, y)
    return made


def asking(data, queries):
    """Federated sums over these clients."""
    return Questions(ByRounds(lambda method: Simulation(method, data, seed=1))).asker(queries)


def fitted(theta, made, joint=JOINT, *, phi_prior=None, beta_prior=None, **options):
    data = FederatedData.from_clients(made, **options)
    posterior = shared_posterior(joint, phi_prior=phi_prior, beta_prior=beta_prior)
    return posterior.fit(Down(theta, jnp.ones(())), data.spec, asking(data, posterior.queries))


def exact_derivatives(made):
    """The gradient of the marginal log-likelihood, which is Gaussian, and minus its Hessian, in
    float64.
    """
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, THETA))
        x, y = (jnp.asarray(np.stack(part)) for part in zip(*made.values(), strict=True))
        design = jnp.stack([jnp.ones(y.shape), x[..., 0]], axis=-1)

        def total(parameters):
            at = unravel(parameters)
            return jnp.sum(jax.vmap(lambda x, y, d: log_marginal(at, x, y, d, NOISE))(x, y, design))

        hessian, gradient = jax.jit(lambda v: (jax.hessian(total)(v), jax.grad(total)(v)))(flat)
        return np.asarray(gradient), -np.asarray(hessian)


def exact_errors(made):
    """By name. The intercept and its mean effect are known only as a sum, and so is a slope."""
    covariance = np.linalg.pinv(exact_derivatives(made)[1], rcond=1e-9, hermitian=True)
    with jax.enable_x64(True):
        flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, THETA))
        jacobian = jax.jit(jax.jacobian(lambda v: JOINT.describe(unravel(v))))(flat)
    return {
        name: np.sqrt(np.einsum("...i,ij,...j", part, covariance, part))
        for name, part in jacobian.items()
    }


def assert_errors(found, expected, rtol=0.05):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, err_msg=name)


@pytest.mark.slow
def test_louis_finds_the_derivatives_of_the_marginal_likelihood(theta):
    """To five Monte Carlo errors, which the batches tell. Those of effects that stay where they are
    would be 2 % of the largest information.
    """
    made = clients()
    queries = shared_posterior(JOINT, phi_prior=None, beta_prior=None).queries
    found = _asked(asking(FederatedData.from_clients(made), queries), theta, 64)
    exact = exact_derivatives(made)
    for batches, value in zip((found.score, found.batches), exact, strict=True):
        error = batches.std(0, ddof=1) / np.sqrt(len(batches))
        assert np.all(np.abs(batches.mean(0) - value) < 5 * error + 1e-3)
        assert error.max() < 0.005 * np.abs(exact[1]).max()
    assert found.poor == 0


@pytest.mark.slow
def test_a_fit_that_has_not_converged_gives_a_warning(theta):
    """Far from the maximum of the likelihood and the prior, which are quadratic in the weight."""
    joint, made = joint_of(models.mixed_linear(scale=NOISE), models.fixed(scale=0.5)), {}
    for name, (x, y) in clients(4).items():
        made[name] = (x[:, :1], y)
    at = Population(Linear(jnp.array([3.0]), jnp.zeros(())), Gaussian(jnp.zeros(1), jnp.log(0.5)))
    with pytest.warns(UserWarning, match=r"has not converged.*change weights\[0\] by") as said:
        law = fitted(at, made, joint, phi_prior=0.2)
    text = next(str(one.message) for one in said if "has not converged" in str(one.message))
    step = float(text.partition(" by ")[2].split()[0]) * float(law.error["weights"][0])
    information, score = np.eye(2) / 0.2**2, np.array([-3.0, 0.0]) / 0.2**2
    for x, y in made.values():
        fixed = np.column_stack([x, np.ones(len(y))])
        precision = np.linalg.inv(NOISE**2 * np.eye(len(y)) + 0.25)
        information += fixed.T @ precision @ fixed
        score += fixed.T @ precision @ (y - 3.0 * x[:, 0])
    assert step == pytest.approx(np.linalg.solve(information, score)[0], rel=0.05)
    error = np.sqrt(np.linalg.inv(information)[0, 0])
    assert float(law.error["weights"][0]) == pytest.approx(error, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [pytest.param(1.0, marks=pytest.mark.slow), 3000.0])
def test_standard_errors_are_exact_in_any_unit(theta, unit):
    """A column times 3,000: its standard error is 3,000 times smaller, and the others stay."""
    made = {name: (x * [1.0, unit], y) for name, (x, y) in clients().items()}
    at = theta._replace(phi=theta.phi._replace(weight=theta.phi.weight / jnp.array([1.0, unit])))
    law, exact = fitted(at, made), exact_errors(clients())
    exact["weights"] = exact["weights"] / [1.0, unit]
    assert_errors(law.error, exact)
    np.testing.assert_allclose(law.estimate["intercept"], 0.5, rtol=1e-5)
    np.testing.assert_allclose(law.estimate["weights"], [0.9, -0.5 / unit], rtol=1e-5)
    np.testing.assert_allclose(law.estimate["deviation"], [0.8, 0.5], rtol=1e-5)
    draw = shared_posterior(JOINT, phi_prior=None, beta_prior=None).draw
    drawn = draw(jax.random.key(0), law, 4000)
    for name in ("intercept", "weights"):  # linear in theta
        np.testing.assert_allclose(
            np.std(drawn[name], 0), law.error[name], rtol=4 / np.sqrt(2 * 4000)
        )
    logs = np.std(np.log(drawn["deviation"]), 0)
    np.testing.assert_allclose(
        logs, law.error["deviation"] / law.estimate["deviation"], rtol=4 / np.sqrt(2 * 4000)
    )


@pytest.mark.slow
def test_what_the_data_do_not_tell_is_named_and_has_no_draws(theta):
    """Two copies of a column and a deviation of almost nothing; the others have their errors."""
    made = {name: (x[:, [0, 1, 1]], y) for name, (x, y) in clients().items()}
    at = Population(
        Linear(jnp.array([1.0, -0.25, -0.25]), theta.phi.bias),
        theta.beta._replace(log_scale=jnp.log(jnp.array([1e-3, 0.5]))),
    )
    with pytest.warns(
        UserWarning,
        match=r"no information about weights\[dose\], weights\[same\], deviation\[intercept\]; "
        "their posterior is NaN",
    ):
        law = fitted(at, made, features=["age", "dose", "same"])
    draw = shared_posterior(JOINT, phi_prior=None, beta_prior=None).draw
    drawn = draw(jax.random.key(0), law, 5)
    for found in (law.error, *({name: leaf[k] for name, leaf in drawn.items()} for k in (0, 4))):
        np.testing.assert_array_equal(np.isnan(found["weights"]), [False, True, True])
        np.testing.assert_array_equal(np.isnan(found["deviation"]), [True, False])
        assert np.isfinite(found["intercept"])


@pytest.mark.slow
def test_a_logistic_model_against_quadrature():
    """Few rows, skewed posteriors of the effects: minus the Hessian of Gauss-Hermite's sum."""
    rng, made = np.random.default_rng(0), {}
    for index in range(60):
        x = rng.normal(size=(4, 1))
        chance = 1 / (1 + np.exp(-(1.0 + 0.8 * x[:, 0] + 1.5 * rng.normal())))
        made[f"site{index}"] = (x, (rng.random(4) < chance).astype(int))
    at = Population(
        Linear(jnp.array([0.8]), jnp.array(1.0)), Gaussian(jnp.zeros(1), jnp.log(jnp.array([1.5])))
    )
    nodes, weight = (jnp.asarray(part) for part in np.polynomial.hermite_e.hermegauss(60))
    x, y = (jnp.asarray(np.stack(part)) for part in zip(*made.values(), strict=True))

    def log_marginal(parameters):
        weight_of_x, intercept, log_scale = parameters

        def of_client(x, y):
            predictor = weight_of_x * x[:, 0] + intercept + jnp.exp(log_scale) * nodes[:, None]
            log_likelihood = jnp.sum(jax.nn.log_sigmoid((2 * y - 1) * predictor), axis=1)
            return jax.nn.logsumexp(log_likelihood, b=weight)

        return jnp.sum(jax.vmap(of_client)(x, y))

    with jax.enable_x64(True):
        start = jnp.array([0.8, 1.0, np.log(1.5)], jnp.float64)
        exact = -np.asarray(jax.jit(jax.hessian(log_marginal))(start))
    of_weight, of_intercept, of_log_scale = np.sqrt(np.diag(np.linalg.inv(exact)))
    found = fitted(at, made, joint_of(models.mixed_logistic(), None), classes=2).error
    expected = {
        "intercept": of_intercept,
        "weights": [of_weight],
        "deviation": [1.5 * of_log_scale],
    }
    assert_errors(found, expected)


@pytest.mark.slow
def test_priors_add_to_the_information(theta):
    free = fitted(theta, clients(6)).error
    tight = fitted(theta, clients(6), phi_prior=1e-3, beta_prior=1e-3).error
    np.testing.assert_allclose(tight["weights"][1], 1e-3, rtol=1e-3)
    assert all(np.all(tight[name] < 0.1 * free[name]) for name in free)


def test_a_full_covariance_is_described(theta):
    beta = Correlated(theta.beta.mean, theta.beta.log_scale, jnp.array([[9.0, 9.0], [0.5, 9.0]]))
    joint = joint_of(MODEL, models.gaussian(covariance="full"))
    found = joint.describe(theta._replace(beta=beta))
    root = np.array([[1.0, 0.0], [0.5, 1.0]]) * np.array([0.8, 0.5])
    covariance = root @ root.T
    np.testing.assert_allclose(found["deviation"], np.sqrt(np.diag(covariance)), rtol=1e-6)
    expected = covariance[1, 0] / np.sqrt(np.prod(np.diag(covariance)))
    np.testing.assert_allclose(found["correlation"], [expected], rtol=1e-6)
    spec = FederatedData.from_clients(clients(2), features=["age", "dose"]).spec
    axes = joint.axes(spec)
    assert axes["deviation"].labels == ("intercept", "age")
    assert axes["correlation"].labels == ("intercept, age",)
    alone = joint_of(models.mixed_linear(scale=NOISE), models.gaussian(covariance="full"))
    single = Correlated(jnp.zeros(1), jnp.zeros(1), jnp.zeros((1, 1)))
    names = {"intercept", "weights", "deviation"}
    assert alone.describe(theta._replace(beta=single)).keys() == names


def test_what_cannot_be_had(theta):
    def never(name, sent):
        raise AssertionError("nothing was to be asked")

    fit, *_ = shared_posterior(joint_of(MODEL, models.energy()), phi_prior=None, beta_prior=None)
    spec = FederatedData.from_clients(clients(2)).spec
    with pytest.raises(ValueError, match=r"known up to a constant only.*run\.posterior\.clients"):
        fit(Down(theta, jnp.ones(())), spec, never)
    fit, *_ = shared_posterior(JOINT, phi_prior=None, beta_prior=None)
    large = theta._replace(phi=Linear(jnp.zeros(LARGEST), jnp.zeros(())))
    with pytest.raises(ValueError, match="505 parameters are more than the 500"):
        fit(Down(large, jnp.ones(())), spec, never)


@pytest.mark.slow
def test_a_law_that_is_given_is_known(theta):
    """Its deviation has no error; the others have those of generalised least squares."""
    joint, made = joint_of(MODEL, models.fixed(scale=0.8)), clients(6)
    law = fitted(theta._replace(beta=Gaussian(jnp.zeros(2), jnp.log(0.8))), made, joint)
    assert law.error["deviation"] == 0
    information = np.zeros((3, 3))
    for x, y in made.values():
        fixed, random = np.column_stack([x, np.ones(len(y))]), x[:, [0]] ** [[0, 1]]
        covariance = NOISE**2 * np.eye(len(y)) + 0.8**2 * random @ random.T
        information += fixed.T @ np.linalg.solve(covariance, fixed)
    errors = np.sqrt(np.diag(np.linalg.inv(information)))
    np.testing.assert_allclose([*law.error["weights"], law.error["intercept"]], errors, rtol=0.05)
