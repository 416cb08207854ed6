"""Every method of the package keeps the contract that engines rely on."""

import inspect
from contextlib import nullcontext
from functools import partial

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from methods import METHODS, OWN_BIAS, VARIANTS

import covey
from covey import models
from covey.config.catalogue import METHODS as CATALOGUE
from covey.core.algorithm import Approximation, Chains, Empty, Kept, Posterior, Preparation
from covey.models import Normal
from covey.testing import check_method
from mean_method import Mean, client, mean

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


def of_capacity(key, down, state, data):
    return client(key, down, state, data)._replace(weight=jnp.float32(data.capacity))


def by_position(key, down, state, data):
    return client(key, down, state, data)._replace(weight=data.start.astype(float))


def of_nothing(key, down, state, data):
    return client(key, down, state, data)._replace(weight=1.0 / data.count)


def shaped_by_rows(key, down, data):
    return jnp.zeros((data.capacity, 3))


CALLS = []


def counting(key, down, state, data):
    CALLS.append(data)
    return client(key, down, state, data)._replace(weight=jnp.float32(len(CALLS)))


def by_itself(key, down, state, data):
    weight = jnp.asarray(np.random.default_rng().normal(), float)
    return client(key, down, state, data)._replace(weight=weight)


LEFT = {}


def leaving(key, down, state, data):
    LEFT["up"] = (local := client(key, down, state, data)).up
    return local


def at_random(key, state, aggregate):
    return Mean(jnp.asarray(np.random.default_rng().normal(), float)), Empty()


def over_nobody(key, state, aggregate):
    return Mean(aggregate.weighted.total / aggregate.weighted.rows), Empty()


def once(key, state, aggregate):
    return Mean(aggregate.plain.rows / jnp.where(state.mean == 0, 1.0, 0.0) * 0.0 + 1.0), Empty()


def twice(key, down, state, data):
    local = client(key, down, state, data)
    return local._replace(up=local.up._replace(total=jnp.full(2, local.up.total)))


TWICE = {
    "client": twice,
    "commit": lambda pending, sent: pending + sent.total[0],
    "server": lambda key, state, sums: (Mean(sums.weighted.total[0]), Empty()),
}


def draws(value):
    return Posterior(client=lambda key, down, own, data, count: jnp.full(count, value))


def fitted(draws):
    return Posterior(
        shared=Approximation(
            fit=lambda state, spec, ask: ask("rows", jnp.zeros(())),
            draw=lambda key, law, count: jnp.zeros(draws),
            queries={"rows": lambda key, sent, data: data.count.astype(float)},
        )
    )


def walked(size):
    buffers = {"a": jnp.zeros((2, 1)), "b": jnp.zeros((size, 1))}
    chains = Chains(
        kept=lambda state: Kept(buffers, jnp.int32(2)),
        describe=lambda draw: draw,
        predictive=lambda draw, x: Normal(x[:, 0], x[:, 0]),
    )
    return Posterior(shared=chains)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"client": of_capacity}, "another capacity, weights.0 differs"),
        ({"client": by_position}, "rows lie elsewhere, weights.0 differs"),
        ({"client": of_nothing}, "of a client without rows, weights.0 is not finite"),
        ({"init_client": shaped_by_rows}, r"of a client: .*float32\[1, 3\] and float32\[2, 3\]"),
        ({"client": counting}, "asked again, client is another computation"),
        ({"client": by_itself}, "asked again, client is another computation"),
        ({"server": at_random}, "asked again, server is another computation"),
        (
            {"client": leaving, "commit": lambda pending, sent: pending + LEFT["up"].total},
            r"value of another function's call, made in .*mean_method.py:\d+:\d+ \(client\):",
        ),
        ({"server": over_nobody}, "two rounds of a client without rows, mean of the server is NaN"),
        (
            {"server": over_nobody, "predict": mean().predict},  # and so are its predictions
            "two rounds of a client without rows, mean of the server is NaN",
        ),
        ({"server": once}, "after two rounds, mean of the server is NaN: a sum or a weight may"),
        ({"adapt": lambda key, down, data: 1 / data.count}, "without rows, unseen_metrics.*finite"),
        ({"refresh": lambda key, down, own, data: own / 0}, "rows, member_metrics.*not finite"),
        (
            {"used": lambda down: {"total": 0}},
            "total of the upload is one number, of which",
        ),
        (TWICE | {"used": lambda down: {"total": 1}}, "past what the round uses, total differs"),
        (TWICE | {"used": lambda down: {"total": 2}}, ""),
        ({"used": lambda down: {"tot": 0}}, "uses some of 'tot', and the upload has only total, r"),
        ({"posterior": draws(jnp.nan)}, "of a client with rows, draws.0 is not finite"),
        (
            {"posterior": fitted(2)},
            "posterior.shared: 3 draws were asked for, the only array has 2",
        ),
        ({"posterior": walked(3)}, r"kept draws are \(size, chains, ...\) in all arrays"),
        ({"posterior": fitted(3)}, ""),
        ({"posterior": walked(2)}, ""),
        ({}, ""),
    ],
)
def test_a_broken_contract_is_told(changes, told):
    own = {"predict": lambda key, down, own, x: Normal(jnp.full(len(x), own), jnp.ones(len(x)))}
    with pytest.raises((AssertionError, ValueError), match=told) if told else nullcontext():
        check_method(mean(**own | changes))


def asking(query, finish=lambda method: method):
    preparation = Preparation(
        find=lambda spec, ask: ask(query, jnp.ones(())),
        finish=lambda rows: finish(mean(init=lambda key, spec: Mean(rows / 2))),
        queries={"rows": lambda key, sent, data: sent * data.count},
    )
    return mean(init=None, preparation=preparation)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (asking("rows")._replace(init=mean().init), ""),
        (asking("row")._replace(init=mean().init), "no query is called 'row'; there are rows"),
        (asking("rows"), "the method 'mean' has init=None: init must be a function"),
        (
            asking("rows", lambda method: 3)._replace(init=mean().init),
            "preparation.finish: a method such as .* is needed, got int",
        ),
    ],
)
def test_a_method_is_prepared_and_is_one(method, told):
    with pytest.raises((AssertionError, ValueError), match=told) if told else nullcontext():
        check_method(method)


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
