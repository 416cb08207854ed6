"""`help()` of every public factory: its arguments, its result, an example, and for methods the
reference and the departures from it.
"""

import inspect
import re

import pytest

import covey
from covey.channel import CHANNELS
from covey.config.catalogue import METHODS, MODELS
from covey.core import cohort
from covey.kernels import KERNELS

WITHOUT_PAPER = {"local"}
TABLES = {
    "methods": METHODS,
    "models": MODELS,
    "kernels": KERNELS,
    "channel": CHANNELS,
    "cohort": {
        name: getattr(cohort, name)
        for name in ("bernoulli", "full", "given", "trace", "uniform", "weighted")
    },
    "topology": {
        name: getattr(covey.topology, name)
        for name in ("complete", "custom", "erdos_renyi", "grid", "mixed_by", "ring")
    },
    "models of a user": {
        name: getattr(covey.models, name)
        for name in ("from_density", "from_equinox", "from_flax", "from_function", "split_network")
    },
    "covey": {
        name: getattr(covey, name)
        for name in ("choose_components", "fit", "load", "load_fit", "log_to_mlflow", "run")
    },
}
FUNCTIONS = {
    f"{room}: {name}": factory for room, table in TABLES.items() for name, factory in table.items()
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_of_a_factory_is_complete(name):
    text = inspect.getdoc(FUNCTIONS[name]) or ""
    assert re.match(r".*[.)]$", text.partition("\n")[0]), "the first line is a sentence"
    for heading in ("Returns:", "Example:"):
        assert re.search(rf"^{heading}\n", text, re.MULTILINE), heading
    assert ">>> " in text.partition("Example:")[2]
    section = re.search(r"^Args:\n((?: .*\n|\n)*)", text + "\n", re.MULTILINE)
    told = re.findall(r"^ {4}\**(\w+)(?:, (\w+))?: ", section[1], re.MULTILINE) if section else []
    asked = inspect.signature(FUNCTIONS[name]).parameters
    assert [one for pair in told for one in pair if one] == list(asked)


@pytest.mark.parametrize("name", METHODS)
def test_help_of_a_method_names_its_paper_and_departures(name):
    text = inspect.getdoc(METHODS[name]) or ""
    assert re.search(r"^Reference: ", text, re.MULTILINE)
    departs = re.search(r"^Departures from the papers?: ", text, re.MULTILINE)
    assert departs or name in WITHOUT_PAPER
