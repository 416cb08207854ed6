"""FedPop without a setting: the maximum of the marginal likelihood, in the data's own units."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
import pooled_fits
from covey import models
from covey.algorithms.fedpop_by_itself import _total, unsettled
from covey.algorithms.fedpop_mode import QUESTION, Priors, find_start, kind_of, marginal_of
from covey.algorithms.joint import Population, joint_of
from covey.algorithms.rounds_by_asking import round_query
from covey.core.cohort import uniform
from covey.data.federated import FederatedData
from covey.engines.questions import ByRounds, Questions
from covey.engines.simulate import Simulation
from covey.models.effects import Gaussian

SEEDS = range(5)


def small(count=12, rows=5, *, alike=False):
    """Random intercepts, an outcome in thousands and a column in thousandths. Clients that are
    alike have residuals of mean zero, less than any chance gives.
    """
    generator, made = np.random.default_rng(2), {}
    for index in range(count):
        x, own = generator.normal(size=(rows, 1)), generator.normal()
        noise = 0.5 * generator.normal(size=rows)
        y = 3 + 2 * x[:, 0] + (noise - noise.mean() if alike else own + noise)
        made[f"site {index}"] = (x / 1000, 1000 * y)
    return FederatedData.from_clients(made, features=["dose"])


def complete(name):
    """The rows without missing values."""
    data = covey.load(name)
    x, y = np.asarray(data.rows.x), np.asarray(data.rows.y)
    owner = np.repeat(np.arange(data.clients), data.counts("train"))
    there = np.isfinite(x).all(axis=1)
    options = {"features": list(data.features), "classes": data.spec.classes}
    return FederatedData.from_arrays(x[there], y[there], owner[there], **options)


FULL = models.gaussian(covariance="full", scale_bounds=(1e-6, 1e6))
CASES = {
    "sleepstudy": (models.mixed_linear, ("Days",)),
    "radon": (models.mixed_linear, ()),
    "contraception": (models.mixed_logistic, ()),
    "contraception with slopes": (models.mixed_logistic, ("urban=Y",)),
    "grouseticks": (models.mixed_poisson, ()),
    "heart_disease": (models.mixed_logistic, ()),
}


@cache
def marginal_fit(case):
    """The data, the model, and the table of maximum likelihood."""
    family, slopes = CASES[case]
    name = case.partition(" ")[0]
    data = covey.load(name).standardised()[0] if name == "heart_disease" else complete(name)
    model = family(slopes=slopes)
    run = covey.run(covey.marginal(model), data, seed=0, progress=False)
    return data, model, run.posterior.shared.law.table()


def assert_the_maximum(run, table, *, error=0.1):
    """Coefficients within 0.1 standard errors, deviations within 5 %, standard errors within 10 %.

    A run has settled at a Monte Carlo error of 0.03 standard errors.
    """
    law = run.posterior.shared.law
    found, se = (
        np.concatenate([np.ravel(value) for value in part.values()])
        for part in (law.estimate, law.error)
    )
    expected, errors = table["estimate"].to_numpy(), table["se"].to_numpy()
    np.testing.assert_array_less(np.abs(found - expected) / errors, error)
    deviations = np.array([name.startswith("sd") for name in table.index])
    np.testing.assert_allclose(found[deviations], expected[deviations], rtol=0.05)
    np.testing.assert_allclose(se, errors, rtol=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES)
def test_real_data(case, seed, data_dir):
    data, model, table = marginal_fit(case)
    method = covey.fedpop(model, effects=FULL if CASES[case][1] else None)
    run = covey.run(method, data, seed=seed, progress=False)
    assert_the_maximum(run, table)


@pytest.fixture(scope="module")
def data():
    return small()


@pytest.fixture(scope="module")
def run(data):
    return covey.run(covey.fedpop(models.mixed_linear()), data, seed=1, progress=False)


def test_equal_settings_are_one_method():
    model = models.mixed_linear()
    one, other = (covey.fedpop(model, phi_prior=number) for number in (2.0, np.float64(2)))
    assert one is other
    assert covey.fedpop(model, phi_prior=3.0) is not one


@pytest.mark.slow
def test_in_any_units_the_estimate_is_the_maximum(run, data):
    """Deviations of 1,000 and weights of a million; Adam with steps of 0.01 ends near zero."""
    pooled = pooled_fits.gaussian(pooled_fits.Pooled.of(data), [])
    law = run.posterior.shared.law
    found = np.append(law.estimate["intercept"], law.estimate["weights"])
    np.testing.assert_array_less(np.abs(found - pooled.beta) / pooled.se, 0.1)
    np.testing.assert_allclose(law.estimate["deviation"], pooled.sd, rtol=0.05)
    np.testing.assert_allclose(law.estimate["noise"], pooled.noise, rtol=0.02)
    errors = np.append(law.error["intercept"], law.error["weights"])
    np.testing.assert_allclose(errors, pooled.se, rtol=0.05)


def test_it_tells_that_it_has_settled(run):
    last = run.metrics.iloc[-1]
    assert last["monte_carlo_error"] <= 0.03
    assert 20 <= run.round < 100


@pytest.mark.slow
def test_standard_errors_come_from_one_more_question(run):
    assert set(run.posterior.shared.law.error) == set(run.posterior.shared.law.estimate)
    assert run.questions["question"].tolist()[-2:] == ["noise", "information_64"]


def test_predictions_average_over_a_hundred_draws(run):
    """Of a client's posterior, which is Gaussian given theta: its mean to 4 Monte Carlo errors."""
    theta = run.state.average
    scale, noise = float(jnp.exp(theta.beta.log_scale[0])), float(jnp.exp(theta.phi.log_scale))
    x, y = run.data.rows_of(3, "train")
    off = y - x @ np.asarray(theta.phi.weight) - float(theta.phi.bias)
    precision = len(y) / noise**2 + scale**-2
    exact = float(theta.phi.bias) + off.sum() / noise**2 / precision
    found = float(run.predict(np.zeros((1, 1)), client="site 3").mean[0])
    assert abs(found - exact) < 4 * precision**-0.5 / np.sqrt(100 / 1.5)


