"""Priors by the name of a term: text, defaults, and the log density against SciPy."""

from functools import reduce
from operator import add

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import covey
from covey import models
from covey.algorithms.marginal.parameters import Coordinates, Scales, Theta, log_prior
from covey.core.shard import Rows as Pair
from covey.core.shard import Spec
from covey.fitting import combine, describe, parse
from covey.fitting.cautions import warn_of_priors
from covey.fitting.priors import LogPrior, Prior, Statistics, chosen_priors, read_prior
from covey.fitting.tables import Table
from small_fits import clinics

TABLES = {name: Table(name, frame) for name, frame in clinics(3, 30).items()}


def made(formula, priors=None, **options):
    parsed = parse(formula)
    described = [describe(table, parsed) for table in TABLES.values()]
    design = combine(described, parsed, **options)
    rows = {name: design.rows_of(table) for name, table in TABLES.items()}
    statistics = reduce(add, [Statistics.of(design, one) for one in rows.values()])
    x = np.concatenate([one.x for one in rows.values()])
    y = np.concatenate([one.y for one in rows.values()])
    return design, statistics, chosen_priors(design, statistics, priors), x, y


def test_defaults_are_scaled_by_federated_standard_deviations():
    _, _, priors, x, y = made("gain ~ dose + sex + (1 + dose | clinic)")
    sd, unit = x.std(0, ddof=1), y.std(ddof=1)
    assert list(priors) == [
        "Intercept",
        "dose",
        "sex[T.m]",
        "sd(Intercept)",
        "sd(dose)",
        "cor",
        "sigma",
    ]
    scale = priors["dose"].arguments[1]
    assert abs(scale / (2.5 * unit / sd[0]) - 1) < 0.01  # rounded to three digits
    assert abs(priors["sex[T.m]"].arguments[1] / (2.5 * unit) - 1) < 0.01
    assert abs(priors["Intercept"].arguments[0] / y.mean() - 1) < 0.01
    assert str(priors["sd(dose)"]) == f"half_student_t(3, 0, {scale:g})"
    assert str(priors["cor"]) == "lkj(2)"


def test_priors_are_changed_by_name(tmp_path):
    given = {"dose": "normal(0, 1)", "b": "cauchy(0, 2)", "sd": "half_normal(1)", "cor": "lkj(4)"}
    *_, priors, _, _ = made("gain ~ dose + sex + (1 + dose | clinic)", given)
    assert str(priors["dose"]) == "normal(0, 1)"
    assert str(priors["sex[T.m]"]) == "cauchy(0, 2)"
    assert str(priors["sd(Intercept)"]) == str(priors["sd(dose)"]) == "half_normal(1)"
    path = tmp_path / "priors.toml"
    path.write_text('[priors]\n"sd(Intercept)" = "exponential(2)"\n')
    *_, priors, _, _ = made("gain ~ dose + (1 | clinic)", path)
    assert str(priors["sd(Intercept)"]) == "exponential(2)"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"doze": "normal(0, 1)"}, "no term 'doze'; did you mean 'dose'"),
        ({"dose": "gauss(0, 1)"}, "write one of flat, normal"),
        ({"dose": "normal(0)"}, "write one of flat, normal"),
        ({"dose": "normal(0, -1)"}, "its sd must be above 0"),
        ({"dose": "half_normal(1)"}, "for parameters above 0"),
        ({"sigma": "normal(0, 1)"}, "is none of 'sigma'; use half_normal"),
        ({"cor": "normal(0, 1)"}, "is none of 'cor'; use lkj"),
        ({"dose": "normal(0, __import__('os'))"}, "write one of"),
        ("nowhere.toml", "there is no file"),
    ],
)
def test_priors_that_are_refused(given, why):
    with pytest.raises(ValueError, match=why):
        made("gain ~ dose + (1 + dose | clinic)", given)


SCIPY = {
    "normal(1, 2)": scipy.stats.norm(1, 2),
    "student_t(3, 1, 2)": scipy.stats.t(3, 1, 2),
    "cauchy(1, 2)": scipy.stats.cauchy(1, 2),
    "laplace(1, 2)": scipy.stats.laplace(1, 2),
    "half_normal(2)": scipy.stats.halfnorm(0, 2),
    "half_student_t(3, 0, 2)": scipy.stats.t(3, 0, 2),
    "half_cauchy(2)": scipy.stats.halfcauchy(0, 2),
    "exponential(2)": scipy.stats.expon(scale=1 / 2),
    "gamma(3, 2)": scipy.stats.gamma(3, scale=1 / 2),
    "lognormal(1, 2)": scipy.stats.lognorm(2, scale=np.exp(1)),
}


