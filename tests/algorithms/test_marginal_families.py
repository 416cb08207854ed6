"""Marginal likelihoods of the families that users of mixed models expect, against pooled ones.

The pooled likelihood is written anew, in NumPy, with more quadrature nodes. At the federated
estimate its own Newton step must be short: less than a thousandth of a standard error.
"""

import numpy as np
import pytest
from scipy.special import expit, gammaln, logsumexp

import covey
from covey import models

NODES = 21


def log_rows(family, predictor, y, total, dispersion):
    if family == "binomial":
        choose = gammaln(total + 1) - gammaln(y + 1) - gammaln(total - y + 1)
        return choose + y * predictor - total * np.logaddexp(0, predictor)
    if family == "poisson":
        return y * predictor - np.exp(predictor) - gammaln(y + 1)
    mean, t = np.exp(predictor), dispersion
    counts = gammaln(y + t) - gammaln(t) - gammaln(y + 1)
    return counts + t * np.log(t / (t + mean)) + y * np.log(mean / (t + mean))


def slopes_of(family, predictor, y, total, dispersion):
    """First derivative by the predictor, and minus the expected second one."""
    if family == "binomial":
        p = expit(predictor)
        return y - total * p, total * p * (1 - p)
    mean = np.exp(predictor)
    if family == "poisson":
        return y - mean, mean
    shrink = dispersion / (dispersion + mean)
    return (y - mean) * shrink, mean * shrink


class Pooled:
    """A generalised mixed model of all rows, effects integrated by adaptive quadrature."""

    def __init__(self, data, family, *, z=(), drop=(), offset=None, total=None):
        x = np.asarray(data.rows.x, np.float64)
        names = list(data.features)
        keep = [at for at, name in enumerate(names) if name not in drop]
        self.y, self.family = np.asarray(data.rows.y, np.float64), family
        self.offset = 0.0 if offset is None else x[:, names.index(offset)]
        self.total = 1.0 if total is None else x[:, names.index(total)]
        self.x = np.column_stack([np.ones(len(x)), x[:, keep]])
        own = [np.ones(len(x)), *(x[:, names.index(name)] for name in z)]
        self.z = np.column_stack(own)
        self.client = np.repeat(np.arange(data.clients), data.counts("train"))

    def value(self, beta, root, dispersion=np.nan):
        """The log-likelihood, at a Cholesky factor of the covariance of the effects."""
        q, count = len(root), self.client.max() + 1
        fixed, a = self.offset + self.x @ beta, self.z @ root
        b = np.zeros((count, q))
        more = (self.family, self.y, self.total, dispersion)

        def predictor(b):
            return fixed + np.sum(a * b[self.client], axis=1)

        for _ in range(100):
            first, weight = slopes_of(self.family, predictor(b), *more[1:])
            gradient = np.stack(
                [np.bincount(self.client, first * a[:, j], count) for j in range(q)]
            )
            hessian = np.zeros((count, q, q))
            for i in range(q):
                for j in range(q):
                    hessian[:, i, j] = np.bincount(self.client, weight * a[:, i] * a[:, j], count)
            hessian += np.eye(q)
            step = np.linalg.solve(hessian, (gradient.T - b)[..., None])[..., 0]
            b += np.clip(step, -1, 1)
        width = np.linalg.inv(np.linalg.cholesky(hessian)).transpose(0, 2, 1)
        node, log_weight = np.polynomial.hermite_e.hermegauss(NODES)
        grid = np.stack(np.meshgrid(*[node] * q, indexing="ij"), -1).reshape(-1, q)
        logs = np.stack(np.meshgrid(*[np.log(log_weight)] * q, indexing="ij"), -1).reshape(-1, q)
        terms = np.zeros((len(grid), count))
        for index, point in enumerate(grid):
            here = b + width @ point
            each = log_rows(self.family, predictor(here), *more[1:])
            joint = np.bincount(self.client, each, count) - np.sum(here**2, 1) / 2
            terms[index] = joint + logs[index].sum() + point @ point / 2
        determinant = np.linalg.slogdet(width)[1] - q / 2 * np.log(2 * np.pi)
        return np.sum(logsumexp(terms, axis=0) + determinant)


