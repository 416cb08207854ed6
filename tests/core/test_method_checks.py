"""What is no method is refused with the field, the place and what to write."""

import re
from functools import partial

import jax
import pytest
from methods import remembering

from covey import fedavg
from covey.core.algorithm import Hooks, Posterior
from covey.core.method_checks import need_method

FILE = re.escape(__file__)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"client": lambda key, down, data: None},
            rf"has client\(key, down, data\) \({FILE}, line \d+\): it is called as "
            r"client\(key, down, state, data\)",
        ),
        (
            {"commit": jax.jit(lambda pending: pending)},
            r"has commit\(pending\) .*\(pending, s",
        ),
        ({"adapt": partial(lambda a, key, *, down: down, 1)}, r"has adapt\(key, \*, down\) \("),
        ({"evaluate": 3}, "has evaluate=3: evaluate must be a function"),
        (
            {"posterior": Posterior(client=lambda key: key)},
            r"posterior.client\(key\) .*count\)",
        ),
        ({"hooks": Hooks(cautions=lambda state: [])}, r"has hooks.cautions\(state\) .*state, spec"),
        ({"hooks": None}, "has hooks=None: a covey.core.algorithm.Hooks is needed"),
        ({"exact": "rows"}, r"write exact=\('rows',\)"),
        ({"name": ""}, "the name of a method must be a text, got ''"),
    ],
)
def test_a_field_that_cannot_be_called_is_told(changes, told):
    with pytest.raises(ValueError, match=told):
        need_method(remembering()._replace(**changes))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (fedavg, r"fedavg is a factory of methods: call it with a model, e.g. fedavg\(model"),
        (3, r"a method such as covey.fedavg\(model\) is needed, got int"),
    ],
)
def test_something_else_is_told(given, told):
    with pytest.raises(ValueError, match=told):
        need_method(given)
