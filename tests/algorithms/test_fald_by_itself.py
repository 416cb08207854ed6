"""FA-LD without a setting, on clients that are sorted by their outcomes."""

from contextlib import nullcontext

import numpy as np
import pytest

import covey
from covey import models
from covey.core.cohort import uniform
from covey.data.federated import FederatedData
from covey.privacy.ledger import Budget

PRIOR = 2.5


def sorted_clients(y_of, rows=120, clients=4, seed=0):
    """Two columns, and clients that hold the lowest outcomes to the highest."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
    y = y_of(generator, x @ [1.0, -0.5] + 0.3)
    order = np.argsort(y + 0.3 * generator.normal(size=rows) + x[:, 0])
    parts = np.array_split(order, clients)
    return {f"site {index}": (x[part], y[part]) for index, part in enumerate(parts)}


def bernoulli(generator, predictor):
    return (generator.random(len(predictor)) < 1 / (1 + np.exp(-predictor))).astype(int)


def gaussian(generator, predictor):
    return predictor + generator.normal(size=len(predictor))


def pooled(clients):
    x, y = (np.concatenate(part) for part in zip(*clients.values(), strict=True))
    return np.column_stack([x, np.ones(len(y))]), y


def values(run):
    """Means, standard deviations and Monte Carlo errors: weights, then the intercept."""
    table = run.posterior.shared.summary()
    order = ["weight[0]", "weight[1]", "bias"]
    return (table.loc[order, column].to_numpy() for column in ("mean", "sd", "mcse_mean"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "rounds", "bound"),  # about four standard errors of an sd
    [
        ("simulate", 300, 0.1),
        pytest.param("simulate", None, 0.05, marks=pytest.mark.slow),
        pytest.param("loop", 60, 0.35, marks=pytest.mark.slow),
    ],
)
def test_a_gaussian_posterior_is_exact(engine, rounds, bound):
    """Few rounds are told."""
    clients = sorted_clients(gaussian)
    design, y = pooled(clients)
    covariance = np.linalg.inv(design.T @ design + np.eye(3) / PRIOR**2)
    expected, sds = covariance @ design.T @ y, np.sqrt(np.diag(covariance))
    data = FederatedData.from_clients(clients)
    method = covey.fald(models.linear(), prior=PRIOR)
    told = rf"has not settled after {rounds} rounds: there are {(rounds or 0) - 20} draws"
    with pytest.warns(UserWarning, match=told) if rounds else nullcontext():
        run = covey.run(method, data, rounds=rounds, seed=1, engine=engine)
    assert run.round == rounds if rounds else run.round >= 1020
    mean, sd, mcse = values(run)
    np.testing.assert_array_less(np.abs(mean - expected) / mcse, 4)
    np.testing.assert_allclose(sd, sds, rtol=bound)


@pytest.mark.slow
def test_a_skewed_posterior_of_sorted_clients():
    """Against a dense grid: what is left of drift and step size is below a tenth of an sd."""
    clients = sorted_clients(bernoulli)
    design, y = pooled(clients)
    axes = [np.linspace(-2.5, 3.5, 81)] * 3
    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    predictor = grid @ design.T
    log_density = (
        predictor @ y - np.logaddexp(0, predictor).sum(1) - (grid**2).sum(1) / PRIOR**2 / 2
    )
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    expected = weight @ grid
    sds = np.sqrt(weight @ (grid - expected) ** 2)
    data = FederatedData.from_clients(clients, classes=2)
    run = covey.run(covey.fald(models.logistic(), prior=PRIOR), data, seed=1)
    mean, sd, mcse = values(run)
    np.testing.assert_array_less(np.abs(mean - expected), 0.1 * sds + 3 * mcse)
    np.testing.assert_allclose(sd, sds, rtol=0.08)
    asked = run.questions["question"].tolist()
    assert len(asked) <= 15
    # What the draws themselves say of the drift does not warn here, which would be an error.
    assert asked[-2:] == ["moved", "gradient"]


def test_drift_is_told_with_numbers():
    """The paper's algorithm with ten local steps on these clients: R-hat sees nothing."""
    data = FederatedData.from_clients(sorted_clients(bernoulli), classes=2)
    method = covey.fald(models.logistic(), prior=PRIOR, step_size=0.004, burn_in=50)
    run = covey.run(method, data, rounds=800, seed=1)
    with pytest.warns(UserWarning, match=r"drift apart in 10 local steps.*[0-9.]+ standard"):
        posterior = run.posterior.shared
    assert posterior.summary()["r_hat"].max() < 1.05


@pytest.mark.slow
def test_one_local_step_does_not_drift():
    data = FederatedData.from_clients(sorted_clients(bernoulli), classes=2)
    alone = covey.fald(models.logistic(), prior=PRIOR, step_size=0.004, local_steps=1)
    _ = covey.run(alone, data, rounds=300, seed=1).posterior.shared


def test_noise_of_few_clients_is_told():
    data = FederatedData.from_clients(sorted_clients(gaussian))
    method = covey.fald(models.linear(), step_size=0.001, correlation=0.5)
    # 0.25 + 0.75 * 4 / 2
    with pytest.warns(UserWarning, match=r"2 of 4 clients.*up to 1\.8 times too large"):
        covey.run(method, data, rounds=1, seed=0, cohort=uniform(2))


@pytest.mark.slow
def test_what_cannot_be_found():
    clients = sorted_clients(bernoulli)
    separated = {name: (x, (x[:, 0] > 0).astype(int)) for name, (x, y) in clients.items()}
    data = FederatedData.from_clients(separated, classes=2)
    with pytest.raises(ValueError, match=r"no mode.*separation.*prior=2.5"):
        covey.run(covey.fald(models.logistic()), data, seed=0)


@pytest.mark.slow
def test_columns_that_are_copies_are_named():
    clients = sorted_clients(bernoulli)
    twice = {name: (np.column_stack([x, x[:, :1]]), y) for name, (x, y) in clients.items()}
    data = FederatedData.from_clients(twice, classes=2)
    with pytest.raises(ValueError, match=r"do not determine weight\[0\], weight\[2\]"):
        covey.run(covey.fald(models.logistic()), data, seed=0)


def test_too_many_parameters_and_clipping_need_a_step_size():
    wide = {"a": (np.zeros((3, 400)), np.zeros(3)), "b": (np.ones((2, 400)), np.ones(2))}
    with pytest.raises(ValueError, match=r"401 parameters.*up to 300; give step_size="):
        covey.run(covey.fald(models.linear()), FederatedData.from_clients(wide), seed=0)
    with pytest.raises(ValueError, match=r"clip=1 needs a given step_size="):
        covey.fald(models.linear(), clip=1.0)


def test_a_budget_needs_a_step_size():
    data = FederatedData.from_clients(sorted_clients(gaussian))
    with pytest.raises(ValueError, match="no privacy budget accounts for"):
        covey.run(
            covey.fald(models.linear()),
            data,
            seed=0,
            rounds=10,
            privacy=Budget(epsilon=1.0, delta=1e-5),
        )
