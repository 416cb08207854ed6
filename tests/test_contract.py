"""Every method of the package keeps the contract that engines rely on."""

import inspect
from contextlib import nullcontext
from functools import partial

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import METHODS, OWN_BIAS, VARIANTS, remembering

import covey
from covey import models
from covey.config.catalogue import METHODS as CATALOGUE
from covey.core.algorithm import Empty, Local
from covey.testing import check_method

EVERY = METHODS | VARIANTS

# The walk has one client only, whatever a method would like to have.
pytestmark = pytest.mark.filterwarnings("ignore:mixture. ")


def test_the_contract_covers_the_catalogue():
    assert set(METHODS) == set(CATALOGUE)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_contract(name):
    check_method(METHODS[name]())


# The law of the shared parameters, the last step of the walk, is refused in a sentence.
REFUSED = {"fedpop-energy": "known up to a constant only"}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_keeps_the_contract(name):
    refused = name in REFUSED
    with pytest.raises(ValueError, match=REFUSED[name]) if refused else nullcontext():
        check_method(VARIANTS[name]())


def broken(**changes):
    return remembering()._replace(**changes)


def of_capacity(key, down, memory, data):
    local = remembering().client(key, down, memory, data)
    return local._replace(up=local.up + data.capacity)


def by_position(key, down, memory, data):
    local = remembering().client(key, down, memory, data)
    return local._replace(up=local.up + data.start)


def of_nothing(key, down, memory, data):
    local = remembering().client(key, down, memory, data)
    return local._replace(up=local.up / data.count)


def integers(key, down, memory, data):
    return Local(jnp.int32(3), memory, ())


def shaped_by_rows(key, down, data):
    return jnp.zeros((data.capacity, 3))


def summed(key, down, memory, data):
    return remembering().client(key, down, memory.sum(0), data)._replace(pending=memory)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"client": of_capacity}, "another capacity, up differs"),
        ({"client": by_position}, "rows lie elsewhere, up differs"),
        ({"client": of_nothing}, "without rows, .* is not finite"),
        ({"client": integers}, "uploads the only array as int32"),
        (
            {"init_client": shaped_by_rows, "client": summed},
            r"a client: the only array is float32\[1, 3\] and float32\[2, 3\] \(with one row",
        ),
        (
            {"server": lambda key, state, _: (state._replace(theta=jnp.float32(0)), Empty())},
            "theta",
        ),
    ],
)
def test_a_broken_contract_is_told(changes, told):
    with pytest.raises((AssertionError, ValueError), match=told):
        check_method(broken(**changes))


NEEDED = {  # options without a default, or without which an optimiser has no use
    "ditto": {"proximal": 0.1},
    "fedbe": {"server_rows": np.zeros((3, 2), np.float32)},
    "fedpop": {"step_size": 1e-3},
    "fedprox": {"proximal": 0.1},
    "lg_fedavg": {"shared": "weight"},
    "mixture": {"components": 2},
    "pfedme": {"proximal": 2.0},
}
MODELS = {"fedpop": models.mixed_linear(), "fedrep": OWN_BIAS, "fedper": OWN_BIAS}
OPTIMISERS = [
    (name, option)
    for name in METHODS
    for option in inspect.signature(getattr(covey, name)).parameters
    if option.endswith("_optimizer")
]


@pytest.mark.parametrize(("name", "option"), OPTIMISERS)
def test_an_optimiser_that_climbs_is_refused(name, option):
    make = partial(getattr(covey, name), MODELS.get(name, models.linear()))
    given = NEEDED.get(name, {})
    with pytest.raises(ValueError, match=f"{option} moves along the gradient.*negative, or it has"):
        make(**given, **{option: optax.sgd(-0.1)})
    warming = optax.adam(optax.linear_schedule(0.0, 0.1, 10))  # its first update is 0
    make(**given, **{option: warming})


def test_an_optimiser_of_one_tree_of_parameters_is_not_tried():
    labels = {"weight": "slow", "bias": "fast"}
    by_part = optax.multi_transform({"slow": optax.sgd(0.01), "fast": optax.sgd(0.1)}, labels)
    covey.fedavg(models.linear(), client_optimizer=by_part)
    with pytest.raises(ValueError, match="client_optimizer moves along the gradient"):
        covey.fedavg(models.linear(), client_optimizer=optax.scale_by_adam())
