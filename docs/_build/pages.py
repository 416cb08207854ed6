"""Parts of pages that are made when the site is built: tables of reproduced results."""

import json
import re
from pathlib import Path

_RESULTS = Path(__file__).parents[1] / "results"
_MARK = re.compile(r"^<!-- results: (.+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, page, **kwargs) -> str:
    """Put a table in place of each line `<!-- results: fald-mnist fald-partial -->`."""
    up = "../" * page.file.src_uri.count("/")
    return _MARK.sub(lambda mark: _table(mark[1].split(), up), markdown)


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
        lines.append(f"| {section} | {found['scale']} | {verdict} | [JSON]({up}results/{name}.json) |")
    return "\n".join(lines)
