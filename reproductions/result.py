"""What the reproduction of a published result hands in, and how it is written down."""

import json
import math
import subprocess
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from covey.config.options import check, options_of, unknown
from covey.core import atomic_files
from covey.runs.environment import versions

if TYPE_CHECKING:
    import plotly.graph_objects as go

_CLONE = Path(__file__).parents[1]
Scale: TypeAlias = Literal["quick", "full"]
Size = TypeVar("Size", bound=Any)  # a NamedTuple with the settings of an experiment
Report: TypeAlias = Callable[[str], None]  # takes a line on how far the work is


class Changes(NamedTuple):
    """Settings that were asked for, and those that an experiment has taken and that differ from
    its own, once for each size that it made.
    """

    values: Mapping[str, Any]
    used: list[dict[str, Any]]


_changes: ContextVar[Changes] = ContextVar("changes", default=Changes({}, []))  # noqa: B039


class Row(NamedTuple):
    """One number of the paper beside ours: mean and standard deviation over the seeds. None where
    there is no number.
    """

    quantity: str
    paper: float | None
    ours: float
    sd: float | None
    seeds: int


def row(quantity: str, values: np.ndarray, paper: float | None = None) -> Row:
    """The line of a quantity that was found once a seed."""
    return Row(quantity, paper, float(values.mean()), spread(values), len(values))


def spread(values: np.ndarray) -> float | None:
    """The standard deviation over seeds; of a single one there is none."""
    return float(values.std(ddof=1)) if len(values) > 1 else None


class Claim(NamedTuple):
    """A statement of the paper in words, the value it is about, the bound it sets, and whether ours
    is within.
    """

    claim: str
    value: float
    bound: float
    holds: bool


class Result(NamedTuple):
    """A reproduction as it is written to `result.json`; `revision` is the commit that made it."""

    id: str
    scale: Scale
    seconds: float
    rows: list[Row]
    claims: list[Claim]
    changes: dict[str, Any] = {}  # noqa: RUF012  # never changed
    revision: str | None = None

    @property
    def size(self) -> str:
        """The scale, and the settings that are other than those of the scale."""
        changed = "".join(f", {name}={value!r}" for name, value in self.changes.items())
        return f"{self.scale}{changed}"

    @property
    def holds(self) -> bool:
        """Whether every claim does."""
        return all(claim.holds for claim in self.claims)


class Experiment(NamedTuple):
    """A reproducible result.

    run: "module:function" of `(scale, report) -> (rows, claims, figure)`; imported only when it is
        run.
    description: one line.
    expected_seconds: by scale, on two cores.
    """

    run: str
    description: str
    expected_seconds: dict[Scale, float]

    def load(self) -> Callable[[Scale, Report], tuple[list[Row], list[Claim], "go.Figure"]]:
        """The function that does the work."""
        module, _, function = self.run.partition(":")
        return getattr(import_module(module), function)


def with_changes(size: Size) -> Size:
    """The size of an experiment, with the values that `covey reproduce --set` asks for.

    Every experiment asks for its size here, once, before it starts.

    Raises:
        ValueError: The experiment has no such setting, or the value is of another type or out of
            range; there is a line for each.
    """
    asked = _changes.get()
    options, standard = options_of(type(size)), size._asdict()
    errors, values = [], {}
    for name, value in asked.values.items():
        if name not in options:
            errors.append(unknown(f"--set {name}", name, options, "setting"))
            continue
        given = list(value) if isinstance(value, tuple) else value
        found = check("--set", {name: options[name]}, {name: given})
        errors += [line.replace("--set.", "--set ", 1) for line in found.errors]
        if not found.errors and (wrong := _out_of_range(found.values[name], standard[name])):
            errors.append(f"--set {name}: {wrong}, got {value!r}")
        values |= found.values
    if errors:
        raise ValueError("\n".join(errors))
    asked.used.append({key: new for key, new in values.items() if new != standard[key]})
    return size._replace(**values)


def _out_of_range(value: Any, standard: Any) -> str | None:
    """What is wrong with a value beside a standard one that works; None where nothing is known."""
    if isinstance(value, tuple):
        if not value:
            return "at least one value is needed"
        like = standard[0] if isinstance(standard, tuple) and standard else None
        return next(filter(None, (_out_of_range(one, like) for one in value)), None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value):
        return "a finite number is needed"
    low = standard if isinstance(standard, int | float) else 1
    if isinstance(value, int) and value < 1 <= low:
        return "at least 1 is needed"
    return "it must not be negative" if value < 0 <= low else None


def perform(
    name: str,
    experiment: Experiment,
    *,
    scale: Scale,
    out: Path,
    report: Report,
    changes: Mapping[str, Any] | None = None,
) -> Result:
    """Run an experiment and write `result.json` and `figure.html`.

    Args:
        name: The experiment's id.
        experiment: What to run.
        scale: "quick" or "full".
        out: Where to write.
        report: Takes a line on how far the work is.
        changes: Settings other than those of the scale, by name.
    """
    start, made_at = perf_counter(), revision()
    asked = Changes(dict(changes or {}), [])
    token = _changes.set(asked)
    try:
        rows, claims, figure = experiment.load()(scale, report)
    finally:
        _changes.reset(token)
    if asked.values and not asked.used:
        raise ValueError(f"{name} has no settings that can be changed: leave --set out")
    changed = {key: value for used in asked.used for key, value in used.items()}
    seconds = round(perf_counter() - start, 3)
    result = Result(name, scale, seconds, rows, claims, changed, made_at)
    write(out, result, figure)
    return result


def revision(clone: Path = _CLONE) -> str | None:
    """The commit of a clone, as `git describe` names it, with "+ changes" where files differ from
    it; None without git, and in an unpacked archive, also one that lies in a clone of something
    else.
    """
    describe = ("describe", "--tags", "--always", "--dirty= + changes")
    try:
        top, name = (
            subprocess.run(["git", "-C", clone, *words], capture_output=True, text=True, check=True)
            for words in (("rev-parse", "--show-toplevel"), describe)
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return name.stdout.strip() if Path(top.stdout.strip()) == clone.resolve() else None


def write(out: Path, result: Result, figure: "go.Figure") -> None:
    """`result.json` and the figure, self-contained, each whole or absent."""
    table = {
        **result._asdict(),
        "rows": [row._asdict() for row in result.rows],
        "claims": [claim._asdict() for claim in result.claims],
        "environment": versions(),
    }
    text = json.dumps(table, indent=2, allow_nan=False)
    page = cast("str", figure.to_html(include_plotlyjs=True, full_html=True))
    out.mkdir(parents=True, exist_ok=True)
    atomic_files.write(out / "figure.html", page.encode())
    atomic_files.write(out / "result.json", text.encode())
