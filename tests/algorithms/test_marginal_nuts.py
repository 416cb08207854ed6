"""The posterior of a mixed model by sums, against NUTS on pooled rows with the same priors."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS

import covey
from covey import models
from covey.models.numpyro import client_plate, from_numpyro
from pooled_fits import Pooled

pytestmark = pytest.mark.slow

# Rounds in all: those of the maximum, and the questions of the posterior.
MOST_ROUNDS = 20


def sampled(model, *arguments, draws=4000):
    mcmc = MCMC(NUTS(model), num_warmup=1000, num_samples=draws, progress_bar=False)
    mcmc.run(jax.random.key(0), *arguments)
    return {name: np.asarray(values, float) for name, values in mcmc.get_samples().items()}


def assert_close(found, exact, *, off=0.1, spread=0.05):
    """Means within 0.1 standard deviations, and deviations within 5 %."""
    found, exact = np.asarray(found, float), np.asarray(exact, float)
    found, exact = found.reshape(-1, *exact.shape[1:]), exact
    sd = exact.std(0)
    assert np.abs((found.mean(0) - exact.mean(0)) / sd).max() < off
    assert np.abs(found.std(0) / sd - 1).max() < spread


def prior(wide, effects, noise):
    """Gaussian coefficients, half Gaussian deviations, LKJ(2) correlations."""

    def log_density(parameters):
        value = -((parameters["intercept"] / wide) ** 2) / 2
        value -= jnp.sum((parameters["weights"] / wide) ** 2) / 2
        value -= jnp.sum((parameters["sd"] / effects) ** 2) / 2
        if "noise" in parameters:
            value -= (parameters["noise"] / noise) ** 2 / 2
        if "cor" in parameters:
            value += jnp.log1p(-(parameters["cor"][0] ** 2))
        return value

    return log_density


def pooled_model(family, slopes, wide, effects, noise):
    def model(x, y, client, clients):
        intercept = numpyro.sample("intercept", dist.Normal(0, wide))
        weights = numpyro.sample("weights", dist.Normal(0, wide).expand([x.shape[1]]).to_event(1))
        count = 1 + len(slopes)
        sd = numpyro.sample("sd", dist.HalfNormal(effects).expand([count]).to_event(1))
        root = jnp.diag(sd)
        if slopes:
            unit = numpyro.sample("unit", dist.LKJCholesky(count, 2.0))
            numpyro.deterministic("cor", (unit @ unit.T)[0, 1][None])
            root = sd[:, None] * unit
        if clients < 10:  # clients with many rows, where this form mixes better
            own = numpyro.sample("own", dist.Normal(intercept, sd[0]).expand([clients]).to_event(1))
            z = (own - intercept)[:, None]
        else:
            white = numpyro.sample("white", dist.Normal(0, 1).expand([clients, count]).to_event(2))
            z = white @ root.T
            numpyro.deterministic("own", intercept + z[:, 0])
        design = jnp.column_stack([jnp.ones(len(x)), *(x[:, j] for j in slopes)])
        predictor = intercept + x @ weights + jnp.sum(design * z[client], axis=1)
        if family == "linear":
            deviation = numpyro.sample("noise", dist.HalfNormal(noise))
            numpyro.sample("y", dist.Normal(predictor, deviation), obs=y)
        else:
            numpyro.sample("y", dist.Bernoulli(logits=predictor), obs=y)

    return model


CASES = {
    "heart_disease": ("logistic", (), 2.5, 2.0, 1.0),
    "contraception": ("logistic", (), 2.5, 1.0, 1.0),
    "radon": ("linear", (), 2.5, 1.0, 2.0),
    "sleepstudy": ("linear", ("Days",), 100.0, 50.0, 50.0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_posterior_is_that_of_nuts(name, data_dir):
    family, slopes, *scales = CASES[name]
    data = covey.load(name)
    if name == "heart_disease":
        data, _ = data.standardised()
    kind = models.mixed_linear if family == "linear" else models.mixed_logistic
    method = covey.marginal(kind(slopes=slopes), estimate="posterior", prior=prior(*scales))
    run = covey.run(method, data, seed=0, progress=False)
    law, drawn = run.posterior.shared.law, run.posterior.shared.draws()
    assert law.k_hat <= 0.7
    assert run.round + law.sample.asked <= MOST_ROUNDS

    rows = Pooled.of(data)
    columns = [data.features.index(slope) for slope in slopes]
    exact = sampled(
        pooled_model(family, columns, *scales), rows.x, rows.y, rows.client, data.clients
    )
    for part in drawn:
        assert_close(drawn[part], exact[part])
    for client in (0, data.clients // 2, data.clients - 1):
        own = run.posterior.client(data.name_of(client)).draws()["intercept"]
        assert_close(own, exact["own"][:, client])


def test_eight_schools_in_numpyro(data_dir):
    """Against the integral on a fine grid: the law of the effects is the model's own."""

    def schools(x, y, client, clients):
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        spread = numpyro.sample("spread", dist.HalfCauchy(5))
        with numpyro.plate("client", clients):
            effect = numpyro.sample("effect", dist.Normal(mean, spread))
        numpyro.sample("y", dist.Normal(effect[client], x[:, 0]), obs=y)

    data = covey.load("eight_schools")
    method = covey.marginal(client_plate(schools, data.spec), estimate="posterior")
    run = covey.run(method, data, seed=0, progress=False)
    law = run.posterior.shared.law
    assert run.round + law.sample.asked <= MOST_ROUNDS
    table = law.table()
    line = np.linspace(-20, 25, 451), np.linspace(np.log(1e-3), np.log(200), 600)
    mean, spread = np.meshgrid(*line, indexing="ij")
    spread = np.exp(spread)
    log = -(mean**2) / 50 - np.log1p((spread / 5) ** 2) + np.log(spread)
    y, error = np.asarray(data.rows.y, float), np.asarray(data.rows.x[:, 0], float)
    for value, own in zip(y, error, strict=True):
        variance = own**2 + spread**2
        log -= np.log(variance) / 2 + (value - mean) ** 2 / 2 / variance
    weights = np.exp(log - log.max())
    weights /= weights.sum()
    for name, values in {"mean": mean, "spread": spread}.items():
        exact = np.sum(weights * values)
        sd = np.sqrt(np.sum(weights * (values - exact) ** 2))
        assert abs(table["mean"][name] - exact) < 0.1 * sd
        assert abs(table["sd"][name] / sd - 1) < 0.05
    for school in (0, 7):
        variance = 1 / (1 / error[school] ** 2 + 1 / spread**2)
        centre = variance * (y[school] / error[school] ** 2 + mean / spread**2)
        exact = np.sum(weights * centre)
        sd = np.sqrt(np.sum(weights * (variance + centre**2)) - exact**2)
        drawn = run.posterior.client(data.name_of(school)).draws()["effect"]
        assert abs(drawn.mean() - exact) < 0.1 * sd
        assert abs(drawn.std() / sd - 1) < 0.05


