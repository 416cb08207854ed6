"""Predictions that average over as many posterior draws as asked for."""

import functools

import numpy as np
import optax
import pytest
from problems import linear_gaussian

from covey import models, topology
from covey.algorithms.fald import fald
from covey.algorithms.fedavg import fedavg
from covey.algorithms.fedpop import fedpop
from covey.algorithms.marginal import marginal
from covey.runs.launch import run

AT_ZERO = np.zeros((1, 3))  # the prediction there is the client's intercept
METHODS = {
    "marginal": lambda: marginal(models.mixed_linear()),
    "fedpop": lambda: fedpop(
        models.mixed_linear(),
        step_size=0.02,
        draws=5,
        phi_optimizer=optax.sgd(1e-3),
        beta_optimizer=optax.sgd(1e-3),
    ),
}


@functools.cache
def data():
    return linear_gaussian(sizes=(12, 16, 10)).data.split(validation=0.25, test=0, seed=1)


@functools.cache
def done(method, engine):
    others = {"topology": topology.complete()} if engine == "peers" else {}
    rounds = None if method == "marginal" else 3
    return run(METHODS[method](), data(), rounds=rounds, seed=2, engine=engine, **others)


@pytest.mark.parametrize(
    ("method", "engine"),
    [
        ("marginal", "simulate"),
        pytest.param("marginal", "loop", marks=pytest.mark.slow),
        pytest.param("fedpop", "simulate", marks=pytest.mark.slow),
        pytest.param("fedpop", "peers", marks=pytest.mark.slow),
    ],
)
def test_a_prediction_averages_over_the_draws_asked_for(method, engine):
    fit, name = done(method, engine), data().name_of(0)
    few = fit.predict(AT_ZERO, client=name, draws=7)
    assert few.members.mean.shape[-1] == 7
    many = fit.predict(AT_ZERO, client=name, draws=4000)
    own = fit.posterior.client(name)
    intercept = own.draws()["intercept"]
    # 4,000 draws by chains that keep about one in four, against as many of the posterior
    error = intercept.std() / np.sqrt(1000)
    assert abs(float(many.mean[0]) - intercept.mean()) < 5 * error
    assert float(many.members.mean.std()) == pytest.approx(intercept.std(), rel=0.1)


@pytest.mark.parametrize("engine", ["simulate", pytest.param("loop", marks=pytest.mark.slow)])
def test_so_does_an_evaluation(engine):
    fit = done("marginal", engine)
    usual = fit.evaluate(split="validation").pooled
    assert fit.evaluate(split="validation", draws=100).pooled == pytest.approx(usual)
    of_many = fit.evaluate(split="validation", draws=3000).pooled["nll"]
    errors = {
        n: abs(fit.evaluate(split="validation", draws=n).pooled["nll"] - of_many) for n in (1, 300)
    }
    assert errors[300] < 0.05 < errors[1]


@pytest.mark.slow
def test_engines_agree_on_what_draws_are():
    name = data().name_of(1)
    found = [
        done("marginal", engine).predict(AT_ZERO, client=name, draws=9).members.mean
        for engine in ("simulate", "loop")
    ]
    np.testing.assert_allclose(*found, rtol=1e-4)


def test_methods_whose_number_of_draws_is_not_free_say_so():
    averaging = fedavg(models.linear(), client_optimizer=optax.sgd(0.05), steps=1)
    fit = run(averaging, data(), rounds=1, seed=1)
    with pytest.raises(
        ValueError, match="predictions of fedavg do not average over draws: leave draws= out"
    ):
        fit.predict(AT_ZERO, client=data().name_of(0), draws=10)
    chains = run(fald(models.linear(), step_size=1e-3), data(), rounds=2, seed=1)
    with pytest.raises(ValueError, match="fald average over all draws that it keeps"):
        chains.evaluate(split="validation", draws=10)


@pytest.mark.parametrize("draws", [0, -3, True])
def test_a_number_of_draws_is_a_positive_integer(draws):
    with pytest.raises(ValueError, match="positive integer"):
        done("marginal", "simulate").evaluate(split="validation", draws=draws)