def newton_step(value, at, se):
    """One Newton step from a point, in units of the standard errors given, and its own ones."""
    step = 0.02 * np.diag(se)
    here = value(at)
    up, down = (np.array([value(at + sign * e) for e in step]) for sign in (1, -1))
    gradient = (up - down) / 0.04
    hessian = np.diag((up + down - 2 * here) / 0.02**2)
    for i in range(len(at)):
        for j in range(i):
            both = value(at + step[i] + step[j]) - up[i] - up[j] + here
            both += value(at - step[i] - step[j]) - down[i] - down[j] + here
            hessian[i, j] = hessian[j, i] = both / 2 / 0.02**2
    covariance = np.linalg.inv(-hessian)
    return covariance @ gradient, np.sqrt(np.diag(covariance)), here


def assert_at_the_maximum(run, pooled, *, dispersion=False):
    law = run.posterior.shared.law
    table = law.table()
    is_beta = np.array([name.startswith(("intercept", "weights")) for name in table.index])
    beta, se = (table[column].to_numpy()[is_beta] for column in ("estimate", "se"))
    sd = table["estimate"][[name.startswith("sd") for name in table.index]].to_numpy()
    root = np.diag(sd)
    if len(sd) > 1:
        cor = table["estimate"].iloc[-1]
        root[1] = sd[1] * cor, sd[1] * np.sqrt(1 - cor**2)
    lower = np.tril_indices(len(sd))
    extra = [np.log(table["estimate"]["dispersion"])] if dispersion else []
    at = np.concatenate([beta, root[lower], extra])
    width = np.concatenate([se, np.full(len(lower[0]), 0.2 * sd.max()), 0.2 * np.ones(len(extra))])
    if len(sd) > 1:
        width[len(beta) :][lower[0] == 1] = 0.2 * sd[1]

    def value(v):
        made = np.zeros_like(root)
        made[lower] = v[len(beta) : len(beta) + len(lower[0])]
        return pooled.value(v[: len(beta)], made, np.exp(v[-1]) if dispersion else np.nan)

    step, error, here = newton_step(value, at, width)
    off = step * width / np.concatenate([se, np.abs(at[len(beta) :])])
    assert np.abs(off).max() < 1e-3
    np.testing.assert_allclose((error * width)[: len(beta)], se, rtol=2e-2)
    np.testing.assert_allclose(law.log_likelihood, here, atol=1e-3)


def fitted(model, data):
    run = covey.run(covey.marginal(model), data, seed=0)
    assert run.round <= 15
    return run


def cbpp():
    features = ["period=2", "period=3", "period=4", "size"]
    return covey.load("cbpp", features=features, outcome="incidence")


@pytest.mark.slow
def test_binomial_with_totals(data_dir):
    run = fitted(models.mixed_binomial(totals="size"), cbpp())
    assert_at_the_maximum(run, Pooled(cbpp(), "binomial", drop=("size",), total="size"))


@pytest.mark.slow
def test_counts_with_an_offset(data_dir):
    data = cbpp().with_columns(size=lambda row: np.log(row["size"]))
    run = fitted(models.mixed_poisson(offset="size"), data)
    assert_at_the_maximum(run, Pooled(data, "poisson", drop=("size",), offset="size"))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["poisson", "negative binomial"])
def test_ticks_of_broods(data_dir, family):
    data = covey.load("grouseticks", client="BROOD")
    poisson = family == "poisson"
    run = fitted(models.mixed_poisson() if poisson else models.mixed_negative_binomial(), data)
    assert_at_the_maximum(run, Pooled(data, family), dispersion=not poisson)


@pytest.mark.slow
def test_contraception_with_a_slope_an_interaction_and_a_square(data_dir):
    data = covey.load("contraception")
    urban, age = (next(name for name in data.features if part in name) for part in ("urb", "age"))
    data = data.with_columns(
        age_squared=lambda row: row[age] ** 2, age_urban=lambda row: row[age] * row[urban]
    )
    run = fitted(models.mixed_logistic(slopes=(urban,)), data)
    assert_at_the_maximum(run, Pooled(data, "binomial", z=(urban,)))


