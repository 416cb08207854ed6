"""What the documentation shows works: its Python runs, its commands exist, its methods are all
there.

A block that cannot run says why in its fence, ```python skip="needs three machines". A page whose
examples take long says `slow: true` in its front matter, one that reads data sets which are not
bundled `data: true`, one that shows a warning which message it expects (`warns`).
"""

import ast
import os
import re
import shlex
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
import typer
import yaml
from nbclient import NotebookClient

import covey
from covey.cli import app
from covey.config.catalogue import METHODS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
OPTION = re.compile(r' (skip|title)="([^"]+)"')
UsageError = typer.BadParameter.__mro__[1]  # Typer does not export it
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


class Block(NamedTuple):
    """A fenced block: its language, the options of its fence, and its text."""

    language: str
    options: dict[str, str]
    text: str

    @property
    def runs(self) -> bool:
        """Whether it is to work."""
        return "skip" not in self.options


def read(page: str) -> tuple[dict, list[Block]]:
    """The front matter and the fenced blocks of a page."""
    text = (DOCS / page).read_text("utf-8")
    head = re.match(r"---\n(.*?)---\n", text, re.DOTALL)
    blocks = []
    for _, language, options, content in FENCE.findall(text):
        found = OPTION.findall(options)
        assert "".join(f' {name}="{value}"' for name, value in found) == options, options
        # What is shown as "py" is a file of the project, with tests elsewhere.
        assert language != "py" or content.startswith("--8<--"), page
        blocks.append(Block(language, dict(found), textwrap.dedent(content)))
    return (yaml.safe_load(head[1]) if head else {}), blocks


def with_python() -> list:
    marked = []
    for page in PAGES:
        front, blocks = read(page)
        if any(block.language == "python" for block in blocks):
            marks = [pytest.mark.slow] if front.get("slow") else []
            marked.append(pytest.param(page, marks=marks, id=page))
    return marked


@pytest.mark.parametrize("page", with_python())
def test_the_examples_of_a_page_run(page, request, tmp_path, monkeypatch):
    """In order, in one namespace, in an empty folder."""
    front, blocks = read(page)
    if front.get("data"):
        request.getfixturevalue("data_dir")
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    with warnings.catch_warnings():
        if "warns" in front:
            warnings.filterwarnings("ignore", message=front["warns"])
        for block in blocks:
            if block.language == "python" and block.runs:
                exec(compile(block.text, page, "exec"), names)


def test_examples_that_do_not_run_say_why_and_are_python():
    for page in PAGES:
        for block in read(page)[1]:
            if block.language == "python" and not block.runs:
                assert len(block.options["skip"].split()) >= 3, page
                ast.parse(block.text)


def commands(page: str) -> list[str]:
    """The lines of shell blocks that call covey, continued lines joined, without comments."""
    lines = []
    for block in read(page)[1]:
        if block.language in ("sh", "bash") and block.runs:
            lines += block.text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("covey ")]


def parse(line: str) -> None:
    """Let the command line's own parser read a command, without running it."""
    command, words = typer.main.get_command(app), shlex.split(line, comments=True)[1:]
    while hasattr(command, "commands"):
        name = words.pop(0)
        if name not in command.commands:
            raise ValueError(f"{line}: there is no command {name}")
        command = command.commands[name]
    try:
        command.make_context(command.name, words)
    except UsageError as error:
        raise ValueError(f"{line}: {error}") from error


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_the_commands_of_a_page_exist(page):
    for line in commands(page):
        parse(line)
        for path in re.findall(r"experiments/\w+\.toml", line):
            assert (ROOT / path).exists(), line


@pytest.mark.parametrize(
    "line", ["covey rnu a.toml", "covey run a.toml --ouy b", "covey list modles"]
)
def test_commands_that_do_not_exist_are_found(line):
    with pytest.raises(ValueError, match=line):
        parse(line)


NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(ROOT))
    assert all(cell.get("execution_count") for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_has_run(path):
    """Stored outputs are tables and text, without errors and without paths of a machine."""
    assert path.stat().st_size < 50_000
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    for output in [output for cell in cells for output in cell.outputs]:
        assert output.output_type in ("execute_result", "stream")
        assert not re.search(r"/(tmp|home|root|work)/", str(output))


@pytest.mark.slow
def test_the_site_is_complete_and_loads_nothing_from_the_network(tmp_path):
    """As `make docs` builds it; scripts, styles, images and frames are files of the site."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        text = page.read_text("utf-8")
        assert "```" not in text, f"{page}: a fence is not read as one"
        assert not re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*https?://[^>]*>", text)
        assert not re.findall(r"import\(.https?://|@import|url\(.?https?://", text), page


def test_every_method_has_its_section():
    """In the decision table, and under its name in a page about it."""
    table = (DOCS / "choose.md").read_text("utf-8")
    links = dict(re.findall(r"\[`(\w+)`\]\((methods/[\w-]+\.md#\w+)\)", table))
    assert set(links) == set(METHODS)
    for name, link in links.items():
        path, anchor = link.split("#")
        assert anchor == name
        page = (DOCS / path).read_text("utf-8")
        assert f"{{#{name}}}" in page, f"{path} has no heading for {name}"
        assert f"[covey.{name}]" in page, f"{path} has no link to the options of {name}"


def test_every_public_name_is_in_the_reference():
    text = "".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md"))
    documented = set(re.findall(r"^::: covey\.([\w.]+)", text, re.MULTILINE))
    for names in re.findall(r"^<!-- reference, with \w+/: (.+) -->$", text, re.MULTILINE):
        documented |= set(names.split())
    modules = {"channel", "cohort", "data", "inference", "kernels", "models", "privacy"}
    modules |= {"testing", "topology", "__version__"}
    assert set(covey.__all__) - modules <= documented
