"""Effects of groups inside a site, given the site's rows: against numerical integrals, and against
best linear unbiased predictions.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import integrate, stats
from tests.fitting.test_fitting_prediction import DESIGN

import covey
from covey.fitting.design import TOTALS, WEIGHTS, Rows
from covey.fitting.groups import with_groups
from covey.fitting.prediction import Draws, predicted, predictor
from covey.fitting.terms import Terms

COUNT = 4000  # draws: a mean is off by sd / 63, a standard deviation by sd / 89
LOG_DENSITY = {
    "gaussian": lambda y, eta, scale, _: stats.norm.logpdf(y, eta, scale),
    "bernoulli": lambda y, eta, _, __: stats.bernoulli.logpmf(y, 1 / (1 + np.exp(-eta))),
    "binomial": lambda y, eta, _, n: stats.binom.logpmf(y, n, 1 / (1 + np.exp(-eta))),
    "poisson": lambda y, eta, _, __: stats.poisson.logpmf(y, np.exp(eta)),
    "negative_binomial": lambda y, eta, k, _: stats.nbinom.logpmf(y, k, k / (k + np.exp(eta))),
}
PLAIN = "y ~ 1 + (1 | site/ward)"
OUTCOMES = {
    "gaussian": (PLAIN, [0.3, 1.9, 2.2, -1.0]),
    "bernoulli": (PLAIN, [0, 0, 1, 0]),
    "binomial": ("cbind(y, n) ~ 1 + (1 | site/ward)", [0, 3, 5, 2]),
    "poisson": (PLAIN, [0, 0, 9, 0]),
    "negative_binomial": (PLAIN, [0, 4, 12, 1]),
}
LABELS = np.array(["n", "s", "s", "n"])


def design_for(family="gaussian", **changes):
    return replace(
        DESIGN,
        text=OUTCOMES[family][0],
        family=family,
        client="site",
        group="ward",
        columns=(),
        **changes,
    )


def drawn(design, count, **values):
    """As many draws of the same values."""
    terms = {"Intercept": 0.0, "sd(ward:Intercept)": 1.0, "sigma": 1.0} | values
    row = [terms.get(name, np.nan) for name in Terms.of(design).names]
    return Draws(np.tile(row, (count, 1)), np.full((count, 1), 0.2))


@pytest.mark.parametrize("family", OUTCOMES)
def test_draws_have_the_law_of_a_group_given_its_rows(family):
    design, y = design_for(family), np.array(OUTCOMES[family][1], float)
    tau, scale, total = 0.9, 1.3, 6.0
    x = np.zeros((4, len(design.features)))
    if family == "binomial":
        x[:, design.features.index(TOTALS)] = total
    values = {"Intercept": 0.4, "sd(ward:Intercept)": tau, "sigma": scale, "shape": scale}
    rows = Rows(x, y, np.arange(4), LABELS)
    found = with_groups(design, rows, drawn(design, COUNT, **values), seed=3).groups
    assert list(found) == ["n", "s"]
    for group, values in found.items():
        own = y[group == LABELS]

        def density(v, own=own):
            terms = LOG_DENSITY[family](own, 0.6 + v, scale, total)
            return np.exp(np.sum(terms)) * stats.norm.pdf(v, 0, tau)

        moments = [integrate.quad(lambda v, k=k: v**k * density(v), -8, 8)[0] for k in range(3)]
        mean = moments[1] / moments[0]
        sd = np.sqrt(moments[2] / moments[0] - mean**2)
        assert abs(values.mean() - mean) < 4 * sd / 63
        assert abs(values.std() / sd - 1) < 4 / 89


def test_weights_count_rows_and_blocks_change_nothing(monkeypatch):
    design, y = design_for(), np.array(OUTCOMES["gaussian"][1])
    draws = drawn(design, 50)
    rows = Rows(np.zeros((4, len(design.features))), y, np.arange(4), LABELS)
    once = with_groups(design, rows, draws, 0).groups
    twice = Rows(np.repeat(rows.x, 2, 0), np.repeat(y, 2), np.arange(8), np.repeat(LABELS, 2))
    doubled = with_groups(design, twice, draws, 0).groups
    weighted = design_for(weights="w")
    x = np.zeros((4, len(weighted.features)))
    x[:, weighted.features.index(WEIGHTS)] = 2.0
    by_weight = with_groups(weighted, rows._replace(x=x), draws, 0).groups
    for group in once:
        assert np.allclose(doubled[group], by_weight[group])
        assert not np.allclose(once[group], doubled[group])
    monkeypatch.setattr("covey.fitting.groups._CELLS", 1)  # one group at a time
    for group, values in with_groups(design, rows, draws, 0).groups.items():
        assert np.allclose(values, once[group])


def test_predictions_use_the_group_that_the_site_had():
    design = design_for()
    draws = drawn(design, 500)._replace(groups={"n": np.full(500, 3.0)})
    x = np.zeros((3, len(design.features)))
    labels = np.array(["n", "new", ""])
    eta = predictor(design, x, draws, labels)
    assert (eta[0] == 3.2).all()
    assert eta[1:].std(1) == pytest.approx([1.0, 1.0], rel=0.15)
    means, _ = predicted(design, x, draws, [0.05, 0.95], labels)
    assert means[0] == pytest.approx(3.2)
    assert draws.thinned(10).groups["n"].tolist() == [3.0] * 10


@pytest.mark.slow
@pytest.mark.parametrize("formula", ["y ~ x + (1 | site/ward)", "y ~ x + (1 | site:ward)"])
def test_wards_of_a_fit_are_the_best_linear_unbiased_predictions(formula, tmp_path):
    random, tables = np.random.default_rng(1), {}
    for site in range(6):
        own = random.normal(0, 1.5)
        ward = np.repeat(np.arange(5), 12)
        x = random.normal(size=60)
        y = 1 + own + random.normal(0, 0.8, 5)[ward] + 0.5 * x + random.normal(0, 0.7, 60)
        tables[f"h{site}"] = pd.DataFrame({"y": y, "x": x, "ward": ward + 1})
    fit = covey.fit(formula, tables, estimate="ml", progress=False)
    found, mean = fit.group_effects(), fit.summary()["mean"]
    assert len(found) == 30
    for site, table in tables.items():
        z = np.column_stack([np.ones(60), pd.get_dummies(table.ward).to_numpy(float)])
        between = mean.get("sd(Intercept)", 0.0)
        variances = np.diag([between**2, *[mean["sd(ward:Intercept)"] ** 2] * 5])
        covariance = z @ variances @ z.T + mean["sigma"] ** 2 * np.eye(60)
        residual = table.y - mean["Intercept"] - mean["x"] * table.x
        best = variances @ z.T @ np.linalg.solve(covariance, residual)
        own = found[found.client == site]
        # Parameters vary around their estimates, which moves means by a few percent of an sd.
        assert own["group"].tolist() == list("12345")
        assert np.abs((own["mean"] - best[1:]) / own["sd"]).max() < 0.25
    new = pd.DataFrame({"x": [0.0, 0.0], "ward": [1, 99]})
    predictions = fit.predict(new, client="h0")
    width = predictions["q95"] - predictions["q05"]
    assert width[1] > 1.2 * width[0]
    fit.save(tmp_path / "run")
    again = covey.load_fit(tmp_path / "run")
    assert np.allclose(again.predict(new, client="h0"), predictions, atol=1e-4)
    assert np.allclose(again.group_effects()["mean"], found["mean"], atol=1e-5)
    stored = pd.read_csv(tmp_path / "run" / "groups.csv")
    assert stored.columns.tolist() == ["client", "group", "mean", "sd", "q05", "q95"]
