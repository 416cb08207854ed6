"""The hops of a run in ARCHITECTURE.md are those of the code."""

import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "covey"
HOPS = (
    (ROOT / "ARCHITECTURE.md").read_text().partition("## The hops of a run")[2].partition("## ")[0]
)
METHODS = {"fedpop.client", "fedpop.server", "channel.encode", "covey.run"}  # of what is run
FILES = (".toml", ".parquet", ".html", ".py")
NAMES = [
    name
    for name in re.findall(r"`(\w+\.\w+)`", HOPS)
    if name not in METHODS and not name.endswith(FILES)
]


@pytest.mark.parametrize("name", NAMES)
def test_every_hop_of_a_run_exists(name):
    owner, attribute = name.split(".")
    pattern = re.compile(rf"^class {owner}\b", re.MULTILINE)
    found = [
        module
        for path in SOURCE.rglob("*.py")
        if path.stem == owner or pattern.search(path.read_text("utf-8"))
        for module in [
            import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts))
        ]
    ]
    assert any(hasattr(getattr(one, owner, one), attribute) for one in found), name


def test_hops_are_counted():
    assert len(NAMES) >= 20