def test_what_has_not_settled_is_told(run):
    """The server's state after too few rounds, with a trend, and with too much noise."""
    state = run.state
    assert unsettled(state) is None
    assert "at least 20 rounds" in unsettled(state._replace(round=jnp.int32(3)))
    moving = state._replace(newton=state.newton.at[0].set(0.5))
    assert "the next step would be 0.5 of its standard error" in unsettled(moving)
    # An error of sqrt(4 / 3 * variance / rounds) of 0.06 is twice too much: four times the rounds.
    noisy = state._replace(variance=jnp.full_like(state.variance, 0.06**2 * 0.75 * run.round))
    assert f"run.advance({3 * run.round})" in unsettled(noisy._replace(newton=0 * state.newton))


@pytest.mark.slow
def test_a_run_that_stops_early_warns(data):
    method = covey.fedpop(models.mixed_linear(), draws=2)
    with pytest.warns(UserWarning, match=r"not settled after 3 rounds.*run\.advance\(17\)"):
        run = covey.run(method, data, rounds=3, seed=1, progress=False)
    text = r"after 23 rounds: the estimate of \S+ has a Monte Carlo error of 0\.\d+ of its standard"
    with pytest.warns(UserWarning, match=text):
        run.advance(20)


@pytest.mark.slow
def test_priors_and_a_law_that_is_given():
    """Of a typical client's coefficients: ridge regression with the covariance of the rows."""
    data = small(6)
    effects = models.fixed(scale=800.0)
    method = covey.fedpop(models.mixed_linear(scale=500.0), effects=effects, phi_prior=2000.0)
    run = covey.run(method, data, seed=0, progress=False)
    information, score = np.eye(2) / 2000.0**2, np.zeros(2)
    for index in range(data.clients):
        x, y = data.rows_of(index, "train")
        fixed = np.column_stack([x, np.ones(len(y))])
        precision = np.linalg.inv(500.0**2 * np.eye(len(y)) + 800.0**2)
        information += fixed.T @ precision @ fixed
        score += fixed.T @ precision @ y
    covariance = np.linalg.inv(information)
    phi = run.state.average.phi
    off = np.append(phi.weight, phi.bias) - covariance @ score
    np.testing.assert_array_less(np.abs(off) / np.sqrt(np.diag(covariance)), 0.1)


