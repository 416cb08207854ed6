"""Slow: posteriors against NUTS on the pooled table with the same priors; families and methods."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro.infer import MCMC, NUTS

import covey
from covey.fitting.priors import read_prior
from messy_hospitals import messy_hospitals
from pooled_fits import Pooled, gaussian
from small_fits import FORMULA, clinics

pytestmark = pytest.mark.slow


def distribution(text):
    """A prior's text as NumPyro's distribution."""
    prior = read_prior("term", text)
    made = {
        "normal": dist.Normal,
        "half_student_t": lambda freedom, _, scale: dist.FoldedDistribution(
            dist.StudentT(freedom, 0, scale)
        ),
    }
    return made[prior.name](*prior.arguments)


def pooled_model(fit, x, y, client, family):
    """The pooled model with the priors that the fit prints."""
    priors = {term: distribution(text) for term, text in fit.priors.items() if term != "cor"}
    columns, effects = fit.design.columns, fit.design.effects
    sites = client.max() + 1
    z = np.column_stack([np.ones(len(x))] + [x[:, columns.index(name)] for name in effects[1:]])

    def model():
        weights = jnp.stack([numpyro.sample(name, priors[name]) for name in columns])
        middle = numpyro.sample("middle", priors["Intercept"])
        intercept = numpyro.deterministic("Intercept", middle - x.mean(0) @ weights)
        sd = jnp.stack([numpyro.sample(f"sd({name})", priors[f"sd({name})"]) for name in effects])
        root = jnp.diag(sd)
        if len(effects) > 1:
            unit = numpyro.sample("unit", dist.LKJCholesky(len(effects), 2.0))
            root = sd[:, None] * unit
        white = numpyro.sample("white", dist.Normal(0, 1).expand([sites, len(effects)]).to_event(2))
        own = numpyro.deterministic("own", white @ root.T)
        predictor = intercept + x @ weights + jnp.sum(z * own[client], axis=1)
        if family == "gaussian":
            sigma = numpyro.sample("sigma", priors["sigma"])
            numpyro.sample("y", dist.Normal(predictor, sigma), obs=y)
        else:
            numpyro.sample("y", dist.Bernoulli(logits=predictor), obs=y)

    mcmc = MCMC(
        NUTS(model, target_accept_prob=0.95),
        num_warmup=1500,
        num_samples=4000,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0))
    return {name: np.asarray(values, float) for name, values in mcmc.get_samples().items()}


def assert_same_posterior(fit, exact):
    table = fit.summary()
    for term in table.index:
        if term in exact:
            mean, sd = exact[term].mean(), exact[term].std()
            assert abs(table["mean"][term] - mean) < 0.1 * sd, term
            assert abs(table["sd"][term] / sd - 1) < 0.1, term
    effects = fit.effects()
    for at, client in enumerate(fit.clients):
        found = effects[effects.client == client]
        mean, sd = exact["own"][:, at].mean(0), exact["own"][:, at].std(0)
        assert (np.abs(found["mean"].to_numpy() - mean) < 0.15 * sd).all()
        assert (np.abs(found["sd"].to_numpy() / sd - 1) < 0.15).all()


def test_hospitals_against_nuts(tmp_path, data_dir):
    clean = messy_hospitals(tmp_path, data_dir)
    fit = covey.fit("disease ~ age + sex + chest_pain + (1 | hospital)", tmp_path, progress=False)
    whole = pd.concat(clean.values())
    pain = [(whole.cp == level) for level in ("non-anginal", "none", "typical")]
    x = np.column_stack([whole.age, whole.male, *pain]).astype(float)
    client = np.repeat(np.arange(4), [len(one) for one in clean.values()])
    exact = pooled_model(fit, x, whole.disease.to_numpy(), client, "bernoulli")
    assert_same_posterior(fit, exact)
    # Predictions for patients of one hospital: the mean over draws of the probability.
    new = pd.read_csv(tmp_path / "va.csv").head(5)
    found = fit.predict(new, client="va")
    rows = x[client == 3][:5]
    weights = np.column_stack([exact[name] for name in fit.design.columns])
    eta = exact["Intercept"] + rows @ weights.T + exact["own"][:, 3, 0]
    chance = 1 / (1 + np.exp(-eta))
    assert (np.abs(found["mean"] - chance.mean(1)) < 0.1 * chance.std(1)).all()
    assert (np.abs(found["q95"] - np.quantile(chance, 0.95, axis=1)) < 0.2 * chance.std(1)).all()


def test_a_random_slope_against_nuts():
    tables = clinics()
    fit = covey.fit(FORMULA, tables, progress=False)
    whole = pd.concat(tables.values())
    x = np.column_stack([whole.dose, whole.sex == "m"]).astype(float)
    client = np.repeat(np.arange(8), 20)
    exact = pooled_model(fit, x, whole.gain.to_numpy(), client, "gaussian")
    assert_same_posterior(fit, exact)


def test_a_refit_is_a_fit_with_all_sites():
    tables = clinics()
    first = {name: tables[name] for name in list(tables)[:-1]}
    whole = covey.fit(FORMULA, tables, estimate="ml", progress=False)
    later = covey.fit(FORMULA, first, estimate="ml", progress=False).add_client(
        "clinic7", tables["clinic7"], refit=True
    )
    np.testing.assert_allclose(later.summary()["mean"], whole.summary()["mean"], rtol=1e-3)
    assert later.run.round < whole.run.round


def test_reml_is_that_of_the_pooled_table():
    tables = clinics()
    fit = covey.fit("gain ~ dose + (1 + dose | clinic)", tables, estimate="reml", progress=False)
    whole = pd.concat(tables.values())
    rows = Pooled(whole[["dose"]].to_numpy(), whole.gain.to_numpy(), np.repeat(np.arange(8), 20))
    exact = gaussian(rows, [0], reml=True)
    table = fit.summary()["mean"]
    np.testing.assert_allclose(table[:2], exact.beta, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(table[["sd(Intercept)", "sd(dose)"]], exact.sd, rtol=0.01)
    np.testing.assert_allclose(table["sigma"], exact.noise, rtol=1e-3)


def counts(seed=2):
    random, found = np.random.default_rng(seed), {}
    for site in range(8):
        own = random.normal(0, 0.5)
        x, days = random.normal(size=40), random.uniform(1, 4, size=40)
        ward = random.choice(["n", "s", "w"], size=40)
        effect = {name: random.normal(0, 0.3) for name in ("n", "s", "w")}
        rate = days * np.exp(0.2 + 0.5 * x + own + np.array([effect[one] for one in ward]))
        n = random.integers(5, 12, size=40)
        chance = 1 / (1 + np.exp(-(0.5 * x + own)))
        found[f"s{site}"] = pd.DataFrame(
            {
                "falls": random.poisson(rate * random.gamma(4, 1 / 4, size=40)),
                "x": x,
                "days": days,
                "ward": ward,
                "n": n,
                "ill": random.binomial(n, chance),
            }
        )
    return found


AMOUNTS = {"family": "gaussian"}  # whole numbers from 0 on, which are else asked about


@pytest.mark.parametrize(
    ("formula", "options", "term"),
    [
        ("falls ~ x + offset(log(days)) + (1 | site)", {"family": "poisson"}, "x"),
        ("falls ~ x + offset(log(days)) + (1 | site)", {"family": "negative_binomial"}, "x"),
        (
            "falls ~ x + offset(log(days)) + (1 | site/ward)",
            {"family": "poisson", "estimate": "ml"},
            "x",
        ),
        ("cbind(ill, n - ill) ~ x + (1 | site)", {}, "x"),
        ("p(ill, n) ~ x + (0 + x | site)", {}, "x"),
        ("falls ~ 0 + x + ward + (1 | site)", {"weights": "days"} | AMOUNTS, "ward[n]"),
        ("falls ~ x + (1 | ward)", AMOUNTS, "x"),
        ("falls ~ x", AMOUNTS, "x"),
    ],
)
def test_families_and_forms_recover_the_truth(formula, options, term):
    fit = covey.fit(formula, counts(), progress=False, **options)
    table = fit.summary()
    assert np.isfinite(table[["mean", "sd", "q05", "q95"]].to_numpy()).all()
    assert fit.diagnostics()["settled"]
    if term == "x" and fit.family != "gaussian":
        assert abs(table["mean"]["x"] - 0.5) < 4 * table["sd"]["x"]
    new = counts(3)["s0"].head(4)
    found = fit.predict(new, client="s1" if fit.design.effects else None)
    assert (found["q05"] <= found["q95"]).all()
    assert np.isfinite(found.to_numpy()).all()


def test_other_methods_agree():
    tables = clinics()
    exact = covey.fit("gain ~ dose + (1 | clinic)", tables, estimate="ml", progress=False).summary()
    found = covey.fit("gain ~ dose + (1 | clinic)", tables, method="fedpop", progress=False)
    table = found.summary()
    assert (np.abs(table["mean"] - exact["mean"])[:2] < 0.3 * exact["sd"][:2]).all()
    assert len(found.effects()) == 8
    exact = covey.fit("gain ~ dose + sex", tables, progress=False).summary()
    table = covey.fit("gain ~ dose + sex", tables, method="fald", progress=False).summary()
    assert (np.abs(table["mean"] - exact["mean"]) < 0.2 * exact["sd"]).all()
    assert (np.abs(table["sd"] / exact["sd"] - 1) < 0.15).all()
