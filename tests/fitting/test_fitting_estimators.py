"""Estimators in the manner of scikit-learn."""

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.utils.validation import check_is_fitted

import covey


def of_sites(features):
    random, rows = np.random.default_rng(0), {}
    for site in "abcdef":
        x, own = random.normal(size=(20, 2)), random.normal()
        y = x @ [2.0, -1.0] + own + 0.5 * random.normal(size=20)
        rows[site] = x, y
    return covey.FederatedData.from_clients(rows, features=features)


@pytest.fixture(scope="module")
def data():
    return of_sites(["dose", "age in years"])


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
    rows = data.rows_of(1, "train")
    assert 0.8 < model.score(rows.x, rows.y, client="b") < 1
    named = of_sites(["outcome", "age in years"])
    assert "outcome" in clone(made).fit(named).fit_.summary().index


def test_scikit_learn_knows_what_they_are():
    classifier, regressor = covey.FederatedClassifier(), covey.FederatedRegressor()
    assert is_classifier(classifier)
    assert is_regressor(regressor)
    with pytest.raises(ValueError, match="not fitted"):
        check_is_fitted(classifier)
    classifier.fit_ = True
    check_is_fitted(classifier)
    assert classifier.classes_.tolist() == [0, 1]


def test_mistakes(data):
    with pytest.raises(ValueError, match="slopes has 'weight'"):
        covey.FederatedRegressor(slopes=("weight",)).fit(data)
    with pytest.raises(ValueError, match="not fitted yet"):
        covey.FederatedClassifier().predict(np.zeros((1, 2)))
    with pytest.raises(ValueError, match="there is no option 'sed'"):
        covey.FederatedRegressor().set_params(sed=1)
    with pytest.raises(ValueError, match="two values"):
        covey.FederatedClassifier().fit(data)
