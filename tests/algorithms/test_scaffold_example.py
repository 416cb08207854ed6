"""The example of a method outside of the package: SCAFFOLD on least squares."""

import re
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from examples.scaffold import scaffold
from problems import linear_gaussian

from covey import channel, cohort, models
from covey.algorithms.fedavg import fedavg
from covey.core.faults import Faults
from covey.engines.simulate import Simulation

SIZES, STEP, STEPS = (20, 40, 30, 90, 25), 0.05, 20
PROBLEM = linear_gaussian(sizes=SIZES)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def fit(method, rounds, **options):
    engine = Simulation(method, PROBLEM.data, seed=0, **options)
    return engine.advance(engine.start(), rounds)


def coefficients(tree):
    return np.concatenate([np.asarray(tree.weight), np.asarray(tree.bias)[..., None]], axis=-1)


def optimum():
    """Of the mean over clients of their mean losses, (theta - mean)' H (theta - mean) / 2."""
    hessians = [
        np.linalg.inv(one.covariance) * PROBLEM.noise**2 / rows
        for one, rows in zip(PROBLEM.local, SIZES, strict=True)
    ]
    moments = [h @ one.mean for h, one in zip(hessians, PROBLEM.local, strict=True)]
    return np.linalg.solve(sum(hessians), sum(moments)), hessians


@pytest.mark.slow
def test_the_fixed_point_is_the_optimum_where_that_of_fedavg_is_not():
    best, hessians = optimum()
    options = {"batch_size": None, "steps": STEPS}
    state, lines = fit(scaffold(models.linear(), step_size=STEP, **options), 150)
    np.testing.assert_allclose(coefficients(state.server.model), best, atol=1e-7)
    # There the control variates are the clients' gradients, whose mean is zero.
    gradients = [h @ (best - one.mean) for h, one in zip(hessians, PROBLEM.local, strict=True)]
    np.testing.assert_allclose(coefficients(state.nodes.state), gradients, atol=1e-6)
    assert lines[-1]["local_steps"] == STEPS
    plain = fedavg(models.linear(), client_optimizer=optax.sgd(STEP), weighting="equal", **options)
    end, _ = fit(plain, 150)
    assert np.linalg.norm(coefficients(end.server.parameters) - best) > 0.1


@pytest.mark.slow
def test_the_first_round_is_that_of_fedavg():
    options = {"batch_size": 8, "epochs": 2}
    state, _ = fit(scaffold(models.linear(), step_size=STEP, **options), 1)
    plain = fedavg(models.linear(), client_optimizer=optax.sgd(STEP), weighting="equal", **options)
    other, _ = fit(plain, 1)
    np.testing.assert_allclose(
        coefficients(state.server.model), coefficients(other.server.parameters), rtol=1e-12
    )


def test_the_control_of_the_server_is_the_mean_of_the_clients():
    """With partial cohorts, lost messages and a lossy channel: c_i moves by what was sent."""
    state, _ = fit(
        scaffold(models.linear(), step_size=STEP, batch_size=8),
        7,
        cohort=cohort.uniform(2),
        channel=channel.rand_k(k=5),
        faults=Faults(dropout=0.3),
    )
    seen = np.asarray(state.seen)
    assert 2 <= seen.sum() < len(SIZES)
    own = coefficients(state.nodes.state) * seen[:, None]  # those of unseen clients are still zero
    assert np.all(np.abs(own[seen]).sum(1) > 0)
    np.testing.assert_allclose(coefficients(state.server.control), own.mean(0), rtol=1e-9)


def test_what_the_guide_shows_is_the_file():
    root = Path(__file__).parents[2]
    guide = (root / "CONTRIBUTING.md").read_text("utf-8").partition("```python\n")[2]
    shown = guide.partition("```")[0].splitlines()[1:]  # the signature is written without types
    file = (root / "examples" / "scaffold.py").read_text("utf-8").splitlines()
    assert {re.sub(r"  +# .*", "", line) for line in shown} <= set(file)


def test_bad_options():
    with pytest.raises(ValueError, match="scaffold: step_size must be above 0 and finite, got nan"):
        scaffold(models.linear(), step_size=np.nan)
    with pytest.raises(ValueError, match="scaffold: steps must be at least 1, got 0"):
        scaffold(models.linear(), steps=0)
