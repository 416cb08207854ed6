"""A method of a user's own that breaks is explained before its first round."""

import re
from contextlib import nullcontext
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from covey.core.algorithm import Empty, Posterior
from covey.core.metrics import Mean as Average
from covey.core.shard import Rows, all_rows
from covey.data.federated import FederatedData
from covey.engines.setup import setup_of
from covey.models import Normal
from mean_method import Mean, Sums, client, mean

X = np.arange(12, dtype=np.float32).reshape(6, 2)
DATA = FederatedData.from_rows(Rows(X, X[:, 0]), (1, 2, 3))
FILE = re.escape(__file__)


def own_rows(data):
    return all_rows(data).mask


def sends(**changes):
    """A client whose result differs in some fields."""
    return lambda key, down, state, data: client(key, down, state, data)._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"client": lambda *a: client(*a).up}, "client .*it returns a Sums; return Local"),
        ({"client": sends(up=jnp.int32(1))}, "client .*uploads the only array as int32.*astype"),
        (
            {"client": sends(up=Sums(jnp.zeros(()) * 1j, jnp.zeros(())))},
            "total as complex64",
        ),
        ({"client": sends(up=Sums(1.0, jnp.zeros(())))}, "up.total is the Python float 1.0"),
        ({"client": sends(weight=jnp.ones(2))}, r"the weight is float32\[2\]; it is one float"),
        ({"client": sends(info={"loss": jnp.zeros(())})}, "info is a dict; write a NamedTuple"),
        ({"client": sends(info=Mean(jnp.zeros(3)))}, r"mean of info is an array\[3\]; infos are"),
        (
            {"client": lambda key, down, state, data: client(key, down, state, data.counts)},
            rf"mean: client \({FILE}, line \d+\): AttributeError: 'Shard' object has no",
        ),
        (
            {"client": lambda *a: client(*a) if a[1].mean > 0 else None},
            rf"mean: client \({FILE}, line \d+\): .* write jnp.where or jax.lax.cond in",
        ),
        (
            {"client": lambda *a: client(*a)._replace(up=jnp.ones(2) + jnp.ones(3))},
            rf"mean: client \({FILE}, line \d+\): TypeError: .*\(2,\), \(3,\)",
        ),
        (
            {
                "client": lambda *a: client(*a)._replace(
                    weight=jnp.sum(a[3].rows.y * own_rows(a[3]))
                )
            },
            r"mean: client .*TypeError: .*\(5,\), \(2,\)",  # the rows of all clients
        ),
        ({"init": lambda key, spec: Mean(0)}, r"init \(.*mean is the Python int 0.*jnp.asarray"),
        ({"init": lambda key, spec: Mean("no")}, "mean is of type str; states and messages hold"),
        ({"server": lambda key, state, sums: state}, "server .*a Mean; return the tuple"),
        (
            {"server": lambda key, state, sums: Sums(state, Empty())},  # two fields are no pair
            "server .*it returns a Sums; return the tuple",
        ),
        (
            {"server": lambda key, state, sums: (Mean(jnp.int32(1)), Empty())},
            r"the state of the server: mean is float32\[\] and int32\[\] \(before a round and",
        ),
        (
            {"server": lambda key, state, sums: ({"mean": state.mean}, Empty())},
            r"the server changes its structure, from Mean\(mean\) to dict\(mean\)",
        ),
        (
            {"commit": lambda pending, sent: sent},
            r"a client changes its structure, from one array to Sums\(total, rows\)",
        ),
        ({"exact": ("counts",)}, "the upload has no part 'counts'; it has total, rows"),
    ],
)
def test_a_broken_method_is_explained(changes, told):
    with pytest.raises(ValueError, match=told):
        setup_of(mean(**changes), DATA, seed=0, cohort=None, channel=None, faults=None)


def test_nan_before_the_first_round_is_told():
    method = mean(init=lambda key, spec: Mean(jnp.log(-1.0)))
    setup = setup_of(method, DATA, seed=0, cohort=None, channel=None, faults=None)
    with pytest.raises(ValueError, match=rf"mean: init \({FILE}, .*: mean is NaN before the first"):
        setup.first_server()


class Wide(NamedTuple):
    """A predictive distribution that broadcasts against its outcomes."""

    mean: jax.Array

    def log_prob(self, y):
        return -((y - self.mean) ** 2)

    def measures(self, y, mask):
        return {"nll": Average(jnp.sum(-self.log_prob(y)), jnp.sum(mask))}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"predict": lambda *a: jnp.zeros(3)}, f"predict .{FILE}.*an array; return a predictive"),
        (
            {"predict": lambda key, down, own, x: Wide(x[:, :1])},
            r"predict .*mean \[3, 1\] do not fit outcomes \[3\]: log_prob",
        ),
        (
            {"predict": lambda key, down, own, x: Normal(down.mean, jnp.ones(len(x)))},
            r"predict .*mean has the shape \[\] for 3 rows; the leading axis must be the row",
        ),
        (
            {"adapt": lambda *a: Empty(), "predict": lambda key, down, own, x: own.scale * x},
            r"predict \(.*AttributeError: 'Empty' object has no attribute 'scale'",
        ),
        ({"evaluate": lambda *a: jnp.zeros(())}, "evaluate .*it returns an array; return .*Mean"),
        ({"evaluate": lambda *a: {"mse": 0.5}}, "evaluate .*'mse' is a float, not a metric"),
        ({"evaluate": lambda *a: {"mse": Average(jnp.ones(()), jnp.ones(()))}}, ""),
        (
            {"refresh": lambda key, down, own, data: own.scale},
            "refresh .*AttributeError: .* attribute .?scale",
        ),
        (
            {"posterior": Posterior(client=lambda key, down, own, data, count: own)},
            r"posterior.client .*the only array has the shape \[\] for 2 draws",
        ),
    ],
)
def test_what_follows_the_rounds_is_explained_before_them(changes, told):
    with pytest.raises(ValueError, match=told) if told else nullcontext():
        setup_of(mean(**changes), DATA, seed=0, cohort=None, channel=None, faults=None)
