"""Parts of pages that are made when the site is built: tables of reproduced results, and notebooks
that load nothing from the network.
"""

import json
import re
from pathlib import Path

_RESULTS = Path(__file__).parents[1] / "results"
_SOURCE = Path(__file__).parents[2] / "src" / "covey"
_LATER = re.compile(r"^<!-- reference, with (\w+)/: (.+) -->$", re.MULTILINE)
_MARK = re.compile(r"^<!-- results: ([\w\s-]+?) -->$", re.MULTILINE)
_FENCE = re.compile(r'^( *```\w+)(?: (?:skip|needs)="[^"]*")+', re.MULTILINE)
_MODULE = re.compile(r'<script type="module">.*?</script>', re.DOTALL)


def on_page_markdown(markdown: str, page, **kwargs) -> str:
    """Put a table in place of each line `<!-- results: fald-mnist fald-partial -->`, docstrings in
    place of `<!-- reference, ... -->`, and take away what fences say to the tests.
    """
    up = "../" * page.file.src_uri.count("/")
    markdown = _FENCE.sub(r"\1", markdown)
    markdown = _LATER.sub(lambda mark: _reference(mark[1], mark[2].split()), markdown)
    return _MARK.sub(lambda mark: _table(mark[1].split(), up), markdown)


def on_post_page(output: str, **kwargs) -> str:
    """Take out the script with which notebooks would fetch a library for diagrams."""
    return _MODULE.sub(lambda script: "" if "https://" in script[0] else script[0], output)


def _reference(room: str, names: list[str]) -> str:
    """The docstrings of names whose room is there."""
    if not (_SOURCE / room).is_dir():
        return "These names are not part of this version."
    return "\n\n".join(f"::: covey.{name}" for name in names)


def _table(names: list[str], up: str) -> str:
    lines = ["| experiment | scale | claims that hold | numbers |", "|---|---|---|---|"]
    for name in names:
        found = json.loads((_RESULTS / f"{name}.json").read_text("utf-8"))
        held = sum(claim["holds"] for claim in found["claims"])
        lost = [claim["claim"] for claim in found["claims"] if not claim["holds"]]
        verdict = f"{held} of {len(found['claims'])}"
        if lost:
            verdict += "; **lost**: " + "; ".join(lost)
        section = f"[{name}]({up}RESULTS.md#{name}-{found['scale']})"
        numbers = f"[JSON]({up}results/{name}.json)"
        lines.append(f"| {section} | {found['scale']} | {verdict} | {numbers} |")
    return "\n".join(lines)
