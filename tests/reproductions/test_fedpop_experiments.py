"""The reproductions of FedPop's results, at sizes that are quick, and what they are held
against.
"""

import numpy as np
import pytest

from covey.core.shard import Rows
from covey.datasets.loaders import load
from covey.datasets.synthetic import shared_features
from reproductions import fedpop_glmm as glmm
from reproductions import fedpop_limits as limits
from reproductions import fedpop_synthetic as synthetic


@pytest.fixture(scope="module")
def small():
    data, truth = shared_features(0, 12, 6, few=8, many=12)
    start = np.linalg.qr(truth.phi + 0.5 * np.random.default_rng(0).normal(size=truth.phi.shape))[0]
    return data, start


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "low", "high"), [(1e-3, 0.0, 0.01), (0.3, 0.05, np.inf)])
def test_effects_that_do_not_differ_make_fedavg(small, sigma, low, high):
    data, _ = small
    one = limits.path(
        limits.single(),
        data,
        8,
        lambda state: np.append(state.parameters.weight, state.parameters.bias),
    )
    path = limits.path(limits.towards_single(sigma, data), data, 8, limits._typical)
    assert low < limits.distance(path, one) < high


@pytest.mark.slow
def test_effects_that_nothing_holds_make_fedrep(small):
    data, start = small
    heads = limits.path(
        limits.heads(start), data, 8, lambda state: np.asarray(state.shared.parameters)
    )
    near, far = (
        limits.distance(
            limits.path(
                limits.towards_heads(sigma, start, data), data, 8, lambda s: np.asarray(s.theta.phi)
            ),
            heads,
        )
        for sigma in (100.0, 0.003)
    )
    assert near < 0.02
    assert far > 0.2


def test_the_oracle_is_the_posterior_mean():
    """Of one row with one feature: shrunk least squares."""
    found = synthetic.oracle(
        Rows(np.array([[3.0, 4.0]]), np.array([2.0])), np.array([[0.6], [0.8]]), 0.5
    )
    np.testing.assert_allclose(found, [5 * 2 / 0.25 / (1 + 25 / 0.25)])
    assert synthetic.principal_angle(np.eye(3)[:, :2], np.eye(3)[:, 1:]) == pytest.approx(1.0)
    assert synthetic.principal_angle(np.eye(3)[:, :2], 7 * np.eye(3)[:, [1, 0]]) == pytest.approx(
        0.0
    )


@pytest.mark.slow
def test_few_rows_a_client():
    """Two rows: far better than FedRep. Five: close to who knows the features and the law."""
    two = synthetic.scores(synthetic.Problem(few=2), 0, 800)
    assert two["FedPop"].error < 0.5 * two["FedRep"].error
    five = synthetic.scores(synthetic.Problem(few=5, noise=synthetic.MUCH), 0, 800)
    assert five["FedPop"].error < 1.15 * five["oracle"].error


@pytest.mark.slow
def test_the_pooled_fit_of_sleepstudy_is_the_published_one(data_dir):
    case = glmm.CASES[0]
    data = glmm.rescaled(load(case.name), case.units)
    found = glmm.in_units(glmm.tabulated(glmm.maximum_likelihood(case, data), case, data), case)
    for name, value in case.published.items():
        assert found.loc[name, "estimate"] == pytest.approx(value, rel=5e-3), name


@pytest.mark.slow
def test_mixed_models_are_those_of_the_pooled_tables(data_dir):
    rows, claims, _ = glmm.run("quick", lambda line: None)
    assert all(claim.holds for claim in claims), claims
    errors = {row.quantity: row.sd for row in rows}
    # Standard errors of lme4 by maximum likelihood.
    assert errors["sleepstudy, intercept"] == pytest.approx(6.632, rel=0.05)
    assert errors["sleepstudy, weights[Days]"] == pytest.approx(1.502, rel=0.05)
