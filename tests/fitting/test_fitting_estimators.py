"""Estimators in the manner of scikit-learn."""

import numpy as np
import pytest
from sklearn.base import clone

import covey


@pytest.fixture(scope="module")
def data():
    random, rows = np.random.default_rng(0), {}
    for site in "abcdef":
        x, own = random.normal(size=(20, 2)), random.normal()
        y = x @ [2.0, -1.0] + own + 0.5 * random.normal(size=20)
        rows[site] = x, y
    return covey.FederatedData.from_clients(rows, features=["dose", "age in years"])


@pytest.mark.slow
def test_a_regressor_is_cloned_fitted_and_predicts(data):
    made = covey.FederatedRegressor(estimate="ml", seed=4)
    model = clone(made).fit(data)
    assert not hasattr(made, "fit_")
    assert model.get_params() == made.get_params()
    assert list(model.fit_.summary().index[:3]) == ["Intercept", "dose", "age in years"]
    x = np.array([[0.0, 0.0], [1.0, 0.0]])
    slope = np.diff(model.predict(x, client="b"))[0]
    assert abs(slope - model.fit_.summary()["mean"]["dose"]) < 0.02
    assert model.set_params(seed=5).seed == 5


def test_mistakes(data):
    with pytest.raises(ValueError, match="slopes has 'weight'"):
        covey.FederatedRegressor(slopes=("weight",)).fit(data)
    with pytest.raises(ValueError, match="not fitted yet"):
        covey.FederatedClassifier().predict(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="there is no option 'sed'"):
        covey.FederatedRegressor().set_params(sed=1)
    with pytest.raises(ValueError, match="two values"):
        covey.FederatedClassifier().fit(data)