@pytest.mark.parametrize("text", SCIPY)
def test_log_densities_are_scipys_up_to_a_constant(text):
    prior = LogPrior((("noise", (read_prior("sigma", text),)),), ())
    low, high = (float(prior({"noise": jnp.array(value)})) for value in (0.3, 1.7))
    exact = SCIPY[text].logpdf(1.7) - SCIPY[text].logpdf(0.3)
    assert abs(high - low - exact) < 1e-5


def test_the_intercept_has_its_prior_at_the_means_of_the_columns():
    design, statistics, priors, x, _ = made("gain ~ dose + sex + (1 | clinic)")
    only = {name: Prior("flat") for name in priors} | {"Intercept": Prior("normal", (1.0, 2.0))}
    found = LogPrior.of(design, statistics, only)
    weights = np.array([0.5, -1.0])
    known = {"intercept": jnp.array(0.3), "weights": jnp.array(weights), "sd": jnp.ones(1)}
    known["noise"] = jnp.ones(())
    exact = -(((0.3 + x.mean(0) @ weights - 1) / 2) ** 2) / 2
    assert abs(float(found(known)) - exact) < 1e-5


def test_correlations_are_lkj():
    prior = LogPrior((("cor", (Prior("lkj", (3.0,)),)),), ())
    values = np.array([0.3, -0.2, 0.5])
    matrix = np.eye(3)
    matrix[np.triu_indices(3, 1)] = values
    matrix = matrix + matrix.T - np.eye(3)
    exact = 2 * np.log(np.linalg.det(matrix))
    assert abs(float(prior({"cor": jnp.array(values)})) - exact) < 1e-5


def test_densities_of_dispersions_and_groups_get_their_jacobian():
    """They are exponentials of the parameters: a flat density of a dispersion d is d in log d."""
    model = models.mixed_negative_binomial(groups="g")
    row = Pair(jnp.zeros(2), jnp.zeros(()))
    spec = Spec(row, features=("x", "g"))
    phi = model.init(jax.random.key(0), spec)
    phi = phi._replace(log_dispersion=jnp.array(0.7), log_groups=jnp.array(-0.4))
    theta, unit = Theta(phi, jnp.array([0.2])), jnp.ones(1)
    where = model, Coordinates("diagonal", positive=True), lambda known: jnp.zeros(())
    value = log_prior(*where, theta, unit, Scales(jnp.ones(4), jnp.ones(1)))
    assert abs(float(value) - (0.2 + 0.7 - 0.4)) < 1e-6


@pytest.mark.parametrize(("noise", "told"), [(1e-6, True), (0.3, False)])
def test_collinear_columns_on_which_priors_decide_are_told(noise, told):
    """The exact posterior of a linear regression with known noise; two columns are alike."""
    design, statistics, priors, x, y = made("gain ~ dose + sex + I(dose**2)")
    random = np.random.default_rng(0)
    at = [design.columns.index(name) for name in ("dose", "I(dose ** 2)")]
    x[:, at[1]] = x[:, at[0]] + noise * x[:, at[0]].std() * random.normal(size=len(x))
    priors["I(dose ** 2)"] = priors["dose"]
    sd = np.array([priors[name].arguments[1] for name in design.columns])
    precision = (x - x.mean(0)).T @ (x - x.mean(0)) / y.var() + np.diag(sd**-2)
    drawn = random.multivariate_normal(np.zeros(len(sd)), np.linalg.inv(precision), 2000)
    draws = np.column_stack([np.zeros(2000), drawn, np.ones(2000)])
    prior = LogPrior.of(design, statistics, priors)
    if told:
        with pytest.warns(UserWarning, match=r"^dose, I\(dose \*\* 2\) are collinear"):
            assert len(warn_of_priors(prior, design, draws)) == 1
    else:
        assert warn_of_priors(prior, design, draws) == []


@pytest.mark.slow
def test_a_fit_tells_of_collinear_columns():
    twice = {
        name: table.frame.assign(double=2 * table.frame.dose) for name, table in TABLES.items()
    }
    with pytest.warns(UserWarning, match="dose, double are collinear"):
        found = covey.fit("gain ~ dose + double", twice, client="clinic", progress=False)
    assert any("collinear" in one for one in found.notes)
