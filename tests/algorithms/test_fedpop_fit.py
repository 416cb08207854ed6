"""Fits of FedPop against maxima of exact marginal likelihoods, and coverage of its intervals."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from scipy.optimize import minimize

from covey import models
from covey.algorithms.fedpop import fedpop
from covey.algorithms.fedpop_sampler import Down
from covey.algorithms.joint import Population
from covey.core.shard import Rows, Shard
from covey.data.federated import FederatedData
from covey.engines.simulate import Simulation
from covey.models import Linear
from covey.models.effects import Gaussian
from fedpop_problem import log_marginal


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.slow
def test_credible_intervals_cover():
    """2,000 new clients with 1 to 4 rows of a random-intercept model whose phi and beta are
    known.
    """
    rng, clients = np.random.default_rng(8), 2000
    counts = rng.integers(1, 5, clients)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    truth = 0.5 + rng.normal(size=clients)
    x = rng.normal(size=(counts.sum(), 1))
    y = 2 * x[:, 0] - 1 + np.repeat(truth, counts) + rng.normal(size=counts.sum())
    law = Gaussian(jnp.array([0.5]), jnp.zeros(1))
    down = Down(Population(Linear(jnp.array([2.0]), jnp.array(-1.0)), law), jnp.ones(()))
    fed = fedpop(models.mixed_linear(scale=1.0), step_size=0.04, draws=1500, adapt_burn_in=150)
    rows = Rows(jnp.asarray(x), jnp.asarray(y))

    def interval(key, start, count):
        return jnp.quantile(
            fed.adapt(key, down, Shard(rows, start, count, 4)).draws[:, 0], jnp.array([0.05, 0.95])
        )

    keys = jax.random.split(jax.random.key(6), clients)
    low, high = np.asarray(
        jax.jit(jax.vmap(interval))(keys, jnp.asarray(starts), jnp.asarray(counts))
    ).T
    assert 0.88 < np.mean((low < truth) & (truth < high)) < 0.92
    # The intervals of clients with more rows are shorter, by the closed form.
    for count in (1, 4):
        width = np.mean((high - low)[counts == count])
        assert width == pytest.approx(
            2 * 1.645 / np.sqrt((1 + count) * (1 - 0.02 * (1 + count))), rel=0.03
        )


class Fit(NamedTuple):
    """Where the exact marginal likelihood is largest: intercept and weights of a typical client,
    deviations, noise.
    """

    weight: np.ndarray
    bias: float
    scale: np.ndarray
    noise: float


def maximum_likelihood(clients, slopes, noise=None):
    """Over all parameters of a linear mixed model; over the noise too where it is not given."""
    features, effects = clients[0][0].shape[1], 1 + len(slopes)
    sizes = {len(y) for _, y in clients}
    alike = [
        [
            np.stack(part)
            for part in zip(*[one for one in clients if len(one[1]) == size], strict=True)
        ]
        for size in sizes
    ]

    def split(v):
        beta = Gaussian(jnp.zeros(effects), v[features + 1 : features + 1 + effects])
        return Population(Linear(v[:features], v[features]), beta), jnp.exp(
            v[-1]
        ) if noise is None else noise

    def loss(v):
        theta, sd = split(v)

        def of_client(x, y):
            return log_marginal(
                theta, x, y, jnp.column_stack([jnp.ones(len(y)), x[:, list(slopes)]]), sd
            )

        return -sum(jnp.sum(jax.vmap(of_client)(x, y)) for x, y in alike) / sum(
            y.size for _, y in alike
        )

    start = np.zeros(features + 1 + effects + (noise is None))
    best = minimize(
        jax.jit(loss), start, jac=jax.jit(jax.grad(loss)), method="BFGS", options={"gtol": 1e-7}
    )
    assert best.success, best.message
    theta, sd = split(best.x)
    return Fit(
        np.asarray(theta.phi.weight), float(theta.phi.bias), np.exp(theta.beta.log_scale), float(sd)
    )


def fitted(clients, *, slopes, noise, rounds, **options):
    data = FederatedData.from_clients(
        {f"site{place}": (x, y) for place, (x, y) in enumerate(clients)}
    )
    steps = [optax.adam(optax.cosine_decay_schedule(0.1, rounds)) for _ in range(2)]
    model = models.mixed_linear(scale=noise, slopes=slopes)
    fed = fedpop(model, phi_optimizer=steps[0], beta_optimizer=steps[1], **options)
    engine = Simulation(fed, data, seed=0)
    theta = engine.advance(engine.start(), rounds)[0].server.theta
    typical = models.own_parameters(theta.phi, theta.beta.mean, slopes)
    return Fit(np.asarray(typical.weight), float(typical.bias), np.exp(theta.beta.log_scale), noise)


@pytest.mark.slow
def test_the_fit_is_the_maximum_of_the_marginal_likelihood():
    rng, clients = np.random.default_rng(9), []
    for rows in rng.integers(3, 11, 60):
        x = rng.normal(size=(rows, 1))
        clients.append((x, 1.5 * x[:, 0] - 2 + 1.3 * rng.normal() + 1.5 * rng.normal(size=rows)))
    exact = maximum_likelihood(clients, (), noise=1.5)
    found = fitted(clients, slopes=(), noise=1.5, rounds=400, step_size=0.02, draws=20)
    for name in ("weight", "bias", "scale"):
        np.testing.assert_allclose(
            getattr(found, name), getattr(exact, name), rtol=0.02, err_msg=name
        )


@pytest.mark.slow
def test_sleepstudy(data_dir):
    """Random intercept and slope for 18 persons. Days and milliseconds are scaled, which changes no
    fit but its units.
    """
    table = pd.read_csv(data_dir / "hierarchical" / "sleepstudy.csv").groupby("Subject")
    clients = [
        (part[["Days"]].to_numpy(float) / 5, part["Reaction"].to_numpy(float) / 25)
        for _, part in table
    ]
    exact = maximum_likelihood(clients, (0,))
    np.testing.assert_allclose(
        [25 * exact.bias, 5 * exact.weight[0]], [251.405, 10.467], rtol=1e-4
    )  # published
    found = fitted(clients, slopes=(0,), noise=exact.noise, rounds=1500, step_size=0.01, draws=20)
    np.testing.assert_allclose([found.bias, *found.weight], [exact.bias, *exact.weight], rtol=0.02)
    np.testing.assert_allclose(found.scale, exact.scale, rtol=0.10)