def gaussian(x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    numpyro.sample("y", dist.Normal(linear(x), scale), obs=y)


def student(x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    numpyro.sample("y", dist.StudentT(4.0, linear(x), scale), obs=y)


def poisson(x, y):
    numpyro.sample("y", dist.Poisson(jnp.exp(linear(x))), obs=y)


def negative_binomial(x, y):
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(linear(x)), shape), obs=y)


def gamma(x, y):
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.Gamma(shape, shape / jnp.exp(linear(x))), obs=y)


def linear(x):
    bias = numpyro.sample("bias", dist.Normal(0, 2))
    return bias + x @ numpyro.sample("weight", dist.Normal(0, 2).expand([2]).to_event(1))


@pytest.mark.parametrize("model", [gaussian, student, poisson, negative_binomial, gamma])
def test_regressions_in_numpyro_over_clients_sorted_by_outcome(model):
    random = np.random.default_rng(3)
    x = random.normal(size=(120, 2)).astype(np.float32)
    predictor = 0.5 + x @ np.array([0.4, -0.3])
    y = {
        gaussian: lambda: predictor + random.normal(size=120),
        student: lambda: predictor + random.standard_t(4, size=120),
        poisson: lambda: random.poisson(np.exp(predictor)),
        negative_binomial: lambda: random.poisson(np.exp(predictor) * random.gamma(2, 0.5, 120)),
        gamma: lambda: random.gamma(2, np.exp(predictor) / 2),
    }[model]().astype(np.float32)
    order = np.argsort(y)
    data = covey.FederatedData.from_arrays(x[order], y[order], np.repeat(np.arange(6), 20))
    numpyro_model = from_numpyro(model, data.spec)
    method = covey.marginal(numpyro_model, estimate="posterior")
    run = covey.run(method, data, seed=0, progress=False)
    law, drawn = run.posterior.shared.law, run.posterior.shared.draws()
    assert run.round + law.sample.asked <= 15
    exact = sampled(model, x, y)
    for part in drawn:
        assert_close(drawn[part], exact[part])
    chains = covey.run(covey.fald(numpyro_model), data, seed=0, progress=False)
    drawn = chains.posterior.shared.draws()
    for part in drawn:
        assert_close(drawn[part], exact[part], off=0.15, spread=0.1)
