"""Imports point one way."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import covey
from covey.config.catalogue import METHODS

SOURCE = Path(__file__).parents[1] / "src" / "covey"
ORDER = [  # rooms of one line may not import each other, except where named below
    {"core", "topology"},
    {"kernels", "channel", "models", "data", "privacy"},
    {"algorithms", "datasets"},
    {"engines"},
    {"inference"},
    {"estimators", "report"},
    {"runs"},
    {"config"},
    {"fitting", "sweeps"},
    {"deploy"},
]
TOP = {"cli"}  # may import everything, and nothing imports it
LOWER = {
    room: set().union(*ORDER[:level]) - ({"core"} if room == "core" else set())
    for level, rooms in enumerate(ORDER)
    for room in rooms
}


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("covey.")}
    return rooms


@pytest.mark.parametrize("room", sorted(LOWER))
def test_rooms_import_only_lower_rooms(room):
    for path in (SOURCE / room).rglob("*.py"):
        above = imported_rooms(path) - LOWER[room] - {room, "__version__"}
        assert not above, f"{path.relative_to(SOURCE)} imports {above}"


def test_every_room_is_listed():
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} == (
        set(LOWER) | TOP
    )


@pytest.mark.processes
def test_import_covey_is_light_and_what_takes_long_waits_until_it_is_asked_for():
    code = (
        "import sys, covey\n"
        "heavy = {'jax', 'pandas', 'plotly', 'pydantic', 'scipy', 'xarray'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "import covey.runs.launch\n"
        "late = {'arviz_base', 'arviz_stats', 'blackjax', 'ray', 'scipy.stats', 'xarray'}\n"
        "print(sorted(late & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["[]", "[]"]


def test_ray_is_imported_in_one_file():
    importing = re.compile(r"^\s*(import|from) ray\b", re.MULTILINE)
    found = [path.name for path in SOURCE.rglob("*.py") if importing.search(path.read_text())]
    assert found == ["ray.py"]


def test_every_public_name_exists():
    assert all(getattr(covey, name) is not None for name in dir(covey))


def test_every_public_module_says_what_is_public():
    """Else `from covey.cohort import *`, help() and completion show what the module imports."""
    modules = [
        one
        for one in (getattr(covey, name) for name in covey.__all__)
        if isinstance(one, ModuleType)
    ]
    assert len(modules) == 9
    for module in modules:
        assert all(hasattr(module, name) for name in module.__all__), module


def test_help_says_one_line_of_every_public_name():
    missing = [name for name in covey.__all__ if not re.search(rf"\b{name}\b", covey.__doc__)]
    assert missing == ["__version__"]
    table = covey.__doc__.partition("Methods.")[2].partition("Data and runs")[0]
    assert sorted(re.findall(r"^ {8}(\w+)", table, re.MULTILINE)) == sorted(METHODS)
    assert max(len(line) for line in covey.__doc__.splitlines()) <= 96  # help() indents by four
