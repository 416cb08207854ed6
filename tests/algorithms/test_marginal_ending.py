"""How runs of `covey.marginal` end: at the maximum, or with a warning that says why not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
from covey import models
from covey.algorithms.marginal import marginal
from covey.algorithms.marginal import rounds as marginal_rounds
from covey.core import faults
from covey.data.federated import FederatedData
from covey.engines import round as engine_round


def one_column(*, centre=0.0, noise=1.0, clients=12, rows=10, missing=None, outlier=None):
    random, made = np.random.default_rng(0), {}
    for index in range(clients):
        x = 5 * random.normal(size=(rows, 1))
        y = x[:, 0] + random.normal() + noise * random.normal(size=rows)
        x[0] = np.nan if index == missing else 50 if index == outlier else x[0]
        made[f"site{index}"] = x + centre, y + centre
    return FederatedData.from_clients(made, features=["year"], allow_missing=missing is not None)


def fit(data, **options):
    return covey.run(marginal(models.mixed_linear(), **options), data, seed=0, progress=False)


@pytest.mark.slow
def test_a_column_of_years_ends_at_the_maximum():
    """Rounding the parameters to float32 is then worth more than the tolerance of the maximum."""
    near, far = fit(one_column()), fit(one_column(centre=2000.0))
    assert bool(far.state.settled)
    assert far.round < 20
    tables = [run.posterior.shared.law.table() for run in (near, far)]
    expected, found = (table.loc[["weights[year]", "noise", "sd[intercept]"]] for table in tables)
    off = (found["estimate"] - expected["estimate"]) / expected["se"]
    assert np.all(np.abs(off) < 0.01)
    np.testing.assert_allclose(found["se"], expected["se"], rtol=0.01)


@pytest.mark.slow
def test_columns_too_far_from_zero_are_told():
    with pytest.warns(UserWarning, match=r"off by up to 0\.\d+ standard errors.* centre them"):
        fit(one_column(centre=1e5, clients=30, rows=20))


@pytest.mark.slow
def test_a_posterior_with_little_noise_has_its_mode():
    """Noise of 0.0008 and outcomes of about 2: standard errors of a thousand roundings."""

    def log_prior(known):
        squares = (known["intercept"] / 2) ** 2 + known["noise"] ** 2
        return -(squares + jnp.sum(known["weights"] ** 2) + jnp.sum(known["sd"] ** 2)) / 2

    random, clients = np.random.default_rng(109), {}
    intercept, weight, noise, sd = (
        random.normal(0, 2), random.normal(), abs(random.normal()), abs(random.normal())
    )  # fmt: skip
    own = intercept + random.normal(0, sd, 8)
    for index in range(8):
        x = random.normal(size=(5, 1))
        y = weight * x[:, 0] + own[index] + noise * random.normal(size=5)
        clients[str(index)] = x, y
    data = FederatedData.from_clients(clients, features=["dose"])
    run = fit(data, estimate="posterior", prior=log_prior, draws=500)
    law = run.posterior.shared.law
    assert run.round < 20
    assert law.k_hat < 0.7
    table = law.table()
    assert abs(table["mean"]["weights[dose]"] - weight) < 4 * table["sd"]["weights[dose]"]
    assert 0.5 < table["mean"]["noise"] / noise < 2


@pytest.mark.parametrize("engine", ["simulate", pytest.param("loop", marks=pytest.mark.slow)])
def test_a_client_with_a_missing_cell_is_named(engine):
    with pytest.warns(UserWarning, match="site3") as told:
        run = covey.run(
            marginal(models.mixed_linear()), one_column(missing=3), engine=engine, progress=False
        )
    assert run.round == 5
    first, last = (str(one.message) for one in told)
    assert "client 'site3' has 1 missing value (columns year)" in first
    assert "in 5 rounds in a row client 'site3' sent values that are not finite" in last
    assert not run.metrics["settled"].any()
    assert run.metrics["waiting"].all()


@pytest.mark.slow
def test_a_likelihood_that_is_not_finite_at_the_start_is_named():
    model = models.mixed_linear()

    def log_likelihood(phi, z, rows):
        # No Gaussian density: it is integrated by quadrature.
        terms = 0.9 * model.log_likelihood(phi, z, rows)
        return jnp.where(rows.x[:, 0] > 40, jnp.nan, terms)

    broken, data = model._replace(log_likelihood=log_likelihood), one_column(outlier=3)
    with pytest.warns(UserWarning, match="site3") as told:
        run = covey.run(marginal(broken), data, progress=False)
    assert run.round == 6
    assert "client 'site3': its likelihood is not finite" in str(told[0].message)
    assert "client 'site3' sent values that are not finite" in str(told[1].message)


def test_a_client_that_never_answers_is_named(monkeypatch):
    def fate(probabilities, root, t, client_id):
        return jnp.where(client_id == 2, faults.LOST_DOWN, faults.ARRIVES)

    monkeypatch.setattr(engine_round, "fate", fate)
    with pytest.warns(UserWarning, match=r"in 5 rounds in a row client 'site2' has never answered"):
        run = covey.run(
            marginal(models.mixed_linear()),
            one_column(),
            faults=faults.Faults(dropout=0.1),
            progress=False,
        )
    assert run.round == 5


@pytest.mark.slow
def test_lost_messages_are_waited_for():
    """Every fourth round is complete; the fit is that of a run without faults."""
    data = one_column(clients=6)
    method = marginal(models.mixed_linear())
    run = covey.run(method, data, faults=faults.Faults(dropout=0.2), progress=False)
    whole = covey.run(method, data, progress=False)
    assert run.round > whole.round
    np.testing.assert_allclose(run.state.climb.point, whole.state.climb.point, atol=1e-4)


def test_giving_up_is_told_everywhere(monkeypatch):
    monkeypatch.setattr(marginal_rounds, "MOST_ROUNDS", 3)
    data = one_column()
    told = r"has not settled after 3 rounds: .* It gives up: .* Standardise"
    with pytest.warns(UserWarning, match=told):
        run = fit(data)
    assert run.round == 3
    assert run.metrics["settled"].iloc[-1] == 0
    with pytest.warns(UserWarning, match=told):
        run.predict(np.zeros((2, 1)), client="site1")
    with pytest.warns(UserWarning, match="has not found the maximum after 3 rounds.* NaN"):
        shared = run.posterior.shared
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(shared.draws(10)))
    assert shared.law.table()["se"].isna().all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*has not")
def test_a_posterior_that_gave_up_has_no_draws(monkeypatch):
    monkeypatch.setattr(marginal_rounds, "MOST_ROUNDS", 3)
    shared = fit(one_column(), estimate="posterior").posterior.shared
    assert shared.law.sample is None
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(shared.draws(10)))


def test_fedpop_does_not_start_where_marginal_gave_up(monkeypatch):
    monkeypatch.setattr(marginal_rounds, "MOST_ROUNDS", 3)
    with pytest.raises(ValueError, match="no maximum that Newton's method finds"):
        covey.run(covey.fedpop(models.mixed_linear()), one_column(), progress=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fedpop.* (is estimated as 0|has not settled)")
def test_fedpop_tells_of_separated_classes():
    random, made = np.random.default_rng(0), {}
    for index in range(6):
        x = random.normal(size=(6, 2))
        made[str(index)] = x, (x[:, 0] > 0).astype(int)
    data = FederatedData.from_clients(made, classes=2)
    with pytest.warns(UserWarning, match=r"fedpop: .* run away.* Give phi_prior="):
        covey.run(covey.fedpop(models.mixed_logistic()), data, rounds=1, progress=False)
