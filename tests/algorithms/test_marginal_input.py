"""What `covey.marginal` says of data and options that do not fit, and of clients with few rows."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covey
import pooled_fits
from covey import models
from covey.algorithms.marginal import fit as marginal_fit
from covey.algorithms.marginal import marginal
from covey.core.algorithm import Empty
from covey.core.shard import Shard
from covey.data.federated import FederatedData
from covey.kernels.pareto_smoothing import Weighted

MIXED = models.mixed_linear()  # one object, so that fits of the same shapes are traced once


def linear_data(*, clients=6, rows=5, spread=1.0, seed=0):
    random, made = np.random.default_rng(seed), {}
    for index in range(clients):
        x = random.normal(size=(rows, 2))
        own = spread * random.normal()
        made[f"site{index}"] = x, x[:, 0] - x[:, 1] + own + 0.5 * random.normal(size=rows)
    return made


def federated(made):
    return FederatedData.from_clients(made, features=["age", "dose"])


def fit(model, data, **options):
    return covey.run(marginal(model, **options), data, seed=0, progress=False)


def started(model, *, clients):
    spec = federated(linear_data()).spec._replace(clients=clients)
    return marginal(model).init(jax.random.key(0), spec)


def test_too_many_effects_are_refused():
    random = np.random.default_rng(0)
    data = FederatedData.from_clients(
        {str(i): (random.normal(size=(4, 10)), np.zeros(4)) for i in range(3)}
    )
    with pytest.raises(ValueError, match=r"has 11 effects, and up to 10 .* use fedpop"):
        fit(models.mixed_linear(slopes="all"), data)


def test_collinear_columns_are_named():
    made = {
        name: (np.column_stack([x[:, 0], 2 * x[:, 0]]), y) for name, (x, y) in linear_data().items()
    }
    run = fit(MIXED, federated(made))
    with pytest.warns(
        UserWarning, match=r"do not determine weights\[age\], weights\[dose\]: these columns are"
    ):
        table = run.posterior.shared.law.table()
    assert table.loc[["weights[age]", "weights[dose]"], "estimate"].isna().all()
    assert np.isfinite(table.loc["intercept"]).all()


@pytest.mark.slow
def test_one_row_per_client_does_not_tell_noise_and_effects_apart():
    """Only the sum of both variances is known; the coefficients are those of least squares."""
    made = {name: (x[:1], y[:1]) for name, (x, y) in linear_data(clients=40).items()}
    run = fit(MIXED, federated(made))
    with pytest.warns(UserWarning, match=r"do not determine noise, sd\[intercept\]: .*told apart"):
        table = run.posterior.shared.law.table()
    assert table.loc[["noise", "sd[intercept]"]].isna().all(axis=None)
    x, y = (np.concatenate(part) for part in zip(*made.values(), strict=True))
    design = np.column_stack([np.ones(40), x])
    exact, left, *_ = np.linalg.lstsq(design, y)
    errors = np.sqrt(left / 40 * np.diag(np.linalg.inv(design.T @ design)))
    np.testing.assert_array_less(np.abs(table["estimate"][:3] - exact) / errors, 1e-3)
    np.testing.assert_allclose(table["se"][:3], errors, rtol=1e-3)


def separated():
    """Clients whose outcome is the sign of the first column."""
    random, made = np.random.default_rng(0), {}
    for index in range(6):
        x = random.normal(size=(6, 2))
        made[str(index)] = x, (x[:, 0] > 0).astype(int)
    return FederatedData.from_clients(made, features=["age", "dose"], classes=2)


def test_separated_classes_are_told():
    told = r"weights\[age\].* run away.* separated.*Give prior="
    with pytest.warns(UserWarning, match=told):  # predictions are as wrong as the estimates
        run = fit(models.logistic(), separated())
    with pytest.warns(UserWarning, match=told):
        law = run.posterior.shared.law
    assert "weights[age]" in law.separated


@pytest.mark.slow
def test_a_prior_keeps_separated_classes_finite():
    data = separated()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        law = fit(models.logistic(), data, prior=2.5).posterior.shared.law
    assert 1 < law.table()["estimate"]["weights[age]"] < 10


@pytest.mark.parametrize(("estimate", "floats"), [("ml", 47), ("reml", 173)])
def test_an_upload_has_triangles_of_symmetric_matrices(estimate, floats):
    """Eight parameters: value, gain, rows, 8 of the gradient and 36 of the Hessian; REML also sends
    the 21 of X'V^-1 X with 2 first and 3 second derivatives of each.
    """
    random = np.random.default_rng(0)
    data = FederatedData.from_clients(
        {str(i): (random.normal(size=(4, 5)), random.normal(size=4)) for i in range(3)}
    )
    method = marginal(models.mixed_linear(), estimate=estimate)
    down = method.broadcast(method.init(jax.random.key(0), data.spec))
    up = jax.eval_shape(
        lambda: method.client(jax.random.key(0), down, Empty(), data.shard(0, "train")).up
    )
    assert sum(leaf.size for leaf in jax.tree.leaves(up)) == floats


def test_one_client_is_told():
    with pytest.warns(UserWarning, match="1 clients say little about 1 parameters"):
        started(models.mixed_linear(), clients=1)


def test_few_clients_are_told():
    with pytest.warns(UserWarning, match=r"3 clients say little about 3 .* covariance='diagonal'"):
        started(models.mixed_linear(slopes=("age",)), clients=3)


def test_a_deviation_of_zero_is_reported():
    """Clients differ less than their noise alone would make them: the estimate is 0, as in lme4,
    and the others are those of a pooled regression.
    """
    made = {
        name: (x, x[:, 0] - x[:, 1] + 0.5 * np.array([1, -1, 2, -1, -1.0]))
        for name, (x, _) in linear_data().items()
    }
    run = fit(MIXED, federated(made))
    with pytest.warns(UserWarning, match=r"sd\[intercept\] is estimated as 0"):
        law = run.posterior.shared.law
    x = np.concatenate([x for x, _ in made.values()])
    y = np.concatenate([y for _, y in made.values()])
    design = np.column_stack([np.ones(len(x)), x])
    pooled, squares, *_ = np.linalg.lstsq(design, y, rcond=None)
    table = law.table()
    np.testing.assert_allclose(table["estimate"][:3], pooled, atol=1e-4)
    np.testing.assert_allclose(table["estimate"]["noise"] ** 2, squares[0] / len(y), rtol=1e-4)
    assert table["estimate"]["sd[intercept]"] < 1e-3
    assert np.isnan(table["se"]["sd[intercept]"])


@pytest.mark.slow
def test_weights_that_stay_unreliable_are_told(monkeypatch):
    def unreliable(log_density, mean, covariance, *, draws, seed):
        return Weighted(mean + np.zeros((4, len(mean))), np.full(4, 0.25), 0.9, 5)

    monkeypatch.setattr(marginal_fit, "importance_sample", unreliable)
    run = fit(MIXED, federated(linear_data()), estimate="posterior")
    with pytest.warns(UserWarning, match=r"k-hat 0\.90, above 0\.7.* Raise draws="):
        _ = run.posterior.shared.law


@pytest.mark.slow
def test_clients_with_few_rows_take_part():
    """A client without rows adds nothing, one with a single row adds its row; `min_rows` leaves it
    out, as if it had none.
    """
    made = linear_data()
    lonely = np.array([[0.5, 1.0]]), np.array([3.0])
    none = np.zeros((0, 2)), np.zeros(0)
    without = fit(MIXED, federated(made | {"last": none})).posterior.shared.law
    full = fit(MIXED, federated(made | {"last": lonely})).posterior.shared.law
    kept = fit(MIXED, federated(made | {"last": lonely}), min_rows=2).posterior.shared.law
    assert (without.rows, full.rows) == (30, 31)
    alone, all_rows = (
        pooled_fits.gaussian(pooled_fits.Pooled.of(federated(clients)), []).log_likelihood
        for clients in (made, made | {"last": lonely})
    )
    assert abs(all_rows - alone) > 0.5
    for law, exact in ((without, alone), (kept, alone), (full, all_rows)):
        assert law.log_likelihood == pytest.approx(exact, abs=2e-4)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"prior": -1.0}, "above 0"),
        ({"prior": 1.0, "estimate": "reml"}, "REML has no prior"),
        ({"nodes": 0}, "nodes must be at least 1"),
        ({"draws": 10}, "draws must be at least 100"),
        ({"min_rows": -1}, "min_rows must be at least 0"),
    ],
)
def test_options_are_checked(options, told):
    with pytest.raises(ValueError, match=told):
        marginal(models.mixed_linear(), **options)


def test_reml_needs_a_linear_model():
    random = np.random.default_rng(0)
    data = FederatedData.from_clients(
        {str(i): (random.normal(size=(4, 2)), np.array([0, 1, 0, 1])) for i in range(3)}, classes=2
    )
    with pytest.raises(ValueError, match="REML is for linear models with Gaussian noise"):
        fit(models.mixed_logistic(), data, estimate="reml")


def test_cohorts_and_lossy_channels_are_refused():
    data = federated(linear_data())
    method = marginal(models.mixed_linear())
    with pytest.raises(ValueError, match="this cohort has 2 of them; leave cohort= out"):
        covey.run(method, data, rounds=2, cohort=covey.cohort.uniform(2))
    with pytest.raises(ValueError, match="this channel changes what they send"):
        covey.run(method, data, rounds=2, channel=covey.channel.rand_k(k=2))


@pytest.mark.parametrize("count", [0, 3])
def test_rows_beyond_a_clients_own_leave_its_derivatives_finite(count):
    """A density with the logarithm of the outcome, which filling up with zeros made NaN."""

    def log_likelihood(log_shape, rows):  # a gamma distribution
        shape = jnp.exp(log_shape)
        return (shape - 1) * jnp.log(rows.y) - rows.y - jax.scipy.special.gammaln(shape)

    model = models.from_function(
        log_likelihood,
        init=lambda key, spec: jnp.zeros(()),
        predictive=lambda rate, x: models.Poisson(jnp.broadcast_to(rate, len(x))),
        name="gamma",
    )
    data = FederatedData.from_clients({"a": (np.ones((3, 1)), np.array([0.5, 1.0, 4.0]))})
    method, key = marginal(model), jax.random.key(0)
    down = method.broadcast(method.init(key, data.spec))._replace(round=jnp.int32(1))
    rows = jax.tree.map(jnp.asarray, data.rows)
    shard = Shard(rows, jnp.int32(0), jnp.int32(count), 8)
    found = method.client(key, down, method.init_client(key, down, shard), shard).up
    assert float(found.gain) == 0.0  # neither NaN nor refused
    # At a shape of 1, the derivative by its logarithm is log y + Euler's constant for each row.
    exact = 0.0 if count == 0 else np.log(2) + 3 * np.euler_gamma
    assert float(found.gradient[0]) == pytest.approx(exact, abs=1e-5)


@pytest.mark.slow
def test_a_likelihood_that_is_not_its_prediction_is_not_taken_for_a_gaussian():
    """Where predictions are Gaussian and linear but the likelihood has another law, the likelihood
    counts.
    """

    def predictive(mean, x):
        return models.Normal(jnp.broadcast_to(mean, len(x)), jnp.ones(len(x)))

    model = models.from_function(
        lambda mean, rows: -jnp.logaddexp(rows.y - mean, mean - rows.y),  # heavier tails
        init=lambda key, spec: jnp.zeros(()),
        predictive=predictive,
        name="robust",
    )
    y = {"a": [0.0, 0.1, -0.2], "b": [0.3, 9.0]}
    data = FederatedData.from_clients(
        {name: (np.ones((len(values), 1)), np.array(values)) for name, values in y.items()}
    )
    law = fit(model, data).posterior.shared.law
    assert abs(float(law.table()["estimate"].iloc[0])) < 1.0  # the mean of the rows is 1.84
