"""Every method of the package keeps the contract that engines rely on."""

from contextlib import nullcontext

import jax.numpy as jnp
import pytest
from methods import METHODS, VARIANTS, remembering

from covey.config.catalogue import METHODS as CATALOGUE
from covey.core.algorithm import Local
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
        ({"client": integers}, "uploads its only array as int32"),
        (
            {"init_client": shaped_by_rows, "client": summed},
            r"of a client is float32\[1, 3\] once and float32\[2, 3\] once",
        ),
        ({"server": lambda key, state, _: (state._replace(theta=jnp.float32(0)), ())}, "theta"),
    ],
)
def test_a_broken_contract_is_told(changes, told):
    with pytest.raises((AssertionError, ValueError), match=told):
        check_method(broken(**changes))