class Nested:
    """A Poisson model of all rows with broods in locations, both effects integrated on dense grids.

    Given a brood's effects its rows are Poisson with means in fixed proportions, so that its
    likelihood is sum(y) t - sum(exp(fixed)) exp(t) and a constant, t the effects of both.
    """

    GRID = np.linspace(-7, 7, 351)

    def __init__(self, data, brood):
        x, names = np.asarray(data.rows.x, np.float64), list(data.features)
        keep = [at for at, name in enumerate(names) if name != brood]
        self.x = np.column_stack([np.ones(len(x)), x[:, keep]])
        self.y = np.asarray(data.rows.y, np.float64)
        owner = np.repeat(np.arange(data.clients), data.counts("train"))
        both = np.column_stack([owner, x[:, names.index(brood)]])
        groups, self.brood = np.unique(both, axis=0, return_inverse=True)
        self.location = groups[:, 0].astype(int)

    def value(self, beta, of_location, of_brood):
        fixed = self.x @ beta
        log_weight = -(self.GRID**2) / 2 - np.log(2 * np.pi) / 2 + np.log(np.diff(self.GRID)[0])
        constant, total, mean = (
            np.bincount(self.brood, terms)
            for terms in (self.y * fixed - gammaln(self.y + 1), self.y, np.exp(fixed))
        )
        t = of_location * self.GRID[:, None] + of_brood * self.GRID
        given = np.stack(
            [
                logsumexp(y * t - e * np.exp(t) + log_weight, axis=1)
                for y, e in zip(total, mean, strict=True)
            ]
        )
        given += constant[:, None]
        by_location = np.stack(
            [given[self.location == at].sum(0) for at in range(self.location.max() + 1)]
        )
        return np.sum(logsumexp(by_location + log_weight, axis=1))


@pytest.mark.slow
def test_ticks_of_broods_within_locations(data_dir):
    data = covey.load("grouseticks", features=["cHEIGHT", "YEAR=96", "YEAR=97", "BROOD"])
    law = fitted(models.mixed_poisson(groups="BROOD"), data).posterior.shared.law
    table, pooled = law.table(), Nested(data, "BROOD")
    is_beta = np.array([name.startswith(("intercept", "weights")) for name in table.index])
    beta, se = (table[column].to_numpy()[is_beta] for column in ("estimate", "se"))
    deviations = table["estimate"][["sd[intercept]", "group_deviation"]].to_numpy()
    at, width = np.concatenate([beta, np.log(deviations)]), np.concatenate([se, [0.2, 0.2]])
    step, _, here = newton_step(lambda v: pooled.value(v[:-2], *np.exp(v[-2:])), at, width)
    np.testing.assert_allclose(law.log_likelihood, here, atol=1e-3)
    assert np.abs(step[:-2]).max() < 1e-3  # standard errors
    assert np.abs(0.2 * step[-2:]).max() < 1e-3  # of the deviations


@pytest.mark.slow
@pytest.mark.parametrize("family", [models.mixed_poisson, models.mixed_negative_binomial])
def test_counts_in_the_millions(family):
    """Rows tell a client's intercept without error, so that intercepts are a sample of their law;
    rows know them many million times better than clients know the mean.
    """
    random, clients, intercepts = np.random.default_rng(1), {}, []
    for name in "abcdefgh":
        x, own = random.normal(size=(40, 1)), random.normal(17, 0.2)
        y = random.poisson(np.exp(own + 0.3 * x[:, 0]))
        clients[name] = x, y
        intercepts.append(np.log(y.sum() / np.exp(0.3 * x).sum()))
    data = covey.FederatedData.from_clients(clients, features=["x"])
    table = covey.run(covey.marginal(family()), data, progress=False).posterior.shared.law.table()
    mean, spread = np.mean(intercepts), np.std(intercepts)
    found = table["estimate"]
    assert found["intercept"] == pytest.approx(mean, abs=1e-2 * spread)
    assert found["sd[intercept]"] == pytest.approx(spread, rel=1e-2)
    assert table.loc["intercept", "se"] == pytest.approx(spread / np.sqrt(8), rel=1e-2)
    assert found["weights[x]"] == pytest.approx(0.3, abs=2e-4)
