"""How runs of `covey.marginal` end: at the maximum, or with a warning that says why not."""

import jax.numpy as jnp
import numpy as np

import covey
from covey import models
from covey.algorithms.marginal import marginal
from covey.data.federated import FederatedData


def one_column(*, centre=0.0, noise=1.0, clients=12, rows=10):
    random, made = np.random.default_rng(0), {}
    for index in range(clients):
        x = 5 * random.normal(size=(rows, 1))
        y = x[:, 0] + random.normal() + noise * random.normal(size=rows)
        made[f"site{index}"] = x + centre, y + centre
    return FederatedData.from_clients(made, features=["year"])


def fit(data, **options):
    return covey.run(marginal(models.mixed_linear(), **options), data, seed=0, progress=False)


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
