"""Many reproductions as one document: the claims, our results, and the claims that are lost."""

import json
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from covey.report.tables import cell_text
from covey.runs.progress import duration
from reproductions.result import Claim, Result, Row

_COLUMNS = 100  # of text in the repository
_EARLIER = "earlier"  # than results were stored with their commit
_HEAD = """# Published results beside ours

Numbers in the column "paper" are published ones. All others come from `covey reproduce ID --scale
SCALE`, most of them with earlier versions of the code; `fedpop-small-images` was run in parts,
which were put together afterwards. A claim that does not hold says **lost**. No test row chose a
setting, but for one experiment, as the docstring of its module says: in `fedpop-synthetic` (and its
grid) FedRep and FedAvg take the learning rate that is best by the truth, which favours them.

The docstring of each experiment's module names the parts that a scale leaves out, and the reasons
why our numbers may differ. At the quick scale claims about the order of methods mean little. Times
are of two cores, many of them with other work beside. Commit: of this repository, by which the
result was made; "earlier" where it was not stored, "unknown" from an unpacked archive.
"""


class Stored(NamedTuple):
    """A stored result, and the versions of the packages that computed it."""

    result: Result
    environment: dict[str, str | int]


def collect(directory: Path) -> list[Stored]:
    """The results in a folder, in files of their own or as `result.json` in the folders of runs, by
    name.
    """
    paths = sorted(directory.glob("*.json")) + sorted(directory.glob("*/result.json"))
    if not paths:
        raise ValueError(
            f"{directory} holds no results: run `covey reproduce ID --out {directory / 'ID'}` first"
        )
    return sorted((read(path) for path in paths), key=lambda one: (one.result.id, one.result.scale))


def read(path: Path) -> Stored:
    """One `result.json`."""
    try:
        table = json.loads(path.read_text())
        rows = [Row(**one) for one in table["rows"]]
        claims = [Claim(**one) for one in table["claims"]]
        changes = table.get("changes", {})
        seconds = float(table["seconds"])
        revision = table.get("revision", _EARLIER)
        result = Result(table["id"], table["scale"], seconds, rows, claims, changes, revision)
        return Stored(result, dict(table["environment"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no result of `covey reproduce`: {error}") from error


def markdown(stored: Sequence[Stored]) -> str:
    """A summary with one row per experiment, then the numbers of each."""
    lines = [
        _HEAD,
        "| experiment | scale | time | commit | claims that hold |",
        "|---|---|---|---|---|",
    ]
    for result, _ in stored:
        held = sum(claim.holds for claim in result.claims)
        verdict = f"{held} of {len(result.claims)}" + (
            "" if result.holds else f", **{len(result.claims) - held} lost**"
        )
        lines.append(
            f"| [{result.id}](#{_anchor(result)}) | {result.size} | {duration(result.seconds)} | "
            f"{result.revision or 'unknown'} | {verdict} |"
        )
    for one in stored:
        lines += _section(one)
    return "\n".join(lines) + "\n"


def _section(stored: Stored) -> list[str]:
    result, environment = stored
    lines = [
        "",
        f"## {result.id} {result.size}",
        "",
        "| claim | value | bound | |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {claim.claim} | {cell_text(claim.value)} | {cell_text(claim.bound)} | "
        f"{'holds' if claim.holds else '**lost**'} |"
        for claim in result.claims
    ]
    lines += ["", "| quantity | paper | ours | sd | seeds |", "|---|---|---|---|---|"]
    lines += [
        f"| {r.quantity} | {' | '.join(map(cell_text, (r.paper, r.ours, r.sd)))} | {r.seeds} |"
        for r in result.rows
    ]
    versions = ", ".join(f"{name} {version}" for name, version in environment.items())
    return [*lines, "", *textwrap.wrap(versions, _COLUMNS)]


def _anchor(result: Result) -> str:
    return re.sub(r"[^\w\- ]", "", f"{result.id} {result.size}").replace(" ", "-").lower()
