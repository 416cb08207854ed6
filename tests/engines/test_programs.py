"""Runs share compiled programs."""

from collections import OrderedDict

import jax
import numpy as np
import pytest
from problems import linear_gaussian

import covey
from covey import models
from covey.core import cohort
from covey.engines import sharing
from covey.engines.sharing import shared
from covey.engines.simulate import Simulation


def program(engine):
    """The compiled rounds of rows on the device."""
    return engine.driver.compiled


def test_equal_parts_make_one_program_and_others_another():
    made = []

    def build(function, size):
        made.append(size)
        return object()

    first = shared(build, np.sin, 3)
    assert shared(build, np.sin, 3) is first
    assert shared(build, np.cos, 3) is not first
    assert shared(build, np.sin, 4) is not first
    assert made == [3, 3, 4]
    array = np.zeros(2)  # no key
    assert shared(build, np.sin, array) is not shared(build, np.sin, array)


def test_the_oldest_programs_are_dropped(monkeypatch):
    monkeypatch.setattr(sharing, "_kept", OrderedDict())
    monkeypatch.setattr(sharing, "_MOST", 2)

    def build(number):
        return object()

    one, two = shared(build, 1), shared(build, 2)
    assert shared(build, 1) is one  # the newest now
    shared(build, 3)
    assert shared(build, 1) is one
    assert shared(build, 2) is not two


def test_a_second_run_with_the_same_method_compiles_nothing():
    """Other data of the same shapes, another seed: the first run's program, and not its values."""
    method = covey.fedavg(models.linear(), batch_size=None)
    one, other = linear_gaussian(seed=1).data, linear_gaussian(seed=2).data
    engines = [Simulation(method, data, seed=seed) for seed, data in enumerate((one, other, one))]
    assert program(engines[0]) is program(engines[1])
    states = [engine.advance(engine.start(), 2)[0] for engine in engines]
    assert program(engines[0])._cache_size() == 1
    weights = [np.asarray(jax.tree.leaves(state.server)[0]) for state in states]
    assert not np.allclose(weights[0], weights[1])
    np.testing.assert_array_equal(weights[0], weights[2])


def test_equal_cohorts_are_one_program():
    """`uniform(2)` is made anew for each seed of a comparison."""
    method, data = covey.fedavg(models.linear(), batch_size=None), linear_gaussian().data
    one, equal, other = (
        Simulation(method, data, seed=seed, cohort=cohort.uniform(size))
        for seed, size in enumerate((2, 2, 3))
    )
    assert program(one) is program(equal)
    assert program(one) is not program(other)


def test_another_method_is_another_program():
    data = linear_gaussian().data
    slow, quick = (
        Simulation(covey.fedavg(models.linear(), batch_size=None, epochs=epochs), data, seed=0)
        for epochs in (1, 5)
    )
    assert program(slow) is not program(quick)


@pytest.mark.parametrize("slopes", [(), ("0",), (0,), "all"])
def test_factories_remember_equal_models_and_methods(slopes):
    model = models.mixed_linear(slopes=slopes)
    assert models.mixed_linear(slopes=slopes) is model
    assert models.mixed_linear(slopes=slopes, scale=2.0) is not model
    assert covey.marginal(model) is covey.marginal(model)
    assert covey.marginal(model, nodes=3) is not covey.marginal(model)
