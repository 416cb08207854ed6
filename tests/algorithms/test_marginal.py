"""The marginal likelihood by sums: estimates equal pooled ones, in the data's own units."""

from functools import cache
from itertools import product

import numpy as np
import pytest

import covey
import pooled_fits
from covey import models
from covey.data.federated import FederatedData

ROUNDS = 15
QUICK = {("sleepstudy", "ml")}


def complete(name, *, without=()):
    """The rows without missing values, and without some columns."""
    data = covey.load(name)
    x, y = np.asarray(data.rows.x), np.asarray(data.rows.y)
    owner = np.repeat(np.arange(data.clients), data.counts("train"))
    there = np.isfinite(x).all(axis=1)
    kept = [at for at, feature in enumerate(data.features) if feature not in without]
    return FederatedData.from_arrays(
        x[there][:, kept],
        y[there],
        owner[there],
        features=[data.features[at] for at in kept],
        classes=data.spec.classes,
    )


LINEAR = {
    "sleepstudy": ("sleepstudy", (), ("Days",)),
    "radon": ("radon", (), ()),
    "radon without uranium": ("radon", ("log_uranium",), ()),
    "exam": ("exam", (), ("standLRT",)),
    "radon_us": ("radon_us", (), ("floor_measure",)),
    "inst_eval": ("inst_eval", (), ()),
}


@cache
def linear_fits(case, estimate):
    name, without, slopes = LINEAR[case]
    data = complete(name, without=without)
    run = covey.run(
        covey.marginal(models.mixed_linear(slopes=slopes), estimate=estimate),
        data,
        rounds=ROUNDS,
        seed=0,
        progress=False,
    )
    columns = [data.features.index(slope) for slope in slopes]
    rows = pooled_fits.Pooled.of(data)
    return run, pooled_fits.gaussian(rows, columns, reml=estimate == "reml")


def assert_equal(run, pooled):
    """Coefficients within 1e-3 standard errors, deviations within 1e-3 of their size."""
    assert run.state.settled
    table = run.posterior.shared.law.table()
    count = len(pooled.beta)
    off = (table["estimate"].to_numpy()[:count] - pooled.beta) / pooled.se
    assert np.abs(off).max() < 1e-3
    np.testing.assert_allclose(table["se"].to_numpy()[:count], pooled.se, rtol=1e-3)
    named = [name.startswith("sd") for name in table.index]
    np.testing.assert_allclose(table["estimate"][named], pooled.sd, rtol=1e-3)
    if "noise" in table.index:
        np.testing.assert_allclose(table["estimate"]["noise"], pooled.noise, rtol=1e-3)
    if len(pooled.sd) > 1:
        np.testing.assert_allclose(table.loc[table.index[-1], "estimate"], pooled.cor, atol=1e-3)
    log_likelihood = run.posterior.shared.law.log_likelihood
    np.testing.assert_allclose(log_likelihood, pooled.log_likelihood, atol=2e-4)


@pytest.mark.parametrize(
    ("case", "estimate"),
    [
        pytest.param(*pair, marks=[] if pair in QUICK else [pytest.mark.slow])
        for pair in product(LINEAR, ("ml", "reml"))
    ],
)
def test_a_linear_mixed_model_has_the_pooled_estimates(case, estimate, data_dir):
    assert_equal(*linear_fits(case, estimate))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "family"), [("contraception", "logistic"), ("grouseticks", "poisson")]
)
def test_a_generalised_mixed_model_has_the_pooled_estimates(name, family, data_dir):
    model = models.mixed_logistic() if family == "logistic" else models.mixed_poisson()
    data = covey.load(name)
    run = covey.run(covey.marginal(model), data, rounds=ROUNDS, seed=0, progress=False)
    assert_equal(run, pooled_fits.intercepts(pooled_fits.Pooled.of(data), family))


@pytest.mark.slow
def test_models_are_compared_as_in_lme4(data_dir):
    """The numbers that lme4 prints for sleepstudy: anova() of two fits by maximum likelihood."""
    larger = linear_fits("sleepstudy", "ml")[0].posterior.shared.law
    assert larger.aic == pytest.approx(1763.9393, abs=1e-3)
    assert larger.bic == pytest.approx(1783.0971, abs=1e-3)
    method = covey.marginal(models.mixed_linear())
    smaller = covey.run(method, covey.load("sleepstudy"), progress=False).posterior.shared.law
    found = larger.compare(smaller)
    assert found.statistic == pytest.approx(42.1393, abs=1e-3)
    assert found.degrees_of_freedom == 2
    assert found.p_value == pytest.approx(7.07e-10, rel=1e-2)
    with pytest.raises(ValueError, match=r"write larger\.compare\(smaller\)"):
        smaller.compare(larger)
    restricted = linear_fits("sleepstudy", "reml")[0].posterior.shared.law
    with pytest.raises(ValueError, match="these are 'ml' and 'reml'"):
        larger.compare(restricted)
    with pytest.raises(ValueError, match="different coefficients cannot be compared"):
        restricted.compare(restricted._replace(names=("intercept", "sd[intercept]")))
    with pytest.raises(ValueError, match="fitted to 180 and 100"):
        larger.compare(smaller._replace(rows=100))
