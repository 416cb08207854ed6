"""Text of the repository has at most 100 columns. Ruff counts, but lets pass what it cannot break.

Left out: rows of tables, pictures, code blocks of documents, and lines without a place to break.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COLUMNS = 100
FOLDERS = ("src", "tests", "reproductions", "examples", "benchmarks", "docs")
FILES = sorted(
    path for pattern in ("*.md", "Makefile", "experiments/*.toml") for path in ROOT.glob(pattern)
) + sorted(
    path
    for folder in FOLDERS
    for ending in ("py", "md")
    for path in (ROOT / folder).rglob(f"*.{ending}")
)


def breakable(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file that could be broken, with their numbers."""
    fenced = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        if path.suffix == ".md":
            if line.lstrip().startswith("```"):
                fenced = not fenced
            if fenced or line.lstrip().startswith(("|", "![")):
                continue
        if " " in line.strip().removeprefix("# "):
            yield number, line


@pytest.mark.parametrize("kind", [".py", ".md", ".toml", ""])
def test_lines_have_at_most_100_columns(kind):
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in FILES
        if path.suffix == kind
        for number, line in breakable(path)
        if len(line) > COLUMNS
    ]
    assert not long, f"more than {COLUMNS} columns: {', '.join(long)}"
