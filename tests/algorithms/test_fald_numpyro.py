"""A NumPyro model split over five clients against NUTS on the pooled rows.

The tuning: a step of 5e-4, two local steps as clients differ and more would bias the mean, 400
chains that start apart, and draws from where they have long forgotten their start.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import MCMC, NUTS
from problems import logistic

from covey.algorithms.fald import fald
from covey.core.shard import Rows
from covey.models.numpyro import from_numpyro
from covey.runs.launch import run

DATA = logistic().data


def regression(x, y):
    weight = numpyro.sample("weight", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    bias = numpyro.sample("bias", dist.Normal(0.0, 2.0))
    bend = numpyro.sample(
        "bend", dist.LogNormal(0.0, 0.5)
    )  # above zero, so that there is a transform
    numpyro.sample("y", dist.Bernoulli(logits=x @ weight + bias + 0.1 * bend * x[:, 0] ** 2), obs=y)


@pytest.mark.slow
def test_the_prior_of_a_numpyro_model_counts_once():
    """The energies of clients, weighted by p_c, add up to minus the log-density that NumPyro itself
    finds, by its gradient.
    """
    model = from_numpyro(regression, DATA.spec)
    method = fald(model, step_size=1e-6, local_steps=1, temperature=1e-12, chains=1, keep=1)
    start = {"weight": jnp.array([0.3, -0.2, 0.1]), "bias": jnp.array(0.4), "bend": jnp.array(-0.3)}
    done = run(method._replace(init=_from(method, start)), DATA, rounds=1, seed=0, progress=False)
    rows = Rows(*map(jnp.asarray, DATA.rows))

    def pooled(values):
        return numpyro.infer.util.potential_energy(regression, tuple(rows), {}, values)

    slope = jax.grad(pooled)(start)
    for name in start:
        moved = np.asarray(done.state.theta[name])[..., 0] - np.asarray(start[name])
        np.testing.assert_allclose(moved, -1e-6 * np.asarray(slope[name]), rtol=2e-2, atol=3e-8)


def _from(method, start):
    def init(key, spec):
        state = method.init(key, spec)
        return state._replace(theta=jax.tree.map(lambda leaf: leaf[..., None], start))

    return init


@pytest.mark.slow
def test_five_clients_know_what_pooled_nuts_knows():
    """Means within a tenth of a posterior deviation, deviations within a tenth of themselves."""
    x, y = (jnp.asarray(leaf) for leaf in DATA.rows)
    nuts = MCMC(
        NUTS(regression),
        num_warmup=1000,
        num_samples=5000,
        num_chains=2,
        chain_method="sequential",
        progress_bar=False,
    )
    nuts.run(jax.random.key(0), x, y)
    pooled = nuts.get_samples()
    method = fald(
        from_numpyro(regression, DATA.spec),
        step_size=5e-4,
        local_steps=2,
        chains=400,
        jitter=0.1,
        burn_in=1500,
        thinning=150,
    )
    found = run(method, DATA, rounds=3000, seed=0, progress=False).posterior.shared.draws()
    for name, draws in found.items():
        mean, deviation = np.mean(pooled[name], 0), np.std(pooled[name], 0)
        assert np.all(np.abs(draws.mean((0, 1)) - mean) < 0.1 * deviation), name
        assert np.all(np.abs(draws.std((0, 1)) / deviation - 1) < 0.1), name