def test_the_prior_is_that_of_fedpop():
    joint = joint_of(models.mixed_linear(scale=1.0), None)
    theta = Population(
        models.Linear(jnp.array([2.0]), jnp.array(1.0)),
        Gaussian(jnp.zeros(1), jnp.array([3.0])),
    )
    found = Priors(2.0, 3.0).log_density(joint, theta)
    assert float(found) == pytest.approx(-(1 + 0.25 + 1) / 2)
    gradient = _total(joint, Priors(2.0, 3.0), theta, jax.tree.map(jnp.zeros_like, theta))
    np.testing.assert_allclose(gradient, [-2 / 4, -1 / 4, 0, -3 / 9], atol=1e-6)
    assert not Priors(2.0, None).is_flat(joint)
    assert Priors(None, None).is_flat(joint)


def test_a_start_with_a_deviation_of_zero_is_told():
    """Of the questions before the first round alone."""
    data, joint = small(alike=True), joint_of(models.mixed_linear(), None)
    kind = kind_of(joint)
    queries = {QUESTION: round_query(marginal_of(joint, kind))}
    ask = Questions(ByRounds(lambda method: Simulation(method, data, seed=0))).asker(queries)
    with pytest.warns(UserWarning, match=r"sd\[intercept\] is estimated as 0"):
        start = find_start(joint, kind, Priors(None, None), data.spec, ask)
    assert float(jnp.exp(start.theta.beta.log_scale[0])) < 50  # rows tell some 250 from 0


@pytest.mark.slow
def test_a_deviation_of_zero_is_told():
    data = small(alike=True)
    with pytest.warns(UserWarning, match=r"sd\[intercept\] is estimated as 0"):
        run = covey.run(covey.fedpop(models.mixed_linear()), data, seed=0, progress=False)
    assert float(jnp.exp(run.state.average.beta.log_scale[0])) < 50  # rows tell some 250 from 0


@pytest.mark.slow
def test_some_clients_per_round(data):
    """More noise, more rounds, the same maximum; and between engines."""
    method = covey.fedpop(models.mixed_linear())
    run = covey.run(method, data, seed=1, progress=False, cohort=uniform(6))
    assert run.round > 200
    table = covey.run(covey.marginal(models.mixed_linear()), data, seed=0, progress=False)
    assert_the_maximum(run, table.posterior.shared.law.table())
    few = [
        covey.run(method, data, rounds=30, seed=1, engine=engine, progress=False).state.average
        for engine in ("simulate", "loop")
    ]
    for one, other in zip(*map(jax.tree.leaves, few), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("method", "match"),
    [
        (
            lambda: covey.fedpop(models.mixed_linear(), effects=models.mixture(components=2)),
            "Gaussian effects; give step_size=",
        ),
        (
            lambda: covey.fedpop(models.mixed_linear(), average=0.5, centred=False),
            r"average=, centred= needs a given step_size=; give both",
        ),
        (
            lambda: covey.fedpop(
                models.mixed_linear(slopes="all"), effects=models.gaussian(covariance="isotropic")
            ),
            "a deviation for each effect.*give step_size=",
        ),
        (
            lambda: covey.fedpop(models.mixed_mlp(hidden=(3,), outcome="number")),
            "effects.*give step_size=",
        ),
        (
            lambda: covey.fedpop(models.mixed_linear(), effects=models.gaussian()),
            "scale_bounds of the law of the effects.*widen them",
        ),
    ],
)
def test_what_needs_a_step_size_or_other_bounds(method, match, data):
    with pytest.raises(ValueError, match=match):
        covey.run(method(), data, seed=0, progress=False)


def test_peers_cannot_sum(data):
    with pytest.raises(ValueError, match="peers without a server cannot sum"):
        covey.run(covey.fedpop(models.mixed_linear()), data, seed=0, engine="peers")
