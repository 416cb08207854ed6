"""Text of the repository has at most 100 columns. Ruff counts, but lets pass what it cannot break.

Left out: rows of tables, pictures, lines without a place to break, and the settings of tools in
pyproject.toml.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COLUMNS = 100
FOLDERS = ("src", "tests", "reproductions", "examples", "benchmarks", "docs")
AT_THE_TOP = ("*.md", "*.yml", "*.cff", "Makefile", "experiments/*.toml")
ENDINGS = ("py", "md", "ipynb", "html", "css", "c")
FILES = sorted(path for pattern in AT_THE_TOP for path in ROOT.glob(pattern)) + sorted(
    path
    for folder in FOLDERS
    for ending in ENDINGS
    for path in (ROOT / folder).rglob(f"*.{ending}")
    if "katex" not in path.parts
)


def lines_of(path: Path) -> list[str]:
    """The lines of a file; of a notebook, those of its cells."""
    text = path.read_text("utf-8")
    if path.suffix != ".ipynb":
        return text.splitlines()
    cells = json.loads(text)["cells"]
    return [line.rstrip("\n") for cell in cells for line in cell["source"]]


def breakable(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that could be broken, with their numbers."""
    for number, line in enumerate(lines_of(path), start=1):
        if path.suffix == ".md" and line.lstrip().startswith(("|", "![")):
            continue
        if " " in line.strip().removeprefix("# "):
            yield number, line


@pytest.mark.parametrize(
    "kind", [*(f".{ending}" for ending in ENDINGS), ".toml", ".yml", ".cff", ""]
)
def test_lines_have_at_most_100_columns(kind):
    assert any(path.suffix == kind for path in FILES)
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in FILES
        if path.suffix == kind
        for number, line in breakable(path)
        if len(line) > COLUMNS
    ]
    assert not long, f"more than {COLUMNS} columns: {', '.join(long)}"
